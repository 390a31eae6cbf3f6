"""Proofs of tables and of products: exact weak duality, matrices where they are small, and optima that are known."""

import copy
import itertools
import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import assume, given
from hypothesis import strategies as st
from proof_files import changed, places

import dualmech as dm
from dualmech import fast
from dualmech.crosscheck.proofs import noise
from dualmech.crosscheck.proofs.checker import check, tables
from dualmech.crosscheck.proofs.checker.exact import Refused, dot, total
from dualmech.crosscheck.proofs.checker.tables import Attributes, DeclaredTables
from dualmech.crosscheck.proofs.prove import provable
from dualmech.crosscheck.proofs.texts import as_read, root_below
from dualmech.linalg import kronecker

W = dm.workloads
CLASSES = dm.Workload([[1, 1, 0, 0, 0], [0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [1, -1, 0, 0, 0]])

WORKLOADS: dict[str, Any] = {
    "marginals": W.marginals([3, 4, 2], ways=(1, 2)),
    "an attribute of one value": W.marginals([3, 1, 2], ways=(0, 2)),
    "the total alone": W.marginals([3, 2], ways=0),
    "prefixes and marginals": W.union(
        {"hour": 5, "a": 3, "b": 2}, {"1": {"hour": W.prefix(5), "a": None}, "2": ["a", "b"], "3": ["hour"]}
    ),
    "two prefixes": W.union({"a": 4, "b": 3}, {"1": {"a": W.prefix(4), "b": W.prefix(3)}, "2": ["a"]}),
    "classes of values": W.union(
        {"a": 5, "b": 4}, {"1": {"a": CLASSES, "b": None}, "2": {"b": W.differences(4)}, "3": ["a"]}
    ),
    "a circle": W.circular_ranges(6, [1, 2, 3]),
    "a circle and marginals": W.union(
        {"hour": 5, "a": 3, "b": 4},
        {"1": {"hour": W.circular_ranges(5, [2]), "a": None}, "2": {"b": W.prefix(4)}, "3": ["a", "b"]},
    ),
    "differences alone": W.union({"a": 4, "b": 2}, {"1": {"a": W.differences(4), "b": None}}),
    "real numbers": W.union(
        {"a": 3, "b": 3}, {"1": {"a": dm.Workload([[0.1, 0.1, -0.3], [0.2, 0.7, 0.1]])}, "2": ["a", "b"]}
    ),
    "rows twice": W.union({"a": 4, "b": 2}, {"1": {"a": dm.Workload(np.ones((3, 4)))}, "2": ["b"], "3": ["b"]}),
}

QUERIES = {"a": W.prefix(4), "b": W.all_range(3)}
SPLIT: dict[str, Any] = {
    "one query set": W.query_tables({"a": 4, "b": 3}, {"a": W.prefix(4)}, ways=(1, 2)),
    "two query sets": W.query_tables({"a": 4, "b": 3, "c": 2}, QUERIES, ways=(0, 1, 2)),
    "marginals": W.query_tables([3, 4, 2], {}, ways=(1, 2)),
    "one query": W.query_tables({"a": 3, "b": 2}, {"a": dm.Workload([[1, 2, -1]])}, ways=2),
}

FAMILIES: dict[str, Callable[..., Any]] = {
    "fitness": lambda workload, **options: dm.FitnessForUse(workload, 2.0, **options),
    "privacy first": lambda workload, **options: dm.PrivacyFirst(workload, 2.0, 0.3, **options),
    "variance": lambda workload, **options: dm.TotalVariance(workload, 3.0, **options),
}


def agree(one: dm.Proof, two: dm.Proof) -> bool:
    return one.lower <= two.upper and two.lower <= one.upper


class TestAgreement:
    @pytest.mark.parametrize(("name", "family"), [*zip(WORKLOADS, [*FAMILIES] * 4, strict=False)])
    def test_blocks_prove_what_the_matrix_does(self, name: str, family: str) -> None:
        answers = [
            fast.solve(FAMILIES[family](WORKLOADS[name], geometry=geometry), tol=1e-9)
            for geometry in ("blocks", "dense")
        ]
        proof, dense = map(dm.prove, answers)
        assert agree(proof, dense)
        low, high = answers[0].certificate.interval
        assert proof.lower <= high and low <= proof.upper
        assert proof.width <= answers[0].gap + 1e-9
        for each in answers:
            assert proof.is_of(each.problem) and dense.is_of(each.problem)
        assert not proof.is_of(FAMILIES[family](WORKLOADS["marginals" if name != "marginals" else "a circle"]))

    @pytest.mark.parametrize(("name", "family"), [*zip(SPLIT, [*FAMILIES] * 2, strict=False)])
    def test_split_noise_proves_what_its_judge_does(self, name: str, family: str) -> None:
        problem = FAMILIES[family](SPLIT[name], geometry="split")
        answer = fast.solve(problem, tol=0.5)
        proof, exact = dm.prove(answer), dm.prove(fast.solve(FAMILIES[family](SPLIT[name]), tol=1e-9))
        assert agree(proof, exact) and proof.is_of(problem) and exact.is_of(problem)
        low, high = answer.certificate.interval
        assert float(proof.lower) == pytest.approx(low, rel=1e-9)
        assert float(proof.upper) == pytest.approx(high, rel=1e-9)

    @pytest.mark.parametrize("family", FAMILIES)
    def test_products_multiply(self, family: str) -> None:
        both = W.kron(W.prefix(3), W.marginals([2, 3], ways=1), W.prefix(3))
        problem = FAMILIES[family](both, geometry="product")
        answer = fast.solve(problem, tol=1e-9)
        proof, dense = (dm.prove(answer), dm.prove(fast.solve(FAMILIES[family](both, geometry="dense"), tol=1e-9)))
        assert agree(proof, dense) and proof.width <= answer.gap + 1e-9
        assert proof.is_of(problem) and proof.is_of(FAMILIES[family](both, geometry="dense"))

    def test_numbers_by_factor_and_weights_of_nothing(self) -> None:
        both = W.kron(W.prefix(3), W.identity(2))
        problem = dm.TotalVariance(both, dm.ByFactor([1.0, 0.0, 2.0], [3.0, 1.0]))
        proof = dm.prove(fast.solve(problem, tol=1e-9))
        dense = dm.TotalVariance(both, problem.per_query(), geometry="dense")
        assert agree(proof, dm.prove(fast.solve(dense, tol=1e-9)))
        assert proof.width < 1e-8 and proof.is_of(problem)

    def test_several_records(self) -> None:
        tables = W.marginals([3, 2], ways=(1, 2))
        one, three = (
            dm.prove(fast.solve(dm.FitnessForUse(tables, neighbours=each), tol=1e-9)) for each in (None, "add-remove:3")
        )
        assert 9 * one.lower <= three.upper and three.lower <= 9 * one.upper and three.width < 1e-8
        dense = dm.FitnessForUse(tables, neighbours="add-remove:3", geometry="dense")
        assert three.is_of(dense) and dm.prove(fast.solve(dense)).is_of(three_of(tables))
        assert not three.is_of(dm.FitnessForUse(tables))
        assert not three.is_of(dm.FitnessForUse(tables, neighbours="replace"))
        assert not three.is_of(dm.FitnessForUse(tables, neighbours=np.ones((6, 1))))

    def test_reference_layer_and_another_noise_of_the_values(self) -> None:
        tables = SPLIT["one query set"]
        answer = fast.solve(dm.FitnessForUse(tables, geometry="split"), tol=0.5)
        shapes = (answer.primal.shapes[0], 2 * np.eye(3) + 0.5)
        point = answer.problem.feasible(dm.duals.SplitPoint(shapes, answer.primal.levels))
        other = dm.judged(answer.problem, point, answer.dual)
        assert float(dm.prove(other).upper) == pytest.approx(other.certificate.objective, rel=1e-9)


def three_of(tables: Any) -> dm.FitnessForUse:
    return dm.FitnessForUse(tables, neighbours="add-remove:3")


def test_marginals_and_products_of_any_size() -> None:
    for sizes, ways, optimum in (
        ([16, 16, 16], (1, 2), 5.178934727),
        ([10] * 60, (1, 2), 1234.818652),
        ([74, 7, 16, 7, 14, 6, 5, 2, 100, 40, 99, 42, 2], (1, 2, 3), 190.902449),
    ):
        proof = dm.prove(fast.solve(dm.FitnessForUse(W.marginals(sizes, ways=ways)), tol=1e-10))
        assert float(proof.lower) == pytest.approx(optimum, abs=5e-7) and proof.width < 1e-9
    proof = dm.prove(fast.solve(dm.TotalVariance(W.marginals([1000, 1000], ways=2))))
    assert proof.lower <= 10**6 <= proof.upper and proof.width < 1e-12
    proof = dm.prove(fast.solve(dm.FitnessForUse(W.kron(W.prefix(2), W.prefix(2), W.prefix(2))), tol=1e-10))
    assert proof.lower <= Fraction(64, 27) <= proof.upper


@st.composite
def problems(draw: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return tables in whole numbers, and classes of the values of attributes that see their queries alike."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    labels = [draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)) for n in sizes]
    labels = [[0] * len(own) if 0 not in own else own for own in labels]
    sets = {}
    for axis, own in enumerate(labels):
        row = draw(st.lists(st.integers(-2, 2), min_size=len(own), max_size=len(own)))
        orders = {
            tuple(row[place] for place in order)
            for order in itertools.permutations(range(len(own)))
            if [own[place] for place in order] == own
        }
        sets[f"of {axis}"] = sorted(orders)
    tables = []
    for _ in range(draw(st.integers(1, 2))):
        asked = draw(st.sets(st.integers(0, len(sizes) - 1)))
        tables.append({str(axis): draw(st.sampled_from(["values", f"of {axis}"])) for axis in sorted(asked)})
    kind = draw(st.sampled_from(["table targets", "table weights"]))
    problem = {
        "kind": kind,
        "sizes": sizes,
        "queries": {name: rows for name, rows in sets.items() if any(name in own.values() for own in tables)},
        "tables": tables,
        "numbers": draw(st.lists(st.integers(1, 3), min_size=len(tables), max_size=len(tables))),
        "records": draw(st.integers(1, 2)),
        "allowed": 1,
    }
    named = {str(axis): {"classes": own} for axis, own in enumerate(labels) if max(own) > 0}
    return problem, named


def invertible(draw: Any, size: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return a product of elementary matrices, and its inverse: both are whole."""
    strategy, inverse = np.eye(size), np.eye(size)
    for _ in range(draw(st.integers(0, 3)) if size > 1 else 0):
        i, j = draw(st.permutations(range(size)))[:2]
        step = np.eye(size)
        step[i, j] = draw(st.integers(-2, 2))
        strategy, inverse = step @ strategy, inverse @ (2 * np.eye(size) - step)
    return strategy, inverse


def workload_of(problem: dict[str, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rows = []
    for table in problem["tables"]:
        factors = []
        for axis, size in enumerate(problem["sizes"]):
            name = table.get(str(axis))
            factors.append(
                np.ones((1, size))
                if name is None
                else np.eye(size)
                if name == "values"
                else np.array(problem["queries"][name], dtype=np.float64)
            )
        rows.append(kronecker(factors))
    return np.vstack(rows), np.repeat(np.arange(len(rows)), [len(each) for each in rows])


def achieved(problem: dict[str, Any], measured: dict[Any, np.ndarray[Any, Any]], own: Any) -> float:
    """Return what unit noise on the measured queries of all blocks achieves, in floating point.

    Attributes with a strategy of their `own` cost as much in every block as the value that is the worst there.
    """
    workload, tables = workload_of(problem)
    variances = np.square(workload @ np.linalg.inv(np.vstack([*measured.values()]))).sum(axis=1)
    numbers = np.array(problem["numbers"], dtype=np.float64)[tables]
    total = (variances / numbers).max() if problem["kind"] == "table targets" else variances @ numbers
    costs = [np.square(rows).sum(axis=0).reshape(problem["sizes"]) for rows in measured.values()]
    cost = np.max(sum(cells.max(axis=tuple(own), keepdims=True) for cells in costs))
    return float(cost * total * problem["records"] ** 2)


def proven(problem: dict[str, Any], p: Any, q: Any) -> float:
    """Return what squared roots of weights prove, in floating point."""
    workload, tables = workload_of(problem)
    if problem["kind"] == "table weights":
        p = np.array(problem["numbers"], dtype=np.float64)[tables]
    norm = np.linalg.svd(np.sqrt(p)[:, None] * workload * np.sqrt(q), compute_uv=False).sum()
    targets = p @ np.array(problem["numbers"])[tables] if problem["kind"] == "table targets" else 1.0
    return float(norm**2 / targets / q.sum() * problem["records"] ** 2)


def with_total(data: Any, size: int) -> Any:
    """Return a strategy in whole numbers that measures the total first, and its inverse."""
    strategy, inverse = invertible(data.draw, size - 1) if size > 1 else (np.zeros((0, 0)),) * 2
    first, last = np.eye(size), np.eye(size)
    first[0], last[0] = 1.0, -1.0
    last[0, 0] = 1.0
    return (
        scipy.linalg.block_diag(1.0, strategy) @ first if size > 1 else first,
        last @ scipy.linalg.block_diag(1.0, inverse) if size > 1 else last,
    )


def some(data: Any, numbers: Any, count: int) -> Any:
    """Return so many numbers, not all of them 0."""
    values = data.draw(st.lists(numbers, min_size=count, max_size=count))
    assume(any(values))
    return values


class TestBounds:
    """Classes of values, strategies and weights of an attribute's own, in any combination."""

    @given(st.data())
    def test_any_noise_achieves_what_its_matrix_does(self, data: Any) -> None:
        problem, named = data.draw(problems())
        strategies = {}
        for axis, size in enumerate(problem["sizes"]):
            if str(axis) not in named and data.draw(st.booleans()):
                strategies[axis], inverse = with_total(data, size)
                named[str(axis)] = {"strategy": strategies[axis], "inverse": inverse}
        attributes = Attributes(DeclaredTables(as_read(problem)), as_read({"attributes": named}), lower=False)
        noise, measured = [], {}
        choices = [
            [(), *(((axis, label),) for label, size in enumerate(sizes) if size > 1)]
            for axis, sizes in enumerate(attributes.sizes)
        ]
        for key in (sum(each, ()) for each in itertools.product(*choices)):
            count, on = len(attributes.orbits(key)), {str(axis): str(label) for axis, label in key}
            if count == 1:
                level = data.draw(st.sampled_from([1, 4, 0.25]))
                noise.append({"on": on, "level": level})
                strategy = np.array([[level**-0.5]])
            else:
                strategy, inverse = invertible(data.draw, count)
                noise.append({"on": on, "strategy": strategy, "inverse": inverse})
            measured[key] = self.measured(attributes, key, strategy, strategies)
        upper = {"attributes": named, "blocks": noise}
        high = tables.upper_bound(DeclaredTables(as_read(problem)), as_read(upper)) * problem["records"] ** 2
        assert float(high) == pytest.approx(achieved(problem, measured, strategies), rel=1e-9)

    def measured(self, attributes: Attributes, key: Any, strategy: Any, strategies: Any) -> Any:
        """Return ``A y ⊗ R_i ⊗ 1'`` as a matrix over all cells."""
        factors, chosen = [], dict(key)
        for axis, sizes in enumerate(attributes.sizes):
            labels = np.array(attributes.labels_of(axis))
            if axis in strategies:
                rows = strategies[axis][1:] if axis in chosen else strategies[axis][:1]
            elif axis in chosen:
                place = np.flatnonzero(labels == chosen[axis])
                rows = np.zeros((len(place) - 1, len(labels)))
                rows[:, place] = scipy.linalg.helmert(len(place))
            elif len(sizes) == 1:
                rows = np.ones((1, len(labels)))
            else:
                rows = (labels == np.arange(len(sizes))[:, None]) / np.array(sizes)[:, None]
            factors.append(rows)
        shape = [len(each) for each in factors]
        wide = [axis for axis in attributes.wide if axis not in chosen]
        whole = np.moveaxis(kronecker(factors).reshape(*shape, -1), wide, range(len(wide)))
        return (strategy @ whole.reshape(len(strategy), -1)).reshape(-1, whole.shape[-1])

    @given(st.data())
    def test_any_weights_prove_no_more_than_their_matrix_does(self, data: Any) -> None:
        problem, named = data.draw(problems())
        asked, whole = DeclaredTables(as_read(problem)), st.integers(-2, 2)
        own: Any = {}
        for axis, size in enumerate(problem["sizes"]):
            sets = {name for a, name in asked.queried_sets() if a == axis}
            if sets and str(axis) not in named and data.draw(st.booleans()):
                named[str(axis)] = own[axis] = {"roots": some(data, whole, size)}
                for name in sets:
                    count = size if name == "values" else len(problem["queries"][name])
                    isometry = np.reshape(some(data, whole, count * size), (count, size))
                    roots = {} if asked.weighted else {"roots": some(data, whole, count)}
                    own[axis][name] = {"isometry": isometry, **roots}
        attributes = Attributes(asked, as_read({"attributes": named}), lower=True)
        lower: Any = {"attributes": named, "roots": some(data, st.integers(-2, 3), len(attributes.orbits()))}
        if not asked.weighted:  # else they are what is asked
            lower["weights"] = some(data, st.integers(0, 3), sum(map(len, attributes.cases)))
        shared, isometries = tables.shared_weights(attributes, as_read(lower)), []
        for key, rows in tables.by_block(attributes, shared).items():
            if (count := len(attributes.orbits(key))) > 1 and any(rows.values()):
                isometry = np.reshape(some(data, whole, len(rows) * count), (len(rows), count))
                query_roots = [root_below(share) for share in rows.values()]
                on = {str(axis): str(label) for axis, label in key}
                isometries.append({"on": on, "query_roots": query_roots, "isometry": isometry})
        low = tables.lower_bound(asked, as_read({**lower, "blocks": isometries})) * problem["records"] ** 2
        p, q = self.weights(attributes, lower, shared, own)
        assert 0 <= float(low) <= proven(problem, p, q) * (1 + 1e-9)

    def weights(self, attributes: Attributes, lower: Any, shared: Any, own: Any) -> Any:
        """Return weights of queries and of cells, from those of groups and orbits."""
        p = []
        for table, weights in zip(attributes.tables.tables, shared, strict=True):
            factors = []
            for axis, name in table.items():
                count = attributes.tables.sizes[axis] if name == "values" else len(attributes.tables.sets[name].rows)
                groups = attributes.groups[axis, name]
                shares = np.zeros((count, len(groups)))
                for place, group in enumerate(groups):
                    shares[list(group.members), place] = 1 / len(group.members)
                if axis in own:
                    squares = np.square(own[axis][name].get("roots", np.ones(count)))
                    shares = squares[:, None] / squares.sum()
                factors.append(shares)
            p.append((kronecker(factors) if factors else np.ones((1, 1))) @ np.array(weights, dtype=np.float64))
        roots = dict(zip(attributes.orbits(), lower["roots"], strict=True))
        q = []
        for cell in itertools.product(*(range(size) for size in attributes.tables.sizes)):
            labels = [attributes.labels_of(axis)[value] for axis, value in enumerate(cell)]
            share = roots[tuple(labels[axis] for axis in attributes.wide)] ** 2.0
            for axis, value in enumerate(cell):
                if axis in own:
                    squares = np.square(own[axis]["roots"])
                    share *= squares[value] / squares.sum()
                else:
                    share /= attributes.sizes[axis][labels[axis]]
            q.append(share)
        return np.concatenate(p), np.array(q)

    @given(st.lists(st.tuples(st.fractions(), st.fractions() | st.integers())))
    def test_a_sum_over_one_denominator_is_the_sum(self, pairs: list[tuple[Fraction, Fraction | int]]) -> None:
        one, two = [first for first, _ in pairs], [second for _, second in pairs]
        assert dot(one, two) == sum(first * second for first, second in pairs)
        assert total(one) == sum(one)

    def test_tables_that_are_alike_do_not_share_their_blocks(self) -> None:
        stated = dm.FitnessForUse(
            W.marginals([3, 3, 3, 2], sets=[("a0", "a1"), ("a1", "a2"), ("a0", "a3")])
        ).in_numbers()
        attributes = Attributes(DeclaredTables(as_read(stated)), as_read({}), lower=True)
        blocks = tables.by_block(attributes, [[Fraction(1)] for _ in attributes.tables.tables])
        assert {key for key in blocks if len(key) == 2} == {((0, 0), (1, 0)), ((1, 0), (2, 0)), ((0, 0), (3, 0))}

    def test_classes_told_apart_prove_nothing_and_rounding_is_paid_for(self) -> None:
        proof = dm.prove(fast.solve(dm.FitnessForUse(WORKLOADS["two prefixes"], geometry="blocks")))
        for axis in ("0", "1"):
            document = copy.deepcopy(proof.document)
            del document["lower"]["attributes"][axis]
            document["lower"] |= {"roots": document["lower"]["roots"][:3], "weights": ["0x1p0"] * 24}
            with pytest.raises(Refused, match=f"be symmetric in the values of each class of attribute {axis}|must be"):
                check.proven_bounds(document)
        sums = dm.Workload([[0.1, 0.2, -0.3], [0.2, 0.1, -0.3]])
        problem = dm.FitnessForUse(W.union({"a": 3, "b": 2}, {"1": {"a": sums}, "2": {"b": None}}), geometry="blocks")
        proof = dm.prove(fast.solve(problem, tol=1e-9))
        assert proof.width < 1e-8

    def test_a_strategy_that_does_not_measure_the_total_is_refused(self) -> None:
        proof = dm.prove(fast.solve(dm.FitnessForUse(SPLIT["one query set"], geometry="split"), tol=0.5))
        document = copy.deepcopy(proof.document)
        document["upper"]["attributes"]["0"]["strategy"][0][0] = "0x3p0"
        with pytest.raises(Refused, match="all ones"):
            check.proven_bounds(document)


@pytest.fixture(scope="module")
def proof() -> dm.Proof:
    return dm.prove(fast.solve(dm.FitnessForUse(WORKLOADS["prefixes and marginals"]), tol=1e-9))


class TestFiles:
    def test_a_file_states_the_problem_as_an_auditor_knows_it(self, proof: dm.Proof, tmp_path: Path) -> None:
        asked = proof.document["problem"]
        assert [int(size.partition("p")[0], 16) << int(size.partition("p")[2]) for size in asked["sizes"]] == [5, 3, 2]
        assert asked["tables"] == [{"0": "set 1", "1": "values"}, {"1": "values", "2": "values"}, {"0": "values"}]
        assert len(asked["queries"]["set 1"]) == 5
        proof.save(tmp_path / "proof.json")
        assert dm.verify(tmp_path / "proof.json").document == proof.document

    def test_what_is_no_proof_is_refused_with_the_reason(self, proof: dm.Proof, tmp_path: Path) -> None:
        for place, value, words in (
            (("problem", "sizes", 0), "0x1p-1", "sizes must be positive integers"),
            (("problem", "sizes", 0), "0x1p1", "must have 2 columns, got 5"),
            (("problem", "sizes"), [], "sizes must be a list"),
            (("problem", "tables", 0), {"9": "values"}, "not an integer below 3"),
            (("problem", "tables", 0), {"0": "others"}, "must have 'values' or queries of the file"),
            (("problem", "tables"), [], "tables must be a list"),
            (("problem", "queries"), None, "it has no 'queries'"),
            (("problem", "numbers"), ["0x1p0"], "numbers must be 3 numbers, got 1"),
            (("problem", "numbers", 1), "0x0p0", "targets must be positive"),
            (("problem", "records"), "0x0p0", "records must be positive"),
            (("problem", "allowed"), "0x0p0", "allowed must be positive"),
            (("problem", "kind"), "table costs", "kind must be one of"),
            (("upper", "attributes"), [], "attributes must be named"),
            (("upper", "attributes", "0", "classes", 0), "0x1p-1", "classes must be integers"),
            (("upper", "attributes", "0", "classes", 0), "0x1p1", "each with at least one value"),
            (("upper", "blocks"), [], "which has no noise"),
            (("upper", "blocks", 0, "on"), {"1": "1"}, "not an integer below 1"),
            (("upper", "blocks", 0, "inverse", 0, 0), "0x1p9", r"\|A Z - I\| must be below 1"),
            (("lower", "roots"), ["0x0p0"] * 5, "roots must not all be 0"),
            (("lower", "weights"), ["0x1p0"], "weights must be"),
            (("lower", "weights", 0), "-0x1p0", "weights must not be negative"),
            (("lower", "blocks", 0, "isometry"), [["0x1p0"]], "isometry must have"),
            (("lower", "blocks", 0, "query_roots", 0), "0x1p9", "the square of a query's root must be at most its"),
            (("lower", "blocks", 0, "on"), {"2": "0"}, "has no meaning there"),
            (("claim", "lower"), "0x1p9", "the claimed lower bound, 512, is above the proven bound"),
        ):
            path = tmp_path / "proof.json"
            path.write_text(json.dumps(changed(proof.document, place, value)))
            with pytest.raises(dm.errors.CertificateError, match=words):
                dm.verify(path)

    def test_no_change_of_a_number_makes_a_wrong_claim_pass(self, proof: dm.Proof) -> None:
        refused, rng = 0, np.random.default_rng(0)
        for part in ("upper", "lower"):
            found = [*places(proof.document[part], (part,))]
            for index in rng.choice(len(found), 30, replace=False):
                for value in ("0x1p0", "-0x3p-1", "0x0p0", "0x1p40"):
                    try:
                        low, high = check.check(changed(proof.document, found[index], value))
                    except Refused:
                        refused += 1
                        continue
                    assert low <= proof.upper and proof.lower <= high
        assert refused > 50

    def test_what_is_no_proof_of_a_product_is_refused_with_the_reason(self) -> None:
        both = W.kron(W.prefix(2), W.marginals([2, 3], ways=1))
        document = dm.prove(fast.solve(dm.FitnessForUse(both), tol=1e-9)).document
        for place, value, words in (
            (("problem", "factors"), [], "factors must be a list of some sections"),
            (("problem", "factors", 0, "kind"), "weights", "kind of a factor must be one of targets, table targets"),
            (("problem", "factors", 0, "allowed"), "0x0p0", "must be positive"),
            (("problem", "allowed"), "-0x1p0", "allowed must be positive"),
            (("problem", "kind"), "product weights", "kind of a factor must be one of weights, table weights"),
            (("upper", "factors"), [{}], "factors must be a list of 2 sections"),
            (("lower", "factors", 1), {}, "weights must be a list of numbers"),
            (("upper", "factors", 0, "inverse", 0, 0), "0x1p9", r"\|A Z - I\| must be below 1"),
            (("upper", "factors", 0, "strategy", 0, 0), "0x1p1", "the claimed upper bound"),
            (("lower", "factors", 0, "isometry", 0, 0), "0x1p9", "the claimed lower bound"),
        ):
            with pytest.raises(Refused, match=words):
                check.check(changed(document, place, value))

    def test_what_has_no_proof_is_refused_by_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(noise, "MAX_MULTIPLICATIONS", 2**28)
        replaced = dm.FitnessForUse(W.marginals([3, 2], ways=1), neighbours="replace")
        with pytest.raises(dm.errors.InvalidInputError, match="replaced"):
            dm.prove(fast.solve(replaced))
        large = W.union({"a": 700, "b": 2}, {"1": {"a": W.prefix(700)}, "2": ["b"]})
        answer = fast.solve(dm.FitnessForUse(W.prefix(2)))
        with pytest.raises(dm.errors.InvalidInputError, match="702 queries in 2 tables"):
            provable(dm.FitnessForUse(large, geometry="blocks"))
        split_large = W.query_tables({"a": 700, "b": 2}, {"a": W.prefix(700)}, ways=1)
        with pytest.raises(dm.errors.InvalidInputError, match="702 queries in 2 tables"):
            provable(dm.FitnessForUse(split_large, geometry="split"))
        with pytest.raises(dm.errors.InvalidInputError, match="700 queries on 700 cells"):
            provable(dm.FitnessForUse(W.kron(W.prefix(700), W.prefix(2))))
        assert not dm.prove(answer).is_of(dm.FitnessForUse(W.marginals([10] * 60, ways=1)))
