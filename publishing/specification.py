"""Specifications: attributes, tables and how accurate each shall be, in one small file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from fractions import Fraction
from operator import itemgetter
from os import PathLike
from typing import Any

import numpy as np

from dualmech import accounting, validate
from dualmech.errors import InvalidInputError, did_you_mean
from dualmech.files.reading import errors_naming, read_toml
from dualmech.neighbours import ADD_REMOVE, DIFFERENCES, Contributions, Relation, canonical
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.protection import reachable
from dualmech.publishing import derived
from dualmech.publishing.asking import asked_of, refuse_unsupported
from dualmech.publishing.persons import Bound
from dualmech.publishing.plans import PlanTerms, as_plan, table_name
from dualmech.publishing.published import counts_nobody
from dualmech.publishing.records import Records
from dualmech.publishing.schema import Schema
from dualmech.solution import Solution, require_solution
from dualmech.workloads.base import Workload, same_content
from dualmech.workloads.unions import Table, UnionWorkload

ROOM_FOR_GRID = 4e-6  # by how much targets are lower than asked, relative, so that the drawn noise meets them
KEYS = ("title", "date", "attributes", "never", "records", "tables", "neighbours", "level", "rho")
RECORD_KEYS = ("count", "ignore", "person", "at_most", "per", "check")
BUDGETS = ("epsilon", "delta", "budget", "eps")
TABLE_KEYS = ("name", "ask", "variance", "margin", "hard", "derive", "expected", "total")


@dataclass(frozen=True, slots=True)
class Specification:
    """Which tables to publish of which records, and how accurate each shall be.

    Attributes
    ----------
    schema : Schema
        The attributes.
    workload : UnionWorkload
        The tables.
    targets : dict of names to float
        The variance that no query of a table may exceed, less the 4e-6 of it that a release's grid may add. Where ρ is
        given these are ratios: one factor on all of them is minimised. Tables of margin 0 (`exact`) have the largest
        of the others.
    neighbours : Relation
        Which data sets privacy keeps apart.
    caps : dict of names to float
        The same of tables that are ``hard``, whose variance is not exceeded whatever the privacy.
    rho : Fraction or None
        The ρ (zCDP) that may be spent.
    level : float
        The level of the margins of error.
    records : Records
        What columns of records mean that no attribute reads; its `source` is None.
    title, date : str
        What the statement of a release is headed by.
    given : dict
        What all of this was made of.

    Examples
    --------
    >>> import dualmech as dm
    >>> asked = dm.Specification.of(
    ...     {
    ...         "attributes": {"age": {"from": 17, "to": 90}, "sex": {"labels": ["female", "male"]}},
    ...         "tables": [
    ...             {"name": "ages", "ask": {"age": "prefixes"}, "variance": 100},
    ...             {"name": "adults by sex", "ask": {"age": ["18..64", "65..90"], "sex": "values"}, "margin": 20},
    ...         ],
    ...     }
    ... )
    >>> asked.workload.shape, {name: round(target, 3) for name, target in asked.targets.items()}
    ((78, 148), {'ages': 100.0, 'adults by sex': 104.127})
    >>> asked.problem().geometry.name
    'blocks'
    """

    schema: Schema
    workload: UnionWorkload
    targets: dict[str, float]
    neighbours: Relation
    caps: dict[str, float]
    rho: Fraction | None
    level: float
    records: Records = field(default_factory=lambda: Records(None), repr=False)
    title: str = ""
    date: str = ""
    given: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Specification:
        """Return the specification that a mapping makes, as a file holds it.

        Raises `InvalidInputError` or `InputTypeError` for keys that are unknown or missing, and what a schema refuses.
        """
        validate.mapping("attributes, tables and what is asked of them", given=given)
        given = validate.composed_within("a specification", given)
        _known(given, KEYS, "a specification")
        _require_parts(given)
        schema = Schema(given["attributes"], given.get("never", ()))
        level = validate.probability(level=given.get("level", accounting.LEVEL))
        rho = None if given.get("rho") is None else validate.exact_number(rho=given["rho"])
        tables: dict[str, dict[int, Workload | None]] = {}
        targets: dict[str, float] = {}
        caps: dict[str, float] = {}
        exact: list[str] = []
        alone = len(schema.shape) == len(given["tables"]) == 1
        for table in validate.sequence(tables=given["tables"]):
            name, queries, target = _table(schema, table, level, alone)
            if name in tables:
                raise InvalidInputError(f"tables must have distinct names, got {name!r} twice")
            tables[name] = queries
            _check_derived(table, schema, queries)
            if target == 0:
                exact.append(name)
                continue
            (caps if validate.boolean(hard=table.get("hard", False)) else targets)[name] = target
        if not tables:
            raise InvalidInputError("tables must be one or more, got none")
        if rho is not None and not targets:
            raise InvalidInputError(
                "tables must not all be hard where rho is given, which is spent on the others: leave out rho here, and "
                "name it when the records are released"
            )
        reading, relation = _records(given.get("records", {}), given.get("neighbours"), schema)
        relation.check(schema)
        for name in exact:
            _check_exact(name, schema, tables[name], relation)
        # What costs nothing is solved with the loosest of the other targets, and published without noise.
        targets |= dict.fromkeys(exact, max([*targets.values(), *caps.values()], default=1.0))
        title, day = (_text(key, given.get(key, "")) for key in ("title", "date"))
        known = {**given, "attributes": {attribute.name: attribute.as_spec() for attribute in schema.attributes}}
        kept = json.loads(json.dumps(known, default=_plain))
        workload = UnionWorkload(
            schema, [Table(name, tuple(sorted(queries.items(), key=itemgetter(0)))) for name, queries in tables.items()]
        )
        return cls(schema, workload, targets, relation, caps, rho, level, reading, title, day, kept)

    @classmethod
    def of_json(cls, text: str) -> Specification:
        """Return the specification that `to_json` wrote."""
        return cls.of(validate.decoded("attributes, tables and what is asked of them", text=text))

    def to_json(self) -> str:
        """Return the specification as a text, which the file of a plan keeps."""
        return json.dumps(self.given, ensure_ascii=False)

    def changed(
        self,
        *,
        rho: Fraction | str | None = None,
        neighbours: str | None = None,
        targets: Mapping[str, float] | None = None,
        caps: Mapping[str, float] | None = None,
    ) -> Specification:
        """Return the specification with a ρ, neighbours or variances of its own; `caps` make tables hard.

        With `targets`, what the tables were asked before, hard or not, no longer counts. Without, a cap is a margin of
        error where the table states one, else a variance.
        """
        options = {key: value for key, value in self.given.items() if key != "rho" or targets is None}
        options |= {} if rho is None else {"rho": str(rho)}
        options |= {} if neighbours is None else {"neighbours": neighbours}
        names, tables = self.workload.table_names, []
        for name, table in zip(names, options["tables"], strict=True):
            changed = {
                key: value
                for key, value in table.items()
                if targets is None or key in ("name", "ask", "total", "derive")
            }
            for limits, hard in ((targets or {}, {}), (caps or {}, {"hard": True})):
                if name in limits:
                    kind = "margin" if targets is None and "margin" in table else "variance"
                    changed = {key: value for key, value in changed.items() if key not in ("margin", "variance")}
                    changed |= {kind: limits[name], **hard}
            tables.append(changed)
        return Specification.of(options | {"tables": tables})

    def planned(self, answer: Solution) -> Solution:
        """Return a solution that keeps what was asked: its file, its statement and all who read it say the same.

        Raises `InvalidInputError` for a solution of other tables, or for other neighbours.

        Examples
        --------
        >>> import dualmech as dm
        >>> asked = dm.Specification.read("examples/people.toml")  # doctest: +SKIP
        >>> dm.save(asked.planned(dm.fast.solve(asked.problem())), "plan.npz")  # doctest: +SKIP
        """
        self.check_answer(answer)
        rho = None if self.rho is None else str(self.rho)
        return as_plan(answer, PlanTerms(self.quantile, None, rho, None, self.to_json(), answer.metadata.get("limits")))

    def check_answer(self, answer: Solution) -> None:
        """Refuse a solution of other tables, or for neighbours that do not contain those of the specification."""
        if not same_content(getattr(require_solution(answer).problem, "workload", None), self.workload):
            raise InvalidInputError("answer must be to the tables of this specification")
        relation = canonical(answer.problem.neighbours, self.schema)
        if relation.startswith(DIFFERENCES) or not Relation.of(relation).contains(self.protected):
            raise InvalidInputError(
                f"answer must protect the neighbours of the specification, {self.protected}, got {relation}"
            )

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Specification:
        """Read a specification from a TOML file (``docs/formats.md``).

        Raises `FileFormatError` for a file that cannot be read or is no TOML, and with its path for what `of` refuses.
        """
        spec = read_toml(path)
        with errors_naming(path):
            return cls.of(spec)

    @property
    def _tables(self) -> dict[str, dict[str, Any]]:
        return dict(zip(self.workload.table_names, self.given["tables"], strict=True))

    @property
    def asks(self) -> dict[str, dict[str, Any]]:
        """What each table asks of each attribute, by the table's name."""
        return {name: _each(table.get("ask", {})) for name, table in self._tables.items()}

    @property
    def derivations(self) -> dict[str, tuple[str, ...]]:
        """The derived columns of each table that has some, by the table's name."""
        return {
            name: tuple(dict.fromkeys(table["derive"])) for name, table in self._tables.items() if table.get("derive")
        }

    @property
    def expected(self) -> dict[str, float]:
        """How many records a row is expected to count, of tables that say so, by the table's name."""
        return {name: float(table["expected"]) for name, table in self._tables.items() if "expected" in table}

    @property
    def exact(self) -> frozenset[str]:
        """Tables of margin 0: no neighbour changes an answer of theirs."""
        return frozenset(
            name for name, table in self._tables.items() if 0 in (table.get("margin"), table.get("variance"))
        )

    @property
    def protected(self) -> Relation:
        """The neighbours that noise is made for: as asked, or more where these tables take no such rule."""
        relation: Relation = reachable(self.workload, self.neighbours)
        return relation

    @property
    def cost(self) -> float | None:
        """Squared privacy cost that may be spent, not above twice ρ; None where the file names no ρ."""
        return None if self.rho is None else accounting.squared_cost_from_rho(self.rho)

    @property
    def quantile(self) -> float:
        """Standard deviations in a margin of error at the level."""
        return accounting.normal_quantile(self.level)

    def problem(self) -> FitnessForUse | PrivacyFirst:
        """Return the problem: the least privacy cost that keeps all tables, or at ρ the least factor on the targets.

        What is solved at ρ costs no more once it is drawn: a grid's noise costs a millionth less in every direction.
        Raises `InvalidInputError` where caps stand with ρ, which is no one problem but a search for the factor.
        """
        if self.cost is None:
            return FitnessForUse(self.workload, self.targets | self.caps, neighbours=self.protected)
        if self.caps:
            raise InvalidInputError(
                "caps with rho are a search for the factor on the other tables: crosscheck.capped(workload, targets, "
                "caps, cost, neighbours), or dualmech solve"
            )
        return PrivacyFirst(self.workload, self.targets, self.cost, neighbours=self.protected)


