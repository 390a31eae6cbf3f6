"""The judge for outsiders: says how far an answer of anybody's making is from the optimum."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dualmech import fast, validate
from dualmech.certificate import Certificate
from dualmech.errors import InvalidInputError, UncertifiedWarning
from dualmech.geometry import block_forms
from dualmech.geometry.attribute_symmetry import Frame
from dualmech.geometry.block_forms import BlockPoint
from dualmech.linalg import settled, to_dense
from dualmech.mechanisms.block import UnionMechanism
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.local import LocalMechanism
from dualmech.mechanisms.marginal import MarginalMechanism
from dualmech.problems.common import CommonMechanism
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.local.strategy import LocalStrategy
from dualmech.problems.loewner import Maximality
from dualmech.problems.marginals import MarginalFitness, MarginalVariance
from dualmech.problems.reuse import ReuseFitness
from dualmech.problems.softmax import SoftmaxFitness
from dualmech.problems.unions import UnionFitness, UnionVariance
from dualmech.problems.variance import TotalVariance
from dualmech.problems.weighting import QueryWeighting
from dualmech.validate import Array
from dualmech.workloads.base import Workload

OfCovariance: TypeAlias = FitnessForUse | PrivacyFirst | TotalVariance | SoftmaxFitness | ReuseFitness
"""Problems whose answer is a covariance."""

BOUND_TOLERANCE = 1e-9
"""Gap to which the judge's own bound is solved."""

TIGHT = 1e-6
"""A target, or a neighbour, counts as tight within this, relative; an outsider's answer need not be exact."""


@dataclass(frozen=True, slots=True)
class Verdict(Certificate):
    """A certificate for an outsider's answer, and where it is loose.

    Attributes
    ----------
    loose : index array
        Queries, or tables, whose variance is more than 1e-6 below their target, relative; none where there are no
        targets.
    binding : index array
        Neighbours whose cost is within 1e-6 of the largest, relative; of unions, orbits of cells.
    scaled : Certificate
        The same answer, scaled so that it just meets its constraints (a common mechanism: raised by as little as
        makes it one): how good its shape is.
    maximality : Maximality or None
        Of a common mechanism, whether it is maximal, whatever its trace; None where it is no common mechanism.
    """

    loose: npt.NDArray[np.intp]
    binding: npt.NDArray[np.intp]
    scaled: Certificate
    maximality: Maximality | None = None


def judge(
    problem: OfCovariance
    | QueryWeighting
    | CommonMechanism
    | MarginalFitness
    | MarginalVariance
    | UnionFitness
    | UnionVariance
    | LocalStrategy,
    primal: npt.ArrayLike
    | LinearGaussianMechanism
    | MarginalMechanism
    | UnionPoint
    | UnionMechanism
    | LocalMechanism,
    tol: float = BOUND_TOLERANCE,
) -> Verdict:
    """Judge anybody's answer to a problem, with a bound that the judge finds for itself.

    Parameters
    ----------
    problem : FitnessForUse, PrivacyFirst, TotalVariance, SoftmaxFitness, QueryWeighting or another
        What the answer is meant to solve; also `CommonMechanism`, `MarginalFitness`, `MarginalVariance`,
        `UnionFitness`, `UnionVariance` or `LocalStrategy`.
    primal : (k, k) or (k,) array, UnionPoint, or a mechanism
        Σ, the covariance of noise on the problem's basis, or any mechanism that answers it; for `QueryWeighting` the
        weights u. For `CommonMechanism` a mechanism must answer what all have in common. For marginals the noise
        levels τ, or a `MarginalMechanism` that measures what the tables need; for unions noise on the blocks, or
        a `UnionMechanism` with the same blocks; for local privacy the strategy Q, with whose best reconstruction it is
        judged.
    tol : float
        Gap to which the bound is solved; the verdict's gap is honest whatever was reached.

    Raises
    ------
    InvalidInputError, InputTypeError
        Not a symmetric positive semidefinite matrix of finite numbers and of the right size; weights that are
        negative, NaN or of another number than the design queries; a mechanism that answers more, or less, than all
        have in common.

    Examples
    --------
    >>> import numpy as np
    >>> import dualmech as dm
    >>> from dualmech import crosscheck
    >>> problem = dm.FitnessForUse(dm.workloads.prefix(2), targets=1.0)
    >>> verdict = crosscheck.judge(problem, np.eye(2) / 2)
    >>> verdict.feasible, round(verdict.objective, 6), round(verdict.gap, 6)
    (True, 2.0, 0.5)
    >>> verdict.loose, verdict.binding
    (array([0]), array([0, 1]))
    >>> weighting = dm.QueryWeighting(dm.workloads.prefix(2), [[1, 0], [1, 1]])
    >>> round(crosscheck.judge(weighting, [0.25, 0.75]).gap, 6)
    0.333333
    """
    posed: Any = problem
    given, none = _stated(posed, primal), np.zeros(0, dtype=np.intp)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncertifiedWarning)
        dual = fast.solve(posed, tol=tol).dual
    with np.errstate(all="ignore"):
        verdict = posed.certify(given, dual)
        scaled = posed.certify(posed.feasible(given), dual)
    common = problem if isinstance(problem, CommonMechanism) and verdict.feasible else None
    return Verdict(
        verdict.objective,
        verdict.lower_bound,
        verdict.gap,
        verdict.violation,
        verdict.resolution,
        loose=posed.loose(given, TIGHT) if hasattr(posed, "loose") else none,
        binding=posed.binding(given, TIGHT) if np.isfinite(verdict.objective) else none,
        scaled=scaled,
        maximality=None if common is None else common.maximality(given),
    )


