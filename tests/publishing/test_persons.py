"""At most so many rows of a person: neighbours are drawn, and what is kept of them is counted."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanded import run
from hypothesis import given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast, validate
from dualmech.publishing import persons
from dualmech.publishing.records import Bound, Records

SCHEMA = dm.Schema({"month": range(1, 5), "dest": ["ATL", "BOS", "LAX"]})
CELLS = dm.workloads.marginals(SCHEMA, ways=2)
PLANES = [f"N{number}" for number in range(5)]
Flight = tuple[str, int, str]
FLIGHT = st.tuples(st.sampled_from(PLANES), st.integers(1, 4), st.sampled_from(["ATL", "BOS", "LAX"]))
FLIGHTS = st.lists(FLIGHT, min_size=1, max_size=40)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("persons") / "flights.csv"


def counted(path: Path, flights: list[Flight], bound: Bound | None, **options: Any) -> Any:
    path.write_text("tailnum,month,dest\n" + "".join(f"{plane},{month},{dest}\n" for plane, month, dest in flights))
    return dm.records.count(Records(path, persons=bound, **options), CELLS, allow_empty=True)[0, 1]


class TestStability:
    """Theorem 3b, for a key that stays the same: it holds for each."""

    @given(flights=FLIGHTS, at_most=st.integers(1, 4), plane=st.sampled_from(PLANES), data=st.data())
    def test_neighbours_differ_by_no_more_than_is_kept_of_one(
        self, path: Path, flights: list[Flight], at_most: int, plane: str, data: st.DataObject
    ) -> None:
        shuffled = data.draw(st.permutations(flights))
        without = [flight for flight in shuffled if flight[0] != plane]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(persons.secrets, "token_bytes", lambda count: b"1" * count)
            bound = Bound("tailnum", at_most)
            both, one, own = (
                counted(path, each, bound)
                for each in (flights, without, [flight for flight in flights if flight[0] == plane])
            )
        assert np.abs(both - one).sum() == own.sum() <= at_most
        assert np.array_equal(both - one, own)

    @given(flights=FLIGHTS, at_most=st.integers(1, 3), plane=st.sampled_from(PLANES), month=st.integers(1, 4))
    def test_neighbours_in_one_month_differ_in_that_month(
        self, path: Path, flights: list[Flight], at_most: int, plane: str, month: int
    ) -> None:
        without = [flight for flight in flights if flight[:2] != (plane, month)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(persons.secrets, "token_bytes", lambda count: b"2" * count)
            both, one = (counted(path, each, Bound("tailnum", at_most, "month")) for each in (flights, without))
        moved = np.abs(both - one)
        assert moved[month - 1].sum() == moved.sum() <= at_most
        own = sum(flight[:2] == (plane, month) for flight in flights)
        assert moved.sum() == min(own, at_most)

    @given(flights=FLIGHTS, at_most=st.integers(1, 4))
    def test_as_many_are_kept_as_may_be(self, path: Path, flights: list[Flight], at_most: int) -> None:
        told: list[str] = []
        found = counted(path, flights, Bound("tailnum", at_most), report=told.append)
        sizes = [sum(flight[0] == plane for flight in flights) for plane in PLANES]
        kept = sum(min(size, at_most) for size in sizes)
        assert found.sum() == kept
        assert f"Records left out: {len(flights) - kept} of {len(flights)}," in told[0]
        assert np.all(found <= counted(path, flights, None))

    @given(
        flights=st.lists(st.tuples(FLIGHT, st.integers(0, 5)), min_size=1),
        at_most=st.integers(1, 4),
        plane=st.sampled_from(PLANES),
        per=st.sampled_from(["", "month"]),
    )
    def test_a_row_with_a_count_is_as_many_rows(
        self, path: Path, flights: list[tuple[Flight, int]], at_most: int, plane: str, per: str
    ) -> None:
        """For the same key; neighbours, without all or the first month's rows of a plane, differ in what is kept."""
        bound = Bound("tailnum", at_most, per)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(persons.secrets, "token_bytes", lambda count: b"5" * count)
            kept = counted(path, [flight for flight, count in flights for _ in range(count)], bound)
            others = [row for row in flights if row[0][0] != plane or (per and row[0][1] != 1)]
            tables = []
            for rows in (flights, others):
                lines = "".join(f"{','.join(map(str, flight))},{count}\n" for flight, count in rows)
                path.write_text("tailnum,month,dest,n\n" + lines)
                records = Records(path, count="n", persons=bound)
                tables.append(dm.records.count(records, CELLS, allow_empty=True)[0, 1])
        assert np.array_equal(tables[0], kept)
        assert np.all(tables[0] >= tables[1]) and (tables[0] - tables[1]).sum() <= at_most

    def test_what_is_kept_follows_the_hypergeometric_distribution(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of 2 and 3 equal records of a person two are kept, 4,000 times: none of the 2 with 3/10, one with 6/10."""
        monkeypatch.setattr(persons.secrets, "token_bytes", lambda count: b"6" * count)
        people = 4000
        names = [f"N{number}" for number in np.repeat(np.arange(people), 2)]
        kept = Bound("tailnum", 2).kept(names, None, np.tile([0, 1], people)[None], np.tile([2, 3], people))
        shares = np.bincount(kept[::2], minlength=3) / people
        assert np.allclose(shares, [0.3, 0.6, 0.1], atol=0.03)

    def test_every_row_has_the_same_chance(self) -> None:
        """Of four groups of a person two rows are kept, 4,000 times: each as often as its share."""
        rows, people = np.array([1, 2, 3, 4]), 4000
        unit, codes = np.repeat(np.arange(people), 4), np.tile(np.arange(4), people)
        names = [f"N{number}" for number in unit]
        kept = Bound("tailnum", 2).kept(names, None, codes[None], np.tile(rows, people))
        shares = kept.reshape(people, 4).mean(axis=0)
        assert np.all(kept.reshape(people, 4).sum(axis=1) == 2)
        assert np.allclose(shares, 2 * rows / rows.sum(), atol=0.06)


class TestEngines:
    @pytest.mark.parametrize("per", ["", "month"])
    def test_engines_keep_what_files_keep(self, path: Path, per: str, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("narwhals")
        polars, pandas = pytest.importorskip("polars"), pytest.importorskip("pandas")
        monkeypatch.setattr(persons.secrets, "token_bytes", lambda count: b"3" * count)
        generator = np.random.default_rng(0)
        flights = [
            (str(generator.choice(PLANES)), int(generator.integers(1, 5)), str(generator.choice(["ATL", "BOS", "LAX"])))
            for _ in range(200)
        ]
        bound = Bound("tailnum", 7, per)
        expected = counted(path, flights, bound)
        frame = pandas.read_csv(path)
        for source in (frame, polars.from_pandas(frame), polars.scan_csv(path)):
            assert np.array_equal(dm.records.count(Records(source, persons=bound), CELLS)[0, 1], expected)

    def test_a_row_of_nobody_is_refused(self, path: Path) -> None:
        pytest.importorskip("narwhals")
        polars = pytest.importorskip("polars")
        flights: list[Flight] = [("N1", 1, "ATL"), ("", 1, "ATL")]
        told = "'tailnum' must name the person of every record, got none in 1 record"
        with pytest.raises(dm.errors.InvalidInputError, match=told):
            counted(path, flights, Bound("tailnum", 1))
        with pytest.raises(dm.errors.InvalidInputError, match=told):
            dm.records.count(Records(polars.read_csv(path), persons=Bound("tailnum", 1)), CELLS)


class TestIds:
    """One identity of persons in every engine: that of labels, and what rounding may have merged is refused."""

    def kept(self, ids: Any, bound: int = 1) -> Any:
        pandas = pytest.importorskip("pandas")
        column = ids if isinstance(ids, np.ndarray) else pandas.Series(ids, dtype=object)
        frame = pandas.DataFrame({"p": column, "month": 1, "dest": "ATL"})
        return dm.records.count(Records(frame, persons=Bound("p", bound)), CELLS)[0, 1].sum()

    def folder(self, tmp_path: Path, *columns: list[Any], ending: str) -> Path:
        pandas = pytest.importorskip("pandas")
        (tmp_path / "folder").mkdir()
        for place, ids in enumerate(columns):
            frame, path = pandas.DataFrame({"p": ids, "month": 1, "dest": "ATL"}), tmp_path / f"folder/{place}{ending}"
            frame.to_csv(path, index=False) if ending == ".csv" else frame.to_parquet(path)
        return tmp_path / "folder"

    @pytest.mark.parametrize("ending", [".csv", ".parquet"])
    def test_integers_next_to_doubles(self, ending: str, tmp_path: Path) -> None:
        """Pandas writes the ids 1 and 2 as 1.0 and 2.0 as soon as one is missing: two persons, four rows."""
        if ending == ".parquet":
            pytest.importorskip("duckdb")
        records = Records(self.folder(tmp_path, [1, 2], [1.0, 2.0], ending=ending), persons=Bound("p", 1))
        if ending == ".csv":  # where both are texts
            with pytest.raises(
                dm.errors.InvalidInputError, match="'p' must spell each id in one way, got '1' and '1.0'"
            ):
                dm.records.count(records, CELLS)
        else:
            assert dm.records.count(records, CELLS)[0, 1].sum() == 2

    def test_one_spelling_is_one_person_and_ids_are_exact(self) -> None:
        assert self.kept([1, 1.0, "1", "2"]) == 2
        assert self.kept(["a", "a\0", "a ", "A"]) == 3
        with pytest.raises(dm.errors.InvalidInputError, match="got '7.0' and '7', which could be one person or two"):
            self.kept(["7.0", "b", "7"])
        for ids, told in (
            (np.array([2.0**53, 2.0**53 + 2]), "got the double 9007199254740992.0: several integers"),
            (np.array([1, 2], dtype=np.float32), "got float32, which may round them"),
            (np.array([1, 2], dtype="datetime64[ns]"), "which may round them"),
            ([b"1", b"2"], "must hold ids that are texts or numbers, got bytes"),
            ([[1], [2]], "must hold ids that are texts or numbers, got list"),
            ([1.0, float("inf")], "must hold finite ids"),
            ([1.0, float("nan")], "must name the person of every record, got none in 1 record"),
            ([Decimal("sNaN")], "must name the person of every record, got none in 1 record"),
            ([10**5000], "must hold numbers of at most 300 digits"),
            ([Decimal("1e999999")], "must hold numbers of at most 300 digits"),
            ([True, 1], "must hold ids that are texts or numbers, got bool"),
            (["1.2345678901234568e+16", "12345678901234567"], r"must hold ids that are exact, got '1\.23"),
            (["1.23457E+11"], r"must hold ids that are exact, got '1\.23457E\+11'"),
            (["007", "7"], "must spell each id in one way, got '007' and '7'"),
            (["12.10", "12.1"], "must spell each id in one way, got '12.10' and '12.1'"),
            (["1000", "1e3"], "must spell each id in one way, got '1000' and '1e3'"),
            (["0", "-0"], "must spell each id in one way"),
        ):
            with pytest.raises(dm.errors.InvalidInputError, match=told):
                self.kept(ids)

    @given(st.lists(st.one_of(st.integers(-5, 5), st.sampled_from(["1", "b", " b", "é", "e\u0301"])), min_size=1))
    def test_engines_count_as_many_persons(self, ids: list[Any]) -> None:
        """As texts, in pandas and in polars, with one record of each person."""
        polars = pytest.importorskip("polars")
        pytest.importorskip("narwhals")
        texts = [str(one) for one in ids]
        frame = polars.DataFrame({"p": texts, "month": 1, "dest": "ATL"}, schema_overrides={"p": polars.String})
        found = dm.records.count(Records(frame, persons=Bound("p", 1)), CELLS)[0, 1].sum()
        assert found == self.kept(texts) == self.kept(ids) == len({validate.composed(text.strip()) for text in texts})


def specification(**changed: Any) -> dict[str, Any]:
    return {
        "attributes": {"month": {"from": 1, "to": 4}, "dest": ["ATL", "BOS", "LAX"]},
        "tables": [{"name": "flights", "ask": ["month", "dest"], "variance": 4}],
        **changed,
    }


class TestSpecification:
    @pytest.mark.parametrize(
        ("records", "neighbours"),
        [
            ({"person": "tailnum", "at_most": 3}, "add-remove:3"),
            ({"person": "tailnum", "at_most": 3, "per": "month"}, "contributions:month:3:1"),
        ],
    )
    def test_a_bound_implies_the_neighbours(self, records: dict[str, Any], neighbours: str) -> None:
        asked = dm.Specification.of(specification(records=records))
        assert str(asked.neighbours) == neighbours
        assert dm.Specification.of_json(asked.to_json()).neighbours == asked.neighbours
        assert dm.Specification.of(specification(records=records, neighbours="add-remove:9")).neighbours.members == 9

    def test_bounds_that_promise_nothing_are_refused(self) -> None:
        bound = {"person": "tailnum", "at_most": 3}
        for changed, told in (
            ({"records": {"person": "tailnum"}}, "needs one of records.at_most, .* and records.check = true"),
            ({"records": bound | {"check": True}}, "needs one of records.at_most"),
            ({"records": {"at_most": 3}}, "records.at_most, .* need records.person"),
            ({"records": bound | {"at_most": 0}}, "at_most must be"),
            ({"records": bound | {"per": "year"}}, "must name an attribute of the domain"),
            ({"records": bound | {"count": "tailnum"}}, "count must be another column"),
            ({"records": {"person": "tailnum", "check": True, "per": "month"}}, "records.per needs"),
            ({"records": bound, "neighbours": "add-remove:2"}, "must protect .*add-remove:3"),
            ({"records": bound, "neighbours": "replace:3"}, "must protect .*add-remove:3"),
        ):
            with pytest.raises(dm.errors.DualmechError, match=told):
                dm.Specification.of(specification(**changed))

    def test_a_check_refuses_whoever_has_more(self, path: Path) -> None:
        for neighbours, flights, told in (
            ("add-remove:2", [("N1", 1, "ATL"), ("N1", 2, "ATL"), ("N1", 2, "ATL")], "has 3 records, more than the 2"),
            ("contributions:month:1:2", [("N1", 1, "ATL"), ("N1", 1, "BOS")], "has 2 records in one value of 'month'"),
            (
                "contributions:month:1:2",
                [("N1", month, "ATL") for month in (1, 2, 3)],
                "has records in 3 values of 'month', more than the 2",
            ),
        ):
            records = {"person": "tailnum", "check": True}
            asked = dm.Specification.of(specification(records=records, neighbours=neighbours)).records.persons
            with pytest.raises(dm.errors.InvalidInputError, match=f"{told}.*depends on the records") as caught:
                counted(path, flights, asked)
            assert "N1" not in str(caught.value)
            assert counted(path, [("N1", 1, "ATL"), ("N2", 1, "ATL"), ("N2", 2, "BOS")], asked).sum() == 3

    def test_the_office_is_told_and_the_release_is_not(self, path: Path, tmp_path: Path) -> None:
        records = {"person": "tailnum", "at_most": 3}
        asked = dm.Specification.of(specification(records=records))
        dm.save(asked.planned(fast.solve(asked.problem(), tol=1e-3)), tmp_path / "plan.npz")
        counted(path, [("N1", 1, "ATL")] * 50 + [("N2", 1, "ATL")], None)
        done = run("release", path, tmp_path / "plan.npz", "-o", tmp_path / "out")
        assert "Records left out: 47 of 51, so that no 'tailnum' has more than 3." in done.output
        page = (tmp_path / "out" / "STATEMENT.md").read_text(encoding="utf-8")
        assert "Of each 'tailnum' at most 3 records are counted" in page
        assert "47" not in page.partition("## Verification")[0]
        assert "all records of one 'tailnum' are added or removed, and at most 3 of them are counted" in page
        assert "There is no guarantee for one record" in page
        assert "is protected less" not in page
