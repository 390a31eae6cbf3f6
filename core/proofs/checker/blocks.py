"""Tables whose attributes have classes of values: noise that treats the values of a class alike.

The values of each attribute are sorted into classes, in any way; c is a class of n_c values, n is of an attribute
with one class alone. Functions of a value that are constant on classes, and for each c those that live on it and add
up to 0, span all functions, and are orthogonal; P_c projects on the latter. So the functions of the cells split into
orthogonal *blocks*, one for each choice of a set T of attributes with a class of each: products over T of functions
in the ranges of these P_c, and of functions that are constant on classes over the others. The attributes outside T
that have several classes make up the *orbits* x, a class of each, of n_x combinations of values; let O be those that
have one.

Upper bound. In every block measure ``A y ⊗_{i in T} R_i ⊗_{i in O} 1'`` with noise of variance 1, all independent: y
are the means over the orbits, A is square, ``R_i'R_i = P_c``. A record with values of these classes in T costs ``|A
e_x|² / n_x² Π_T (1 - 1/n_c)``, any other nothing; what all blocks cost adds up. A query ``⊗ a_i`` (1' where it asks
nothing) has in the block the part ``s y ⊗_T t_i ⊗_O (s_i/n) 1'``: s are the sums of its entries over the orbits,
``t_i = a_i P_c``, whose squared length g_i is the sum of squares over c less the square of the sum over n_c, and s_i
is the sum of a_i. Since ``t_i = (t_i R_i') R_i`` and ``|t_i R_i'| = |t_i|``, the part has the variance ``|s A⁻¹|² Π_T
g_i Π_O (s_i/n)²``, and the query the sum of all. ``|s A⁻¹| ≤ |s Z| / (1 - |E|)`` for ``E = A Z - I``, as in
``noise``. With one orbit, A is ``1 / √level``.

Lower bound, which is that of ``noise`` for ``N = diag(p) W diag(q)``. The queries of a set with the same sums over
classes up to sign, and the same g, are a group of m. Let ``Σ a'a`` over a group depend on the classes of two values,
and on whether they are the same, alone, which is required. Then it is ``m s̄'s̄ + Σ_c m g_c P_c / (n_c - 1)``, s̄
being the mean on each class. Let p² be the same for all queries of a group of each attribute, and q² for all cells
with a class x of each attribute, where they add up to h_x². Then ``N'N`` keeps every block and acts alike on its
``Π_T (n_c - 1)`` copies, as ``M'M`` does for the rows ``√φ s_x h_x / n_x``, φ being the sum of p² times ``Π_T g_i /
(n_c (n_c - 1)) Π_O (s_i/n)²``. So ``‖N‖_*`` is the sum of all ``‖M‖_*``, each as often as there are copies, by the
square of which φ is multiplied. A column has its length for a trace norm; else ``‖M‖_* ≥ ⟨M, Q⟩ / |Q|``, where ``Q =
diag(√φ) F`` needs no root but that of a bound on ``|Q|²``, such as the largest absolute row sum of ``F' diag(φ) F +
G'G``, with any G.
"""

from __future__ import annotations

from fractions import Fraction
from math import lcm, prod

from .classes import Classes, Part
from .domain import Asked, Key, by_key, level
from .exact import Matrix, departed, expect, power, root_above, root_below
from .given import Given

Rows = dict[Part, Fraction]  # s, and φ


def upper(asked: Asked, given: Given) -> Fraction:
    """Return what noise in blocks achieves: the largest cost, times the largest variance or their sum."""
    classes = Classes(asked, given)
    blocks = {
        key: _Noise(classes, key, each)
        for key, each in by_key(given, [len(sizes) for sizes in classes.sizes]).items()
    }
    costs = dict.fromkeys(classes.orbits(), Fraction(0))
    for key, noise in blocks.items():
        for orbit, cost in zip(classes.orbits(key), noise.costs, strict=True):
            costs[orbit] += cost
    found = []
    for table in asked.tables:
        own = []
        for case in classes.cases(table):
            variance = Fraction(0)
            for key, seen, square in classes.parts(table, case):
                expect(key in blocks, f"a query has a part on {dict(key)}, where there is no noise")
                variance += square * blocks[key].variance(seen)
            own.append((variance, prod(len(group.members) for group in case)))
        found.append(own)
    return max(costs.values()) * asked.summed(found)