def _stated(problem: Any, primal: Any) -> Any:
    """Return an outsider's answer in the problem's own terms."""
    if isinstance(problem, MarginalFitness | MarginalVariance):
        return _levels(problem, primal)
    if isinstance(problem, UnionFitness | UnionVariance):
        return _point(problem, primal)
    if isinstance(problem, CommonMechanism):
        return _common(problem, primal)
    if isinstance(problem, QueryWeighting):
        return _weights(problem, primal)
    if isinstance(problem, LocalStrategy):
        return np.asarray(primal.strategy) if isinstance(primal, LocalMechanism) else primal
    if isinstance(primal, LinearGaussianMechanism):
        primal = primal.covariance(Workload(problem.basis))
    return _covariance(problem, primal)


def _common(problem: CommonMechanism, primal: Any) -> Array:
    given = problem.restated(primal) if isinstance(primal, LinearGaussianMechanism) else primal
    if given is None:
        raise InvalidInputError(
            f"the rival must answer all {len(problem.basis)} queries that the mechanisms have in common"
        )
    return validate.symmetric(covariance=given) if np.size(given) else np.zeros((0, 0))


def _levels(problem: MarginalFitness | MarginalVariance, primal: Any) -> Array:
    axes = problem.workload.lattice.axes
    if not isinstance(primal, MarginalMechanism):
        return validate.positive(1, noise=primal)
    if primal.domain != problem.workload.domain:
        raise InvalidInputError("mechanism must be on the domain of the problem's workload")
    missing = [each for each in axes if each not in primal.noise]
    if missing:
        shown = " x ".join(primal.domain.names[axis] for axis in missing[0]) or "the total"
        raise InvalidInputError(
            f"mechanism must measure all that the tables need, it does not measure {shown}"
        )
    further = len(primal.noise) - len(axes)
    if further:
        raise InvalidInputError(
            f"mechanism measures {further} sets that no table needs, at a cost; leave them out"
        )
    return np.array([primal.noise[each] for each in axes])


def _point(problem: UnionFitness | UnionVariance, primal: Any) -> UnionPoint:
    """Return noise on the problem's blocks; a mechanism's own may stand in another order, or on other bases."""
    if not isinstance(primal, UnionMechanism):
        return block_forms.checked_point(problem.blocks, primal)
    blocks, pieces = problem.blocks, primal.pieces
    if primal.workload.domain != problem.workload.domain or not _alike(blocks.frames, primal.blocks.frames):
        raise InvalidInputError("mechanism must be on the problem's domain, with the same symmetry")
    if {*blocks.keys, *(block.key for block in blocks.several)} != {*pieces}:
        raise InvalidInputError(
            "mechanism must have noise on the blocks that the problem's tables need, and no other"
        )
    found = [
        block.restated(pieces[block.key].covariance, pieces[block.key].moves) for block in blocks.several
    ]
    return UnionPoint(np.array([pieces[key].covariance[0, 0] for key in blocks.keys]), tuple(found))


def _alike(frames: Sequence[Frame], others: Sequence[Frame]) -> bool:
    """Whether attributes have the same classes of values, so that blocks and coordinates mean the same."""
    return all(
        one.turning == two.turning and np.array_equal(one.labels, two.labels)
        for one, two in zip(frames, others, strict=True)
    )


def covariance_of_strategy(problem: OfCovariance, strategy: npt.ArrayLike) -> Array:
    """Return the covariance on B x of a matrix-mechanism strategy A: unit noise on A x, least squares.

    Raises
    ------
    InvalidInputError
        A strategy with another number of cells, or that cannot answer the workload.
    """
    queries = to_dense(validate.matrix(strategy=strategy))
    cells = problem.workload.shape[1]
    if queries.shape[1] != cells:
        raise InvalidInputError(f"strategy must have {cells} columns, one a cell, got {queries.shape[1]}")
    solution = np.linalg.pinv(queries)
    answered = problem.basis @ solution
    missed = np.linalg.norm(problem.basis - answered @ queries, axis=1)
    if np.any(missed > 1e-8 * np.linalg.norm(problem.basis, axis=1)):
        raise InvalidInputError("strategy cannot answer the workload: its rows do not span the workload's")
    return np.asarray(answered @ answered.T)


def _covariance(problem: OfCovariance, primal: npt.ArrayLike) -> Array:
    given, size = validate.symmetric(covariance=primal), problem.geometry.rank
    if given.shape != (size, size):
        raise InvalidInputError(
            f"covariance must have shape ({size}, {size}), as the basis, got {given.shape}"
        )
    if settled(given) is None:
        smallest = float(np.linalg.eigvalsh(given)[0])
        if smallest < -validate.SYMMETRY_TOLERANCE * np.abs(given).max():
            raise InvalidInputError(
                f"covariance must be positive semidefinite, its least eigenvalue is {smallest:.3g}"
            )
    return given


def _weights(problem: QueryWeighting, primal: npt.ArrayLike) -> Array:
    given, count = validate.numeric(1, weights=primal), len(problem.design)
    if len(given) != count:
        raise InvalidInputError(f"weights must have {count} entries, one a design query, got {len(given)}")
    wrong = np.flatnonzero(~(given >= 0))
    if wrong.size:
        raise InvalidInputError(
            f"weights must not be negative, got {given[wrong[0]]:g} at weights[{wrong[0]}]"
        )
    return given


__all__ = ["Verdict", "covariance_of_strategy", "judge"]
