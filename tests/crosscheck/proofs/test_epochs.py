"""Proofs of several epochs: weak duality of any file, the interval of the certificate, and what is refused."""

import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from commanded import run
from hypothesis import assume, given
from hypothesis import strategies as st
from participations import steps_apart

import dualmech as dm
from dualmech import fast
from dualmech.crosscheck.proofs.checker import check
from dualmech.crosscheck.proofs.checker.apart import weights_of_pairs
from dualmech.crosscheck.proofs.checker.exact import Matrix, Refused, arcsine_share
from dualmech.crosscheck.proofs.texts import written
from dualmech.validate import Array


def shown(problem: dict[str, Any], upper: dict[str, Any], lower: dict[str, Any]) -> tuple[Fraction, Fraction]:
    parts = written({"problem": problem, "upper": upper, "lower": lower})
    return check.proven_bounds({"schema": check.SCHEMA, **parts})


def small(rng: np.random.Generator, *shape: int) -> Array:
    return rng.integers(-4, 5, shape).astype(float)


def rows_no_longer_than_1(rng: np.random.Generator, steps: int) -> Array:
    rows = small(rng, steps, 2)
    return np.asarray(rows / np.maximum(np.abs(rows).sum(axis=1, keepdims=True), 1.0))


def of_phases(
    rng: np.random.Generator, parts: str, phases: list[range], upper: dict[str, Any], lower: dict[str, Any]
) -> None:
    if parts == "vectors":
        upper["phases"] = [
            {"diagonal": small(rng, 1, len(steps)), "root": small(rng, len(steps), 2)} for steps in phases
        ]
    lower["phases"] = []
    for steps in phases:
        part: dict[str, Any] = {"root": small(rng, len(steps), int(rng.integers(1, 4)))}
        if parts == "signs":
            part |= {"mass": float(rng.integers(0, 4)), "normal": rows_no_longer_than_1(rng, len(steps))}
        lower["phases"].append(part)


