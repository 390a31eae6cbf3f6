"""Random problems through both layers: certified intervals meet, and nothing comes but answers and typed errors.

A tighter tolerance gives no worse answer.

``python tests/soak.py FIRST COUNT`` runs the seeds FIRST … FIRST + COUNT - 1 and prints what is wrong.
"""

from __future__ import annotations

import math
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import random_problems

from dualmech import fast
from dualmech.crosscheck.agreement import Agreement, meet
from dualmech.crosscheck.proofs.prove import prove
from dualmech.errors import BackendError, CertificateError, DualmechError, InvalidInputError, UncertifiedWarning
from dualmech.progress import Status
from dualmech.solution import Solution

TOLERANCES = {"fast": 1e-6, "reference": 1e-4}
TIGHT = 1e-10  # tolerance of a further run of the fast layer, which some answers cannot meet in doubles
TIME_LIMIT = 20.0  # seconds that a layer gets for a problem

REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a seed."""

    seed: int
    label: str
    fault: str = ""  # what is wrong; empty where nothing is
    words: tuple[str, ...] = ()  # how each layer ended


def outcome(seed: int) -> Outcome:
    """Return what comes of the problem of a seed in both layers, and of a proof where the family has one.

    A fault is an error that is not of the library or that says the library is wrong, a warning that is not its own,
    two proven intervals that do not meet, or a worse answer at a tighter tolerance.
    """
    asked = random_problems.asked(seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", UncertifiedWarning)
            return Outcome(seed, asked.label, *_run(asked))
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return Outcome(seed, asked.label, f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno})")


def _run(asked: random_problems.RandomProblem) -> tuple[str, tuple[str, ...]]:
    """Return what is wrong, and how each layer ended."""
    try:
        problem = asked.state()
    except CertificateError:
        raise
    except DualmechError as error:
        return "", (f"{REFUSED}: {type(error).__name__}",)
    answers, words = [], []
    for layer in TOLERANCES:
        try:
            answers.append(_solved(layer, problem))
            words.append(f"{layer} {answers[-1].status.name}")
        except (BackendError, InvalidInputError) as error:
            words.append(f"{layer} {type(error).__name__}")
            if layer == "fast" and not isinstance(error, InvalidInputError):
                raise
    if asked.twin is not None and answers:
        answers.append(_solved("fast", asked.twin()))
        words.append(f"on a matrix {answers[-1].status.name}")
    if answers and answers[0].solver.startswith("fast") and (lost := _lost(answers[0], problem)):
        return lost, tuple(words)
    if answers and meet(answers).outcome is Agreement.DISAGREE:
        return f"intervals do not meet: {[each.certificate.interval for each in answers]}", tuple(words)
    return _contradicted(answers), tuple(words)


def _solved(layer: str, problem: Any, tol: float | None = None) -> Solution:
    from dualmech import reference

    solve: Any = fast.solve if layer == "fast" else reference.solve
    found: Solution = solve(problem, tol=tol or TOLERANCES[layer], time_limit=TIME_LIMIT)
    return found


def _lost(answer: Solution, problem: Any) -> str:
    """Return by how much the answer at a tighter tolerance is worse; nothing if limits of the run ended one of both."""
    tight = _solved("fast", problem, TIGHT)
    if Status.STEPS_EXHAUSTED in (answer.status, tight.status) or not answer.certificate.feasible:
        return ""
    judged, offset = tight.certificate, tight.certificate.offset
    enough = (1 + TIGHT) * (judged.lower_bound + offset) - offset
    value = judged.objective + judged.violation * (judged.objective + offset) if judged.feasible else math.inf
    allowed = max(answer.certificate.interval[1], enough)
    return f"{value!r} at {TIGHT:g}, at most {allowed!r} at {answer.tol:g}" if value > allowed else ""


def _contradicted(answers: list[Solution]) -> str:
    """Return what is wrong with certified intervals by a proof in exact arithmetic, where there is one."""
    for answer in answers:
        try:
            proof = prove(answer)
        except (InvalidInputError, CertificateError):
            continue  # no proof is known, or it is too ill-conditioned to show anything
        for each in answers:
            low, high = each.certificate.interval
            if low > proof.upper or high < proof.lower:
                return f"[{low!r}, {high!r}] against the proof {proof!r}"
    return ""


def outcomes(first: int, count: int) -> Iterator[Outcome]:
    """Yield what comes of so many seeds, from the first on."""
    return (outcome(seed) for seed in range(first, first + count))


def main(first: int, count: int) -> int:
    """Print faults as they come, and how all ended; return 1 where there was a fault, else 0."""
    ended: Counter[str] = Counter()
    faults = 0
    for each in outcomes(first, count):
        ended.update(each.words)
        if each.fault:
            faults += 1
            print(f"{each.seed}: {each.label}\n    {each.fault}", flush=True)
    print(f"{count} seeds from {first}: {faults} faults; {dict(sorted(ended.items()))}")
    return int(bool(faults))


if __name__ == "__main__":
    if len(sys.argv) != 3 or not all(each.isdecimal() for each in sys.argv[1:]):
        sys.exit("usage: python tests/soak.py FIRST COUNT")
    sys.exit(main(*map(int, sys.argv[1:])))
