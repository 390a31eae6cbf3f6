"""What every family must do on every geometry that it has: one list of checks, for those who add one.

A `ConformanceCase` makes a problem, a new one at every call. `CHECKS` are functions of a `Run`: a case with its
answers. `conform` runs them all on a case, and names all that fail. A check that fails says what is missing.
"""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import dualmech as dm
from dualmech import fast, reference
from dualmech.certificate import FEASIBLE
from dualmech.command import explanation
from dualmech.crosscheck.agreement import Agreement, compare
from dualmech.crosscheck.families import family_of
from dualmech.crosscheck.judging import Judgement, judge, judged
from dualmech.crosscheck.proofs.prove import prove, verify
from dualmech.errors import DualmechError, InputTypeError, InvalidInputError
from dualmech.problems.base import OnGeometry
from dualmech.publishing.published import published_tables
from dualmech.publishing.release import plan
from dualmech.reference import solving as reference_solving
from dualmech.reference.formulas.writing import latex_document
from dualmech.solution import Solution
from dualmech.storage.store import load, save
from dualmech.watching import without_warnings

SLACK = Fraction(1, 10**12)  # what rounding may hide of a mechanism's cost, relative


@dataclass(frozen=True, slots=True)
class ConformanceCase:
    """A problem of a family on a geometry, and what may be expected of its solvers."""

    label: str  # family and geometry
    make: Callable[[], Any]  # makes the problem; equal ones, distinct objects, each time
    other: Callable[[], Any]  # makes a problem that differs from it
    tol: float = 1e-4  # gap that both layers reach
    # Of methods of the problem that no other family has.
    arguments: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(slots=True)
class Run:
    """A case with the answers of both layers, each found when it is first asked for, and the lies that are tried."""

    case: ConformanceCase
    lies: Iterable[str] = ()
    problem: Any = field(init=False)
    found: dict[str, Solution] = field(default_factory=dict)
    judgement: Judgement | None = None
    sections: list[explanation.Section] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.problem = self.case.make()

    def answer(self, layer: str) -> Solution:
        """Return the answer of ``fast`` or ``reference``, to a problem of its own."""
        if layer not in self.found:
            solve: Any = fast.solve if layer == "fast" else reference.solve
            self.found[layer] = solve(self.case.make(), tol=self.case.tol)
        return self.found[layer]

    def verdict(self) -> Judgement:
        """Return the judge's, of the point that ``fast`` found."""
        if self.judgement is None:
            self.judgement = judge(self.problem, self.answer("fast").primal, tol=self.case.tol)
        return self.judgement

    def page(self) -> list[explanation.Section]:
        """Return the explanation of the answer of ``fast``."""
        if not self.sections:
            self.sections = explanation.sections(self.answer("fast"))
        return self.sections


def both_layers_agree(run: Run) -> None:
    """Both layers certify, and answers to equal problems, distinct objects, can be compared."""
    answers = [run.answer("fast"), run.answer("reference")]
    assert all(each.certificate.certifies(run.case.tol) for each in answers), [each.gap for each in answers]
    assert compare(answers).outcome is Agreement.AGREE


def stated_or_refused(run: Run) -> None:
    """The reference layer states the program, or refuses by name."""
    try:
        program = reference.formulate(run.problem)
    except DualmechError as error:
        assert "geometry" in str(error) or "factor" in str(error)
    else:
        assert program.constraints


def the_same_and_others(run: Run) -> None:
    """A problem knows the same problem from another one."""
    again, other = run.case.make(), run.case.other()
    assert run.problem.same_as(again) and again.same_as(run.problem)
    assert not run.problem.same_as(other) and not other.same_as(run.problem)
    assert not run.problem.same_as(None) and not run.problem.same_as("problem")


def _first(array: Any, factor: float) -> Any:
    """Return an array with its first entry times a factor."""
    return array * np.where(np.arange(array.size) == 0, factor, 1.0).reshape(array.shape)


def _square(array: Any) -> bool:
    return array.ndim == 2 and array.shape[0] == array.shape[1]


