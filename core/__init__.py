"""dualmech: the best noise for private linear queries, stated exactly, solved fast, and proved.

This folder, `core/`, imports as `dualmech`: workloads, mechanisms, the problems and their judges. The solvers
are in `dualmech.reference` (CVXPY) and `dualmech.fast` (the library's own); `dualmech.crosscheck` puts both
before the judge.
"""

from dualmech import (
    accounting,
    census,
    decisions,
    designs,
    files,
    naming,
    neighbours,
    records,
    sampling,
    strategies,
    uncertainty,
    workloads,
)
from dualmech.adaptive import AdaptiveRelease, ReleasedAnswer
from dualmech.answerability import Answerability, Equivalence
from dualmech.branching import ChainOutcome, ChosenAnswers, Guarantee
from dualmech.certificate import Certificate
from dualmech.chain import Chain, ChainStage
from dualmech.circular import CircularWorkload
from dualmech.domain import Domain
from dualmech.errors import (
    BackendError,
    CertificateError,
    DualmechError,
    FileFormatError,
    InfeasibleAnswerError,
    InputTypeError,
    InvalidInputError,
    ReleaseOrderError,
    SamplingWarning,
    UncertifiedWarning,
)
from dualmech.local import LocalMechanism
from dualmech.marginal_mechanism import MarginalMechanism
from dualmech.marginal_order import MarginalAnswerability
from dualmech.marginals import MarginalWorkload
from dualmech.mechanism import LinearGaussianMechanism
from dualmech.ordering import compare_privacy
from dualmech.problems.common import CommonDual, CommonMechanism
from dualmech.problems.estimate import EstimateDual, NonnegativeEstimate
from dualmech.problems.fitness import FitnessDual, FitnessForUse, PrivacyFirst
from dualmech.problems.local import LocalDual, LocalPoint, LocalStrategy
from dualmech.problems.loewner import Maximality
from dualmech.problems.marginals import MarginalDual, MarginalFitness, MarginalVariance
from dualmech.problems.products import ProductDual, ProductFitness, ProductVariance
from dualmech.problems.projection import LocalProjection, ProjectionDual
from dualmech.problems.refinement import RefinementStage
from dualmech.problems.reuse import ReuseDual, ReuseFitness
from dualmech.problems.softmax import SoftmaxDual, SoftmaxFitness
from dualmech.problems.tables import TableDual, TableFitness, TablePoint
from dualmech.problems.tied import UnionPoint
from dualmech.problems.unions import UnionDual, UnionFitness, UnionVariance
from dualmech.problems.variance import TotalVariance, VarianceDual
from dualmech.problems.weighting import QueryWeighting, WeightingDual
from dualmech.product_mechanism import ProductMechanism
from dualmech.products import ProductWorkload
from dualmech.query_tables import TableWorkload
from dualmech.refinement import Refinement
from dualmech.residuals import Recreation, recreation, residual
from dualmech.solution import Progress, Solution, Status
from dualmech.storage import load_solution, save_solution
from dualmech.symmetry import Orbits
from dualmech.table_mechanism import TableMechanism
from dualmech.union_mechanism import UnionMechanism
from dualmech.unions import UnionWorkload
from dualmech.workload import Workload

__all__ = [
    "AdaptiveRelease",
    "Answerability",
    "BackendError",
    "Certificate",
    "CertificateError",
    "Chain",
    "ChainOutcome",
    "ChainStage",
    "ChosenAnswers",
    "CircularWorkload",
    "CommonDual",
    "CommonMechanism",
    "Domain",
    "DualmechError",
    "Equivalence",
    "EstimateDual",
    "FileFormatError",
    "FitnessDual",
    "FitnessForUse",
    "Guarantee",
    "InfeasibleAnswerError",
    "InputTypeError",
    "InvalidInputError",
    "LinearGaussianMechanism",
    "LocalDual",
    "LocalMechanism",
    "LocalPoint",
    "LocalProjection",
    "LocalStrategy",
    "MarginalAnswerability",
    "MarginalDual",
    "MarginalFitness",
    "MarginalMechanism",
    "MarginalVariance",
    "MarginalWorkload",
    "Maximality",
    "NonnegativeEstimate",
    "Orbits",
    "PrivacyFirst",
    "ProductDual",
    "ProductFitness",
    "ProductMechanism",
    "ProductVariance",
    "ProductWorkload",
    "Progress",
    "ProjectionDual",
    "QueryWeighting",
    "Recreation",
    "Refinement",
    "RefinementStage",
    "ReuseDual",
    "ReuseFitness",
    "ReleaseOrderError",
    "ReleasedAnswer",
    "SamplingWarning",
    "SoftmaxDual",
    "SoftmaxFitness",
    "Solution",
    "Status",
    "TableDual",
    "TableFitness",
    "TableMechanism",
    "TablePoint",
    "TableWorkload",
    "TotalVariance",
    "UncertifiedWarning",
    "UnionDual",
    "UnionFitness",
    "UnionMechanism",
    "UnionPoint",
    "UnionVariance",
    "UnionWorkload",
    "VarianceDual",
    "WeightingDual",
    "Workload",
    "accounting",
    "census",
    "compare_privacy",
    "decisions",
    "designs",
    "files",
    "load_solution",
    "naming",
    "neighbours",
    "records",
    "recreation",
    "residual",
    "sampling",
    "save_solution",
    "strategies",
    "uncertainty",
    "workloads",
]
