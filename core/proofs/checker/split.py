r"""Tables whose attributes have noise of their own: products of it, with a level for every set of attributes.

Upper bound. Each attribute i has a strategy A_i, square, whose first row is all ones, 1', and whose others are R_i.
For each set T of attributes measure ``⊗_{i in T} R_i ⊗_{i not in T} 1'`` with noise of variance τ_T, its level, all
independent. A record costs ``Σ_T Π_T |R_i e_u|² / τ_T``, at most with u in each factor the value where it is largest.
A query a of i is ``b A_i`` with ``b = a A_i⁻¹``, b_0 the first entry and b_1 the rest. So ``⊗ a_i`` of table S is the
sum over ``T ⊆ S`` of ``⊗_T b_1 R_i ⊗_{S \ T} b_0 1' ⊗ 1'``, and has the variance ``Σ_T τ_T Π_T |b_1|² Π_{S \ T}
b_0²``. Given Z, let ``E = A_i Z - I``; if ``|E| < 1``, A_i is invertible and b differs from a Z by ``a Z ((I + E)⁻¹ -
I)``, of length at most ``|a Z| |E| / (1 - |E|)``, which is added to both. An attribute of n values without a strategy
has one with ``R'R = I - 11'/n``, so that ``|R e_u|² = 1 - 1/n``; of it values alone are asked, which have ``b_0 =
1/n`` and ``|b_1|² = 1 - 1/n``.

Lower bound, which is that of ``noise`` at products of weights: p_i² on the queries and q_i² on the values of each
attribute, ``Σ q_i² = 1``, times m_S for table S. Let ``X_i = diag(p_i) A_i diag(q_i)``, A_i now being the queries,
and U_i be of the same shape. For each T and ``S ⊇ T`` take a number f, with ``Σ_S f² = 1`` for every T, and the
product of ``U_i (I - q_i q_i') / |U_i|`` for i in T, of ``U_i q_i q_i' / |U_i|`` for the others of S, and of q_i' for
the rest. Added up over T and stacked over S they are a matrix Q with ``|Q| ≤ 1``, as for different T the right
factors project on orthogonal spaces. ``⟨N, Q⟩ = Σ_T Σ_S f √m_S Π_T α_i Π_{S \ T} β_i`` for ``β_i = q_i'U_i'X_i q_i /
|U_i|``, ``α_i = ⟨U_i, X_i⟩ / |U_i| - β_i``, and at the best f it is ``Σ_T √(Σ_S m_S Π_T α_i² Π_{S \ T} β_i²)``; the
trace norm is no less. Values of equal weights have ``X_i = I / n`` at U_i = I, if all p_i² add up to 1.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import prod

from .domain import Asked, Key, by_attribute, by_key, level
from .exact import Matrix, departed, expect, identity, power, root_above, root_below
from .given import Given

Pair = tuple[Fraction, Fraction]  # of what lies along the total, and across it, squared


def upper(asked: Asked, given: Given) -> Fraction:
    """Return what noise in products achieves: the largest cost, times the largest variance or their sum."""
    sizes = asked.sizes
    strategies = {axis: _Strategy(own, sizes[axis]) for axis, own in by_attribute(given, len(sizes)).items()}
    levels = {key: level(each) for key, each in by_key(given, [1] * len(sizes)).items()}
    cost = Fraction(0)
    for key, own in levels.items():
        worst = (
            strategies[axis].cost if axis in strategies else 1 - Fraction(1, sizes[axis]) for axis, _ in key
        )
        cost += prod(worst, start=1 / own)
    looks = {pair: _looks(asked, *pair, strategies.get(pair[0])) for pair in asked.used()}
    found = []
    for table in asked.tables:
        pairs = [looks[pair] for pair in table.items()]
        found.append([(_variance(table, case, levels), 1) for case in product(*pairs)])
    return cost * asked.summed(found)


class _Strategy:
    """A strategy of an attribute: what a record costs at most, and how queries are made up of its rows."""

    def __init__(self, given: Given, size: int) -> None:
        strategy, self.inverse = (given.matrix(name, (size, size)) for name in ("strategy", "inverse"))
        ones = [power(entry, strategy.exponent) == 1 for entry in strategy.rows[0]]
        expect(all(ones), "the first row of a strategy must be all ones")
        missed = departed(strategy, self.inverse)
        self.missed = missed / (1 - missed)
        self.cost = max(Matrix([*strategy.rows[1:], [0] * size], strategy.exponent).transposed().squares())

    def looks(self, queries: Matrix) -> list[Pair]:
        """Return bounds on ``b_0²`` and on ``|b_1|²`` of every query."""
        seen = queries.times(self.inverse)
        found = []
        for length, (first, *_) in zip(seen.squares(), seen.numbers(), strict=True):
            more = root_above(length) * self.missed
            across = root_above(length - first * first)
            found.append(((abs(first) + more) ** 2, (across + more) ** 2))
        return found


def _looks(asked: Asked, axis: int, name: str, strategy: _Strategy | None) -> list[Pair]:
    """Return the pairs of queries that may be the worst, with targets; all added up, with weights."""
    queries, size = asked.matrix_of(axis, name), asked.sizes[axis]
    if strategy is None:
        expect(queries is None, f"attribute {axis} needs a strategy for its queries {name!r}")
        found, count = [(Fraction(1, size**2), 1 - Fraction(1, size))], size
    else:
        found, count = strategy.looks(identity(size) if queries is None else queries), 1
    if asked.weighs:
        first, second = zip(*found, strict=True)
        return [(count * sum(first, Fraction(0)), count * sum(second, Fraction(0)))]
    worst: list[Pair] = []
    for pair in sorted(found, reverse=True):
        if not worst or pair[1] > worst[-1][1]:
            worst.append(pair)
    return worst


def _variance(table: dict[int, str], case: tuple[Pair, ...], levels: dict[Key, Fraction]) -> Fraction:
    total = Fraction(0)
    for key, square in _products(table, case):
        if square:
            expect(key in levels, f"a query has a part on {dict(key)}, where there is no noise")
            total += levels[key] * square
    return total


def _products(table: dict[int, str], pairs: tuple[Pair, ...]) -> list[tuple[Key, Fraction]]:
    """Return, for every set of a table's attributes, the product of second numbers in it and of first ones outside."""
    found: list[tuple[Key, Fraction]] = [((), Fraction(1))]
    for axis, (along, across) in zip(table, pairs, strict=True):
        found = [
            each
            for key, square in found
            for each in ((key, square * along), ((*key, (axis, 0)), square * across))
        ]
    return found