class _Noise:
    """Noise in one block: what it costs records of every orbit, and what variance it gives s."""

    def __init__(self, classes: Classes, key: Key, given: Given) -> None:
        cells = classes.cells(key)
        self.known: dict[Part, Fraction] = {}
        self.inverse: Matrix | None = None
        if len(cells) == 1:
            self.level = level(given)
            lengths = [1 / self.level]
        else:
            shape = (len(cells), len(cells))
            strategy, self.inverse = (given.matrix(name, shape) for name in ("strategy", "inverse"))
            self.level = 1 / (1 - departed(strategy, self.inverse)) ** 2
            squares = strategy.transposed().squares()
            lengths = [square / count**2 for square, count in zip(squares, cells, strict=True)]
        shared = prod((1 - Fraction(1, classes.sizes[axis][own]) for axis, own in key), start=Fraction(1))
        self.costs = [shared * each for each in lengths]

    def variance(self, seen: Part) -> Fraction:
        """Return the variance of s."""
        if seen not in self.known:
            row = Matrix([[*seen[0]]], seen[1])
            found = row if self.inverse is None else row.times(self.inverse)
            self.known[seen] = self.level * found.squares()[0]
        return self.known[seen]


def lower(asked: Asked, given: Given) -> Fraction:
    """Return what weights of groups of queries and of orbits of cells prove."""
    classes = Classes(asked, given)
    classes.require_symmetry()
    weights = shared_weights(classes, given)
    roots = dict(zip(classes.orbits(), given.vector("roots", len(classes.orbits())), strict=True))
    expect(any(roots.values()), "roots must not all be 0")
    stated = by_key(given, [len(own) for own in classes.sizes])
    total = Fraction(0)
    for key, rows in by_block(classes, weights).items():
        scales = [
            roots[orbit] / cells for orbit, cells in zip(classes.orbits(key), classes.cells(key), strict=True)
        ]
        if len(scales) == 1:
            lengths = (share * power(row[0], exponent) ** 2 for (row, exponent), share in rows.items())
            total += root_below(scales[0] ** 2 * sum(lengths))
        elif key in stated:
            total += trace_norm(rows, scales, stated[key])
    shares = sum(root * root for root in roots.values())
    if asked.weighs:
        return total**2 / shares
    billed = sum((sum(own) * target for own, target in zip(weights, asked.numbers, strict=True)), Fraction(0))
    return total**2 / shares / billed


def shared_weights(classes: Classes, given: Given) -> list[list[Fraction]]:
    """Return the weight of every case of each table, all its queries together: the file's own, or as is asked."""
    cases = [classes.cases(table) for table in classes.asked.tables]
    if classes.asked.weighs:
        return [
            [weight * prod(len(group.members) for group in case) for case in own]
            for own, weight in zip(cases, classes.asked.numbers, strict=True)
        ]
    flat = iter(given.nonnegative("weights", sum(map(len, cases))))
    return [[next(flat) for _ in own] for own in cases]


def by_block(classes: Classes, weights: list[list[Fraction]]) -> dict[Key, Rows]:
    """Return the rows of every block's M, each once, and φ with the square of the number of copies."""
    found: dict[Key, Rows] = {}
    for table, own in zip(classes.asked.tables, weights, strict=True):
        for case, weight in zip(classes.cases(table), own, strict=True):
            for key, seen, square in classes.parts(table, case):
                for axis, label in key:
                    square *= 1 - Fraction(1, classes.sizes[axis][label])
                rows = found.setdefault(key, {})
                rows[seen] = rows.get(seen, Fraction(0)) + square * weight
    return found


def trace_norm(rows: Rows, scales: list[Fraction], given: Given) -> Fraction:
    """Return what ``‖M‖_*`` is at least, by the F and the G of a block."""
    width = len(scales)
    isometry = given.matrix("isometry", (len(rows), width))
    common = lcm(*(share.denominator for share in rows.values()))
    shares = [int(share * common) for share in rows.values()]
    weighed = Matrix(
        [[share * entry for entry in row] for share, row in zip(shares, isometry.rows, strict=True)],
        isometry.exponent,
    )
    product = Fraction(0)
    for (row, exponent), matching in zip(rows, weighed.rows, strict=True):
        own = sum(scale * (a * b) for scale, a, b in zip(scales, row, matching, strict=True) if a and b)
        product += own * power(1, exponent + isometry.exponent)
    gram = isometry.transposed().times(weighed)
    rest = given.optional_matrix("rest", (None, width))
    if rest is not None:
        more = rest.transposed().times(rest)
        gram = gram.plus(Matrix([[common * entry for entry in row] for row in more.rows], more.exponent))
    largest = gram.largest_sum() / common
    return max(product / common, Fraction(0)) / root_above(largest) if largest else Fraction(0)
