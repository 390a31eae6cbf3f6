"""Units of privacy: what a release states, and which releases a ledger or a combination adds."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanded import run

import dualmech as dm
from dualmech import fast
from dualmech.publishing.ledger import Ledger
from dualmech.publishing.publication import Publication
from dualmech.publishing.unit import SINGLE, PrivacyUnit

pytest.importorskip("opendp")

X = ["a", "b", "c", "d", "e"]
PERSONS = {"person": "p", "at_most": 1}


def asked(records: dict[str, Any] | None = None, **changed: Any) -> dm.Solution:
    given = {
        "attributes": {"x": X, "month": {"from": 1, "to": 12}},
        "tables": [{"name": "x", "ask": ["x"], "variance": 8}],
        **({} if records is None else {"records": records}),
        **changed,
    }
    specification = dm.Specification.of(given)
    return specification.planned(fast.solve(specification.problem()))


def csv(folder: Path, rows: list[tuple[Any, ...]], name: str = "records.csv") -> Path:
    (folder / name).write_text("p,x,month\n" + "".join(f"{','.join(map(str, row))}\n" for row in rows))
    return folder / name


ROWS = [(person, x, month) for person, x, month in itertools.product(range(8), X, (1, 2))]


class TestOneUnit:
    """With x of five values at variance 8, a person with a record in each costs 1/16 + 5/16, not 2/16."""

    def test_a_ledger_refuses_to_add_records_to_persons(self, tmp_path: Path) -> None:
        (tmp_path / "ledger.toml").write_text("limit = 1\n")
        one, all_of_one = dm.plan_release(asked()), dm.plan_release(asked(PERSONS))
        kept = Ledger.read(tmp_path / "ledger.toml").record(all_of_one, "w")
        told = (
            r"unit of privacy.*all records of one 'p', at most 1 counted \(add-remove:1\); got records \(add-remove:1"
        )
        with pytest.raises(dm.errors.InvalidInputError, match=told):
            kept.record(one, "w")
        assert len(Ledger.read(tmp_path / "ledger.toml").releases) == 1
        assert "all records of one 'p', at most 1 counted" in kept.lines()[0]

    def test_persons_add_up_whatever_number_is_counted(self, tmp_path: Path) -> None:
        """All records of a person are the unit of both; the costs are those of one and of three records."""
        (tmp_path / "ledger.toml").write_text("limit = 10\n")
        first, second = (dm.plan_release(asked({"person": "p", "at_most": count})) for count in (1, 3))
        kept = Ledger.read(tmp_path / "ledger.toml").record(first, "w").record(second, "w")
        assert kept == Ledger.read(tmp_path / "ledger.toml")
        assert kept.spent == first.rho + second.rho and abs(float(kept.spent) - (1 + 9) / 16) < 1e-4

    def test_a_combination_refuses(self, tmp_path: Path) -> None:
        data = csv(tmp_path, ROWS)
        records, persons = (dm.release(asked(given), data) for given in (None, PERSONS))
        with pytest.raises(dm.errors.InvalidInputError, match="second must count all its records, to be combined"):
            dm.combine(records, persons)
        per_record = dm.release(asked(), data)
        assert dm.combine(records, per_record).rho == records.rho + per_record.rho

    def test_what_follows_a_release_refuses_before_anything_is_drawn(self, tmp_path: Path) -> None:
        """Persons bounded in the records, in the earlier release, or in the plan of what follows."""
        data = csv(tmp_path, ROWS)
        wish = dm.workloads.union(dm.Schema({"x": X}), {"x": ["x"]})
        coarse = dm.workloads.union(dm.Schema({"x": X}), {"all": {"x": dm.workloads.total(5)}})
        earlier = dm.release(fast.solve(dm.FitnessForUse(coarse, 8.0)), data)
        answer = fast.solve(dm.ReuseFitness(wish, 8.0, earlier.drawn.mechanism))
        bounded = dm.records.Records(data, persons=dm.records.Bound("p", 1))
        planned = dm.plan_release(answer, after=earlier)
        with pytest.raises(dm.errors.InvalidInputError, match="the new one must count all its records"):
            planned.declaring(bounded)
        truncated = dm.release(fast.solve(dm.FitnessForUse(coarse, 8.0)), bounded)
        with pytest.raises(dm.errors.InvalidInputError, match="the earlier release must count all its records"):
            dm.plan_release(answer, after=truncated)

    def test_bounds_per_attribute_with_other_bins(self, tmp_path: Path) -> None:
        """A person in one month, and in one quarter: the relation is spelt alike."""
        (tmp_path / "ledger.toml").write_text("limit = 10\n")
        per = {"person": "p", "at_most": 2, "per": "month"}
        bins = {"x": X, "month": {"bins": [1, 4, 7, 10, 13]}}
        months, quarters = dm.plan_release(asked(per)), dm.plan_release(asked(per, attributes=bins))
        assert months.relation == quarters.relation == "contributions:month:2:1"
        kept = Ledger.read(tmp_path / "ledger.toml").record(months, "w")
        with pytest.raises(dm.errors.InvalidInputError, match="all records of one 'p' in one value of 'month'"):
            kept.record(quarters, "w")
        grouped = {"x": X, "month": {"from": 1, "to": 12, "groups": {"half": {"1": ["1..6"], "2": ["7..12"]}}}}
        assert len(kept.record(dm.plan_release(asked(per, attributes=grouped)), "w").releases) == 2

    def test_relations_within_an_attribute_of_other_bins(self) -> None:
        """Records that keep their quarter may change their month."""
        schemas = [dm.Schema({"month": spec, "x": X}) for spec in (range(1, 13), {"bins": [1, 4, 7, 10, 13]})]
        months, quarters = (
            dm.plan_release(
                fast.solve(
                    dm.FitnessForUse(dm.workloads.union(schema, {"x": ["x"]}), neighbours="replace within month")
                )
            )
            for schema in schemas
        )
        assert months.relation == quarters.relation and months.unit != quarters.unit
        assert not quarters.unit.protects(months.unit) and not months.unit.protects(quarters.unit)
        assert PrivacyUnit("replace:1").protects(months.unit) and PrivacyUnit("add-remove:2").protects(quarters.unit)

    @pytest.mark.parametrize(
        ("unit", "told"),
        [
            ('{ of = "household" }', "unit.of must be one of record, person"),
            ('{ of = "person", person = "p" }', "needs person and at_most"),
            ('{ of = "person", person = "p", at_most = 0 }', "unit.at_most must be an integer of at least 1"),
            ('{ of = "record", person = "p" }', "takes count and binning"),
            ('{ of = "record", binning = "d" }', "must have binning if it names an attribute"),
            ('{ of = "record", count = "" }', "must have no empty text"),
            ('{ of = "person", person = "", at_most = 1 }', "must have no empty text"),
            ('{ of = "person", person = "p", at_most = 5 }', "must protect the counted records of a 'p'"),
            ('{ of = "person", person = "p", at_most = 1, values = 9 }', "per together with values"),
            ('{ of = "person", person = "p", at_most = 1, per = "x", binning = "d" }', "per together with values"),
            (
                '{ of = "person", person = "p", at_most = 1, per = "x", values = 7, binning = "d" }',
                "contributions:x:1:1 in each of 7 values, got add-remove:1",
            ),
            ("3", "unit must"),
        ],
    )
    def test_units_that_are_none(self, unit: str, told: str, tmp_path: Path) -> None:
        (tmp_path / "ledger.toml").write_text(f'limit = 1\nneighbours = "add-remove:1"\nunit = {unit}\n')
        with pytest.raises(dm.errors.FileFormatError, match=told):
            Ledger.read(tmp_path / "ledger.toml")

    def test_a_relation_of_an_attribute_says_its_values(self, tmp_path: Path) -> None:
        text = 'limit = 1\nneighbours = "contributions:x:1:2"\nunit = { of = "record" }\n'
        (tmp_path / "ledger.toml").write_text(text)
        with pytest.raises(dm.errors.FileFormatError, match="must have binning if it names an attribute"):
            Ledger.read(tmp_path / "ledger.toml")

    def test_rows_are_not_the_records_that_a_column_counts(self, tmp_path: Path) -> None:
        """A row of 7 records costs 7² times as much where the column counts, and one record less is at most one row."""
        (tmp_path / "ledger.toml").write_text("limit = 10\n")
        records, rows = (dm.plan_release(asked(given)) for given in ({"count": "n"}, {"ignore": ["n"]}))
        assert rows.unit.protects(records.unit) and not records.unit.protects(rows.unit)
        kept = Ledger.read(tmp_path / "ledger.toml").record(records, "w").record(rows, "w")
        assert "records, as the column 'n' counts them" in Ledger.read(tmp_path / "ledger.toml").lines()[0]
        assert kept == Ledger.read(tmp_path / "ledger.toml")
        (tmp_path / "rows.toml").write_text("limit = 10\n")
        with pytest.raises(dm.errors.InvalidInputError, match="as the column 'n' counts them"):
            Ledger.read(tmp_path / "rows.toml").record(rows, "w").record(records, "w")
        replaced = (PrivacyUnit("replace:1"), PrivacyUnit("replace:1", count="n"))
        assert not replaced[0].protects(replaced[1]), "one record of two that is replaced adds a row"

    def test_a_combination_is_of_one_kind_of_records(self, tmp_path: Path) -> None:
        (tmp_path / "one.csv").write_text("x,month,n\n" + "".join(f"{x},1,1\n" for x in X * 9))
        records, rows = (
            dm.release(asked(given), tmp_path / "one.csv") for given in ({"count": "n"}, {"ignore": ["n"]})
        )
        assert dm.combine(records, rows).unit == records.unit
        with pytest.raises(dm.errors.InvalidInputError, match="second must have the unit of privacy of first"):
            dm.combine(rows, records)


class TestStatements:
    """A truncated release protects all records of a person, and promises nothing about one of them."""

    def test_it_says_nothing_about_single_records(self, tmp_path: Path) -> None:
        planned = dm.plan_release(asked(PERSONS))
        released = planned.draw(csv(tmp_path, ROWS))
        dm.save_publication(released, tmp_path / "release.npz")
        again = dm.load_publication(tmp_path / "release.npz")
        texts = ["\n".join(planned.lines()), released.statement(), again.statement()]
        for text in texts:
            assert "all records of one 'p' are added or removed, and at most 1 of them is counted" in text
            assert "There is no guarantee for one record" in text
            assert "Tables, sums, shares and means are of the counted records" in text
            assert "one record is added or removed" not in text and "is protected less" not in text
        assert again.unit == released.unit == planned.unit
        assert again.declared == released.declared

    def test_the_guarantee_fails_for_single_records(self) -> None:
        """Of a person with records in two cells, one removed swaps the record that is counted: ρ is fourfold there."""
        planned = dm.plan_release(asked(PERSONS))
        swap = np.array([1.0, -1, 0, 0, 0])
        rows = planned.drawn.mechanism.dense()
        single = dm.LinearGaussianMechanism(
            rows.query_matrix, rows.covariance(), np.kron(swap[:, None], np.eye(12)[:, :1])
        )
        assert single.rho > 1.5 * float(planned.rho)

    def test_records_without_a_specification_say_their_unit(self, tmp_path: Path) -> None:
        data = csv(tmp_path, ROWS)
        wish = dm.workloads.union(dm.Schema({"x": X}), {"x": ["x"]})
        one, three = (dm.FitnessForUse(wish, 8.0, neighbours=relation) for relation in ("add-remove", "add-remove:3"))
        bounded = dm.records.Records(data, persons=dm.records.Bound("p", 3))
        with pytest.raises(dm.errors.InvalidInputError, match="must protect the counted records of a 'p'"):
            dm.release(fast.solve(one), bounded)
        released = dm.release(fast.solve(three), bounded)
        assert released.unit == PrivacyUnit("add-remove:3", "p", 3)
        assert released.estimates("x").sum() < len(ROWS) / 2
        dm.save_publication(released, tmp_path / "release.npz")
        assert dm.load_publication(tmp_path / "release.npz").unit == released.unit

    def test_counts_do_not_tell_persons_apart(self) -> None:
        with pytest.raises(dm.errors.InvalidInputError, match="got counts, which do not tell persons apart"):
            dm.release(asked(PERSONS), {(0,): np.full(5, 10)})

    def test_every_statement_has_every_promise(self, tmp_path: Path) -> None:
        """Counts, columns left unread, checks of persons, merged codes and worths; also of combinations."""
        lines = "".join(
            f"{person},{code},{hours},2,1\n" for person, code, hours in itertools.product(range(9), "12", (5, 30))
        )
        (tmp_path / "records.csv").write_text("p,code,hours,n,wt\n" + lines)
        given = {
            "attributes": {
                "code": {"labels": {"1": "school", "2": "school", "3": "college"}},
                "hours": {"bins": [0, 20, 40], "worth": [10, 30]},
            },
            "records": {"person": "p", "check": True, "count": "n", "ignore": ["wt"]},
            "neighbours": "add-remove:8",
            "tables": [{"name": "hours", "ask": {"code": "values", "hours": ["sum", "total"]}, "variance": 4000}],
        }
        specification = dm.Specification.of(given)
        plan = specification.planned(fast.solve(specification.problem()))
        first, second = (dm.release(plan, tmp_path / "records.csv") for _ in range(2))
        both = dm.combine(first, second)
        dm.save_publication(both, tmp_path / "both.npz")
        for released in (first, both, dm.load_publication(tmp_path / "both.npz")):
            page = released.statement()
            for words in (
                "Records are refused if some 'p' has more than 8 records.",
                "The column 'n' holds the number of records of each row.",
                "Not read, although named like a count: 'wt'.",
                "records are read so: 1 as school, 2 as school, 3 as college",
                "in sums and means: \\[0, 20) counts 10, \\[20, 40] counts 30",
            ):
                assert words in page, words

    def test_a_plan_for_other_neighbours_is_refused(self) -> None:
        specification = dm.Specification.of(
            {
                "attributes": {"x": X},
                "tables": [{"name": "x", "ask": ["x"], "variance": 8}],
                "neighbours": "add-remove:3",
            }
        )
        other = fast.solve(dm.FitnessForUse(specification.workload, specification.targets))
        with pytest.raises(
            dm.errors.InvalidInputError, match="answer must protect the neighbours of the specification"
        ):
            specification.planned(other)


def test_units_protect_what_they_contain() -> None:
    """Noise for a unit costs what it contains no more: relations by their costs, persons by their number of values."""
    two, one = (PrivacyUnit(f"contributions:month:2:{n}", "p", 2, "month", n, "digest") for n in (2, 1))
    assert two.protects(one) and not one.protects(two)
    assert not PrivacyUnit("add-remove:9", "p", 9).protects(SINGLE)
    assert not PrivacyUnit("add-remove:9", "p", 9).protects(PrivacyUnit("add-remove:1", "household", 1))
    assert not PrivacyUnit("add-remove:9", "p", 9).protects(one)


@pytest.mark.parametrize(
    ("neighbours", "options", "fits"),
    [
        ("add-remove:3", {"at_most": 3}, True),
        ("add-remove:3", {"at_most": 5}, False),
        ("replace:3", {"at_most": 3}, True),
        ("replace:3", {"at_most": 5}, False),
        ("contributions:x:1:3", {"at_most": 1, "per": "x", "groups": 3}, True),
        ("contributions:x:1:3", {"at_most": 1, "per": "x", "groups": 4}, False),
        ("contributions:x:1:3", {"at_most": 1, "per": "x"}, False),
        ("contributions:x:1:5", {"at_most": 1, "per": "x"}, True),
        ("add-remove:3", {"at_most": 1, "per": "x", "groups": 3}, True),
    ],
)
def test_checks_of_persons_are_of_what_is_protected(neighbours: str, options: dict[str, Any], fits: bool) -> None:
    """A check that allows five records where the noise protects three would call them protected."""
    planned = dm.plan_release(asked(neighbours=neighbours))
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"p": [1], "x": ["a"], "month": [1]})
    records = dm.records.Records(frame, persons=dm.records.Bound("p", check=True, **options))
    if fits:
        assert not planned.declaring(records).unit.person
    else:
        with pytest.raises(dm.errors.InvalidInputError, match="must protect the counted records of a 'p'"):
            planned.declaring(records)


def test_more_values_than_there_are(tmp_path: Path) -> None:
    """Up to nine values of five are these five: in the relation, the unit and the statement."""
    for given in ({"person": "p", "at_most": 2, "per": "x"}, None):
        planned = dm.plan_release(asked(given, neighbours="contributions:x:2:9"))
        assert planned.relation == "contributions:x:2:5" and "contributions:x:2:9 became" in planned.lines()[0]
        assert given is None or "in up to 5 values of 'x'" in str(planned.unit)


def test_persons_cost_no_more_than_the_relation_of_their_unit() -> None:
    """Each way to count records of a person, on random mechanisms: the relation of a unit covers all of them."""
    domain, generator = dm.Domain({"a": 3, "b": 2}), np.random.default_rng(0)
    mechanisms = [generator.standard_normal((size, 6)) for size in (1, 2, 4, 6) for _ in range(3)]
    units = 0
    for text, at_most, values in itertools.product(
        (
            "add-remove:2",
            "add-remove:4",
            "contributions:a:1:2",
            "contributions:a:2:2",
            "contributions:a:2:1",
            "replace:2",
        ),
        (1, 2),
        (1, 2, 3),
    ):
        try:
            PrivacyUnit(text, "p", at_most, "a", values, binning="digest")
        except dm.errors.InvalidInputError:
            continue
        units += 1
        relation = dm.neighbours.Relation.of(text)
        differences: Any = relation.matrix(6, domain)
        if not hasattr(relation, "attribute"):
            differences = relation.members * np.eye(6)
        one_value = [count for count in itertools.product(range(at_most + 1), repeat=2) if sum(count) <= at_most]
        persons = np.array([sum(counts, ()) for counts in itertools.product(one_value, repeat=3)])
        persons = persons[(persons.reshape(-1, 3, 2).sum(axis=2) > 0).sum(axis=1) <= values]
        for rows in mechanisms:
            most = (np.asarray(rows @ differences) ** 2).sum(axis=0).max()
            assert ((persons @ rows.T) ** 2).sum(axis=1).max() <= most * (1 + 1e-9), (text, at_most, values)
    assert units >= 10


def test_the_command_keeps_units_apart(tmp_path: Path) -> None:
    """Records that the command declares by --count, and a plan for persons, in one ledger."""
    data = csv(tmp_path, ROWS)
    (tmp_path / "ledger.toml").write_text("limit = 1\n")
    for name, given in (("records", None), ("persons", PERSONS)):
        dm.save(asked(given), tmp_path / f"{name}.npz")
    options = ("--ledger", tmp_path / "ledger.toml")
    assert run("release", data, tmp_path / "records.npz", "-o", tmp_path / "one", *options).exit_code == 0
    refused = run("release", data, tmp_path / "persons.npz", "-o", tmp_path / "two", *options)
    assert refused.exit_code != 0 and "keep a ledger for each unit" in str(refused.exception)
    assert not (tmp_path / "two").exists()


def disagreeing(first: Any, second: Any, **options: Any) -> Publication:
    plan = asked()
    return dm.combine(dm.release(plan, {(0,): first}), dm.release(plan, {(0,): second}), **options)


def test_releases_of_other_records_are_not_averaged() -> None:
    """Records up to November, then up to December: the mean of 0 and 3,331 is no count of either."""
    november, december = np.array([900, 1000, 1100, 1200, 0]), np.array([900, 1000, 1100, 1200, 3331])
    told = (
        "must be of the same records.*largest disagreement is 'e' of table 'x'.*standard deviations apart.*check=False"
    )
    with pytest.raises(dm.errors.InvalidInputError, match=told):
        disagreeing(november, december)
    assert 1600 < disagreeing(november, december, check=False).estimates("x")[4] < 1730
    assert abs(disagreeing(december, december).estimates("x")[4] - 3331) < 30
