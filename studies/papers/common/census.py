"""The census application of the common-mechanism paper (CMN, section 7.5): its chain, and its savings (Table 7).

Four histograms of ages by gender, each a refinement of the one before; the choice goes from the coarsest to the finest.
The alternate approach buys, for each decision, answers as accurate as the chain's knowledge by then. A tract that ends
with the first histogram has paid for the first decision, one that ends with the second for the second, and all others
for the third; so %PLB saved of a population is the mean of the three costs over the shares of the tracts.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial

import numpy as np
from rich.console import Console

import dualmech as dm
from dualmech import crosscheck, fast, files, reference, validate
from dualmech.crosscheck.instances import common as instances
from dualmech.crosscheck.instances.common import CHOICES, CMN, SAVED, TABLE_7, Choice
from dualmech.crosscheck.printing import Interval, is_rounding, print_lines, rounded_from, with_allowance, yes_or_no
from dualmech.crosscheck.sheet import Columns, Row, Sheet, drawn, one_table
from dualmech.errors import InvalidInputError
from dualmech.validate import Array

# Populations to decide on: blocks of counts, drawn from a seed, or read from a file.
#
# The paper's data are not part of this library, so these are made to be like them in what a decision depends on: how
# sizes of blocks are spread, how counts within a block are, and how blocks differ from each other. For block b:
#
# - its size is log-normal, with a median and a spread of its own kind, rounded, at least 1; a few blocks are small
#   instead, of any order of magnitude up to the median;
# - its composition is Dirichlet around the composition of the whole population, its concentration says how similar
#   blocks are;
# - its counts are multinomial.
#
# Sizes are like those of the paper's kinds of blocks; spreads and concentrations were moved by hand, in a few steps,
# until exact counts led to the choices about as often as the paper prints, and head counts of tracts said about as
# little of them. So these are no findings; the accuracy of decisions from noisy answers was not an aim.

BLOCKS, SEED = 10_000, 0

NOISE_SEED = 1  # not the seed of the blocks: sizes and noise would otherwise be made of the same numbers


@dataclass(frozen=True, slots=True)
class Population:
    name: str  # The data set in whose place it stands
    # Of the log-normal sizes: median, and standard deviation of the logarithm
    median: float
    spread: float
    concentration: float  # Of the Dirichlet compositions: the larger, the more similar blocks are
    small: float = 0.0  # Share of blocks whose sizes are log-uniform from 1 to the median

    @property
    def mean(self) -> Array:
        """The composition of the whole population, row-major over the cells; sums to 1."""
        return COMPOSITIONS[self.name]()

    def draw(self, blocks: int = BLOCKS, seed: int = SEED) -> Array:
        """Return counts (blocks, cells), the same for the same seed.

        Raises `InvalidInputError` or `InputTypeError` for a number of blocks below 1, something that is not a seed.
        """
        rng, rows = validate.generator(seed=seed), validate.size(blocks=blocks)
        sizes = rng.lognormal(np.log(self.median), self.spread, rows)
        sizes = np.where(rng.random(rows) < self.small, self.median ** rng.random(rows), sizes)
        sizes = np.maximum(np.rint(sizes), 1.0)
        weights = rng.gamma(self.concentration * self.mean, size=(rows, len(self.mean)))
        # With little concentration all of a block's weights may be too small for a float; it is then like the mean.
        empty = weights.sum(axis=1) == 0
        weights[empty] = self.mean
        shares = weights / weights.sum(axis=1, keepdims=True)
        return rng.multinomial(sizes.astype(np.int64), shares).astype(np.float64)


def _races() -> Array:
    """Return shares of the 2^7 answers: one of them at most times, independent of each other but for the first."""
    yes = (0.16, 0.72, 0.13, 0.012, 0.05, 0.003, 0.06)
    shares = np.ones(1)
    for share in yes:
        shares = np.kron(shares, np.array([1 - share, share]))
    races = np.array([bin(cell % 64).count("1") for cell in range(128)])
    # Nobody answers none, one race is the rule, and each further one a sixth as likely as if answers were independent.
    shares = shares * np.where(races == 0, 0.0, (1 / 6.0) ** np.maximum(races - 1, 0))
    return shares / shares.sum()


def _ages(ages: int, level: float, until: float, decay: float) -> Array:
    """Return shares of single years of age: even until an age, then falling off; `level` is the first year's share."""
    years = np.arange(ages)
    young = level + (1 - level) * np.minimum(years / 20.0, 1.0)
    return young * np.exp(-(np.maximum(years - until, 0.0) ** 1.5) / decay)