def lower(asked: Asked, given: Given) -> Fraction:
    """Return what products of weights prove."""
    named, sums = by_attribute(given, len(asked.sizes)), dict[Key, Fraction]()
    looks = {pair: _trace(asked, *pair, named.get(pair[0])) for pair in asked.used()}
    weights = asked.numbers if asked.weighs else given.nonnegative("weights", len(asked.tables))
    for table, weight in zip(asked.tables, weights, strict=True):
        for key, square in _products(table, tuple(looks[pair] for pair in table.items())):
            sums[key] = sums.get(key, Fraction(0)) + weight * square
    proven = sum(map(root_below, sums.values()), Fraction(0)) ** 2
    if asked.weighs:
        return proven
    return proven / sum(weight * target for weight, target in zip(weights, asked.numbers, strict=True))


def _trace(asked: Asked, axis: int, name: str, given: Given | None) -> Pair:
    """Return ``β²`` and ``α²`` of a set of queries, over the weights; 0 where there are none."""
    queries, size = asked.matrix_of(axis, name), asked.sizes[axis]
    if given is None:
        expect(queries is None, f"attribute {axis} needs weights for its queries {name!r}")
        share = Fraction(size) if asked.weighs else Fraction(1)
        return share / size**2, share * (1 - Fraction(1, size)) ** 2
    queries = queries or identity(size)
    own, count = given.part(name), queries.shape[0]
    q = given.vector("roots", size)
    p = [Fraction(1)] * count if asked.weighs else own.vector("roots", count)
    isometry = own.matrix("isometry", queries.shape)
    weighed = [
        [root * entry * each for entry, each in zip(row, q, strict=True)]
        for root, row in zip(p, queries.numbers(), strict=True)
    ]
    pairs = list(zip(weighed, isometry.numbers(), strict=True))
    whole = sum(_dot(one, two) for one, two in pairs)
    along = sum(_dot(one, q) * _dot(two, q) for one, two in pairs)
    shares, billed = _dot(q, q), Fraction(1) if asked.weighs else _dot(p, p)
    divisor = isometry.norm_squared() * shares * billed
    if not divisor:
        return Fraction(0), Fraction(0)
    return (along / shares) ** 2 / divisor, (whole - along / shares) ** 2 / divisor


def _dot(one: list[Fraction], two: list[Fraction]) -> Fraction:
    return sum((a * b for a, b in zip(one, two, strict=True)), Fraction(0))