LIES: dict[str, Callable[[Any], Any]] = {
    "negative": lambda array: -array,
    "zero": lambda array: 0 * array,
    "not a number": lambda array: np.nan * array,
    "infinite": lambda array: np.full_like(array, np.inf),
    "minus infinity": lambda array: np.full_like(array, -np.inf),
    "one entry no number": lambda array: _first(array, np.nan),
    "one entry infinite": lambda array: _first(array, np.inf),
    "one entry negative": lambda array: _first(array, -1.0),
    "one entry more": lambda array: _first(array, 10.0),
    "one entry alone": lambda array: array - _first(array, 0.0),
    "less": lambda array: 0.9 * array,
    "more": lambda array: 1.1 * array,
    "far less": lambda array: 1e-300 * array,
    "far more": lambda array: 1e300 * array,
    "uneven": lambda array: array * np.linspace(0.5, 2.0, array.shape[-1] if array.ndim else 1),
    "reversed": lambda array: array[::-1] if array.ndim else -array,
    "squared": lambda array: array**2,
    "alike": np.ones_like,
    "indefinite": lambda array: array - np.trace(array) * np.eye(len(array)) if _square(array) else array - 1,
    "asymmetric": lambda array: np.triu(array) if _square(array) else array + 1,
    "without correlation": lambda array: np.diag(np.diag(array)) if _square(array) else array / 2,
}
"""What a solver may claim in place of an array that it found."""

FEW_LIES = ("not a number", "one entry infinite", "one entry negative", "one entry more", "less", "indefinite")
"""Those that are tried on every case; all of them on one case of each geometry."""

NO_NUMBERS = ("negative", "not a number", "infinite", "minus infinity", "one entry no number", "one entry infinite")


def lies_are_not_certified(run: Run) -> None:
    """No array of a point, spoilt or repaired, passes for an optimum, and none of dual weights proves too much."""
    answer = run.answer("fast")
    for lie in run.lies:
        spoil = LIES[lie]
        for primal in _spoilt(answer.primal, spoil):
            judged_as_it_is(run, lie, primal, answer.dual)
            with contextlib.suppress(DualmechError), np.errstate(all="ignore"):
                judged_as_it_is(run, f"{lie}, repaired", run.problem.feasible(primal), answer.dual)
        for dual in _spoilt(answer.dual, spoil):
            judged_as_it_is(run, lie, answer.primal, dual)


def judged_as_it_is(run: Run, lie: str, primal: Any, dual: Any) -> None:
    """What is certified is as good as the answer, no bound is above it, and remarks say what is missing."""
    answer, tol = run.answer("fast"), run.case.tol
    with np.errstate(all="ignore"):
        try:
            found = run.problem.certify(primal, dual)
        except DualmechError:
            return
        for ask in (lambda: run.problem.binding(primal, 1e-6), lambda: run.problem.prices(dual)):
            with contextlib.suppress(DualmechError):
                ask()
    assert np.isfinite(found.objective) or found.remarks, "no remark says why there is no point"
    proves = found.lower_bound > 0 or found.offset > 0 or found.objective == 0
    assert proves or found.remarks, "no remark says why nothing is proven"
    assert found.lower_bound <= answer.objective * (1 + 1e-6), f"{lie} raises the bound"
    near = abs(found.objective - answer.objective) <= 2 * tol * (answer.objective + found.offset)
    assert lie not in NO_NUMBERS and near or not found.certifies(tol), f"{lie} is certified"


def outsiders_are_judged(run: Run) -> None:
    """The judge finds a bound of its own for any point; mechanisms are judged, or refused by name."""
    answer = run.answer("fast")
    verdict = run.verdict()
    assert verdict.feasible and verdict.gap <= 2 * run.case.tol
    with contextlib.suppress(DualmechError):
        assert judge(run.problem, answer.mechanism, tol=run.case.tol).feasible