def _age_gender() -> Array:
    shares = np.concatenate([_ages(103, 1.0, 50, 140), _ages(103, 1.0, 54, 160)])
    return shares / shares.sum()


def _workers() -> Array:
    """Return shares of 101 x 2 cells, gender fastest: people at work, few of them children or old."""
    years = np.arange(101)
    rising = 1 / (1 + np.exp(-(years - 16) / 2.5))
    falling = 1 / (1 + np.exp((years - 54) / 9.0))
    shares = np.outer(rising * falling + 1e-4, [0.6, 0.4]).ravel()
    return shares / shares.sum()


COMPOSITIONS = {"HisRace": cache(_races), "AgeGender": cache(_age_gender), "Brazil": cache(_workers)}

POPULATIONS = {
    "HisRace": Population("HisRace", median=25.0, spread=1.3, concentration=8.0),
    "AgeGender": Population("AgeGender", median=3900.0, spread=0.5, concentration=50.0, small=0.01),
    "Brazil": Population("Brazil", median=45.0, spread=2.7, concentration=100.0),
}
"""Census blocks (some 50 people in the mean, half as many in the median), tracts (some 4,000, a few with hardly
anybody), and states by occupation (some 1,900 in the mean, few in most)."""


def read_counts(path: str, cells: int) -> Array:
    """Read the counts of blocks (blocks, cells) from a ``.npy``, ``.npz`` (key ``data``), ``.csv`` or ``.mtx`` file.

    Raises `FileFormatError` or `InvalidInputError` for a file that cannot be read, another number of cells, or
    counts below 0.
    """
    counts = _matrix(path)
    if counts.shape[1] != cells:
        raise InvalidInputError(f"data must have {cells} cells per block, {path} has {counts.shape[1]}")
    if counts.min() < 0:
        raise InvalidInputError(f"data must be counts, {path} has {counts.min():g}")
    return counts


@lru_cache(maxsize=1)
def _matrix(path: str) -> Array:
    """Return the matrix in a file, read once for all the tables that it is for."""
    return files.read_matrix(path, "data")


# How much privacy the common mechanism saves (CMN, "%PLB saved"): the cost of learning as much otherwise.
#
# The alternate approach decides by a mechanism of its own before it runs the chosen one. It is the best Gaussian
# mechanism, that of fitness for use, which answers certain queries as accurately as the common mechanism does; %PLB
# saved is its privacy cost over that of the mechanisms to choose from. Which queries those are makes a difference:
#
# - all that the common mechanism answers with independent noise (its rows by algorithm 2, eigenvectors of its cost
#   matrix): that costs at least the mean of its privacy profile, so nothing is gained where the profile is even;
# - the primary analysis, on which alone the decision rests (section 6.1).

TOLERANCE = 1e-6  # gap to which costs are solved

QUICK_SIZE = 32
"""Number of common queries up to which the CVXPY program takes no more than a second; at 102 it takes a minute."""

OWN, BASIS, PRIMARY = (
    "the common mechanism itself",
    "a mechanism as good on its queries",
    "one as good on the primary",
)
"""The mechanism whose cost a reading of %PLB saved takes."""


