"""Local privacy: the strategy matrix of least variance, judged against a convex dual over extremal patterns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.certificate import Certificate, with_reasons
from dualmech.errors import InvalidInputError
from dualmech.geometry import local
from dualmech.geometry.local import Relaxation, as_epsilon, as_prior
from dualmech.geometry.weights import shares
from dualmech.immutable import freeze, set_parts
from dualmech.linalg import EPS
from dualmech.problems.base import Problem
from dualmech.validate import Array
from dualmech.workloads.base import Workload, check_asks, check_workload

if TYPE_CHECKING:
    from dualmech.mechanisms.local import LocalMechanism

CRITERIA = ("average", "worst")


@dataclass(frozen=True, slots=True, eq=False)
class LocalPoint:
    """A strategy with the prior that its reconstruction is the best for; the primal point of the worst case.

    Attributes
    ----------
    strategy : (m, n) array
        Q, the probability of each output for each user type.
    prior : (n,) array
        π ≥ 0 of sum 1: the reconstruction minimises the expected variance of a user drawn from it.
    """

    strategy: Array
    prior: Array


@dataclass(frozen=True, slots=True, eq=False)
class LocalDual:
    """What proves a lower bound on the variance of every ε-LDP strategy.

    Attributes
    ----------
    matrix : (n, k) array
        Z, any at all; k rows has the problem's `root`.
    costs : (n,) array
        y, any at all; the judge raises it until ``‖Z'p_S‖² ≤ (y'p_S)(n π'p_S)`` for every pattern S.
    prior : (n,) array, optional
        π, a probability over user types; for the worst case alone, where the adversary chooses it.
    relaxation : Relaxation, optional
        Multipliers that bound the constraints over all patterns where there are too many to list.
    """

    matrix: Array
    costs: Array
    prior: Array | None = None
    relaxation: Relaxation | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LocalStrategy(Problem[LocalDual, "LocalMechanism"]):
    """The ε-LDP strategy matrix of least variance on a workload, with any number of outputs.

    A user of type u reports output o with probability ``Q_ou``; the answers to W are ``V`` times the histogram of
    reports, ``V Q = W``. One user's variance, over all queries, is ``T_u = Σ_o Q_ou ‖V_o‖² - ‖W_u‖²``. Minimise over Q,
    and the best V for it,

    - ``average``: ``Σ_u (T_u + ‖W_u‖²) = tr(W G⁺ W')`` with ``G = Q' diag(Q 1)⁻¹ Q``, the paper's objective L; with a
      prior π, ``n Σ_u π_u (T_u + ‖W_u‖²)``, which is L where π is uniform;
    - ``worst``: ``max_u T_u``, the variance of the unluckiest user;

    subject to ``Q ≥ 0``, ``Σ_o Q_ou = 1`` and ``Q_ou ≤ e^ε Q_ou'`` for all o, u, u'.

    Both are convex in the weights of a strategy on the patterns ``p_S = (1 + c 1_S) / (n + c |S|)``, ``c = e^ε - 1``: a
    row that is no multiple of one splits into several, which never hurts. With a root ``R'R = W'W`` the dual is to
    maximise ``(tr R Z)² / 1'y`` over Z (n, k) and y subject to ``‖Z'p_S‖² ≤ (y'p_S)(n π'p_S)`` for every proper subset
    S; for the worst case, over π too, and less ``Σ_u π_u ‖W_u‖²`` after division by n.
    Raises `InvalidInputError` or `InputTypeError` for an ε that is not in [1e-6, 100], fewer than two user types,
    an all-zero workload, an unknown criterion, a prior that is negative, does not sum to 1, or is given for the
    worst case.

    Parameters
    ----------
    workload : Workload
        W, p queries over n ≥ 2 user types.
    epsilon : float
        ε, from 1e-6 to 100.
    criterion : {"average", "worst"}
        Which variance.
    prior : (n,) array, optional
        π of the average case; uniform by default.

    Notes
    -----
    The gap of the worst case is relative to the bound on the second moment, ``max_u T_u + Σ_u π_u ‖W_u‖²``, since the
    variance itself may be 0; W is taken less the mean of each query, which changes no variance. In the average case L
    counts ``‖W_u‖²`` in, as the paper's does: where the total dominates a query, little of L is variance.

    McKenna, Maity, Mazumdar and Miklau, "A workload-adaptive mechanism for linear queries under local differential
    privacy", PVLDB 13(11), 2020, pose the average case as a non-convex problem. The patterns go back to Kairouz,
    Oh and Viswanath, "Extremal mechanisms for local differential privacy", JMLR 17, 2016.

    Examples
    --------
    >>> import numpy as np
    >>> import dualmech as dm
    >>> problem = dm.LocalStrategy(dm.workloads.identity(2), epsilon=np.log(3))
    >>> response = np.array([[0.75, 0.25], [0.25, 0.75]])
    >>> judged = problem.certify(response, problem.dual_at(response))
    >>> round(judged.objective, 6), round(judged.lower_bound, 6)
    (5.0, 5.0)
    """

    workload: Workload
    epsilon: float
    criterion: str
    prior: Array
    root: Array = field(repr=False)
    root_off: float = field(repr=False)

    dual_type: ClassVar[Callable[..., LocalDual]] = LocalDual
    arguments: ClassVar[tuple[str, ...]] = ("workload", "epsilon", "criterion", "prior")
    optional_arguments: ClassVar[tuple[str, ...]] = ("prior",)

    def __init__(
        self, workload: Workload, epsilon: float, criterion: str = "average", prior: npt.ArrayLike | None = None
    ) -> None:
        size = check_workload(workload).shape[1]
        if size < 2:
            raise InvalidInputError("workload must have at least two cells, one per user type, got 1")
        check_asks(workload)
        validate.choice(CRITERIA, criterion=criterion)
        if prior is not None and criterion == "worst":
            raise InvalidInputError("prior belongs to the average case; the worst case has none")
        set_parts(
            self, workload=workload, epsilon=as_epsilon(epsilon), criterion=criterion, prior=as_prior(prior, size)
        )
        root, off = local.root_of(workload, less_means=criterion == "worst")
        set_parts(self, root=freeze(root), root_off=off)

    def argument_values(self) -> dict[str, object]:
        """Return the arguments that make the same problem again; the worst case takes no prior."""
        stated = Problem.argument_values(self)
        return stated | {"prior": None} if self.criterion == "worst" else stated

    @property
    def objective_name(self) -> str:
        # The average is taken of second moments, variance and squared answer together, and n times.
        average = self.criterion == "average"
        return "sum of the user types' second moments" if average else "variance of the worst user type"

    def in_numbers(self) -> dict[str, object]:
        """Return the problem's data in numbers alone, for proof files: n times the prior, none in the worst case."""
        even = np.all(self.prior == 1 / self.user_types)
        prior = np.ones(self.user_types) if even else self.user_types * self.prior
        arguments = {"workload": self.workload.dense(), "epsilon": self.epsilon}
        return {"kind": "local"} | arguments | {"prior": prior if self.criterion == "average" else None}

    @property
    def user_types(self) -> int:
        """Number of user types, n."""
        return self.workload.shape[1]

    @with_reasons
    def certify(self, primal: LocalPoint | npt.ArrayLike, dual: LocalDual) -> Certificate:
        """Judge a strategy and dual weights; neither needs to come from a solver.

        The violation is the largest excess over a constraint: of a ratio over e^ε and of a column's sum over 1, as
        shares of what privacy lets a ratio exceed 1 by, or of the bias of the best reconstruction, relative.
        """
        point = self._point(primal)
        prior = self.prior if self.criterion == "average" else self._dual_prior(dual)
        moment, bound_rounding = self._moment_bound(dual, prior)
        shift = float(prior @ self._lengths)
        evaluated = local.evaluate(self.root, point.strategy, point.prior, self.epsilon, self.root_off)
        objective, violation, rounding = np.inf, np.inf, 0.0
        if evaluated is not None:
            violation = evaluated.violation
            rounding = evaluated.mending + evaluated.sums
            objective = self.user_types * float(self.prior @ evaluated.moments)
            if self.criterion == "worst":
                objective = float(evaluated.variances.max())
                rounding = self._worst_rounding(evaluated, objective + min(shift, self._lengths.mean()))
        if self.criterion == "average":
            # No moment is negative, so that ``n Σ_u π_u M_u`` is at least ``n min π`` times their sum, which is L.
            bound = max(moment, self.user_types * float(self.prior.min()) * self._trace_bound)
            return Certificate.of(objective, bound, violation, rounding + bound_rounding)
        return self._worst_certificate(objective, moment, violation, rounding + bound_rounding, shift)

    def dual_at(self, primal: LocalPoint | npt.ArrayLike) -> LocalDual:
        """Return the dual weights that a strategy suggests, ``Z = G⁻¹ R'`` and y by least squares on its rows.

        At an optimum they prove it; elsewhere they prove what they can.
        """
        point = self._usable(primal)
        share = self.user_types * point.prior
        rows, sizes = local.normalise_rows(point.strategy)
        weight = rows @ share
        gram = (rows.T * (sizes / weight)) @ rows
        matrix = np.asarray(np.linalg.lstsq(gram, self.root.T, rcond=None)[0], dtype=np.float64)
        values = np.einsum("ok,ok->o", rows @ matrix, rows @ matrix) / weight
        weighted = rows * np.sqrt(sizes)[:, None]
        costs = np.asarray(np.linalg.lstsq(weighted, values * np.sqrt(sizes), rcond=None)[0], dtype=np.float64)
        return LocalDual(matrix, costs, point.prior if self.criterion == "worst" else None)

    def feasible(self, primal: LocalPoint | npt.ArrayLike) -> LocalPoint:
        """Return a strategy close by that meets its constraints: small entries raised, an output added if needed."""
        point = self._usable(primal)
        return LocalPoint(local.repair(point.strategy, self.epsilon), point.prior)

    def as_primal(self, answer: Any) -> Any:
        """Return a given strategy Q, or a mechanism's strategy, which is judged with its best reconstruction."""
        strategy = answer if isinstance(answer, LocalPoint) else getattr(answer, "strategy", answer)
        self._point(strategy)
        return strategy

    def mechanism(self, primal: LocalPoint | npt.ArrayLike) -> LocalMechanism:
        """Return the mechanism of a strategy, with the best reconstruction for the point's prior."""
        # Imported here so that the judge rests on no module that it does not need.
        from dualmech.mechanisms.local import LocalMechanism

        point = self._point(primal)
        return LocalMechanism(point.strategy, self.epsilon, self.workload, prior=point.prior)

    def prices(self, dual: LocalDual) -> Array:
        """Return each user type's share of the bound (n,), y over its sum."""
        return shares(np.maximum(self._weights(dual)[1], 0.0))

    def binding(self, primal: LocalPoint | npt.ArrayLike, slack: float) -> npt.NDArray[np.intp]:
        """Return the user types whose variance is within `slack` of the largest, relative to its second moment."""
        within, point = validate.nonnegative_number(slack=slack), self._point(primal)
        evaluated = local.evaluate(self.root, point.strategy, point.prior, self.epsilon)
        if evaluated is None:
            return np.zeros(0, dtype=np.intp)
        variances = evaluated.variances
        return np.flatnonzero(variances >= variances.max() - within * evaluated.moments.max())

    @property
    def _lengths(self) -> Array:
        """``‖W_u‖²`` of each user type."""
        return np.einsum("ku,ku->u", self.root, self.root)

    @property
    def _trace_bound(self) -> float:
        """The closed-form bound on L, the sum of the user types' second moments."""
        return local.trace_bound(self.root, self.epsilon, self.root_off)

    def _worst_rounding(self, evaluated: local.Evaluation, unit: float) -> float:
        """Return what rounding and mending may add to a variance, in units of what the gap is relative to.

        Both are relative to a user's second moment and length, which for one of small prior may be far larger.
        """
        rounding = evaluated.mending + evaluated.sums
        scale = float((evaluated.moments + self._lengths).max()) / unit if unit > 0 else np.inf
        return rounding * max(scale, 1.0) + evaluated.violation * max(scale - 1, 0.0)

    def _worst_certificate(
        self, objective: float, moment: float, violation: float, rounding: float, shift: float
    ) -> Certificate:
        size, lengths = self.user_types, float(self._lengths.sum())
        bound = moment / size - shift
        average = (self._trace_bound - lengths) / size
        if average > bound:
            bound, shift = average, lengths / size
        bound = max(bound, 0.0)  # no variance is negative
        if bound + shift > 0:  # lengths ``‖W_u‖²`` are off by ``2 off ‖R_u‖ + off²``
            rounding += self.root_off * (2 * np.sqrt(shift) + self.root_off) / (bound + shift)
        return Certificate.of(objective, bound, violation, rounding, shift)

    def _moment_bound(self, dual: LocalDual, prior: Array) -> tuple[float, float]:
        """Return a bound on ``n Σ_u π_u (T_u + ‖W_u‖²)`` and its rounding, relative.

        Proof: for any strategy with weights w on patterns, ``Σ_S w_S p_S = 1``, reconstruction U_S = w_S V_S and
        ``Σ_S U_S p_S' = R``: ``tr R Z = Σ_S U_S'Z'p_S ≤ Σ_S ‖U_S‖ √((y'p_S)(n π'p_S))``, whose square is at most
        ``Σ_S (y'p_S) w_S · Σ_S ‖U_S‖² (n π'p_S) / w_S``, ``1'y`` times the bounded sum.
        """
        size, share = self.user_types, self.user_types * prior
        matrix, costs = self._weights(dual)
        if not (np.all(np.isfinite(matrix)) and np.all(np.isfinite(costs))):
            return 0.0, 0.0
        matrix, costs, relaxation = local.in_units(matrix, costs, dual.relaxation)
        with np.errstate(over="ignore", invalid="ignore"):  # numbers that are not finite prove nothing
            excess = local.excess(matrix, costs, share, self.epsilon, relaxation)
            total = float(costs.sum()) + size * excess
        value = float(np.einsum("ku,uk->", self.root, matrix))
        if not (value > 0 and total > 0 and np.isfinite(total)):
            return 0.0, 0.0
        magnitude = float(np.einsum("ku,uk->", np.abs(self.root), np.abs(matrix)))
        hidden = 4 * self.root.size * EPS * magnitude + 2 * self.root_off * float(np.linalg.norm(matrix))
        rounding = hidden / value + 4 * size * EPS * float(np.abs(costs).sum()) / total
        return value**2 / total, rounding

    def _weights(self, dual: LocalDual) -> tuple[Array, Array]:
        """Return the matrix and the costs of dual weights, their entries unseen; other shapes are refused."""
        validate.instance(LocalDual, dual=dual)
        if dual.relaxation is not None:
            validate.instance(Relaxation, **{"dual relaxation": dual.relaxation})
        matrix = validate.numeric(2, **{"dual matrix": dual.matrix})
        costs = validate.numeric(1, **{"dual costs": dual.costs})
        if matrix.shape != self.root.T.shape or costs.shape != (self.user_types,):
            raise InvalidInputError(
                f"dual must hold a matrix of shape {self.root.T.shape} and {self.user_types} costs, "
                f"got {matrix.shape} and {costs.shape}"
            )
        return matrix, costs

    def _dual_prior(self, dual: LocalDual) -> Array:
        if not isinstance(dual, LocalDual) or dual.prior is None:
            return self.prior
        prior = np.maximum(validate.finite(1, **{"dual prior": dual.prior}), 0.0)
        if prior.shape != (self.user_types,) or not prior.any():
            raise InvalidInputError(f"dual prior must be a probability over {self.user_types} user types")
        return np.asarray(prior / prior.sum())

    def _point(self, primal: LocalPoint | npt.ArrayLike) -> LocalPoint:
        point = primal if isinstance(primal, LocalPoint) else LocalPoint(cast(Array, primal), self.prior)
        strategy = validate.numeric(2, strategy=point.strategy)
        if strategy.shape[1] != self.user_types:
            raise InvalidInputError(
                f"strategy must have {self.user_types} columns, one per user type, got {strategy.shape[1]}"
            )
        prior = self.prior if self.criterion == "average" else as_prior(point.prior, self.user_types)
        return LocalPoint(strategy, prior)

    def _usable(self, primal: LocalPoint | npt.ArrayLike) -> LocalPoint:
        point = self._point(primal)
        if not (np.all(np.isfinite(point.strategy)) and np.all(np.any(point.strategy > 0, axis=0))):
            raise InvalidInputError("strategy must be finite, with a positive entry for every user type")
        return point
