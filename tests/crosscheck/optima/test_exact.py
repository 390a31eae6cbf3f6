"""Exact optima: closed forms met to the last digit, laws that hold exactly, and what is refused, by name."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast
from dualmech.crosscheck.optima import finding, rationals
from dualmech.crosscheck.optima.surds import Surd, square_root

PREFIX_3 = Surd({1: Fraction(59, 75), 6: Fraction(24, 75)})

SMALL = st.integers(1, 3).flatmap(
    lambda cells: st.lists(
        st.lists(st.integers(-1, 2), min_size=cells, max_size=cells).filter(any), min_size=1, max_size=4
    )
)
NUMBERS = st.sampled_from([0.5, 1.0, 2.0, 3.0])


def root(number: int | Fraction) -> Surd:
    found = square_root(Fraction(number))
    assert found is not None
    return found


def fitness(rows: Any, targets: Any = 1.0, **given: Any) -> dm.ExactOptimum:
    return dm.exact(dm.FitnessForUse(dm.Workload(rows), targets, **given))


def variance(rows: Any, weights: Any = 1.0, **given: Any) -> dm.ExactOptimum:
    return dm.exact(dm.TotalVariance(dm.Workload(rows), weights, **given))


class TestClosedForms:
    def test_prefix_sums(self) -> None:
        assert dm.exact(dm.FitnessForUse(dm.workloads.prefix(2))).optimum == Fraction(4, 3)
        found = dm.exact(dm.FitnessForUse(dm.workloads.prefix(3)))
        assert found.optimum == PREFIX_3 and found.covariance[0][1] == root(6) - 3 and found.radicals == (6,)
        assert sum(found.neighbour_weights) == 1 and sum(found.query_weights) == 1
        assert variance(np.tri(2)).optimum == (3 + root(5)) / 2

    @pytest.mark.parametrize("d", [1, 2, 3, 5, 8])
    def test_identity_and_total(self, d: int) -> None:
        asked = dm.workloads.identity_total(d)
        assert dm.exact(dm.TotalVariance(asked)).optimum == (d - 1 + root(d + 1)) ** 2 / d
        assert dm.exact(dm.FitnessForUse(asked)).optimum == Fraction(2 * d, d + 1)

    @settings(max_examples=20)
    @given(st.lists(st.integers(-5, 5), min_size=4, max_size=4))
    def test_total_variance_of_two_queries_at_an_angle(self, entries: list[int]) -> None:
        """The largest of ``a λ + b (1 - λ) + 2 |det W| √(λ (1 - λ))``, a and b the squared columns."""
        (p, q), (r, s) = entries[:2], entries[2:]
        a, b, volume = p * p + r * r, q * q + s * s, p * s - q * r
        if not volume:
            return
        expected = Fraction(a + b, 2) + root(Fraction(a - b, 2) ** 2 + volume**2)
        assert variance([[p, q], [r, s]]).optimum == expected

    def test_one_query_one_cell_and_blocks_of_cells(self) -> None:
        assert fitness([[1, 2, 3]]).optimum == 9
        assert fitness([[1], [2], [3]], [1, 1, 2]).optimum == Fraction(9, 2)
        assert variance([[1], [2], [3]]).optimum == 14
        parts = [np.tri(2), [[1, 0], [0, 1], [1, 1]]]
        found = variance(scipy.linalg.block_diag(*parts))
        assert found.optimum == sum((variance(each).optimum for each in parts), Fraction(0))
        assert found.radicals == (3, 5, 15)


class TestLaws:
    @pytest.mark.parametrize("scale", [1e-6, 1e6])
    def test_units_of_queries_and_of_targets(self, scale: float) -> None:
        unit = Fraction(str(scale))
        assert fitness(scale * np.tri(3)).optimum == unit**2 * PREFIX_3
        assert fitness(np.tri(3), scale).optimum == PREFIX_3 / unit

    def test_units_copies_products_costs_and_dependent_rows(self) -> None:
        assert fitness(np.tri(3) * [[1], [1e6], [1]], [1, 1e12, 1]).optimum == PREFIX_3
        assert fitness(np.tri(3) * [[1e-3], [1e3], [1]], [1e-6, 1e6, 1]).optimum == PREFIX_3
        for rows in (np.tri(3)[[0, 1, 2, 2]], np.tri(3)[:, [0, 1, 2, 2]], np.vstack([np.tri(3), np.zeros(3)])):
            assert fitness(rows).optimum == PREFIX_3
        found = dm.exact(dm.FitnessForUse(dm.workloads.kron(dm.workloads.prefix(3), dm.workloads.prefix(2))))
        assert found.optimum == PREFIX_3 * Fraction(4, 3)
        assert found.problem.geometry.name == "dense"
        found = dm.exact(dm.PrivacyFirst(dm.workloads.prefix(3), 1.0, cost=0.1))
        assert found.optimum == 10 * PREFIX_3 and found.certificate.gap < 1e-12
        found = fitness([[1, 1, 0], [0, 1, 1], [1, 2, 1]])
        assert found.optimum == 4 and found.problem.basis.tolist() == [[1, 1, 0], [0, 1, 1]]
        assert len(found.covariance) == 2

    @pytest.mark.parametrize("neighbours", [None, "replace"])
    @pytest.mark.parametrize("kind", ["fitness", "variance", "privacy first"])
    @settings(max_examples=6)
    @given(rows=SMALL, data=st.data())
    def test_the_judge_and_proofs_in_whole_numbers_agree(
        self, kind: str, neighbours: str | None, rows: list[list[int]], data: st.DataObject
    ) -> None:
        numbers = data.draw(st.lists(NUMBERS, min_size=len(rows), max_size=len(rows)))
        try:
            problem = posed(kind, rows, numbers, neighbours)
        except dm.errors.InvalidInputError:
            return  # no neighbour changes any answer
        try:
            found = dm.exact(problem)
        except dm.errors.InvalidInputError as error:
            assert "problem has no optimum in a field of square roots" in str(error)
            return
        assert found.certificate.feasible and found.certificate.gap < 1e-9
        proof = dm.prove(fast.solve(found.problem, tol=1e-6))
        assert proof.lower <= found.optimum <= proof.upper
        assert min(found.neighbour_weights) >= 0 and sum(found.neighbour_weights) == 1


def posed(kind: str, rows: list[list[int]], numbers: list[float], neighbours: str | None) -> Any:
    given: dict[str, Any] = {"neighbours": neighbours, "geometry": "dense"}
    if kind == "variance":
        return dm.TotalVariance(dm.Workload(rows), numbers, **given)
    if kind == "privacy first":
        return dm.PrivacyFirst(dm.Workload(rows), numbers, cost=0.5, **given)
    return dm.FitnessForUse(dm.Workload(rows), numbers, **given)


class TestProof:
    def test_a_proof_of_anything_else_is_refused(self) -> None:
        """One entry of the noise, or one weight, moved by 1e-40, up or down."""
        found = dm.exact(dm.FitnessForUse(dm.workloads.prefix(3)))
        asked = rationals.in_fractions(found.problem)
        assert asked is not None
        sigma, lam, mu = (np.array(found.covariance), [*found.neighbour_weights], [*found.query_weights])
        same = rationals.verified(asked, sigma, lam, mu)
        assert same is not None and same.optimum == PREFIX_3
        for off in (Fraction(1, 10**40), root(6) / -(10**40)):
            moved = sigma.copy()
            moved[1, 1] += off
            assert rationals.verified(asked, moved, lam, mu) is None
            assert rationals.verified(asked, sigma, [lam[0] + off, *lam[1:]], mu) is None
            assert rationals.verified(asked, sigma, lam, [mu[0] + off, *mu[1:]]) is None

    def test_what_is_found_says_itself(self) -> None:
        found = dm.exact(dm.FitnessForUse(dm.workloads.prefix(3)))
        assert repr(found) == "ExactOptimum((59 + 24 √6)/75)" and "√6" in found._repr_html_()
        assert np.isclose(float(found), (59 + 24 * 6**0.5) / 75, rtol=4e-16)
        mechanism = found.problem.mechanism(np.array(found.covariance, dtype=float))
        assert np.isclose(mechanism.squared_privacy_cost, float(found), rtol=1e-12)


class TestRefused:
    @pytest.mark.parametrize(
        ("problem", "words"),
        [
            (dm.FitnessForUse(dm.workloads.prefix(25)), "at most 24 queries"),
            (dm.FitnessForUse(dm.workloads.prefix(13)), "rank of at most 12"),
            (dm.FitnessForUse(dm.workloads.prefix(8), neighbours="replace"), "28 pairs of neighbours"),
            (dm.FitnessForUse(dm.workloads.marginals([10] * 60, ways=1)), "600 queries"),
            (dm.FitnessForUse(dm.Workload([[1, 0], [np.cos(1), np.sin(1)]])), "denominators"),
            (dm.FitnessForUse(dm.Workload([[1, 1, 0]]), basis=np.eye(3)[:2]), "basis"),
            (dm.LocalStrategy(dm.workloads.prefix(2), 1.0), "got LocalStrategy"),
            (dm.QueryWeighting(dm.workloads.prefix(2), np.eye(2)), "got QueryWeighting"),
        ],
    )
    def test_by_name_before_any_work(self, problem: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(finding.fast, "solve", None)
        with pytest.raises(dm.errors.InvalidInputError, match=f"^problem must .*{words}"):
            dm.exact(problem)

    @pytest.mark.parametrize("value", [3, None, "prefix:3", np.eye(3)])
    def test_what_is_no_problem(self, value: Any) -> None:
        with pytest.raises(dm.errors.InputTypeError, match="problem"):
            dm.exact(value)

    @pytest.mark.parametrize(
        "problem", [dm.FitnessForUse(dm.workloads.prefix(4)), dm.TotalVariance(dm.workloads.prefix(3))]
    )
    def test_optima_of_other_fields(self, problem: Any) -> None:
        """Roots of cubics, and of an equation of degree eight."""
        with pytest.raises(dm.errors.InvalidInputError, match="problem has no optimum in a field of square roots"):
            dm.exact(problem)