def answers_from_elsewhere(run: Run) -> None:
    """A point and dual weights from elsewhere make the same answer, and a method of one's own is followed to it."""
    answer = run.answer("fast")
    mine = judged(run.problem, answer.primal, answer.dual, tol=run.case.tol)
    assert mine == answer and mine.certificate == answer.certificate
    assert compare([mine, run.verdict()]).lower_bound > -1
    assert run.verdict().answer.certificate.feasible
    parts = tuple(getattr(answer.dual, each) for each in answer.dual.__dataclass_fields__)
    for dual in (answer.dual, parts if len(parts) > 1 else parts[0], None):

        def mine_again(_: Any, own: Any = dual) -> Any:
            yield answer.primal, own

        # Of blocks and factors a pair of arrays says too little.
        given = dual is None or dual is answer.dual
        with contextlib.nullcontext() if given else contextlib.suppress(InputTypeError):
            found: Solution = fast.solve(run.problem, method=mine_again, tol=2 * run.case.tol)
            assert found.status.name == "CERTIFIED" and found.iterations == 1


def files_are_judged_anew(run: Run) -> None:
    """A solution is written, read back, and means the same."""
    answer = run.answer("fast")
    with tempfile.TemporaryDirectory() as folder, without_warnings():
        path = Path(folder) / "solution.npz"
        save(answer, path)
        again = load(path)
    assert again.problem.same_as(run.problem) and run.problem.same_as(again.problem)
    assert np.isclose(again.objective, answer.objective, rtol=1e-9, atol=1e-12)
    assert again.status is answer.status and again.solver == answer.solver


def copies_are_equal(run: Run) -> None:
    """Pickled and copied problems are the same problem, and pickled answers are certified as before."""
    for again in (pickle.loads(pickle.dumps(run.problem)), copy.deepcopy(run.problem), copy.copy(run.problem)):
        assert run.problem.same_as(again) and run.problem == again and hash(run.problem) == hash(again)
    assert run.problem != run.case.other()
    answer = run.answer("fast")
    for again in (pickle.loads(pickle.dumps(answer)), copy.deepcopy(answer)):
        assert again == answer and again.problem.certify(again.primal, again.dual).gap == answer.gap


def said_in_words(run: Run) -> None:
    """Everything says in a line what it is, in a notebook by a table, and an answer is explained."""
    answer = run.answer("fast")
    own = [answer.mechanism] if family_of(run.problem).name not in ("projection", "estimate") else []
    for shown in (run.problem, answer, answer.certificate, run.verdict(), compare([answer]), *own):
        assert repr(shown).startswith(f"{type(shown).__name__}(")
        assert len(repr(shown)) < 200 and "\n" not in repr(shown)
        assert "<table>" in shown._repr_html_()
    assert repr(answer).startswith(f"Solution({answer.status.name}, ") and "gap" in repr(answer)
    stream = io.StringIO()
    explanation.show(Console(file=stream, width=120), run.page())
    assert "program" in stream.getvalue() and "proof" in stream.getvalue()


MARKS = re.compile(r"\\(?:begin|end)\{(?P<environment>[^}]*)\}|(?<!\\)[{}$]")


def unbalanced(latex: str) -> str:
    """Return the brace, dollar sign or environment that is not closed, or closed too early; else nothing."""
    opened: list[str] = []
    for match in MARKS.finditer(latex):
        mark = match["environment"] or match[0]
        closes = match[0].startswith(r"\end") or mark == "}" or (mark == "$" and opened[-1:] == ["$"])
        if not closes:
            opened.append(mark)
        elif not opened or opened.pop() != ("{" if mark == "}" else mark):
            return mark
    return "".join(opened[:1])


def written_in_formulas(run: Run) -> None:
    """Symbols, program, dual and proof are stated, and both layers write them as LaTeX that can be compiled."""
    assert len(run.page()) == 5 and all(section.parts for section in run.page())
    assert not unbalanced(latex_document(run.page()))
    for formulation in reference_solving.formulations(run.problem) or (None,):
        written = reference.latex(run.problem, formulation)
        assert not unbalanced(written)
        if formulation is not None:
            labels = {line.label for line in reference_solving.formula(run.problem, formulation).program.constraints}
            stated = reference.formulate(run.problem, formulation).constraints
            of_program = {each.label.partition("[")[0] for each in stated if each.label}
            words = f"formulation {formulation!r} has the constraints {of_program}, its formula {labels}"
            assert labels - {""} == of_program, f"{words}: Formulations has a field `forms` for its own lines"


