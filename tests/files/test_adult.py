"""Real input: marginals and age ranges of the Adult table, each with its own target, in both layers."""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import dualmech as dm
from dualmech import crosscheck, fast, reference

ADULT = Path(__file__).resolve().parents[3] / "shared" / "data" / "adult.csv"
DOMAIN = dm.Domain({"age": 8, "race": 5, "sex": 2, "income": 2})
YOUNGEST, DECADES = 17, 8
MARGINAL_TARGET, RANGE_TARGET = 25.0, 100.0

pytestmark = pytest.mark.skipif(not ADULT.exists(), reason="the Adult table is not beside the project")


def decade(age_code: int) -> int:
    """Codes are years less 16; the tens of years 10..19, 20..29, …, 80 and over are numbered from 0."""
    return min((age_code + 16) // 10 - 1, DECADES - 1)


@pytest.fixture(scope="module")
def counts() -> np.ndarray:
    x = np.zeros(DOMAIN.cells)
    with ADULT.open(newline="") as handle:
        for record in csv.DictReader(handle):
            codes = {"race": int(record["race"]), "sex": int(record["sex"]), "income": int(record["income>50K"])}
            x[DOMAIN.cell(age=decade(int(record["age"])), **codes)] += 1
    return x


def age_ranges(domain: dm.Domain) -> Iterator[tuple[str, np.ndarray]]:
    """Every interval of two or more tens of years that is not the whole."""
    ages = domain.codes()[domain.names.index("age")]
    sizes = dict(domain.sizes)
    for first in range(sizes["age"]):
        for last in range(first + 1, sizes["age"]):
            if last - first + 1 < sizes["age"]:
                yield f"age {first}..{last}", ((ages >= first) & (ages <= last)).astype(float)


def problem_over(domain: dm.Domain) -> dm.FitnessForUse:
    marginals = dm.workloads.marginals(domain, ways=(1, 2))
    names, rows = zip(*age_ranges(domain), strict=True)
    ranges = dm.Workload(np.array(rows), names, ["age ranges"] * len(names), domain)
    targets = np.r_[np.full(len(marginals), MARGINAL_TARGET), np.full(len(ranges), RANGE_TARGET)]
    return dm.FitnessForUse(dm.workloads.stack(marginals, ranges), targets)


def test_every_record_is_counted(counts: np.ndarray) -> None:
    assert counts.sum() == 48842
    ages = dm.workloads.marginals(DOMAIN, sets=[("age",)]).apply(counts)
    assert ages.sum() == 48842
    assert np.argmax(ages) in (1, 2)


def test_both_layers_agree_where_the_reference_can_follow() -> None:
    """Age in halves of a life, so that the conic program stays small."""
    problem = problem_over(dm.Domain({"age": 4, "race": 2, "sex": 2}))
    assert problem.geometry.rank < problem.workload.shape[1]
    answers = [
        fast.solve(problem),
        reference.solve(problem, backend="CLARABEL"),
        reference.solve(problem, backend="SCS"),
    ]
    assert crosscheck.compare(answers).outcome is crosscheck.Agreement.AGREE


def test_simulated_answers_keep_the_promise(counts: np.ndarray) -> None:
    """Empirical variances of N draws are scaled chi-squared: five standard deviations are 5 √(2/N)."""
    problem = problem_over(DOMAIN)
    answer = fast.solve(problem)
    assert answer.status is dm.Status.CERTIFIED
    mechanism, workload = answer.mechanism, problem.workload
    promised = mechanism.variances(workload)
    assert np.all(promised <= problem.targets * (1 + 1e-9))
    draws, rng = 1500, np.random.default_rng(0)
    truth = workload.apply(counts)
    noise = np.array([mechanism.simulate(counts, rng) for _ in range(draws)])
    released = noise @ np.linalg.lstsq(problem.basis.T, workload.dense().T, rcond=None)[0]
    errors = released - truth
    assert np.all(np.abs((errors**2).mean(axis=0) / promised - 1) < 5 * np.sqrt(2 / draws))
    assert np.all(np.abs(errors.mean(axis=0)) < 5 * np.sqrt(promised / draws))


def test_marginals_pay_more_than_loose_ranges() -> None:
    answer = fast.solve(problem_over(DOMAIN))
    groups = np.array(answer.problem.workload.groups)
    assert answer.prices[groups == "age ranges"].sum() < 0.5
    assert answer.prices.sum() == pytest.approx(1)
