"""The fast solver of fitness for use: certified on nasty cases, within its budgets, honest when it fails."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from nasty import GENTLE, HARSH, parts

import dualmech as dm
from dualmech import fast
from dualmech.fast.engine import ascent
from dualmech.fast.reductions.dense import Reduction
from dualmech.validate import Array


def problem(matrix: Array, targets: Any = 1.0, basis: Any = None, moves: Any = None) -> dm.FitnessForUse:
    return dm.FitnessForUse(dm.Workload(matrix), targets, basis=basis, neighbours=moves)


def stated(case: tuple[Any, ...], sparse: bool) -> dm.FitnessForUse:
    return problem(sp.csr_array(case[0]) if sparse else case[0], *case[1:])


def check(answer: dm.Solution, tol: float) -> None:
    assert answer.status is dm.Status.CERTIFIED, answer.certificate
    assert answer.certificate.feasible and answer.certificate.certifies(tol)
    first, last = answer.dual
    assert first.sum() == pytest.approx(1) and last @ answer.problem.targets == pytest.approx(1)
    assert first.min() >= 0 <= last.min()


class TestNastyCases:
    @pytest.mark.parametrize("case", [*GENTLE, *HARSH])
    def test_each_to_its_tolerance(self, case: str) -> None:
        """To 1e-9 if it is well-conditioned, to 1e-6 if it is badly scaled; every other matrix is sparse."""
        given, tol = (GENTLE | HARSH)[case], 1e-9 if case in GENTLE else 1e-6
        sparse = [*GENTLE, *HARSH].index(case) % 2 == 1
        for method, form in (("auto", sparse), ("newton", False)):
            check(fast.solve(stated(given, form), tol=tol, method=method), tol)

    @pytest.mark.parametrize(("seed", "method"), [*zip(range(12), ["auto", "newton"] * 6, strict=True)])
    def test_random_workloads_to_1e_9(self, seed: int, method: str) -> None:
        rng = np.random.default_rng(seed)
        matrix = rng.standard_normal(tuple(rng.integers(2, 10, 2)))
        check(fast.solve(problem(matrix), tol=1e-9, method=method), 1e-9)
        if matrix.shape[1] > 2:
            moves = dm.neighbours.replace_one(matrix.shape[1])
            check(fast.solve(problem(matrix, moves=moves), tol=1e-8, method=method), 1e-8)

    @pytest.mark.filterwarnings("ignore::dualmech.errors.UncertifiedWarning")
    @pytest.mark.parametrize("ratio", [1e12, 1e16, 1e20, 1e40])
    def test_targets_worlds_apart_end_with_an_honest_status(self, ratio: float) -> None:
        answer = fast.solve(dm.FitnessForUse(dm.workloads.prefix(2), [ratio, 1 / ratio]))
        assert answer.certificate.certifies(1e-6) is (answer.status is dm.Status.CERTIFIED)

    @pytest.mark.filterwarnings("ignore::dualmech.errors.UncertifiedWarning")
    @pytest.mark.parametrize("case", [*GENTLE, *HARSH])
    def test_the_covariance_of_one_method_never_beats_the_bound_of_another(self, case: str) -> None:
        stated = problem(*(GENTLE | HARSH)[case])
        answers = [
            fast.solve(stated, tol=tol, method=method)
            for method, tol in (("auto", 1e-6), ("newton", 1e-3), ("fixed_point", 1e-6))
        ]
        assert all(each.certificate.feasible for each in answers)
        for one in answers:
            for two in answers:
                judged = stated.certify(one.primal, two.dual)  # CertificateError if it did
                if judged.feasible:
                    assert two.lower_bound <= one.objective * (1 + judged.resolution)

    @pytest.mark.parametrize("case", ["tall", "marginals", "one replaced", "rank-deficient"])
    def test_the_whole_scaled_by_powers_of_two_takes_the_same_steps(self, case: str) -> None:
        matrix, targets, basis, moves = parts(GENTLE[case])
        one = fast.solve(problem(matrix, targets, basis, moves))
        two = fast.solve(problem(2.0**40 * matrix, targets, basis, moves))
        assert one.iterations == two.iterations
        assert two.objective == pytest.approx(2.0**80 * one.objective, rel=1e-6)


@pytest.mark.parametrize(
    ("workload", "spread", "tol", "most", "optimum"),
    [
        (dm.workloads.prefix(64), 0.0, 1e-6, 25, 4.45787),
        (dm.workloads.prefix(64), 0.0, 1e-9, 40, 4.45787),
        (dm.workloads.pl94(), 0.0, 1e-6, 12, 3.01343),
        (dm.workloads.age_pyramid(), 0.0, 1e-6, 30, None),
        (dm.workloads.age_pyramid(adults=False), 0.0, 1e-6, 30, 6.9975),
        (dm.workloads.random_range(128, 256, rng=0), 0.0, 1e-6, 150, None),
        (dm.workloads.random_range(128, 256, rng=0), 9.0, 1e-6, 150, None),
    ],
)
def test_eigendecompositions(workload: Any, spread: float, tol: float, most: int, optimum: Any) -> None:
    targets = 1 + spread * np.random.default_rng(1).uniform(size=len(workload))
    answer = fast.solve(dm.FitnessForUse(workload, targets), tol=tol)
    check(answer, tol)
    assert answer.iterations <= most
    assert answer.iterations == answer.history[-1].iteration >= len(answer.history)
    if optimum is not None:
        assert answer.objective == pytest.approx(optimum, rel=2e-6, abs=5e-5 if optimum > 6 else 5e-6)


@pytest.mark.parametrize("case", ["tall", "rank-deficient", "signs", "ranges", "one replaced", "any neighbours"])
def test_no_step_lowers_the_bound(case: str) -> None:
    program = Reduction.of((stated := problem(*GENTLE[case])).geometry, stated.targets).program
    neighbours, queries, _ = program.sizes
    weights = np.append(np.full(neighbours, 1 / neighbours), np.full(queries, 1 / queries))
    state = ascent.FixedPointState(program.at(weights))
    for _ in range(40):
        following = ascent.fixed_point_step(program, state)
        assert following.point.lower_bound >= state.point.lower_bound * (1 - 1e-12)
        state = following


class TestOptions:
    stated = dm.FitnessForUse(dm.workloads.random_range(10, 25, rng=3), np.linspace(1, 3, 25))

    @pytest.mark.parametrize("case", ["row times 1e+06", "rank-deficient, row times 1e+06"])
    def test_callback_hears_of_a_second_try(self, case: str) -> None:
        news: list[dm.Progress] = []
        answer = fast.solve(problem(*HARSH[case]), callback=news.append)
        counts = [each.iteration for each in news]
        assert counts == sorted(set(counts)) and counts[-1] == answer.iterations
        assert tuple(news) == answer.history
        with pytest.warns(dm.errors.UncertifiedWarning):
            assert fast.solve(problem(*HARSH[case]), max_iterations=8).iterations < 16

    def test_it_stops_at_double_precision_and_starts_at_problems_of_one_size(self) -> None:
        with pytest.warns(dm.errors.UncertifiedWarning):
            answer = fast.solve(self.stated, tol=1e-18)
        assert answer.status in (dm.Status.STALLED, dm.Status.ROUNDING)
        assert answer.gap <= 1e-8 and answer.iterations < 1000
        first = fast.solve(self.stated)
        check(fast.solve(dm.PrivacyFirst(self.stated.workload, self.stated.targets, cost=2.0), start=first), 1e-6)
        signs = dm.FitnessForUse(dm.workloads.random_signs(10, 25, rng=0), 1e6)
        check(fast.solve(signs, start=first), 1e-6)
        assert fast.solve(signs).objective == pytest.approx(fast.solve(signs, start=first).objective, rel=2e-6)

    def test_keyboard_interrupt_passes_through(self) -> None:
        def interrupt(progress: dm.Progress) -> None:
            if progress.iteration == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fast.solve(self.stated, callback=interrupt)

    @pytest.mark.parametrize(("value", "got"), [("a", "str 'a'"), (None, "None"), ([1e-6], r"shape \(1,\)")], ids=str)
    def test_what_is_no_number_is_answered_with_what_is_allowed(self, value: Any, got: str) -> None:
        for name in ("tol", "time_limit"):
            if name == "tol" or value is not None:
                with pytest.raises(dm.errors.DualmechError, match=f"^{name} must be a positive number, got {got}$"):
                    fast.solve(self.stated, **{name: value})

    def test_starts_of_another_kind_or_geometry_are_refused(self) -> None:
        for problem in (
            dm.FitnessForUse(dm.workloads.prefix(3)),
            dm.FitnessForUse(dm.workloads.circular_ranges(3)),
            dm.PrivacyFirst(dm.workloads.prefix(3), 1.0, cost=1.0),
            dm.TotalVariance(dm.workloads.prefix(3)),
            dm.SoftmaxFitness(dm.workloads.prefix(3), 1.0, 5, 5),
        ):
            for start in (3, "there", np.eye(3), dm.workloads.prefix(3)):
                said = rf"start must be a Solution of dualmech or a Judgement, got {type(start).__name__}"
                with pytest.raises(dm.errors.InputTypeError, match=said):
                    fast.solve(problem, start=start)
        tables = dm.workloads.marginals([2, 3], ways=(1, 2))
        for kind in (dm.FitnessForUse, dm.TotalVariance):
            problems = {name: kind(tables, geometry=name) for name in ("dense", "blocks")}
            for here, there in (("blocks", "dense"), ("dense", "blocks")):
                said = f"start must be on geometry '{here}' of the problem, got geometry '{there}'"
                with pytest.raises(dm.errors.InvalidInputError, match=said):
                    fast.solve(problems[here], start=fast.solve(problems[there]))

    def test_other_options_and_problems_are_refused_by_name(self) -> None:
        problem: Any = dm.FitnessForUse(dm.workloads.prefix(3))
        known = "method, tol, start, orbits, max_iterations, time_limit, callback, verbose, threads"
        with pytest.raises(dm.errors.InputTypeError, match=f"no option 'colour', it has {known}$"):
            fast.solve(problem, colour=3)  # type: ignore[call-arg]
        assert "design=3 x 3 matrix" in repr(dm.QueryWeighting(dm.workloads.prefix(3), np.eye(3)))
        for problem, option in (
            (dm.QueryWeighting(dm.workloads.prefix(3), np.eye(3)), "start"),
            (dm.NonnegativeEstimate(dm.workloads.prefix(3), [1.0, 2.0, 3.0]), "start"),
            (dm.SoftmaxFitness(dm.workloads.prefix(3), 1.0, 2.0, 2.0), "orbits"),
            (dm.LocalStrategy(dm.workloads.prefix(3), 1.0), "orbits"),
        ):
            assert repr(problem).startswith(f"{type(problem).__name__}(Workload(3 queries x 3 cells")
            given: dict[str, Any] = {option: fast.solve(problem) if option == "start" else [[2, 1, 0]]}
            with pytest.raises(
                dm.errors.InputTypeError, match=f"option {option!r} is not for {type(problem).__name__}"
            ):
                fast.solve(problem, **given)
        others: Any = (None, 3, dm.workloads.prefix(3), np.eye(2))
        for other in others:
            with pytest.raises(dm.errors.InputTypeError, match="problem"):
                fast.solve(other)