def _require_parts(spec: Mapping[str, Any]) -> None:
    for key in ("attributes", "tables"):
        if key not in spec:
            raise InvalidInputError(f"a specification needs {key}")
    if isinstance(spec["tables"], Mapping):
        raise InvalidInputError("tables must be a list of tables, each under [[tables]] in a file, got [tables]")
    if isinstance(spec["attributes"], list | tuple):
        raise InvalidInputError("attributes must have names, as [attributes.age] in a file, got [[attributes]]")


def _records(spec: object, neighbours: object, schema: Schema) -> tuple[Records, Relation]:
    options = {**validate.mapping("options of records", records=spec)}
    _known(options, RECORD_KEYS, "records")
    person, at_most, per, check = (options.pop(key, None) for key in RECORD_KEYS[2:])
    check = validate.boolean(**{"records.check": False if check is None else check})
    stated = None if neighbours is None else Relation.of(validate.text(neighbours=neighbours))
    bound = None
    if person is None and (at_most is not None or per is not None or check):
        raise InvalidInputError("records.at_most, records.per and records.check need records.person, a column")
    if person is not None:
        if (at_most is None) != check:
            raise InvalidInputError(
                "records.person needs one of records.at_most, the rows of a person that are kept, and records.check = "
                "true, which refuses records in which somebody has more than the neighbours say"
            )
        if check:
            if per is not None:
                raise InvalidInputError("records.per goes with records.at_most; what is checked the neighbours say")
            rule = stated or ADD_REMOVE
            attribute, groups = (rule.attribute, rule.groups) if isinstance(rule, Contributions) else ("", None)
            bound = Bound(person, rule.members, attribute, check=True, groups=groups)
        else:
            bound = Bound(person, at_most, "" if per is None else per)
            implied = Contributions(bound.at_most, bound.per, 1) if bound.per else Relation(members=bound.at_most)
            if stated is not None and not stated.contains(implied):
                raise InvalidInputError(
                    f"neighbours must protect what records.at_most leaves of a person, {implied}, or be left out, got "
                    f"{stated}"
                )
            stated = stated or implied
    reading = Records(None, **options, persons=bound)
    if reading.count in schema.sources:
        raise InvalidInputError(f"records.count must be a column that is no attribute, got {reading.count!r}")
    return reading, stated or ADD_REMOVE


