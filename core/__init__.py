"""dualmech: the best noise for private linear queries, stated exactly, solved fast, and proved.

This folder, `core/`, imports as `dualmech`: workloads, mechanisms, the problems and their judges. The solvers
are in `dualmech.reference` (CVXPY) and `dualmech.fast` (the library's own); `dualmech.crosscheck` puts both
before the judge.
"""

from dualmech import accounting, designs, files, naming, neighbours, strategies, workloads
from dualmech.answerability import Answerability, Equivalence
from dualmech.certificate import Certificate
from dualmech.domain import Domain
from dualmech.errors import (
    BackendError,
    CertificateError,
    DualmechError,
    FileFormatError,
    InfeasibleAnswerError,
    InputTypeError,
    InvalidInputError,
    UncertifiedWarning,
)
from dualmech.local import LocalMechanism
from dualmech.mechanism import LinearGaussianMechanism
from dualmech.ordering import compare_privacy
from dualmech.problems.common import CommonDual, CommonMechanism
from dualmech.problems.fitness import FitnessDual, FitnessForUse, PrivacyFirst
from dualmech.problems.local import LocalDual, LocalPoint, LocalStrategy
from dualmech.problems.loewner import Maximality
from dualmech.problems.refinement import RefinementStage
from dualmech.problems.softmax import SoftmaxDual, SoftmaxFitness
from dualmech.problems.variance import TotalVariance, VarianceDual
from dualmech.problems.weighting import QueryWeighting, WeightingDual
from dualmech.refinement import Refinement
from dualmech.residuals import Recreation, recreation, residual
from dualmech.solution import Progress, Solution, Status
from dualmech.storage import load_solution, save_solution
from dualmech.workload import Workload

__all__ = [
    "Answerability",
    "BackendError",
    "Certificate",
    "CertificateError",
    "CommonDual",
    "CommonMechanism",
    "Domain",
    "DualmechError",
    "FileFormatError",
    "Equivalence",
    "FitnessDual",
    "FitnessForUse",
    "InfeasibleAnswerError",
    "InputTypeError",
    "InvalidInputError",
    "LinearGaussianMechanism",
    "LocalDual",
    "LocalMechanism",
    "LocalPoint",
    "LocalStrategy",
    "Maximality",
    "PrivacyFirst",
    "Progress",
    "QueryWeighting",
    "SoftmaxDual",
    "SoftmaxFitness",
    "Recreation",
    "Refinement",
    "RefinementStage",
    "Solution",
    "Status",
    "TotalVariance",
    "UncertifiedWarning",
    "VarianceDual",
    "WeightingDual",
    "Workload",
    "accounting",
    "compare_privacy",
    "designs",
    "files",
    "load_solution",
    "naming",
    "neighbours",
    "recreation",
    "residual",
    "save_solution",
    "strategies",
    "workloads",
]
