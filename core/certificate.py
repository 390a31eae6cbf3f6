"""The judge's verdict on an answer: the objective, a proven bound, and the gap between them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np

from dualmech import validate
from dualmech.display import Displayed
from dualmech.errors import CertificateError, InputTypeError, InvalidInputError
from dualmech.validate import Array

Judge = TypeVar("Judge", bound=Callable[..., Any])

FEASIBLE = 1e-9
"""Maximum excess over a constraint, relative to its right-hand side, of a feasible point."""

SINGULAR_TOL = 1e-14  # times the size: least over largest eigenvalue of a covariance that counts as singular
NAMED_COORDINATES = 3  # the largest of a direction, in a message


@dataclass(frozen=True, slots=True)
class Certificate(Displayed):
    """The judge's verdict on a primal point and dual weights, recomputed from the problem's data alone.

    Attributes
    ----------
    objective : float
        Value of the primal point; ``inf`` if the point is not in the domain (NaN, indefinite).
    lower_bound : float
        Proven bound on the optimum from the dual weights; 0 if the weights prove no bound.
    gap : float
        ``(objective · (1 + violation) − lower_bound) / lower_bound``: an upper bound on the relative distance from the
        optimum. ``inf`` for an infeasible point or a bound of 0.
    violation : float
        Largest relative excess over a constraint; the point is feasible at 1e-9 or below.
    resolution : float
        Relative rounding-error bound of the two evaluations, computed from the sizes and magnitudes in them.
    offset : float
        A constant added to the objective and to the bound in gap, violation and resolution, for problems whose optimum
        may be 0. Both sides are evaluated as differences from the offset, and are only as accurate as those.
    remarks : tuple of str
        Reasons why the point is not in the domain, or why the dual weights prove nothing.

    Examples
    --------
    >>> from dualmech import Certificate
    >>> Certificate.of(objective=1.25, lower_bound=1.0, violation=0.0, resolution=1e-15).gap
    0.25
    """

    objective: float
    lower_bound: float
    gap: float
    violation: float
    resolution: float
    offset: float = 0.0
    remarks: tuple[str, ...] = field(default=(), kw_only=True, repr=False)

    @classmethod
    def of(
        cls, objective: float, lower_bound: float, violation: float, resolution: float, offset: float = 0.0
    ) -> Certificate:
        """Judge a minimisation whose optimum, with the offset, is positive; numbers that are not finite prove nothing.

        Raises `CertificateError` where a feasible point lies below the bound by more than the resolution: one of the
        two must be wrong.
        """
        objective, lower_bound = validate.real(objective=objective), validate.real(lower_bound=lower_bound)
        violation, resolution = validate.real(violation=violation), validate.real(resolution=resolution)
        objective = objective if math.isfinite(objective) and objective >= 0 else math.inf
        violation = violation if math.isfinite(violation) else math.inf
        lower_bound = lower_bound if math.isfinite(lower_bound) and lower_bound > 0 else 0.0
        offset = validate.nonnegative_number(offset=offset)
        resolution = resolution if math.isfinite(resolution) and resolution >= 0 else math.inf
        gap = math.inf
        if violation <= FEASIBLE and math.isfinite(objective) and lower_bound + offset > 0:
            gap = ((objective + offset) * (1 + violation) - (lower_bound + offset)) / (lower_bound + offset)
            if gap < -resolution:
                raise CertificateError(
                    f"a feasible point of value {objective!r} lies below the proven bound {lower_bound!r} "
                    f"by {-gap:.2e}, more than rounding ({resolution:.2e}) explains"
                )
            gap = max(gap, 0.0)
        numbers = objective, lower_bound, gap, violation, resolution, offset
        return Certificate(*map(float, numbers))

    @property
    def feasible(self) -> bool:
        """Whether every constraint holds to 1e-9."""
        return self.violation <= FEASIBLE and math.isfinite(self.objective)

    @property
    def interval(self) -> tuple[float, float]:
        """Proven interval of the optimum: both ends widened by the resolution, the upper end by the violation too."""
        if not self.resolution < math.inf:
            return 0.0, math.inf
        lower = self.lower_bound - self.resolution * (self.lower_bound + self.offset)
        charge = self.violation + self.resolution + self.violation * self.resolution
        upper = self.objective + charge * (self.objective + self.offset) if self.feasible else math.inf
        return max(float(lower), 0.0), float(upper)

    def _facts(self) -> dict[str, object]:
        lower, upper = self.interval
        facts: dict[str, object] = {
            "objective": self.objective,
            "lower bound": self.lower_bound,
            "gap": f"{self.gap:.2g}",
            "the optimum lies in": f"[{lower:.9g}, {upper:.9g}]",
            "largest violation": f"{self.violation:.2g}",
            "rounding may hide": f"{self.resolution:.2g}",
        }
        if self.remarks:
            facts["remarks"] = "; ".join(self.remarks)
        return facts

    def certifies(self, tol: float) -> bool:
        """Return whether the gap and the resolution are at most `tol`."""
        tol = validate.nonnegative_number(tol=tol)
        return self.gap <= tol and self.resolution <= tol


def with_reasons(certify: Judge) -> Judge:
    """Add reasons to a judge's certificates: why a point is not in the domain, or dual weights prove no bound."""

    @functools.wraps(certify)
    def certify_with_remarks(problem: object, primal: object, dual: object) -> Certificate:
        certificate = certify(problem, primal, dual)
        remarks = []
        if not certificate.objective < math.inf:
            remarks.append(_why_no_point(problem, primal))
        if not certificate.lower_bound + certificate.offset > 0 and certificate.objective > 0:
            remarks.append(_why_no_bound(dual))
        return replace(certificate, remarks=tuple(remarks)) if remarks else certificate

    return cast(Judge, certify_with_remarks)