def held(
    values: Mapping[str, object], gap: float, certified: bool, layers: crosscheck.Agreement | None, maximal: bool
) -> Row:
    """Return a row of certified costs; which reading the paper's number fits does not enter.

    - `certified`: whether all were proven to their tolerance;
    - `layers`: whether the CVXPY program has the same common mechanism; None where it was left out;
    - `maximal`: whether the common mechanism was proven maximal.
    """
    proven = certified and maximal and layers in (None, crosscheck.Agreement.AGREE)
    sound = layers is not crosscheck.Agreement.DISAGREE
    return Row({**values, "layers": layers, "maximal": maximal}, gap, proven, sound)


def fits(row: Row, reading: str) -> bool:
    """Whether the printed number is a rounding of something in a reading's interval."""
    return is_rounding(row.printed, row.readings[reading])


def misprint(row: Row, reading: str) -> str:
    """Return the number that fits and differs from the printed one in a single digit; empty where none does."""
    texts = [text for text in _one_digit_apart(row.printed) if is_rounding(text, row.readings[reading])]
    return texts[0] if texts and not fits(row, reading) else ""


def solve_saved(choice: Choice, largest: float = QUICK_SIZE) -> Row:
    """Solve a choice: the common mechanism, and the alternate approach by both readings.

    The `readings` are proven intervals, in percent of the mechanisms' own budget.

    - `choice`: between which mechanisms;
    - `largest`: number of common queries up to which the CVXPY program is solved, too.

    Examples
    --------
    >>> from dualmech.crosscheck.instances.common import CHOICES
    >>> found = solve_saved(CHOICES["hisrace, identity"])
    >>> {name: round(high, 4) for name, (_, high) in found.readings.items()} # doctest: +NORMALIZE_WHITESPACE
    {'the common mechanism itself': 6.25, 'a mechanism as good on its queries': 6.25,
     'one as good on the primary': 5.192}
    """
    mechanisms = choice.mechanisms
    problem = dm.CommonMechanism(mechanisms)
    solution = fast.solve(problem)
    common = solution.mechanism
    budget = mechanisms[0].squared_privacy_cost
    common_cost = common.squared_privacy_cost
    answers = {
        BASIS: least_cost_as_accurate(common, principal_queries(common)),
        PRIMARY: least_cost_as_accurate(common, choice.workloads[0]),
    }
    readings = {OWN: with_allowance(common_cost, ROUNDING)}
    readings |= {name: answer.certificate.interval for name, answer in answers.items()}
    values = {
        "choice": choice.name,
        "printed": SAVED[choice.name],
        "readings": {name: (100 * low / budget, 100 * high / budget) for name, (low, high) in readings.items()},
    }
    return held(
        values,
        max(solution.gap, *(answer.gap for answer in answers.values())),
        all(answer.certificate.certifies(TOLERANCE) for answer in (solution, *answers.values())),
        layers(solution) if len(problem.basis) <= largest else None,
        bool(problem.maximality(solution.primal)),
    )


def principal_queries(mechanism: dm.LinearGaussianMechanism) -> dm.Workload:
    """Return queries that a mechanism answers with independent noise: eigenvectors of its cost (algorithm 2)."""
    return dm.Workload(np.linalg.eigh(mechanism.cost_matrix)[1].T[-mechanism.rank :])


def layers(solution: dm.Solution) -> crosscheck.Agreement:
    """Return whether the reference layer's answer to the same problem agrees with the fast layer's."""
    backend = "CLARABEL"
    same = reference.solve(solution.problem, backend=backend, tol=1e-5)
    return crosscheck.compare([solution, same]).outcome


def least_cost_as_accurate(mechanism: dm.LinearGaussianMechanism, queries: dm.Workload) -> dm.Solution:
    """Solve for the least privacy cost at which some queries have the variances that a mechanism gives them."""
    return fast.solve(dm.FitnessForUse(queries, mechanism.variances(queries)), tol=TOLERANCE)


def savings(quick: bool) -> list[Callable[[], Row]]:
    """Return the tasks; a quick run leaves out the CVXPY program of the largest choice."""
    return [partial(solve_saved, choice, QUICK_SIZE if quick else math.inf) for choice in CHOICES.values()]


