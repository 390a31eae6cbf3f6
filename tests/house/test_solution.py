"""Certificates, solutions and how a solver concludes: nothing that is not proven is ever claimed."""

from __future__ import annotations

import dataclasses
import itertools
import math
import pickle
import re
import warnings
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import crosscheck, fast
from dualmech.certificate import FEASIBLE
from dualmech.solution import gap_words, judged_solution, retold, warn_if_uncertified
from dualmech.validate import Array

NAN, INF = math.nan, math.inf


class TestCertificate:
    def test_gap_charges_the_violation(self) -> None:
        judged = dm.Certificate.of(1.5, 1.2, 1e-10, 1e-15)
        assert judged.gap == pytest.approx((1.5 * (1 + 1e-10) - 1.2) / 1.2, rel=1e-14)
        assert judged.interval == pytest.approx((1.2, 1.5 * (1 + 1e-10)), rel=3e-15) and judged.feasible

    @pytest.mark.parametrize("slot", range(4))
    @pytest.mark.parametrize("value", [NAN, INF, -INF])
    def test_no_number_that_is_not_finite_certifies(self, slot: int, value: float) -> None:
        given = [1.0, 1.0, 0.0, 0.0]
        given[slot] = value
        judged = dm.Certificate.of(*given)
        assert not judged.certifies(1e300)
        assert not any(math.isnan(each) for each in dataclasses.astuple(judged)[:6])

    def test_no_mixture_of_them_does(self) -> None:
        for entries in itertools.product([NAN, INF, -INF, 0.0, 1.0], repeat=4):
            try:
                judged = dm.Certificate.of(*entries)
            except dm.errors.CertificateError:
                assert entries[0] == 0 and entries[1] == 1.0  # a value of 0 below a bound of 1
                continue
            assert not any(math.isnan(each) for each in dataclasses.astuple(judged)[:6]), entries
            if judged.certifies(0.5):
                assert entries == (1.0, 1.0, 0.0, 0.0), entries

    @pytest.mark.parametrize("tol", [NAN, INF, -1.0])
    def test_no_tolerance_that_is_negative_or_not_finite_is_met(self, tol: float) -> None:
        with pytest.raises(dm.errors.InvalidInputError, match="tol"):
            dm.Certificate.of(1.0, 1.0, 0.0, 0.0).certifies(tol)

    @pytest.mark.parametrize("excess", [1.1 * FEASIBLE, 1e-6, 1.0])
    def test_an_infeasible_point_has_no_gap(self, excess: float) -> None:
        judged = dm.Certificate.of(1.0, 1.0, excess, 0.0)
        assert not judged.feasible and judged.gap == INF and judged.interval == (1.0, INF)
        # Nor is its value compared with the bound, which it may well beat.
        assert dm.Certificate.of(0.5, 1.0, excess, 0.0).gap == INF

    @pytest.mark.parametrize("bound", [0.0, -1.0])
    def test_no_bound_no_gap(self, bound: float) -> None:
        judged = dm.Certificate.of(1.0, bound, 0.0, 0.0)
        assert judged.lower_bound == 0 and judged.gap == INF and judged.feasible

    def test_a_point_below_the_bound_is_an_error(self) -> None:
        with pytest.raises(dm.errors.CertificateError, match="below the proven bound"):
            dm.Certificate.of(1 - 1e-9, 1.0, 0.0, 1e-10)
        with pytest.raises(dm.errors.CertificateError):
            dm.Certificate.of(0.0, 1.0, 0.0, 1e-10)

    def test_unless_rounding_explains_it(self) -> None:
        judged = dm.Certificate.of(1 - 1e-11, 1.0, 0.0, 1e-10)
        assert judged.gap == 0 and judged.certifies(1e-9) and not judged.certifies(1e-11)

    @pytest.mark.parametrize(("objective", "bound"), [(1e308, 1e-308), (1e308, 5e-324), (5e-324, 5e-324)])
    def test_extreme_values_do_not_overflow(self, objective: float, bound: float) -> None:
        judged = dm.Certificate.of(objective, bound, 0.0, 0.0)
        assert judged.gap == (INF if objective > bound else 0)

    def test_cannot_be_changed(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            dm.Certificate.of(1.0, 0.5, 0.0, 0.0).gap = 0.0  # type: ignore[misc]


@dataclass(frozen=True)
class Stub:
    """A problem whose judge says what the test wants."""

    judged: dm.Certificate

    def certify(self, primal: Any, dual: Any) -> dm.Certificate:
        return self.judged

    def mechanism(self, primal: Any) -> dm.LinearGaussianMechanism:
        return dm.LinearGaussianMechanism(np.eye(2), primal)

    def exceeded(self, primal: Any) -> tuple[str, ...]:
        return ("query 'all' has 2 times its target",)

    def prices(self, dual: Any) -> Array:
        return np.asarray(dual)

    def binding(self, primal: Any, slack: float) -> Any:
        return np.array([slack])


def conclude(problem: Any, primal: Any, dual: Any, **account: Any) -> dm.Solution:
    return warn_if_uncertified(judged_solution(problem, primal, dual, **account))


def concluded(certificate: dm.Certificate, tol: float, otherwise: dm.Status = dm.Status.STALLED) -> dm.Solution:
    return conclude(Stub(certificate), np.eye(2), np.ones(2), tol=tol, otherwise=otherwise, solver="stub", iterations=3)


class TestConclude:
    def test_certified_without_a_warning(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            answer = concluded(dm.Certificate.of(1.0 + 1e-7, 1.0, 0.0, 1e-14), 1e-6)
        assert answer.status is dm.Status.CERTIFIED and answer.iterations == 3 and answer.tol == 1e-6
        assert (answer.objective, answer.lower_bound) == (1.0 + 1e-7, 1.0)
        assert answer.gap == pytest.approx(1e-7) and answer.mechanism.rho == pytest.approx(0.5)

    @pytest.mark.parametrize("otherwise", [each for each in dm.Status if each is not dm.Status.CERTIFIED])
    def test_else_it_warns_and_says_why(self, otherwise: dm.Status) -> None:
        with pytest.warns(dm.errors.UncertifiedWarning, match=f"stub: gap 1.0e-01 .*{otherwise.name}") as caught:
            answer = concluded(dm.Certificate.of(1.1, 1.0, 0.0, 1e-14), 1e-6, otherwise)
        assert answer.status is otherwise
        assert caught[0].filename != dm.solution.__file__

    @given(gap=st.floats(1e-17, 1e3), tol=st.floats(1e-17, 1e3), hidden=st.floats(0, 1e3))
    @settings(max_examples=50)
    def test_words_tell_a_gap_from_what_was_asked(self, gap: float, tol: float, hidden: float) -> None:
        judged = dm.Certificate(1 + gap, 1.0, gap, 0.0, hidden)
        words = gap_words(judged, tol)
        shown = [float(each) for each in re.findall(r"[0-9.]+e[+-]\d+", words)]
        assert ("within" in words) == judged.certifies(tol) == ("above" not in words)
        assert gap == tol or gap <= tol < hidden or (shown[0] > shown[1]) == (gap > tol)
        infeasible = dm.Certificate(1.0, 1.0, float("inf"), 0.5, 0.0)
        assert gap_words(infeasible, tol) == "no gap proven, as the answer is infeasible by 5.0e-01"

    def test_a_solver_cannot_certify_itself(self) -> None:
        with pytest.raises(ValueError, match="only the judge certifies"):
            concluded(dm.Certificate.of(1.1, 1.0, 0.0, 1e-14), 1e-6, dm.Status.CERTIFIED)

    def test_rounding_is_no_proof(self) -> None:
        with pytest.warns(dm.errors.UncertifiedWarning, match="ROUNDING"):
            answer = concluded(dm.Certificate.of(1.0, 1.0, 0.0, 1e-5), 1e-6)
        assert answer.status is dm.Status.ROUNDING and answer.gap == 0

    def test_rounding_on_a_real_problem(self) -> None:
        problem = dm.FitnessForUse(dm.workloads.prefix(2), 1.0)
        dual = dm.duals.FitnessDual(np.array([2, 1]) / 3, np.array([1, 2]) / 3)
        with pytest.warns(dm.errors.UncertifiedWarning, match="ROUNDING"):
            answer = conclude(problem, np.array([[1, -0.5], [-0.5, 1]]), dual, tol=1e-15, otherwise=dm.Status.STALLED)
        assert answer.status is dm.Status.ROUNDING and answer.gap <= 1e-15 < answer.certificate.resolution

    @pytest.mark.parametrize("violation", [1e-8, NAN, INF])
    def test_an_infeasible_answer_yields_no_mechanism(self, violation: float) -> None:
        with pytest.warns(dm.errors.UncertifiedWarning):
            answer = concluded(dm.Certificate.of(1.0, 1.0, violation, 0.0), 1e300)
        assert answer.status is not dm.Status.CERTIFIED and answer.gap == INF
        with pytest.raises(dm.errors.InfeasibleAnswerError, match="STALLED.*: query 'all' has 2 times its target"):
            _ = answer.mechanism

    @pytest.mark.parametrize("objective", [NAN, INF])
    def test_an_answer_outside_the_domain_yields_no_mechanism(self, objective: float) -> None:
        with pytest.warns(dm.errors.UncertifiedWarning):
            answer = concluded(dm.Certificate.of(objective, 1.0, 0.0, 0.0), 1e-6, dm.Status.NON_FINITE)
        with pytest.raises(dm.errors.InfeasibleAnswerError):
            _ = answer.mechanism

    @pytest.mark.parametrize("lie", [np.nan * np.eye(2), -np.eye(2), 2 * np.eye(2), np.zeros((2, 2))], ids=str)
    def test_nor_does_a_lie_to_a_real_problem(self, lie: Array) -> None:
        problem = dm.FitnessForUse(dm.workloads.prefix(2), 1.0)
        with pytest.warns(dm.errors.UncertifiedWarning):
            answer = conclude(
                problem, lie, dm.duals.FitnessDual(np.ones(2), np.ones(2)), tol=1.0, otherwise=dm.Status.BACKEND
            )
        assert answer.status is dm.Status.BACKEND
        with pytest.raises(dm.errors.InfeasibleAnswerError):
            _ = answer.mechanism

    def test_binding_allows_for_the_gap(self) -> None:
        for gap, slack in ((0.0, 1e-6), (1e-14, 1e-6), (1e-6, 1e-3)):
            answer = concluded(dm.Certificate.of(1 + gap, 1.0, 0.0, 0.0), 1.0)
            assert answer.binding[0] == pytest.approx(slack, rel=1e-3)


def test_every_status_says_what_to_do() -> None:
    assert len({status.value for status in dm.Status}) == len(dm.Status) == 7
    assert all(len(status.value) > 40 and status.value.endswith(".") for status in dm.Status)


def test_a_resolution_below_zero_certifies_nothing() -> None:
    judged = dm.Certificate.of(objective=1.0, lower_bound=1.0, violation=0.0, resolution=-0.5)
    assert judged.resolution == float("inf") and not judged.certifies(1.0)


def test_nobody_changes_what_an_answer_keeps_of_a_plan() -> None:
    answer = fast.solve(dm.FitnessForUse(dm.workloads.prefix(3)))
    stated = {"rho": "1/2"}
    planned = retold(answer, metadata=stated)
    stated["rho"] = "1/1000"
    assert planned.metadata == {"rho": "1/2"} and not answer.metadata
    with pytest.raises(TypeError, match="does not support item assignment"):
        planned.metadata["rho"] = "1/1000"  # type: ignore[index]
    assert pickle.loads(pickle.dumps(planned)).metadata == retold(planned, message="said").metadata == {"rho": "1/2"}


class TestJudged:
    """Answers from elsewhere: the problem makes the certificate, here and now."""

    PROBLEM = dm.FitnessForUse(dm.workloads.prefix(2), targets=1.0)
    BEST = np.array([[1, -1 / 2], [-1 / 2, 1]])
    DUAL = [2 / 3, 1 / 3], [1 / 3, 2 / 3]

    def test_nothing_else_makes_a_solution(self) -> None:
        ok = fast.solve(self.PROBLEM)
        with pytest.raises(dm.errors.InputTypeError, match=r"made by a solver or by dualmech\.judged"):
            dm.Solution(self.PROBLEM, ok.primal * 3, ok.dual, ok.certificate, 1e-6, ok.status)
        with pytest.raises(dm.errors.InputTypeError, match="made by a solver"):
            replace(ok, primal=3 * ok.primal)

    def test_forged_parts_do_not_agree(self) -> None:
        ok = fast.solve(self.PROBLEM, tol=1e-10)
        forged = retold(ok, primal=3 * ok.primal)
        assert crosscheck.compare([ok, forged]).outcome is not crosscheck.Agreement.AGREE
        assert crosscheck.compare([ok, retold(ok, primal=ok.primal / 3)]).outcome.name != "AGREE"

    def test_is_what_a_solver_returns(self) -> None:
        mine = dm.judged(self.PROBLEM, self.BEST, self.DUAL, solver="theirs", seconds=2.0)
        assert mine.status is dm.Status.CERTIFIED and (mine.solver, mine.seconds) == ("theirs", 2.0)
        assert crosscheck.compare([mine, fast.solve(self.PROBLEM)]).outcome is crosscheck.Agreement.AGREE
        assert dm.judged(self.PROBLEM, self.BEST).status is dm.Status.CERTIFIED
        far = dm.judged(self.PROBLEM, np.eye(2) / 2, self.DUAL)
        assert far.status is dm.Status.GIVEN and far.gap == pytest.approx(0.5)
        assert dm.prove(mine).lower <= Fraction(4, 3) <= dm.prove(mine).upper

    def test_judgements_are_taken_as_answers(self) -> None:
        verdict = crosscheck.judge(self.PROBLEM, self.BEST)
        assert crosscheck.compare([verdict, fast.solve(self.PROBLEM)]).outcome is crosscheck.Agreement.AGREE
        assert dm.prove(verdict).width < 1e-8
        assert dm.plots.variances(verdict) and dm.plots.covariance(verdict)

    @pytest.mark.parametrize(
        ("primal", "dual", "words"),
        [
            (np.nan * BEST, DUAL, "not finite"),
            (0 * BEST, DUAL, "without noise"),
            (BEST + np.array([[0, 1e-5], [0, 0]]), DUAL, "symmetric, but differs from its transpose by 1e-05"),
            (np.array([[1.0, 2], [2, 1]]), DUAL, "least eigenvalue is -1"),
            (BEST, ([1, -0.1], [1, 1]), "one is negative, -0.1"),
            (BEST, ([1, np.nan], [1, 1]), "prove nothing: some are not finite"),
            (BEST, ([0, 0], [1, 1]), "all weights of one kind are 0"),
        ],
    )
    def test_reasons_are_said(self, primal: Any, dual: Any, words: str) -> None:
        found = self.PROBLEM.certify(primal, tuple(np.array(each, float) for each in dual))
        assert found.gap == np.inf
        (remark,) = found.remarks
        assert words in remark

    @pytest.mark.parametrize("geometry", ["dense", "stream"])
    def test_what_shows_nothing_has_no_proof_and_rounding_does_not_spoil_one(self, geometry: str) -> None:
        problem = dm.FitnessForUse(dm.workloads.prefix(3), geometry=geometry)
        answer = fast.solve(problem, tol=1e-9)
        first, last = np.array(answer.dual.neighbour_weights), answer.dual.query_weights
        nothing = dm.judged(problem, answer.primal, dm.duals.FitnessDual(0 * first, last))
        with pytest.raises(dm.errors.CertificateError, match="the dual weights prove nothing"):
            dm.prove(nothing)
        first[0] = -1e-17
        rounded = dm.judged(problem, answer.primal, dm.duals.FitnessDual(first, last))
        low, high = rounded.certificate.interval
        assert low * (1 - 1e-6) <= dm.prove(rounded).lower <= high

    def test_negative_weights_of_rounding_size_count_as_none(self) -> None:
        kept = self.PROBLEM.certify(self.BEST, ([1.0, 0.0], [1.0, 1.0]))
        found = self.PROBLEM.certify(self.BEST, ([1.0, -1e-17], [1.0, 1.0]))
        assert found == kept and not found.remarks and found.lower_bound > 0
