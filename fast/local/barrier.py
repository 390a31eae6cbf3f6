"""The bound for many user types by Newton's method, where few multipliers suffice: a path inside of what they allow.

Every term of N is a product of two linear functions of ``[1; s]``, with a variable: a cost times ``v_u · b'v``, and a
multiplier, subtracted, times what no proper subset makes negative. `dualmech.fast.local.bound` says what N is and that

    g = ‖R K^(1/2)‖_*,   K = (T N⁻¹ T')⁻¹,

is to be large for costs of a given sum. g is concave in N. So is ``g + τ (log det N + Σ log x)``, which Newton's method
maximises for a falling τ; g is then within ``τ (n + 1 + m)`` of its largest value on the m multipliers in use. There,

    M = dg/dN + τ N⁻¹

plays the part of ``Σ_S w_S [1; s][1; s]'``: a product of two user types whose mean in M is negative is one that no
strategy has, and its multiplier enters.
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

FIRST, FALL, LAST = 0.1, 0.1, 1e-6
"""τ to begin with and to end with, times (n + 1 + m) relative to g, and the share to which it falls at a time.

Where τ falls further, N is so near to a singular matrix that rounding takes back what is gained."""

NEAR = 0.3  # square of the last Newton step's length, in units of τ, at which τ falls
STEPS = 60  # Newton steps for one τ, at most
RISE, SHORTEST = 1e-4, 1e-10  # share of the promised rise at which a step counts, and the shortest step
RIDGE = 1e-13  # addition to the unit diagonal of the Newton matrix

MOST = 1000  # variables up to which a Newton step takes less than a second
WORK, RATE = 2e10, 1e8
"""Operations of a Newton step, at most, and for each second that is left: a path takes some fifty steps."""

SPREADS = np.geomspace(1e-6, 1e6, 25)  # multipliers of the squares that are tried to begin with, over n²
SEED = 1e-6  # all other multipliers to begin with, relative to these
AROUND = 2  # sizes on either side of the best one whose multipliers are in use from the beginning


@dataclass(frozen=True, slots=True, eq=False)
class Products:
    """The terms of N: variables times ``± sym(l l̄')``, costs first, then the squares' multipliers, then the others."""

    left: Array  # left, right: (v, n + 1) l and l̄
    right: Array
    signs: Array  # (v,) 1 for costs, -1 for multipliers
    names: tuple[tuple[str, int, int], ...]  # the others: the field of a `Relaxation` and the place in it

    @classmethod
    def of(cls, share: Array, lift: Array, sizes: npt.NDArray[np.intp]) -> Products:
        size = len(share)
        users = np.eye(size + 1)[1:]
        whole = Products(
            np.vstack([lift, users]),
            np.vstack([np.tile(lift.T @ share, (size, 1)), users - np.eye(size + 1)[0]]),
            np.append(np.ones(size), -np.ones(size)),
            (),
        )
        return whole.with_others([("sizes", int(j), 0) for j in sizes])

    def with_others(self, names: list[tuple[str, int, int]]) -> Products:
        size = self.left.shape[1] - 1
        one, users = np.eye(size + 1)[0], np.eye(size + 1)[1:]
        members = np.append(0.0, np.ones(size))
        pairs = {
            "sizes": lambda j, _: (members - j * one, members - (j + 1) * one),
            "both": lambda u, v: (users[u], users[v]),
            "one": lambda u, v: (users[u], one - users[v]),
            "neither": lambda u, v: (one - users[u], one - users[v]),
        }
        further = [pairs[name](first, second) for name, first, second in names]
        return Products(
            np.vstack([self.left, *(left for left, _ in further)]),
            np.vstack([self.right, *(right for _, right in further)]),
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
        """Return multipliers (v - n,) as the judge takes them."""
        size = self.left.shape[1] - 1
        relaxation = Relaxation.of(size, multipliers[:size])
        for (name, first, second), value in zip(self.names, multipliers[size:], strict=True):
            place = first - 1 if name == "sizes" else (first, second)
            getattr(relaxation, name)[place] = value
        return relaxation


@dataclass(frozen=True, slots=True, eq=False)
class _Point:
    """Values of the variables with their N: its Cholesky factor, and g."""

    values: Array
    factor: Array
    norm: float
    barrier: float  # ``log det N + Σ log x``

    @classmethod
    def at(cls, root: Array, lift: Array, products: Products, values: Array) -> _Point | None:
        """Return the point; None where N is not positive definite, or a multiplier not positive."""
        others = values[2 * len(lift) :]
        if others.size and not others.min() > 0:
            return None
        try:
            factor = scipy.linalg.cholesky(products.sum(values), lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            return None
        # K is the inverse of t't, t the triangle of ``L⁻¹ T'``.
        half = scipy.linalg.solve_triangular(factor, lift.T, lower=True, check_finite=False)
        triangle = scipy.linalg.qr(half, mode="r", check_finite=False)[0][: len(lift)]
        if not np.abs(np.diagonal(triangle)).min() > 0:
            return None
        turned = scipy.linalg.solve_triangular(triangle, root.T, trans="T", check_finite=False)
        norm = float(np.linalg.svd(turned, compute_uv=False).sum())
        barrier = 2 * float(np.log(np.diagonal(factor)).sum()) + float(np.log(others).sum())
        return cls(values, factor, norm, barrier) if np.isfinite(norm + barrier) else None

    def value(self, tau: float) -> float:
        return self.norm + tau * self.barrier


def follow(root: Array, share: Array, epsilon: float, deadline: Deadline = NO_DEADLINE) -> Array | None:
    """Return costs and all multipliers of a `Relaxation`, flat, the best to a small tolerance.

    None where more than a few are needed, or the deadline passes. R need not have full rank.
    """
    size = len(share)
    lift = np.hstack([np.ones((size, 1)), local.gain(epsilon) * np.eye(size)])
    _, spectrum, right = np.linalg.svd(root, full_matrices=False)
    seen = spectrum > size * EPS * spectrum[0]
    root = spectrum[seen, None] * right[seen]
    # Sizes j around the one that subset selection has: ``(|s| - j)(|s| - j - 1) ≥ 0``.
    best = local.selected_size(size, epsilon)
    sizes = np.arange(max(best - AROUND, 1), min(best + AROUND, size - 1))
    products = Products.of(share, lift, sizes)
    work = WORK if deadline.left is None else min(WORK, RATE * deadline.left)
    if not _is_light(root, products, work):
        return None
    point = _first(root, share, lift, products, deadline)
    tau = FIRST * point.norm / (size + 1) if point is not None else 0.0
    while point is not None and not deadline.passed and _is_light(root, products, work):
        point, moments = _centred(root, lift, products, point, tau, deadline)
        further = _absent(products, moments)
        if further:
            products = products.with_others(further)
            point = _begun(root, lift, products, point, tau)
        elif tau * (size + 1 + len(products.names)) > LAST * point.norm:
            tau *= FALL
        else:
            relaxation = products.relaxation(point.values[size:])
            parts = (np.ravel(getattr(relaxation, field.name)) for field in fields(relaxation))
            return np.concatenate([point.values[:size], *parts])
    return None


def _is_light(root: Array, products: Products, most: float) -> bool:
    """Whether the variables are few, and a Newton step takes about so many operations at most."""
    count = len(products.signs)
    return count <= MOST and count**2 * len(root) ** 2 / 2 + count**3 / 3 <= most


def _first(root: Array, share: Array, lift: Array, products: Products, deadline: Deadline) -> _Point | None:
    """Return the best of a multiple of all squares, with little of the others."""
    size = len(share)
    others = np.full(len(products.names), SEED)
    best: _Point | None = None
    for spread in SPREADS * size**2:
        if deadline.passed:
            break
        values = np.concatenate([share, -np.full(size, spread), spread * others])
        point = _Point.at(root, lift, products, values)
        if point is not None and (best is None or point.norm > best.norm):
            best = point
    return best


def _begun(root: Array, lift: Array, products: Products, point: _Point, tau: float) -> _Point | None:
    """Return the point with new multipliers, as large as leaves N positive definite by far."""
    count = len(products.signs) - len(point.values)
    inverse = scipy.linalg.cho_solve((point.factor, True), np.eye(len(point.factor)), check_finite=False)
    scale = np.abs(products.means(inverse)[-count:]).max() * count
    for share in (0.1, 1e-3, 1e-5):
        begun = _Point.at(root, lift, products, np.append(point.values, np.full(count, share / scale)))
        if begun is not None and begun.value(tau) > -np.inf:
            return begun
    return None


def _absent(products: Products, moments: Array) -> list[tuple[str, int, int]]:
    """Return the multipliers that are not in use, of products whose mean is negative."""
    _, both, one, neither, sizes, _ = multiplier_derivatives(moments)
    pairs = {"both": np.triu(both, 1), "one": one - np.diag(np.diagonal(one)), "neither": np.triu(neither, 1)}
    known = set(products.names)
    absent = [("sizes", int(j) + 1, 0) for j in np.flatnonzero(sizes < 0)]
    absent += [(name, int(u), int(v)) for name, mean in pairs.items() for u, v in np.argwhere(mean < 0)]
    return [product for product in absent if product not in known]


def multiplier_derivatives(moments: Array) -> list[Array]:
    """Return the derivatives of ``tr A(x) X`` in the multipliers of a `Relaxation`, in its order."""
    corner, edge, inside = moments[0, 0], moments[0, 1:], moments[1:, 1:]
    size = len(edge)
    counts, rows = np.arange(1, size - 1), inside.sum(axis=1)
    low, high = rows - edge, (size - 1) * edge - rows
    either = edge[:, None] + edge
    return [
        np.diagonal(inside) - edge,
        inside,
        edge[:, None] - inside,
        corner - either + inside,
        rows.sum() - (2 * counts + 1) * edge.sum() + counts * (counts + 1) * corner,
        np.stack([low, high, edge.sum() - corner - low, (size - 1) * corner - edge.sum() - high]),
    ]


def _centred(
    root: Array, lift: Array, products: Products, point: _Point, tau: float, deadline: Deadline
) -> tuple[_Point, Array]:
    """Take Newton steps until one is short for τ; return the point and M before the last."""
    for _ in range(STEPS):
        step, length, moments = _newton_step(root, lift, products, point, tau)
        share, moved = 1.0, None
        while moved is None and share > SHORTEST:
            moved = _Point.at(root, lift, products, point.values + share * step)
            if moved is not None and moved.value(tau) < point.value(tau) + RISE * share * length:
                moved = None
            share /= 2
        if moved is None:
            break
        point = moved
        if length <= NEAR * tau or deadline.passed:
            break
    return point, moments


def _newton_step(root: Array, lift: Array, products: Products, point: _Point, tau: float) -> tuple[Array, float, Array]:
    """Return the step with costs of the same sum, its squared length, and M.

    With E the change of N, ``Q = N⁻¹T'K`` and h the unit vector of the kernel of T in the norm of N, the second
    derivative of g is ``-2 (E h)' X (E h)``, from K, less the Daleckii-Krein form of the square root.
    """
    size, factor = len(lift), point.factor
    inverse = scipy.linalg.cho_solve((factor, True), np.eye(size + 1), check_finite=False)
    inverse = (inverse + inverse.T) / 2
    inner = np.linalg.inv(lift @ inverse @ lift.T)
    pulled = inverse @ lift.T @ ((inner + inner.T) / 2)
    values, vectors = np.linalg.eigh(root @ (inner + inner.T) @ root.T / 2)
    sizes = np.sqrt(np.maximum(values, EPS**2 * values[-1]))
    seen = vectors.T @ root @ pulled.T
    slopes = (seen.T / (2 * sizes)) @ seen
    kernel = np.append(1.0, -1 / np.diagonal(lift[:, 1:]))
    kernel /= np.sqrt(kernel @ products.sum(point.values) @ kernel)
    left, right, signs = products.left, products.right, products.signs
    along = signs[:, None] * ((right @ kernel)[:, None] * left + (left @ kernel)[:, None] * right) / 2
    curvature = 2 * along @ slopes @ along.T
    # A pair of eigenvectors counts twice, and one with itself once.
    first, second = np.triu_indices(len(sizes))
    units = np.sqrt(np.where(first < second, 4.0, 8.0) * sizes[first] * sizes[second] * (sizes[first] + sizes[second]))
    ahead, behind = left @ seen.T, right @ seen.T
    crossed = ahead[:, first] * behind[:, second]
    crossed += ahead[:, second] * behind[:, first]
    crossed *= signs[:, None] / units
    curvature += crossed @ crossed.T
    mixed = left @ inverse @ right.T
    forms = (left @ inverse @ left.T) * (right @ inverse @ right.T) + mixed * mixed.T
    curvature += tau / 2 * signs[:, None] * signs * forms
    moments = slopes + tau * inverse
    gradient = products.means(moments)
    others = np.arange(2 * size, len(signs))
    gradient[others] += tau / point.values[others]
    curvature[others, others] += (tau / point.values[others]) / point.values[others]
    return *_on_the_sum(curvature, gradient, size), moments


def _on_the_sum(curvature: Array, gradient: Array, size: int) -> tuple[Array, float]:
    """Return the Newton step that leaves the sum of the first variables as it is, and its squared length."""
    scale = 1 / np.sqrt(np.diagonal(curvature))
    scaled = curvature * scale * scale[:, None]
    scaled[np.diag_indices(len(scaled))] += RIDGE
    ones = np.append(np.ones(size), np.zeros(len(gradient) - size))
    both = np.column_stack([gradient, ones]) * scale[:, None]
    factor = scipy.linalg.cho_factor(scaled, overwrite_a=True, check_finite=False)
    newton, sum_direction = (scale[:, None] * scipy.linalg.cho_solve(factor, both, check_finite=False)).T
    step = newton - sum_direction * (ones @ newton) / (ones @ sum_direction)
    return step, float(step @ curvature @ step)
