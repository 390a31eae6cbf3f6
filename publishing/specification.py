"""Specifications: attributes, tables and their required accuracies, in one file."""

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
from dualmech.publishing.asking import queries_on, refuse_unsupported
from dualmech.publishing.persons import Bound
from dualmech.publishing.plans import PlanTerms, as_plan, table_name
from dualmech.publishing.published import counts_nobody
from dualmech.publishing.records import Records
from dualmech.publishing.schema import Schema
from dualmech.solution import Solution, require_solution
from dualmech.workloads.base import Workload, same_content
from dualmech.workloads.unions import Table, UnionWorkload

GRID_MARGIN = 4e-6  # relative reduction of targets, so that noise on the grid meets the requested ones
KEYS = ("title", "date", "attributes", "never", "records", "tables", "neighbours", "level", "rho")
RECORD_KEYS = ("count", "ignore", "person", "at_most", "per", "check")
BUDGETS = ("epsilon", "delta", "budget", "eps")
TABLE_KEYS = ("name", "ask", "variance", "margin", "hard", "derive", "expected", "total")


@dataclass(frozen=True, slots=True)
class Specification:
    """The tables to publish, the roles of the records' columns, and the required accuracy of each table.

    Attributes
    ----------
    schema : Schema
        The attributes.
    workload : UnionWorkload
        The tables.
    targets : dict of names to float
        The maximum variance of the queries of each table, reduced by the 4e-6 of it that the grid may add. If ρ is
        specified, these are ratios, and one common factor on them is minimised. Tables of margin 0 (`exact`) have the
        maximum of the other targets.
    neighbours : Relation
        The requested neighbour relation.
    caps : dict of names to float
        The maximum variance of the queries of tables that are ``hard``, which holds whatever the privacy.
    rho : Fraction or None
        The privacy budget ρ (zCDP).
    level : float
        The level of the margins of error.
    records : Records
        The roles of the columns that are no attributes; its `source` is None.
    title, date : str
        The heading of the statement of a release.
    given : dict
        The mapping that specifies all of this.

    Examples
    --------
    >>> import dualmech as dm
    >>> specification = dm.Specification.of(
    ...     {
    ...         "attributes": {"age": {"from": 17, "to": 90}, "sex": {"labels": ["female", "male"]}},
    ...         "tables": [
    ...             {"name": "ages", "ask": {"age": "prefixes"}, "variance": 100},
    ...             {"name": "adults by sex", "ask": {"age": ["18..64", "65..90"], "sex": "values"}, "margin": 20},
    ...         ],
    ...     }
    ... )
    >>> specification.workload.shape, {name: round(target, 3) for name, target in specification.targets.items()}
    ((78, 148), {'ages': 100.0, 'adults by sex': 104.127})
    >>> specification.problem().geometry.name
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
        """Return the specification of a mapping with the keys of a file (``docs/formats.md``).

        Raises `InvalidInputError` or `InputTypeError` for unknown or missing keys, and for an invalid schema.
        """
        validate.mapping("attributes and tables with their accuracies", given=given)
        spec = validate.composed_within("a specification", given)
        _check_keys(spec, KEYS, "a specification")
        _require_parts(spec)
        schema = Schema(spec["attributes"], spec.get("never", ()))
        level = validate.probability(level=spec.get("level", accounting.LEVEL))
        rho = None if spec.get("rho") is None else validate.exact_number(rho=spec["rho"])
        tables: dict[str, dict[int, Workload | None]] = {}
        targets: dict[str, float] = {}
        caps: dict[str, float] = {}
        exact: list[str] = []
        is_single = len(schema.shape) == len(spec["tables"]) == 1
        for table in validate.sequence(tables=spec["tables"]):
            name, queries, target = _table(schema, table, level, is_single)
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
                "tables must not all be hard if rho is given, which is spent on the others: leave out rho here, and "
                "set it when the records are released"
            )
        declared, relation = _records(spec.get("records", {}), spec.get("neighbours"), schema)
        relation.check(schema)
        for name in exact:
            _check_exact(name, schema, tables[name], relation)
        # Tables without privacy cost get the maximum of the other targets, and are published without noise.
        targets |= dict.fromkeys(exact, max([*targets.values(), *caps.values()], default=1.0))
        title, day = (_text(key, spec.get(key, "")) for key in ("title", "date"))
        full_spec = {**spec, "attributes": {attribute.name: attribute.as_spec() for attribute in schema.attributes}}
        plain_spec = json.loads(json.dumps(full_spec, default=_plain))
        workload = UnionWorkload(
            schema, [Table(name, tuple(sorted(queries.items(), key=itemgetter(0)))) for name, queries in tables.items()]
        )
        return cls(schema, workload, targets, relation, caps, rho, level, declared, title, day, plain_spec)

    @classmethod
    def of_json(cls, text: str) -> Specification:
        """Return the specification in a text from `to_json`."""
        return cls.of(validate.decoded("attributes and tables with their accuracies", text=text))

    def to_json(self) -> str:
        """Return the specification as JSON, for the file of a plan."""
        return json.dumps(self.given, ensure_ascii=False)

    def changed(
        self,
        *,
        rho: Fraction | str | None = None,
        neighbours: str | None = None,
        targets: Mapping[str, float] | None = None,
        caps: Mapping[str, float] | None = None,
    ) -> Specification:
        """Return the specification with another ρ, other neighbours or other variances; `caps` make tables hard.

        `targets` replace all accuracies of the tables, hard or not. Without `targets`, a cap is a margin of error if
        the table specifies one, else a variance.
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
        """Return a solution that keeps this specification, for its file and its statement.

        Raises `InvalidInputError` for a solution of other tables or for other neighbours.

        Examples
        --------
        >>> import dualmech as dm
        >>> specification = dm.Specification.read("examples/people.toml")  # doctest: +SKIP
        >>> dm.save(specification.planned(dm.fast.solve(specification.problem())), "plan.npz")  # doctest: +SKIP
        """
        self.check_answer(answer)
        rho = None if self.rho is None else str(self.rho)
        return as_plan(answer, PlanTerms(self.quantile, None, rho, None, self.to_json(), answer.metadata.get("limits")))

    def check_answer(self, answer: Solution) -> None:
        """Refuse a solution of other tables, or for neighbours that do not include the specified ones."""
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

        Raises `FileFormatError` for a file that cannot be read, that is no TOML, or whose contents `of` refuses.
        """
        spec = read_toml(path)
        with errors_naming(path):
            return cls.of(spec)

    @property
    def _tables(self) -> dict[str, dict[str, Any]]:
        return dict(zip(self.workload.table_names, self.given["tables"], strict=True))

    @property
    def asks(self) -> dict[str, dict[str, Any]]:
        """The requested queries by table and attribute."""
        return {name: _queries_by_attribute(table.get("ask", {})) for name, table in self._tables.items()}

    @property
    def derivations(self) -> dict[str, tuple[str, ...]]:
        """The derived columns by table, for tables with derived columns."""
        return {
            name: tuple(dict.fromkeys(table["derive"])) for name, table in self._tables.items() if table.get("derive")
        }

    @property
    def expected(self) -> dict[str, float]:
        """The expected number of records of a row by table, for tables that specify it."""
        return {name: float(table["expected"]) for name, table in self._tables.items() if "expected" in table}

    @property
    def exact(self) -> frozenset[str]:
        """Names of the tables of margin 0, whose answers no neighbour changes."""
        return frozenset(
            name for name, table in self._tables.items() if 0 in (table.get("margin"), table.get("variance"))
        )

    @property
    def protected(self) -> Relation:
        """The neighbours that the noise protects: the requested ones, or a wider relation that these tables support."""
        relation: Relation = reachable(self.workload, self.neighbours)
        return relation

    @property
    def cost(self) -> float | None:
        """Maximum squared privacy cost, at most twice ρ; None without ρ."""
        return None if self.rho is None else accounting.squared_cost_from_rho(self.rho)

    @property
    def quantile(self) -> float:
        """Standard deviations in a margin of error at the level."""
        return accounting.normal_quantile(self.level)

    def problem(self) -> FitnessForUse | PrivacyFirst:
        """Return the problem: minimise the privacy cost subject to all targets, or at ρ the factor on the targets.

        A solution at ρ costs at most ρ when it is drawn: noise on the grid costs a millionth less in every direction.
        Raises `InvalidInputError` for caps with ρ, which need a search for the factor.
        """
        if self.cost is None:
            return FitnessForUse(self.workload, self.targets | self.caps, neighbours=self.protected)
        if self.caps:
            raise InvalidInputError(
                "caps with rho need a search for the factor on the other tables: crosscheck.capped(workload, targets, "
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
    _check_keys(options, RECORD_KEYS, "records")
    person, at_most, per, check = (options.pop(key, None) for key in RECORD_KEYS[2:])
    check = validate.boolean(**{"records.check": False if check is None else check})
    relation = None if neighbours is None else Relation.of(validate.text(neighbours=neighbours))
    bound = None
    if person is None and (at_most is not None or per is not None or check):
        raise InvalidInputError("records.at_most, records.per and records.check need records.person, a column")
    if person is not None:
        if (at_most is None) != check:
            raise InvalidInputError(
                "records.person needs one of records.at_most, the maximum number of counted rows of a person, and "
                "records.check = true, which refuses records if somebody has more than the neighbours allow"
            )
        if check:
            if per is not None:
                raise InvalidInputError("records.per needs records.at_most; the neighbours determine records.check")
            rule = relation or ADD_REMOVE
            attribute, groups = (rule.attribute, rule.groups) if isinstance(rule, Contributions) else ("", None)
            bound = Bound(person, rule.members, attribute, check=True, groups=groups)
        else:
            bound = Bound(person, at_most, "" if per is None else per)
            implied = Contributions(bound.at_most, bound.per, 1) if bound.per else Relation(members=bound.at_most)
            if relation is not None and not relation.contains(implied):
                raise InvalidInputError(
                    f"neighbours must protect the records of a person within records.at_most, {implied}, or be left "
                    f"out, got {relation}"
                )
            relation = relation or implied
    declared = Records(None, **options, persons=bound)
    if declared.count in schema.sources:
        raise InvalidInputError(f"records.count must be a column that is no attribute, got {declared.count!r}")
    return declared, relation or ADD_REMOVE


def _table(
    schema: Schema, spec: object, level: float, is_single: bool
) -> tuple[str, dict[int, Workload | None], float]:
    table = validate.mapping("name, ask, and variance or margin", table=spec)
    _check_keys(table, TABLE_KEYS, "a table")
    ask = table.get("ask")
    if validate.boolean(total=table.get("total", False)):
        if ask is not None:
            raise InvalidInputError("a table must have ask or total, not both: total = true counts all records")
        ask = {}
    name = table_name({**table, "ask": ask if isinstance(ask, Mapping | list | tuple) else ()})
    place = f"table {name!r}" if ask or "name" in table else "a table"
    if not ask and ask is not None and not table.get("total"):
        raise InvalidInputError(f"{place} must ask an attribute or more; total = true counts all records")
    if not isinstance(ask, Mapping | list | tuple):
        raise InvalidInputError(f"{place} must have ask, attributes or a mapping of attributes to queries")
    if ("variance" in table) == ("margin" in table):
        got = "both" if "variance" in table else "neither"
        raise InvalidInputError(f"{place} must have one of variance and margin, got {got}")
    by_attribute = _queries_by_attribute(ask)
    validate.text(name=name)
    queries = {}
    for attribute, query in by_attribute.items():
        (axis,) = schema.axes([attribute])
        queries[axis] = queries_on(schema.attribute(axis), query, is_single)
    kind = "variance" if "variance" in table else "margin"
    limit = validate.nonnegative_number(**{f"{kind} of {name!r}": table[kind]})
    if limit and kind == "margin":
        limit = float(accounting.variance_from_margin(limit, accounting.normal_quantile(level)))
    return name, queries, limit * (1 - GRID_MARGIN)


def _check_derived(table: Mapping[str, Any], schema: Schema, queries: Mapping[int, Workload | None]) -> None:
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
    """Refuse margin 0 for a table with an answer that neighbours change."""
    if np.all(counts_nobody(schema, queries)):
        return
    if relation.fixed is None:
        reason = f"neighbours that add or remove records ({relation}) change every answer"
    elif not all(
        relation.leaves(schema.names[axis], query, schema.shape[axis]).all() for axis, query in queries.items()
    ):
        reason = (
            f"neighbours ({relation}) change answers of this table; the other answers, such as the number of records, "
            f"are published exactly with any margin"
        )
    else:
        return
    raise InvalidInputError(f"margin and variance of {name!r} must be positive: {reason}")


def _queries_by_attribute(ask: Any) -> dict[str, Any]:
    """Return the requested queries of a table by attribute; refuse an attribute twice."""
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


def _check_keys(spec: Mapping[str, Any], keys: Sequence[str], place: str) -> None:
    for key in spec:
        if key in BUDGETS:
            raise InvalidInputError(
                f"{place} states its privacy as rho (zCDP), not {key}: for an epsilon at a delta, "
                f"dualmech.accounting.zcdp_rho(epsilon, delta) gives the largest rho"
            )
        if key not in keys:
            refuse_unsupported(place, str(key))
            raise InvalidInputError(f"{place} takes {', '.join(keys)}, got {key!r}{did_you_mean(str(key), keys)}")