def _table(schema: Schema, spec: object, level: float, alone: bool) -> tuple[str, dict[int, Workload | None], float]:
    table = validate.mapping("name, ask, and variance or margin", table=spec)
    _known(table, TABLE_KEYS, "a table")
    ask = table.get("ask")
    if validate.boolean(total=table.get("total", False)):
        if ask is not None:
            raise InvalidInputError("a table must have ask or total, not both: the total is of all records")
        ask = {}
    known = table_name({**table, "ask": ask if isinstance(ask, Mapping | list | tuple) else ()})
    what = f"table {known!r}" if ask or "name" in table else "a table"
    if not ask and ask is not None and not table.get("total"):
        raise InvalidInputError(f"{what} must ask an attribute or more; total = true asks the number of all records")
    if not isinstance(ask, Mapping | list | tuple):
        raise InvalidInputError(f"{what} must have ask, attributes or a mapping of them to what is asked")
    if ("variance" in table) == ("margin" in table):
        got = "both" if "variance" in table else "neither"
        raise InvalidInputError(f"{what} must have one of variance and margin, got {got}")
    by_attribute = _each(ask)
    name = validate.text(name=known)
    queries = {}
    for attribute, query in by_attribute.items():
        (axis,) = schema.axes([attribute])
        queries[axis] = asked_of(schema.attribute(axis), query, alone)
    kind = "variance" if "variance" in table else "margin"
    limit = validate.nonnegative_number(**{f"{kind} of {name!r}": table[kind]})
    if limit and kind == "margin":
        limit = float(accounting.variance_from_margin(limit, accounting.normal_quantile(level)))
    return name, queries, limit * (1 - ROOM_FOR_GRID)