ROUNDING = 1e-9
"""Share of the budget up to which a cell costs nothing, and relative allowance where nothing was optimised for."""

TEXT, CODE = "Total by gender", "Total alone"
"""The first histogram, as the text says and as the published code has it."""

UNSHARED = ", shared buckets left out"
"""Suffix of a reading that counts only cells which the mechanism about to be left treats otherwise than the chain."""


def stages(by_gender: bool) -> tuple[dm.Chain, Row]:
    """Build the chain, and solve for the shares of the budget that its decisions would cost the alternate approach.

    The `costs` are proven intervals, a decision each; 'own' is the squared privacy cost of the chain's knowledge by
    then, and 'unshared' the same over the cells only that the mechanism about to be left treats otherwise than the
    chain did so far.

    Examples
    --------
    >>> _, found = stages(by_gender=False)
    >>> [round(high, 6) for _, high in found.costs], round(found.unshared[2], 6)
    ([0.021739, 0.25, 1.0], 0.5)
    """
    mechanisms = instances.census(by_gender)
    begun = time.perf_counter()
    chain = fast.chain(mechanisms)
    seconds = time.perf_counter() - begun
    budget = mechanisms[0].squared_privacy_cost
    answers = [
        least_cost_as_accurate(stage.known, dm.Workload(mechanism.query_matrix))
        for stage, mechanism in zip(chain.stages, mechanisms[:-1], strict=True)
    ]
    profiles = [stage.known.profile / budget for stage in chain.stages]
    other = [stage.decomposition(stage.index).residual.profile > ROUNDING * budget for stage in chain.stages]
    intervals = [answer.certificate.interval for answer in answers]
    values = {
        "name": TEXT if by_gender else CODE,
        "costs": tuple((low / budget, high / budget) for low, high in intervals),
        "own": tuple(float(profile.max()) for profile in profiles),
        "unshared": tuple(float(profile[cells].max()) for profile, cells in zip(profiles, other, strict=True)),
        "seconds": seconds,
    }
    return chain, held(
        values,
        max(chain.gap, *(answer.gap for answer in answers)),
        chain.certified and all(answer.certificate.certifies(TOLERANCE) for answer in answers),
        max((layers(stage.solution) for stage in chain.stages), key=list(crosscheck.Agreement).index),
        all(stage.maximality for stage in chain.stages),
    )


def saved(shares: Sequence[str], costs: Sequence[Interval]) -> Interval:
    """Return %PLB saved from printed shares in percent, as these can be before they were rounded.

    The shares before rounding add up to 100, so a bound on ``Σ w_i c_i`` is ``100 t + Σ max over w_i of w_i (c_i - t)``
    for any t; the best t is one of the costs.

    Examples
    --------
    >>> low, high = saved(("0.34", "0.68", "1.64", "97.34"), [(1 / 46, 1 / 46), (0.25, 0.25), (0.5, 0.5)])
    >>> round(low, 3), round(high, 3)
    (49.664, 49.671)
    """
    weights = [rounded_from(text) for text in shares]
    padded = [*costs, *[costs[-1]] * (len(weights) - len(costs))]
    low = max(_bound(weights, [cost for cost, _ in padded], t, min) for t, _ in padded)
    high = min(_bound(weights, [cost for _, cost in padded], t, max) for _, t in padded)
    return low, high


def _bound(
    weights: Sequence[Interval], costs: Sequence[float], t: float, worst: Callable[[Iterator[float]], float]
) -> float:
    return 100 * t + sum(
        worst(weight * (cost - t) for weight in pair) for pair, cost in zip(weights, costs, strict=True)
    )


