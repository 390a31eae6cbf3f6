"""Terms of a plan: the user's requirements beyond the problem, stored with the answer."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from dualmech import validate
from dualmech.display import decimal_above
from dualmech.errors import DualmechError
from dualmech.problems.limits import HardLimits
from dualmech.publishing.attributes import TOTAL
from dualmech.solution import Solution, retold


@dataclass(frozen=True, slots=True, eq=False)
class PlanTerms:
    """The terms that a user specified, stored with the answer, so that all commands and pages agree.

    Attributes
    ----------
    quantile : float or None
        Standard deviations in a margin of error.
    delta : float or None
        The δ for which ε is reported.
    rho : str or None
        The budget ρ, as a fraction or a decimal; for a plan with targets only, its cost.
    epsilon : float or None
        The budget ε of Laplace noise, which has no ρ.
    specification : str or None
        Tables, accuracies, level, budget, neighbours, title and date, as JSON (`dualmech.Specification`).
    limits : HardLimits or None
        Hard limits, which hold together with a budget.
    """

    quantile: float | None = None
    delta: float | None = None
    rho: str | None = None
    epsilon: float | None = None
    specification: str | None = None
    limits: HardLimits | None = None

    @classmethod
    def of(cls, answer: Solution | None) -> PlanTerms | None:
        """Return the terms of an answer, or None if it has none."""
        return cls(**answer.metadata) if answer is not None and answer.metadata else None

    @property
    def metadata(self) -> dict[str, Any]:
        """The specified terms by name, for the metadata of a `Solution`."""
        terms = {part.name: getattr(self, part.name) for part in fields(self)}
        return {name: term for name, term in terms.items() if term is not None}

    @property
    def margin_tables(self) -> frozenset[str]:
        """Names of the tables whose accuracy is specified as a margin of error."""
        return frozenset(table_name(table) for table in self._tables if "margin" in table)

    @property
    def _tables(self) -> list[dict[str, Any]]:
        return [] if self.specification is None else list(json.loads(self.specification).get("tables", []))

    def __post_init__(self) -> None:
        if self.quantile is not None:
            validate.positive_number(quantile=self.quantile)
        if self.delta is not None:
            validate.probability(delta=self.delta)
        if self.rho is not None:
            validate.exact_number(rho=self.rho)
        if self.epsilon is not None:
            validate.positive_number(epsilon=self.epsilon)
        if self.limits is not None:
            validate.instance(HardLimits, limits=self.limits)


def table_name(table: Mapping[str, Any]) -> Any:
    """Return the name of a table of a specification, by default its attributes."""
    return table.get("name", " x ".join(map(str, table.get("ask", ()))) or TOTAL)


def as_plan(answer: Solution, terms: PlanTerms) -> Solution:
    """Return an answer with its terms; if these have no ρ, with the cost ρ of the noise, rounded up.

    All output on the plan has this ρ. The drawn noise costs some millionths less.
    """
    # An answer that includes an earlier release costs more than its plan, which is for the new release only.
    is_new = not hasattr(answer.problem, "new_mechanism")
    if is_new and terms.rho is None and getattr(answer.problem, "numbers", "") == "targets":
        with contextlib.suppress(DualmechError):  # an infeasible point has no mechanism
            terms = replace(terms, rho=decimal_above(answer.rho, 10))
    return retold(answer, metadata=terms.metadata)
