"""dualmech: the best noise for private linear queries, stated exactly, solved fast, and proved.

This folder, `core/`, imports as `dualmech`: workloads, mechanisms, the problems and their judges. The solvers
are in `dualmech.reference` (CVXPY) and `dualmech.fast` (the library's own); `dualmech.crosscheck` puts both
before the judge.
"""

from dualmech import accounting, files, neighbours, workloads
from dualmech.adaptive import decisions, sampling, uncertainty
from dualmech.adaptive.branching import ChainOutcome, ChosenAnswers, Guarantee
from dualmech.adaptive.chain import Chain, ChainStage
from dualmech.adaptive.release import AdaptiveRelease, ReleasedAnswer
from dualmech.certificate import Certificate
from dualmech.errors import (
    BackendError,
    CertificateError,
    DualmechError,
    FileFormatError,
    InfeasibleAnswerError,
    InputTypeError,
    InvalidInputError,
    LittleSymmetryError,
    ReleaseOrderError,
    SamplingWarning,
    UncertifiedWarning,
)
from dualmech.geometry.base import FitnessDual, VarianceDual
from dualmech.geometry.block_forms import BlockPoint
from dualmech.geometry.orbits import Orbits
from dualmech.geometry.product import ByFactor
from dualmech.geometry.split import SplitPoint, SplitWeights
from dualmech.mechanisms import records
from dualmech.mechanisms.answerability import Answerability, Equivalence
from dualmech.mechanisms.block import BlockMechanism
from dualmech.mechanisms.decomposition import Decomposition, decomposition, residual
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.local import LocalMechanism
from dualmech.mechanisms.product import ProductMechanism
from dualmech.mechanisms.split import SplitMechanism
from dualmech.problems import designs, strategies
from dualmech.problems.common import CommonDual, CommonMechanism
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.free import extra_for_free
from dualmech.problems.local.estimate import EstimateDual, NonnegativeEstimate
from dualmech.problems.local.projection import LocalProjection, ProjectionDual
from dualmech.problems.local.strategy import LocalDual, LocalPoint, LocalStrategy
from dualmech.problems.loewner import Maximality
from dualmech.problems.ordering import compare_privacy
from dualmech.problems.refinement import Refinement
from dualmech.problems.reuse import ReuseDual, ReuseFitness
from dualmech.problems.softmax import SoftmaxDual, SoftmaxFitness
from dualmech.problems.stages import RefinementStage
from dualmech.problems.variance import TotalVariance
from dualmech.problems.weighting import QueryWeighting, WeightingDual
from dualmech.solution import Progress, Solution, Status
from dualmech.storage.solutions import load_solution, save_solution
from dualmech.workloads import census
from dualmech.workloads.base import Workload
from dualmech.workloads.circular import CircularWorkload
from dualmech.workloads.domain import Domain
from dualmech.workloads.marginals import MarginalWorkload
from dualmech.workloads.products import ProductWorkload
from dualmech.workloads.query_tables import TableWorkload
from dualmech.workloads.unions import UnionWorkload

__all__ = [
    "BlockMechanism",
    "BlockPoint",
    "ByFactor",
    "SplitMechanism",
    "SplitPoint",
    "SplitWeights",
    "extra_for_free",
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
    "LittleSymmetryError",
    "LocalDual",
    "LocalMechanism",
    "LocalPoint",
    "LocalProjection",
    "LocalStrategy",
    "MarginalWorkload",
    "Maximality",
    "NonnegativeEstimate",
    "Orbits",
    "PrivacyFirst",
    "ProductMechanism",
    "ProductWorkload",
    "Progress",
    "ProjectionDual",
    "QueryWeighting",
    "Decomposition",
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
    "TableWorkload",
    "TotalVariance",
    "UncertifiedWarning",
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
    "neighbours",
    "records",
    "decomposition",
    "residual",
    "sampling",
    "save_solution",
    "strategies",
    "uncertainty",
    "workloads",
]


def __dir__() -> list[str]:
    """Show what is public."""
    return sorted(__all__)