def _why_no_point(problem: Any, primal: Any) -> str:
    if not _all_finite(primal):
        return "the answer has entries that are not finite"
    try:
        problem.as_primal(primal)
    except (InvalidInputError, InputTypeError) as error:
        return f"the answer is no point of the problem: {error}"
    directions = [text for part in _arrays(primal) if (text := _singular_direction(part))]
    return directions[0] if directions else "the answer leaves something unanswered that neighbours change"


def _singular_direction(matrix: Array) -> str:
    """Name the direction in which a symmetric matrix has no noise next to the others; empty if it is regular."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        return ""
    largest = float(np.abs(matrix).max())
    scaled = matrix / largest if largest > 0 else matrix
    values, vectors = np.linalg.eigh((scaled + scaled.T) / 2)
    scale = float(np.abs(values).max())
    if values[0] > len(matrix) * SINGULAR_TOL * scale:
        return ""
    direction = vectors[:, 0] * np.sign(vectors[np.argmax(np.abs(vectors[:, 0])), 0])
    rows = sorted(np.argsort(-np.abs(direction))[:NAMED_COORDINATES].tolist())
    entries = ", ".join(f"{direction[row]:.2g} on row {row}" for row in rows if abs(direction[row]) > 1e-3)
    ratio = values[0] / scale if scale > 0 else 0.0
    return (
        f"the answer is without noise in a direction that neighbours change ({entries}): the least eigenvalue of its "
        f"covariance is {ratio:.2g} times the largest"
    )


def _why_no_bound(dual: object) -> str:
    verdict = "the dual weights prove nothing"
    if not _all_finite(dual):
        return f"{verdict}: some are not finite"
    minimum = min((float(part.min()) for part in _arrays(dual) if part.size), default=0.0)
    if minimum < 0:
        return f"{verdict}: one is negative, {minimum:.3g}"
    return verdict if all(part.any() for part in _arrays(dual)) else f"{verdict}: all weights of one kind are 0"


def _all_finite(dual: object) -> bool:
    return all(np.all(np.isfinite(part)) for part in _arrays(dual))


def _arrays(dual: object) -> Iterator[Array]:
    """Yield the arrays in a point or in dual weights."""
    if is_dataclass(dual):
        dual = [getattr(dual, part.name) for part in fields(dual)]
    if isinstance(dual, np.ndarray | float | int):
        yield np.asarray(dual, dtype=np.float64)
    elif isinstance(dual, list | tuple):
        for part in dual:
            yield from _arrays(part)