def _check_derived(table: Mapping[str, Any], schema: Schema, queries: Mapping[int, Workload | None]) -> None:
    """Refuse derived columns that do not follow from what a table asks."""
    for kind in validate.sequence(derive=table.get("derive", ())):
        if not queries:
            raise InvalidInputError("derive must be of a table that asks attributes, not of the total")
        derived.needed(validate.text(derive=kind), schema, queries, [*queries][-1])
    if "expected" in table:
        validate.positive_number(expected=table["expected"])
        if not {derived.SHARE, derived.MEAN}.intersection(table.get("derive", ())):
            raise InvalidInputError(
                "expected is for tables that derive a share or a mean: the records that a row counts"
            )


def _check_exact(name: str, schema: Schema, queries: Mapping[int, Workload | None], relation: Relation) -> None:
    """Refuse margin 0 for a table of which neighbours change some answer."""
    if np.all(counts_nobody(schema, queries)):
        return
    if relation.fixed is None:
        why = f"of neighbours that add or remove records ({relation}) every answer is changed by some"
    elif not all(
        relation.leaves(schema.names[axis], query, schema.shape[axis]).all() for axis, query in queries.items()
    ):
        why = (
            f"neighbours ({relation}) change answers of this table; those that they do not change, such as the number "
            f"of records, are published exactly whatever is asked of the others"
        )
    else:
        return
    raise InvalidInputError(f"margin and variance of {name!r} must be positive: {why}")


def _each(ask: Any) -> dict[str, Any]:
    """Return the question to each attribute that a table names; an attribute that comes twice is refused."""
    if not isinstance(ask, Mapping) and len({*map(str, ask)}) < len(ask):
        raise InvalidInputError(f"a table must ask each attribute once, got {list(ask)}")
    return {**ask} if isinstance(ask, Mapping) else dict.fromkeys(ask, "values")


def _text(key: str, value: object) -> str:
    return value.isoformat() if isinstance(value, date) else validate.text(**{key: value})


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {**value}
    if isinstance(value, Fraction | date):
        return str(value)
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else [*value]


def _known(spec: Mapping[str, Any], keys: Sequence[str], what: str) -> None:
    for key in spec:
        if key in BUDGETS:
            raise InvalidInputError(
                f"{what} states its privacy as rho (zCDP), not {key}: for an epsilon at a delta, "
                f"dualmech.accounting.zcdp_rho(epsilon, delta) says the largest"
            )
        if key not in keys:
            refuse_unsupported(what, str(key))
            raise InvalidInputError(f"{what} takes {', '.join(keys)}, got {key!r}{did_you_mean(str(key), keys)}")