@given(
    st.sampled_from(["targets", "weights"]),
    st.sampled_from(["vectors", "signs"]),
    st.sampled_from(["exactly", "at least"]),
    st.integers(2, 4),
    st.integers(1, 2),
    st.integers(1, 4),
    st.integers(0, 10**6),
)
def test_whatever_a_file_holds_its_bounds_are_in_order(
    kind: str, parts: str, apart: str, times: int, separation: int, queries: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    n = times * separation - int(rng.integers(0, separation))
    strategy, p = small(rng, n, n), small(rng, queries)
    assume(abs(np.linalg.det(strategy)) > 0.5)
    problem: dict[str, Any] = {
        "kind": f"participation {kind}",
        "workload": small(rng, queries, n),
        "numbers": rng.integers(1, 5, queries).astype(float) if kind == "targets" else p**2,
        "allowed": 1,
        "times": times,
        "separation": separation,
        "parts": parts,
        "apart": apart,
    }
    upper: dict[str, Any] = {"strategy": strategy, "inverse": np.linalg.inv(strategy)}
    lower: dict[str, Any] = {"query_roots": p}
    if apart == "at least":
        following = np.triu(rng.integers(0, 4, (n, n)), separation).astype(float)
        lower["chain"] = following + np.diag(rng.integers(0, 3, n).astype(float))
        lower["normal"], lower["root"] = rows_no_longer_than_1(rng, n), small(rng, n, 2)
        lower["isometry"] = small(rng, queries, 2)
    else:
        of_phases(rng, parts, [range(first, n, separation) for first in range(separation)], upper, lower)
        lower["isometry"] = small(rng, queries, sum(part["root"].shape[1] for part in lower["phases"]))
    try:
        least, most = shown(problem, upper, lower)
    except Refused:
        assume(False)
    assert least <= most


PROBLEMS: dict[str, tuple[Any, str]] = {
    "running sums": (np.tril(np.ones((8, 8))), "participation:4:2"),
    "a short last epoch": (np.tril(np.ones((11, 11))), "participation:3:4"),
    "one person in all steps": (np.tril(np.ones((5, 5))), "participation:5:1"),
    "one query": (np.arange(1.0, 7.0)[None], "participation:2:3"),
    "of small rank": (np.outer([1.0, 2, 3], np.arange(1.0, 7)) + np.eye(3, 6), "participation:3:2"),
    "rows of zeros and twice the same": (np.vstack([np.zeros(6), np.eye(6), np.eye(6)[:2]]), "participation:3:2"),
    "scales far apart": (np.diag(10.0 ** np.arange(-3.0, 3.0)) @ np.tril(np.ones((6, 6))), "participation:2:3"),
    "signs": (np.tril(np.ones((6, 6))), "participation:3:2:signs"),
    "at least": (np.tril(np.ones((9, 9))), "participation:3:3:at-least"),
    "at least, of more steps": (np.tril(np.ones((9, 9))), "participation:2:2:at-least"),
    "signs, at least": (np.tril(np.ones((7, 7))), "participation:3:2:signs:at-least"),
    "many signs": (np.tril(np.ones((12, 12))), "participation:12:1:signs"),
}


@pytest.mark.parametrize("label", PROBLEMS)
@pytest.mark.parametrize("family", [dm.TotalVariance, dm.FitnessForUse])
def test_the_interval_is_that_of_the_certificate(family: Any, label: str, tmp_path: Path) -> None:
    matrix, rule = PROBLEMS[label]
    problem = family(dm.Workload(matrix), neighbours=rule, geometry="epochs")
    answer = fast.solve(problem, tol=0.9 if "at least" in label else 1e-3)
    proof = dm.prove(answer)
    assert proof.is_of(problem) and proof.width <= 1.01 * answer.gap + 1e-9
    # Both hold the optimum, so that neither end passes the other's.
    assert proof.lower <= Fraction(answer.objective) and Fraction(answer.lower_bound) <= proof.upper
    proof.save(tmp_path / "proof.json")
    assert dm.verify(tmp_path / "proof.json").lower == proof.lower


def test_privacy_that_is_fixed_and_closed_forms() -> None:
    problem = dm.PrivacyFirst(dm.workloads.prefix(6), np.ones(6), cost=2.0, neighbours="participation:2:3")
    proof = dm.prove(fast.solve(problem, tol=1e-6))
    assert proof.width <= 2e-6 and any("rho" in line for line in proof.lines())
    # One step a person costs one record; who is in every step of a histogram costs all of them.
    histogram = dm.TotalVariance(dm.Workload(np.eye(4)), neighbours="participation:4:1")
    proof = dm.prove(fast.solve(histogram, tol=1e-9))
    assert proof.lower <= 16 <= proof.upper and proof.width < 1e-8


@pytest.mark.parametrize("rule", ["participation:2:3", "participation:2:3:at-least", "participation:2:3:signs"])
def test_the_command_proves_and_verifies(rule: str, tmp_path: Path) -> None:
    posed = ["prefix:5", "--problem", "variance", "--neighbours", rule]
    path = str(tmp_path / "proof.json")
    solved = run("solve", *posed, "--tol", "0.2", "--prove", path)
    assert solved.exit_code == 0, solved.output
    assert run("verify", path, *posed).exit_code == 0
    other = [*posed[:-1], "participation:3:2"]
    assert run("verify", path, *other).exit_code == 3


def changed(document: Any, **parts: dict[str, Any]) -> Any:
    return {**document, **{place: {**document[place], **entries} for place, entries in parts.items()}}


def test_files_that_say_too_much_are_refused() -> None:
    answer = fast.solve(dm.TotalVariance(dm.workloads.prefix(6), neighbours="participation:3:2"), tol=1e-6)
    document = dm.prove(answer).document
    assert check.check(document)
    for part, words in (
        ({"times": "0x1p-1"}, "an integer of at least 1"),
        ({"separation": "0x0p0"}, "an integer of at least 1"),
        ({"times": "0x1p0"}, "phases must cover all 6 steps"),
        ({"separation": "0x7p0"}, "phases must cover all 6 steps"),
        ({"parts": "numbers"}, "parts must be one of vectors, signs"),
        ({"apart": "never"}, "apart must be one of exactly, at least"),
    ):
        with pytest.raises(Refused, match=words):
            check.check(changed(document, problem=part))
    (first, *others) = document["lower"]["phases"]
    louder = [[entry.replace("p", "1p") for entry in row] for row in first["root"]]
    with pytest.raises(Refused):
        check.check(changed(document, lower={"phases": [{**first, "root": louder[:1] + first["root"][1:]}, *others]}))
    cheaper = [{**part, "diagonal": [["0x0p0"] * 3]} for part in document["upper"]["phases"]]
    with pytest.raises(Refused, match="the claimed upper bound"):
        check.check(changed(document, upper={"phases": cheaper}))
    problem = dm.TotalVariance(dm.workloads.prefix(6), neighbours="participation:3:2:at-least")
    document = dm.prove(fast.solve(problem, tol=0.9)).document
    for row, column, number in ((0, 1, "0x1p-9"), (2, 0, "0x1p-9"), (0, 3, "-0x1p-9")):
        chain = [list(entries) for entries in document["lower"]["chain"]]
        chain[row][column] = number
        with pytest.raises(Refused, match="no negative weight, and no weight between steps closer"):
            check.check(changed(document, lower={"chain": chain}))
    normal = [[entry.replace("p", "1p") for entry in row] for row in document["lower"]["normal"]]
    with pytest.raises(Refused, match="rows of normal must have a norm of at most 1"):
        check.check(changed(document, lower={"normal": normal}))


def test_the_weights_of_pairs_are_those_of_all_persons() -> None:
    rng = np.random.default_rng(3)
    for n, times, separation in ((5, 3, 2), (6, 4, 1), (4, 2, 3), (3, 9, 1)):
        chain = np.diag(rng.integers(0, 3, n)) + np.triu(rng.integers(0, 4, (n, n)), separation)
        pairs, total = weights_of_pairs(Matrix(chain.tolist(), 0), times, separation)
        direct, whole = np.zeros((n, n), dtype=int), 0
        for steps in steps_apart(n, times, separation):
            weight = int(chain[steps[0], steps[0]])
            weight *= int(np.prod([chain[pair] for pair in itertools.pairwise(steps)], dtype=int))
            direct[np.ix_(steps, steps)] += weight
            whole += weight
        assert pairs.rows == direct.tolist() and pairs.exponent == 0 and total == whole


@given(st.fractions(-1, 1, max_denominator=10**9))
def test_arcsines(value: Fraction) -> None:
    least, most = arcsine_share(value)
    with mpmath.workdps(60):
        true = 2 / mpmath.pi * mpmath.asin(mpmath.mpf(value.numerator) / value.denominator)
        slack = mpmath.mpf(10) ** -55
        assert mpmath.mpf(least.numerator) / least.denominator <= true + slack
        assert true <= mpmath.mpf(most.numerator) / most.denominator + slack
    assert 0 <= most - least < Fraction(1, 10**22)
