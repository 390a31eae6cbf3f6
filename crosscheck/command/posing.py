"""What ``explain`` is asked for: any problem of the library, also those that no other command poses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from dualmech import files
from dualmech.crosscheck.command import inputs
from dualmech.crosscheck.command.explanation import refuse_large
from dualmech.crosscheck.command.options import UsageError
from dualmech.crosscheck.command.request import Request
from dualmech.crosscheck.families import FAMILIES, Family
from dualmech.neighbours import Relation
from dualmech.problems.common import CommonMechanism
from dualmech.problems.local.estimate import NonnegativeEstimate
from dualmech.problems.local.projection import LocalProjection
from dualmech.problems.local.strategy import LocalStrategy
from dualmech.problems.reuse import ReuseFitness
from dualmech.publishing.specification import Specification
from dualmech.storage import store
from dualmech.workloads.base import Workload

LOCAL = ("local", "projection")
"""Problems whose ε is that of local privacy, which has no δ."""


@dataclass(frozen=True, slots=True)
class AnyRequest(Request):
    """The options of ``explain``; where the problem is about mechanisms, files of them are the workload and the others.

    Raises `UsageError` for options that exclude each other, need each other, or belong to another problem.
    """

    others: tuple[str, ...] = ()
    criterion: str | None = None
    prior: str | None = None
    released: str | None = None
    answers: str | None = None
    total: float | None = None

    families: ClassVar[tuple[Family, ...]] = FAMILIES

    def __post_init__(self) -> None:
        Request.__post_init__(self)
        if self.problem in ("variance", "weighting") and (self.rho is not None or self.epsilon is not None):
            raise UsageError("--rho and --epsilon belong to solve; explain takes a squared privacy cost of 1")
        if self.problem in ("common", "local", "projection", "estimate") and self.neighbours is not None:
            raise UsageError(f"--neighbours belongs to problems about Gaussian noise, not to {self.problem}")
        if self.problem in LOCAL and self.delta is not None:
            raise UsageError(f"--delta does not belong to --problem {self.problem}: local privacy is pure")
        if self.problem != "common" and self.others:
            raise UsageError("give one WORKLOAD; several files are for --problem common")

    @property
    def by_epsilon_alone(self) -> bool:
        """Whether ε is spent without a δ."""
        return self.pure or self.problem in LOCAL

    def state(self, geometry: str | None = None) -> Any:
        """Read everything and state the problem, unless it is too large to be explained."""
        own: dict[str, Callable[[], Any]] = {
            "common": self._common,
            "reuse": self._reuse,
            "local": self._local,
            "projection": self._projection,
            "estimate": self._estimate,
        }
        if self.problem in own:
            return own[self.problem]()
        request = self.specified()
        asked = request._asked()
        plain = {each.name: getattr(request, each.name) for each in fields(Request)}
        if not isinstance(request.workload, Specification):
            plain["workload"] = asked
        return Request(**plain).state(geometry)

    @property
    def spends(self) -> bool:
        """Whether a privacy can be named: what is not fitness for use is explained at a squared cost of 1."""
        return self.problem == "fitness"

    def _asked(self) -> Workload:
        """Return the workload, if it is not too large to be explained."""
        workload = self._read()
        by_rule = isinstance(self._moves(), Relation)
        by_table = self.problem in ("fitness", "variance") and self.geometry != "dense" and by_rule
        refuse_large(workload, by_table)
        return workload

    def _needed(self, name: str) -> Any:
        """Return the value of an option without which there is no problem."""
        value = getattr(self, name)
        if value is None:
            raise UsageError(f"--problem {self.problem} needs --{name}")
        return value

    def _common(self) -> CommonMechanism:
        return CommonMechanism([_mechanism(path) for path in (str(self.workload), *self.others)])

    def _reuse(self) -> ReuseFitness:
        released = _mechanism(self._needed("released"))
        workload = self._asked()
        changes = None if self.neighbours is None else self._moves()
        return ReuseFitness(workload, self._variances(workload), released, neighbours=changes)

    def _local(self) -> LocalStrategy:
        epsilon = self._needed("epsilon")
        prior = None if self.prior is None else files.read_vector(self.prior, "prior")
        criterion = "average" if self.criterion is None else self.criterion
        return LocalStrategy(self._asked(), epsilon, criterion, prior=prior)

    def _projection(self) -> LocalProjection:
        return LocalProjection(files.read_matrix(str(self.workload), "matrix"), self._needed("epsilon"))

    def _estimate(self) -> NonnegativeEstimate:
        answers = files.read_vector(self._needed("answers"), "answers")
        return NonnegativeEstimate(self._asked(), answers, self.total)


def _mechanism(path: str) -> Any:
    """Return the mechanism in a file, that of a solution among them."""
    found = inputs.read_solution(path)
    return store.load(path) if found is None else found.mechanism