def shares_and_what_binds(run: Run) -> None:
    """Prices sum to 1, with the share of a release, and binding neighbours are indices, or both are refused by name."""
    answer = run.answer("fast")
    try:
        prices = answer.prices
    except DualmechError as error:
        assert str(error)
    else:
        released = run.problem.known.total(answer.dual.release_weights) if run.case.label.startswith("reuse") else 0.0
        assert np.all(prices >= 0) and np.isclose(prices.sum() + released, 1)
    assert answer.binding.dtype.kind == "i"


def what_users_ask_of_an_answer(run: Run) -> None:
    """Variances, privacy and news of an answer are at hand, or refused by name."""
    answer = run.answer("fast")
    assert len(answer.history) == len(answer.history.gap) == len(answer.history.seconds)
    for name in ("covariance", "variances", "rho", "mechanism"):
        try:
            assert getattr(answer, name) is not None
        except DualmechError as error:
            assert type(run.problem).__name__ in str(error) or "Mechanism has no" in str(error)


def a_feasible_point_stays(run: Run) -> None:
    """Repairing a feasible point changes nothing that the judge can see."""
    answer = run.answer("fast")
    again = run.problem.certify(run.problem.feasible(answer.primal), answer.dual)
    assert again.feasible and np.isclose(again.objective, answer.objective, rtol=1e-8, atol=1e-12)


def progress_is_in_the_units_of_the_answer(run: Run) -> None:
    """What the solver told last is what the judge found, but for the gap that was asked."""
    answer = run.answer("fast")
    apart = 2 * run.case.tol * answer.objective / (1 + answer.gap) + 2 * (answer.objective - answer.lower_bound)
    for told in answer.history[-1:]:
        assert told.lower_bound <= told.objective * (1 + 1e-9)
        for mine, found in ((told.objective, answer.objective), (told.lower_bound, answer.lower_bound)):
            assert abs(mine - found) <= apart + 1e-9


def options_are_refused_by_name(run: Run) -> None:
    """An option that there is not, or a tolerance that cannot be, is a typed error before any work."""
    for options in ({"tolerance": 1e-6}, {"tol": 0.0}, {"max_iterations": 0}, {"callback": 3}):
        try:
            fast.solve(run.problem, **options)
        except DualmechError as error:
            assert next(iter(options)) in str(error)
        else:
            raise AssertionError(f"{options} is taken")
    wrong: tuple[dict[str, Any], ...] = ({"formulation": "prose"}, {"tol": -1.0})
    for stated in wrong:
        with contextlib.suppress(DualmechError):
            reference.solve(run.problem, **stated)
            raise AssertionError(f"{stated} is taken")


def limits_leave_a_judged_answer(run: Run) -> None:
    """A run that is out of time ends with a feasible point and a bound, both of them true."""
    answer = run.answer("fast")
    with without_warnings():
        stopped = [layer.solve(run.case.make(), time_limit=1e-9) for layer in (fast, reference)]
    for found in stopped:
        assert found.certificate.feasible and found.lower_bound <= answer.objective * (1 + 1e-9)
        assert answer.lower_bound <= found.objective * (1 + 1e-9)
    assert stopped[0].status in (dm.Status.STEPS_EXHAUSTED, dm.Status.CERTIFIED, dm.Status.ROUNDING)


def proven_in_whole_numbers(run: Run) -> None:
    """A proof is hardly wider than the gap, of this problem alone, and read back; or it is refused by name."""
    answer = run.answer("fast")
    try:
        proof = prove(answer)
    except InvalidInputError as error:
        assert "proof" in str(error)
        return
    certificate = answer.certificate
    least, most = certificate.interval
    assert proof.lower <= most and least <= proof.upper
    assert proof.upper - proof.lower <= (answer.gap + 1e-9) * (proof.upper + certificate.offset)
    assert proof.is_of(run.case.make()) and not proof.is_of(run.case.other())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "proof.json"
        proof.save(path)
        again = verify(path)
    assert (again.lower, again.upper, again.document) == (proof.lower, proof.upper, proof.document)