def solve() -> Row:
    """Compute Table 7's last column by each reading of the costs: each row with its shares before rounding."""
    staged = [stages(by_gender)[1] for by_gender in (True, False)]
    costs: dict[str, Sequence[Interval]] = {row.name: row.costs for row in staged}
    costs |= {row.name + UNSHARED: [with_allowance(cost, ROUNDING) for cost in row.unshared] for row in staged}
    rows = []
    for rho, row in TABLE_7.items():
        readings = {name: saved(row.shares, of) for name, of in costs.items()}
        rows.append(Row({"rho": rho, "printed": row.saved, "readings": readings}))
    return Row({"rows": rows}, parts=tuple(staged))


def census(quick: bool) -> list[Callable[[], Row]]:
    return [solve]


def _one_digit_apart(text: str) -> Iterator[str]:
    for place, digit in itertools.product(range(len(text)), "0123456789"):
        if text[place].isdecimal() and text[place] != digit:
            yield text[:place] + digit + text[place + 1 :]


# The sheets of the savings and of Table 7.

LEGEND = (
    "%PLB saved: what it would cost to decide by a mechanism of its own instead, in percent of the privacy loss budget "
    "(PLB) of the mechanisms to choose from."
)


def _saved(name: str, row: Row) -> str:
    return f"{_percent(row.readings[name])}{'' if fits(row, name) else ' NO'}"


AGREED: Columns = (
    ("layers agree", lambda row: Row.compared({}, 0.0, row.layers).text("{verdict}") if row.layers else "not asked"),
    ("maximal", lambda row: yes_or_no(row.maximal)),
)

SAVINGS: Columns = (
    ("choice", "{choice}"),
    ("printed", "{printed}"),
    *((name, partial(_saved, name)) for name in (OWN, BASIS, PRIMARY)),
    *AGREED,
    ("certified", lambda row: "yes" if row.certified else "wide"),
)


def _percent(interval: Interval) -> str:
    low, high = (f"{end:.4f}" for end in interval)
    return f"{low} %" if low == high else f"{low} to {high} %"


def _show_census(out: Console, title: str, rows: Iterator[Row]) -> None:
    for census_row in rows:
        choices = range(len(census_row.parts[0].costs))
        columns: Columns = (
            ("chain", "{name}{mark}"),
            *((f"decision {place + 1}", partial(_cost, place)) for place in choices),
            ("shared buckets left out", lambda row: ", ".join(f"{100 * cost:.4f} %" for cost in row.unshared)),
            *AGREED,
            ("gap", "{gap:.0e}"),
            ("seconds", "{seconds:.2g}"),
        )
        out.print(drawn(f"{title}: what a decision would cost otherwise, certified", columns, census_row.parts))
        readings = list(census_row.rows[0].readings)
        columns = (("ρ", "{rho}"), ("printed", "{printed}"), *((name, partial(_reading, name)) for name in readings))
        out.print(drawn(f"{title}: %PLB saved from the shares in the same row", columns, census_row.rows))
        for name in readings:
            fitting = sum(fits(row, name) for row in census_row.rows)
            apart = sum(bool(misprint(row, name)) for row in census_row.rows)
            print_lines(
                out, f"{name}: {fitting} of {len(census_row.rows)} rows fit, {apart} more would with one digit changed."
            )
    print_lines(
        out, LEGEND, "NO: no shares that round to the printed ones give it; in brackets, a number that they give."
    )


def _cost(place: int, row: Row) -> str:
    low, high = row.costs[place]
    return _percent((100 * low, 100 * high))


def _reading(name: str, row: Row) -> str:
    low, high = row.readings[name]
    text = f"{low:.3f} to {high:.3f}"
    if fits(row, name):
        return text
    other = misprint(row, name)
    return f"{text} NO" + (f" ({other})" if other else "")


SHEETS = {
    "saved": Sheet(
        f"{CMN}, %PLB saved",
        savings,
        one_table(
            SAVINGS,
            f"{LEGEND}\nNO: the printed number is no rounding of it. A decision looks at the answers to the primary "
            "analysis alone, so the last of the three is what the alternate approach has to spend.",
            heading=": percent of the budget, certified",
        ),
    ),
    "census": Sheet(f"{CMN}, Table 7", census, _show_census),
}
