"""A bound for many user types by a barrier method, if few multipliers suffice.

N, defined in `dualmech.fast.local.bound`, is linear in the variables. Each term is a variable times a product of two
linear functions of ``[1; s]``: a cost times ``v_u · b'v``, or minus a multiplier times a product that is non-negative
for all proper subsets. The bound is proportional to the square of

    g = ‖R K^(1/2)‖_*,   K = (T N⁻¹ T')⁻¹,

for costs of a given sum. g is concave in N. So is ``g + τ (log det N + Σ log x)``, which Newton's method maximises for
decreasing τ. g is then within ``τ (n + 1 + m)`` of its maximum over the m multipliers in use. There,

    M = dg/dN + τ N⁻¹

has the role of ``Σ_S w_S [1; s][1; s]'``. A product with a negative mean in M violates a constraint, and its multiplier
enters.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech.geometry import local
from dualmech.geometry.local import Relaxation
from dualmech.linalg import EPS
from dualmech.progress import NO_DEADLINE, Deadline
from dualmech.validate import Array

INITIAL_TAU, TAU_FACTOR, FINAL_TAU = 0.1, 0.1, 1e-6
"""The initial and the final ``τ (n + 1 + m) / g``, and the factor on τ after each centring.

For smaller τ, N is nearly singular, and rounding errors exceed the gain."""

MAX_DECREMENT = 0.3  # squared Newton decrement, in units of τ, for which τ is decreased
MAX_STEPS = 60  # for one τ
MIN_RELATIVE_INCREASE, MIN_STEP = 1e-4, 1e-10  # line search: fraction of the predicted increase, step length
RIDGE = 1e-13  # added to the unit diagonal of the Newton matrix

MAX_VARIABLES = 1000  # a Newton step then takes less than a second
MAX_OPERATIONS, OPERATION_RATE = 2e10, 1e8
"""Limits on the operations of a Newton step: in total, and per remaining second (a path takes about 50 steps)."""

SQUARE_MULTIPLIERS = np.geomspace(1e-6, 1e6, 25)  # initial multipliers of the squares to try, over n²
OTHER_MULTIPLIERS = 1e-6  # initial multipliers of all other products, relative to these
SIZES_AROUND = 2  # the initial size constraints extend this far from the best size


@dataclass(frozen=True, slots=True, eq=False)
class Products:
    """The terms of N: variables times ``± sym(l l̄')``. Costs come first, then multipliers of squares, then others."""

    left: Array  # left, right: (v, n + 1) l and l̄
    right: Array
    signs: Array  # (v,) 1 for costs, -1 for multipliers
    names: tuple[tuple[str, int, int], ...]  # of the others: a field of `Relaxation` and the index in it

    @classmethod
    def of(cls, share: Array, lift: Array, sizes: npt.NDArray[np.intp]) -> Products:
        size = len(share)
        users = np.eye(size + 1)[1:]
        products = Products(
            np.vstack([lift, users]),
            np.vstack([np.tile(lift.T @ share, (size, 1)), users - np.eye(size + 1)[0]]),
            np.append(np.ones(size), -np.ones(size)),
            (),
        )
        return products.with_others([("sizes", int(j), 0) for j in sizes])

    def with_others(self, names: list[tuple[str, int, int]]) -> Products:
        size = self.left.shape[1] - 1
        unit, users = np.eye(size + 1)[0], np.eye(size + 1)[1:]
        members = np.append(0.0, np.ones(size))
        pairs = {
            "sizes": lambda j, _: (members - j * unit, members - (j + 1) * unit),
            "both": lambda u, v: (users[u], users[v]),
            "one": lambda u, v: (users[u], unit - users[v]),
            "neither": lambda u, v: (unit - users[u], unit - users[v]),
        }
        vectors = [pairs[name](first, second) for name, first, second in names]
        return Products(
            np.vstack([self.left, *(left for left, _ in vectors)]),
            np.vstack([self.right, *(right for _, right in vectors)]),
            np.append(self.signs, -np.ones(len(names))),
            (*self.names, *names),
        )

    def sum(self, values: Array) -> Array:
        total = (self.left * (self.signs * values)[:, None]).T @ self.right
        return np.asarray((total + total.T) / 2)

    def means(self, moments: Array) -> Array:
        """Return the derivatives of ``tr N M`` in the variables."""
        return self.signs * np.einsum("va,va->v", self.left @ moments, self.right)

    def relaxation(self, multipliers: Array) -> Relaxation:
        """Return the multipliers, shape (v - n,), as a `Relaxation`."""
        size = self.left.shape[1] - 1
        relaxation = Relaxation.of(size, multipliers[:size])
        for (name, first, second), value in zip(self.names, multipliers[size:], strict=True):
            place = first - 1 if name == "sizes" else (first, second)
            getattr(relaxation, name)[place] = value
        return relaxation


@dataclass(frozen=True, slots=True, eq=False)
class _Point:
    """Values of the variables, the Cholesky factor of N, and g."""

    values: Array
    factor: Array
    norm: float
    barrier: float  # ``log det N + Σ log x``

    @classmethod
    def at(cls, root: Array, lift: Array, products: Products, values: Array) -> _Point | None:
        """Return the point, or None unless N is positive definite and all multipliers are positive."""
        multipliers = values[2 * len(lift) :]
        if multipliers.size and not multipliers.min() > 0:
            return None
        try:
            factor = scipy.linalg.cholesky(products.sum(values), lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            return None
        # K is the inverse of t't, t the triangle of ``L⁻¹ T'``.
        scaled_lift = scipy.linalg.solve_triangular(factor, lift.T, lower=True, check_finite=False)
        triangle = scipy.linalg.qr(scaled_lift, mode="r", check_finite=False)[0][: len(lift)]
        if not np.abs(np.diagonal(triangle)).min() > 0:
            return None
        scaled_root = scipy.linalg.solve_triangular(triangle, root.T, trans="T", check_finite=False)
        norm = float(np.linalg.svd(scaled_root, compute_uv=False).sum())
        barrier = 2 * float(np.log(np.diagonal(factor)).sum()) + float(np.log(multipliers).sum())
        return cls(values, factor, norm, barrier) if np.isfinite(norm + barrier) else None

    def value(self, tau: float) -> float:
        return self.norm + tau * self.barrier


def follow(root: Array, share: Array, epsilon: float, deadline: Deadline = NO_DEADLINE) -> Array | None:
    """Return the optimal costs and multipliers of a `Relaxation` as one vector, up to a small tolerance.

    The result is None if many multipliers are needed, or after the deadline. R need not have full rank.
    """
    size = len(share)
    lift = np.hstack([np.ones((size, 1)), local.gain(epsilon) * np.eye(size)])
    _, spectrum, right = np.linalg.svd(root, full_matrices=False)
    resolved = spectrum > size * EPS * spectrum[0]
    root = spectrum[resolved, None] * right[resolved]
    # Size constraints ``(|s| - j)(|s| - j - 1) ≥ 0`` for j near the set size of subset selection.
    best_size = local.selected_size(size, epsilon)
    sizes = np.arange(max(best_size - SIZES_AROUND, 1), min(best_size + SIZES_AROUND, size - 1))
    products = Products.of(share, lift, sizes)
    max_work = MAX_OPERATIONS if deadline.left is None else min(MAX_OPERATIONS, OPERATION_RATE * deadline.left)
    if not _is_light(root, products, max_work):
        return None
    point = _start_point(root, share, lift, products, deadline)
    tau = INITIAL_TAU * point.norm / (size + 1) if point is not None else 0.0
    while point is not None and not deadline.passed and _is_light(root, products, max_work):
        point, moments = _newton(root, lift, products, point, tau, deadline)
        violated = _violated_products(products, moments)
        if violated:
            products = products.with_others(violated)
            point = _with_new_multipliers(root, lift, products, point, tau)
        elif tau * (size + 1 + len(products.names)) > FINAL_TAU * point.norm:
            tau *= TAU_FACTOR
        else:
            relaxation = products.relaxation(point.values[size:])
            parts = (np.ravel(getattr(relaxation, field.name)) for field in fields(relaxation))
            return np.concatenate([point.values[:size], *parts])
    return None


def _is_light(root: Array, products: Products, max_work: float) -> bool:
    count = len(products.signs)
    return count <= MAX_VARIABLES and count**2 * len(root) ** 2 / 2 + count**3 / 3 <= max_work


def _start_point(root: Array, share: Array, lift: Array, products: Products, deadline: Deadline) -> _Point | None:
    """Return the best point with equal multipliers of all squares and small ones of the other products."""
    size = len(share)
    small_multipliers = np.full(len(products.names), OTHER_MULTIPLIERS)
    best: _Point | None = None
    for multiplier in SQUARE_MULTIPLIERS * size**2:
        if deadline.passed:
            break
        values = np.concatenate([share, -np.full(size, multiplier), multiplier * small_multipliers])
        point = _Point.at(root, lift, products, values)
        if point is not None and (best is None or point.norm > best.norm):
            best = point
    return best


def _with_new_multipliers(root: Array, lift: Array, products: Products, point: _Point, tau: float) -> _Point | None:
    """Return the point with new multipliers, which keep N well inside the cone."""
    count = len(products.signs) - len(point.values)
    inverse = scipy.linalg.cho_solve((point.factor, True), np.eye(len(point.factor)), check_finite=False)
    scale = np.abs(products.means(inverse)[-count:]).max() * count
    for share in (0.1, 1e-3, 1e-5):
        candidate = _Point.at(root, lift, products, np.append(point.values, np.full(count, share / scale)))
        if candidate is not None and candidate.value(tau) > -np.inf:
            return candidate
    return None


def _violated_products(products: Products, moments: Array) -> list[tuple[str, int, int]]:
    """Return the products with a negative mean whose multipliers are not in use."""
    _, pair_means, one_means, neither_means, sizes, _ = multiplier_derivatives(moments)
    pairs = {
        "both": np.triu(pair_means, 1),
        "one": one_means - np.diag(np.diagonal(one_means)),
        "neither": np.triu(neither_means, 1),
    }
    in_use = set(products.names)
    violated = [("sizes", int(j) + 1, 0) for j in np.flatnonzero(sizes < 0)]
    violated += [(name, int(u), int(v)) for name, mean in pairs.items() for u, v in np.argwhere(mean < 0)]
    return [product for product in violated if product not in in_use]


def multiplier_derivatives(moments: Array) -> list[Array]:
    """Return the derivatives of ``tr A(x) X`` in the multipliers of a `Relaxation`, in its order."""
    corner, edge, inner = moments[0, 0], moments[0, 1:], moments[1:, 1:]
    size = len(edge)
    counts, rows = np.arange(1, size - 1), inner.sum(axis=1)
    without, with_others = rows - edge, (size - 1) * edge - rows
    either = edge[:, None] + edge
    return [
        np.diagonal(inner) - edge,
        inner,
        edge[:, None] - inner,
        corner - either + inner,
        rows.sum() - (2 * counts + 1) * edge.sum() + counts * (counts + 1) * corner,
        np.stack([without, with_others, edge.sum() - corner - without, (size - 1) * corner - edge.sum() - with_others]),
    ]


def _newton(
    root: Array, lift: Array, products: Products, point: _Point, tau: float, deadline: Deadline
) -> tuple[_Point, Array]:
    """Take Newton steps until the decrement is small for τ; return the point, and M before the last step."""
    for _ in range(MAX_STEPS):
        direction, decrement, moments = _newton_step(root, lift, products, point, tau)
        step_length, candidate = 1.0, None
        while candidate is None and step_length > MIN_STEP:
            candidate = _Point.at(root, lift, products, point.values + step_length * direction)
            if (
                candidate is not None
                and candidate.value(tau) < point.value(tau) + MIN_RELATIVE_INCREASE * step_length * decrement
            ):
                candidate = None
            step_length /= 2
        if candidate is None:
            break
        point = candidate
        if decrement <= MAX_DECREMENT * tau or deadline.passed:
            break
    return point, moments


def _newton_step(root: Array, lift: Array, products: Products, point: _Point, tau: float) -> tuple[Array, float, Array]:
    """Return the Newton direction with ``1'y`` fixed, the squared Newton decrement, and M.

    Let E be the change of N, ``Q = N⁻¹T'K``, X the derivative of g in N, and h the vector of the kernel of T with
    ``h'N h = 1``. The second derivative of g is ``-2 (E h)' X (E h)``, from K, minus the Daleckii-Krein form of the
    square root.
    """
    size, factor = len(lift), point.factor
    inverse = scipy.linalg.cho_solve((factor, True), np.eye(size + 1), check_finite=False)
    inverse = (inverse + inverse.T) / 2
    inner = np.linalg.inv(lift @ inverse @ lift.T)
    half = inverse @ lift.T @ ((inner + inner.T) / 2)
    values, vectors = np.linalg.eigh(root @ (inner + inner.T) @ root.T / 2)
    sizes = np.sqrt(np.maximum(values, EPS**2 * values[-1]))
    coordinates = vectors.T @ root @ half.T
    slopes = (coordinates.T / (2 * sizes)) @ coordinates
    kernel = np.append(1.0, -1 / np.diagonal(lift[:, 1:]))
    kernel /= np.sqrt(kernel @ products.sum(point.values) @ kernel)
    left, right, signs = products.left, products.right, products.signs
    kernel_products = signs[:, None] * ((right @ kernel)[:, None] * left + (left @ kernel)[:, None] * right) / 2
    curvature = 2 * kernel_products @ slopes @ kernel_products.T
    # Each pair of different eigenvectors counts twice.
    row, column = np.triu_indices(len(sizes))
    units = np.sqrt(np.where(row < column, 4.0, 8.0) * sizes[row] * sizes[column] * (sizes[row] + sizes[column]))
    left_coordinates, right_coordinates = left @ coordinates.T, right @ coordinates.T
    pair_products = left_coordinates[:, row] * right_coordinates[:, column]
    pair_products += left_coordinates[:, column] * right_coordinates[:, row]
    pair_products *= signs[:, None] / units
    curvature += pair_products @ pair_products.T
    mixed_forms = left @ inverse @ right.T
    forms = (left @ inverse @ left.T) * (right @ inverse @ right.T) + mixed_forms * mixed_forms.T
    curvature += tau / 2 * signs[:, None] * signs * forms
    moments = slopes + tau * inverse
    gradient = products.means(moments)
    inequality = np.arange(2 * size, len(signs))
    gradient[inequality] += tau / point.values[inequality]
    curvature[inequality, inequality] += (tau / point.values[inequality]) / point.values[inequality]
    return *_fixed_sum_step(curvature, gradient, size), moments


def _fixed_sum_step(curvature: Array, gradient: Array, size: int) -> tuple[Array, float]:
    """Return the Newton direction with the sum of the first `size` variables fixed, and its squared decrement."""
    scale = 1 / np.sqrt(np.diagonal(curvature))
    scaled = curvature * scale * scale[:, None]
    scaled[np.diag_indices(len(scaled))] += RIDGE
    ones = np.append(np.ones(size), np.zeros(len(gradient) - size))
    right_sides = np.column_stack([gradient, ones]) * scale[:, None]
    factor = scipy.linalg.cho_factor(scaled, overwrite_a=True, check_finite=False)
    newton, sum_direction = (scale[:, None] * scipy.linalg.cho_solve(factor, right_sides, check_finite=False)).T
    step = newton - sum_direction * (ones @ newton) / (ones @ sum_direction)
    return step, float(step @ curvature @ step)