def a_proof_is_of_its_own_family(run: Run) -> None:
    """The form in whole numbers is defined where the judge is, or below, or refused: no family has another's proof."""
    kind = type(run.problem)
    judge, form = (next(each for each in kind.__mro__ if name in vars(each)) for name in ("certify", "in_numbers"))
    if not issubclass(form, judge):
        try:
            run.problem.in_numbers()
        except InvalidInputError:
            return
        raise AssertionError(f"a {judge.__name__} states the proof of a {form.__name__}")


def a_mechanism_costs_no_more_than_its_limit(run: Run) -> None:
    """No feasible noise has a mechanism of a higher privacy cost than the family allows, by a rounding error or more.

    A family whose judge objects to a quarter of the noise limits the cost, and says to what.
    """
    problem, answer = run.problem, run.answer("fast")
    limit = getattr(problem, "cost_limit", None)
    if isinstance(problem, OnGeometry):
        quarter = problem.geometry.divide(answer.primal, 4.0)
        violation = problem.certify(quarter, answer.dual).violation
        cost = problem.geometry.forms(quarter).cost / (1 + violation)
        assert (violation > FEASIBLE) == (limit is not None), "cost_limit does not say what the judge allows"
        assert limit is None or abs(cost - limit) <= 1e-6 * limit, f"the judge allows {cost}, cost_limit is {limit}"
    if limit is None:
        return
    for factor in (1.0, 1 - 4e-16, 1 + 4e-16, 1 - 1e-13, 1 - 1e-10, 1 + 1e-10):
        divided = getattr(problem.geometry, "divide", lambda weights, divisor: weights * divisor)
        point = divided(answer.primal, 1 / factor)
        if problem.certify(point, answer.dual).feasible:
            assert problem.mechanism(point).squared_privacy_cost <= limit, f"noise times {factor!r} costs more"


def drawn_in_whole_numbers(run: Run) -> None:
    """An answer's mechanism is drawn, at no more than it costs and as tables that it answers, or refused by name."""
    answer = run.answer("fast")
    try:
        drawn, asked = plan(answer)
    except DualmechError as error:
        assert "mechanism" in str(error) or "workload" in str(error)
        return
    assert 0 < drawn.squared_privacy_cost <= Fraction(answer.mechanism.squared_privacy_cost) * (1 + SLACK)
    tables = published_tables(asked)
    assert tables and sum(table.entries for table in tables) == asked.shape[0]
    for table in tables if drawn.by_table else ():
        assert np.all(np.asarray(drawn.mechanism.variances(table.table_key)) > 0)


ABILITIES: dict[str, Callable[[Any, Solution, Any], Any]] = {
    "the covariance of all noise": lambda problem, answer, noise: answer.covariance,
    "the basis": lambda problem, answer, noise: problem.basis,
    "the cost matrix": lambda problem, answer, noise: noise.cost_matrix,
    "what is answerable": lambda problem, answer, noise: noise.scaled(2.0).is_answerable_from(noise),
    "the order of profiles": lambda problem, answer, noise: dm.compare_privacy(answer, noise),
    "what is common": lambda problem, answer, noise: dm.CommonMechanism([noise, noise.scaled(2.0)]),
    "the residual": lambda problem, answer, noise: dm.residual(noise, noise.scaled(2.0)),
    "composition": lambda problem, answer, noise: noise.compose(noise.scaled(2.0)),
    "stacks": lambda problem, answer, noise: noise.stack(noise.scaled(2.0)),
    "other rows": lambda problem, answer, noise: noise.rebase(problem.basis),
    "reuse": lambda problem, answer, noise: dm.ReuseFitness(problem.workload, 1.0, noise),
    "refinement": lambda problem, answer, noise: fast.refine(problem),
    "Newton's method": lambda problem, answer, noise: fast.solve(problem, method="newton", tol=1e-3),
    "a soft maximum": lambda problem, answer, noise: fast.solve(problem, method="softmax_newton", tol=0.1),
    "symmetries": lambda problem, answer, noise: fast.solve(
        problem, orbits=[np.arange(problem.workload.shape[1])], tol=1e-3
    ),
    "a start": lambda problem, answer, noise: fast.solve(problem, start=answer, tol=0.1),
    "a weight of 0": lambda problem, answer, noise: dm.TotalVariance(
        problem.workload, [0.0, *[1.0] * (problem.workload.shape[0] - 1)]
    ),
}
"""What may be asked beyond the judge and a mechanism's privacy and variances."""

BY_MATRIX = {
    *("the covariance of all noise", "the basis", "the cost matrix", "the order of profiles", "stacks", "other rows"),
    *("refinement", "a soft maximum", "symmetries"),
}
"""What is asked of one matrix of noise."""

REFUSED: dict[str, set[str]] = {
    "dense": set(),
    "epochs": set(),
    "stream": set(),  # by the matrix, up to some thousand steps
    "blocks": BY_MATRIX | {"a weight of 0"},
    "product": BY_MATRIX | {"reuse", "what is answerable", "what is common", "the residual", "composition", "a start"},
    "split": BY_MATRIX
    | {"reuse", "what is answerable", "what is common", "the residual", "composition", "a start"}
    | {"Newton's method", "a weight of 0"},
}
"""By geometry, what it refuses by name; it can do all else."""


def what_a_geometry_can_do(run: Run) -> None:
    """Everything is done or refused by name, as the one list says."""
    problem = run.problem
    if not isinstance(problem, dm.FitnessForUse) or problem.neighbours is not None:
        return
    answer = run.answer("fast")
    for name, ask in ABILITIES.items():
        try:
            with without_warnings():
                ask(problem, answer, answer.mechanism)
        except (DualmechError, AttributeError) as error:
            kind = type(answer.mechanism).__name__
            words = (kind, "'dense'", problem.geometry.name, "method must be", "weights must be")
            assert name in REFUSED[problem.geometry.name], f"{name}: {error}"
            assert any(each in str(error) for each in words), f"{name} is refused, but not by name: {error}"
        else:
            assert name not in REFUSED[problem.geometry.name], f"{name} is not refused"


CHECKS: dict[str, Callable[[Run], None]] = {
    check.__name__: check
    for check in (
        both_layers_agree,
        stated_or_refused,
        the_same_and_others,
        lies_are_not_certified,
        outsiders_are_judged,
        answers_from_elsewhere,
        files_are_judged_anew,
        copies_are_equal,
        said_in_words,
        written_in_formulas,
        shares_and_what_binds,
        what_users_ask_of_an_answer,
        a_feasible_point_stays,
        progress_is_in_the_units_of_the_answer,
        options_are_refused_by_name,
        limits_leave_a_judged_answer,
        proven_in_whole_numbers,
        a_proof_is_of_its_own_family,
        a_mechanism_costs_no_more_than_its_limit,
        drawn_in_whole_numbers,
        what_a_geometry_can_do,
    )
}
"""The checks, by name."""


def conform(case: ConformanceCase, lies: Iterable[str] = FEW_LIES) -> None:
    """Run all checks on a case; an error for each that fails, with its name."""
    run, failures = Run(case, lies), []
    for name, check in CHECKS.items():
        try:
            check(run)
        except Exception as error:
            error.add_note(f"{case.label}: {name}")
            failures.append(error)
    if failures:
        raise ExceptionGroup(f"{case.label} does not conform", failures)


def _spoilt(value: Any, spoil: Callable[[Any], Any]) -> Iterator[Any]:
    """Yield a point or dual weights with each of their arrays spoilt in turn."""
    if isinstance(value, tuple):
        for place, part in enumerate(value):
            for each in _spoilt(part, spoil):
                yield (*value[:place], each, *value[place + 1 :])
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            for each in _spoilt(getattr(value, name), spoil):
                yield replace(value, **{name: each})
    elif np.size(value) and value is not None:
        with np.errstate(all="ignore"):
            yield spoil(np.asarray(value, dtype=float))
