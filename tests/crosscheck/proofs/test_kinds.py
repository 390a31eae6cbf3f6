"""Weak duality of every kind of proof: whatever a file holds, its lower bound is at most its upper bound."""

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast
from dualmech.crosscheck.proofs.checker import check, exact
from dualmech.crosscheck.proofs.checker.exact import Refused
from dualmech.crosscheck.proofs.texts import as_read, written

whole = st.integers(-4, 4)
natural = st.integers(0, 4)


def numbers(count: int, entries: st.SearchStrategy[int] = whole) -> st.SearchStrategy[list[int]]:
    return st.lists(entries, min_size=count, max_size=count)


def arrays(rows: int, columns: int, entries: st.SearchStrategy[int] = whole) -> Any:
    return st.lists(numbers(columns, entries), min_size=rows, max_size=rows).map(
        lambda found: np.array(found, dtype=float).reshape(rows, columns)
    )


def shown(problem: dict[str, Any], upper: dict[str, Any], lower: dict[str, Any]) -> tuple[Fraction, Fraction]:
    parts = written({"problem": problem, "upper": upper, "lower": lower})
    return check.proven_bounds({"schema": check.SCHEMA, **parts})


def holds(problem: dict[str, Any], upper: dict[str, Any], lower: dict[str, Any]) -> None:
    try:
        least, most = shown(problem, upper, lower)
    except Refused:
        assume(False)
    assert least <= most


def strategy(data: st.DataObject, cells: int) -> dict[str, Any]:
    matrix = data.draw(arrays(cells, cells))
    assume(abs(np.linalg.det(matrix)) > 0.5)
    return {"strategy": matrix, "inverse": np.linalg.inv(matrix)}


class TestWeakDuality:
    @given(st.data(), st.booleans())
    def test_soft_maxima(self, data: st.DataObject, moved: bool) -> None:
        queries, cells, pairs = (data.draw(st.integers(1, 3)) for _ in range(3))
        pairs = pairs if moved else cells
        p = data.draw(numbers(queries))
        problem = {
            "kind": "soft maxima",
            "workload": data.draw(arrays(queries, cells)),
            "neighbours": data.draw(arrays(cells, pairs)) if moved else None,
            "targets": data.draw(numbers(queries, st.integers(1, 4))),
            "t1": data.draw(st.floats(0.01, 100)),
            "t2": data.draw(st.floats(0.01, 100)),
            "total_weight": max(each * each for each in p),
        }
        lower = {
            "query_roots": p,
            "neighbour_roots": data.draw(numbers(pairs)),
            "isometry": data.draw(arrays(queries, pairs)),
            "query_weights": data.draw(numbers(queries, natural)),
        }
        holds(problem, strategy(data, cells), lower)

    @given(st.data(), st.booleans(), st.sampled_from(["approximate", "pure"]))
    def test_weighting(self, data: st.DataObject, moved: bool, privacy: str) -> None:
        queries, rows, cells, pairs = (data.draw(st.integers(1, 3)) for _ in range(4))
        design = data.draw(arrays(rows, cells))
        kept = design[np.any(design, axis=1)]
        gram = kept @ kept.T if len(kept) <= cells else kept.T @ kept
        assume(len(kept) and np.linalg.matrix_rank(gram) == len(gram))
        problem = {
            "kind": "weighting",
            "privacy": privacy,
            "workload": data.draw(arrays(queries, cells)),
            "design": design,
            "neighbours": data.draw(arrays(cells, pairs)) if moved else None,
        }
        upper = {"weights": data.draw(numbers(len(kept), st.integers(1, 4))), "inverse": np.linalg.inv(gram)}
        holds(problem, upper, {"neighbour_weights": data.draw(numbers(pairs if moved else cells, natural))})

    @given(st.data())
    def test_common(self, data: st.DataObject) -> None:
        size, count = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
        drawn = [[data.draw(arrays(size, size)) for _ in range(count)] for _ in range(3)]
        own, above, below = drawn
        found = data.draw(arrays(size, size))
        holds(
            {"kind": "common", "mechanisms": [{"covariance": each @ each.T} for each in own]},
            {"covariance": found + found.T, "roots": [{"root": each} for each in above]},
            {"roots": [{"root": each} for each in below]},
        )

    @given(st.data())
    def test_common_volume(self, data: st.DataObject) -> None:
        size, count = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
        own, above, below = [[data.draw(arrays(size, size)) for _ in range(count)] for _ in range(3)]
        found = data.draw(arrays(size, size))
        holds(
            {"kind": "common volume", "mechanisms": [{"covariance": each @ each.T + np.eye(size)} for each in own]},
            {"covariance": found @ found.T, "roots": [{"root": each} for each in above]},
            {"roots": [{"root": each + 2 * np.eye(size)} for each in below]},
        )

    @given(st.data(), st.booleans())
    def test_reuse(self, data: st.DataObject, released: bool) -> None:
        queries, cells, known = (data.draw(st.integers(1, 3)) for _ in range(3))
        problem = {
            "kind": "reuse",
            "workload": data.draw(arrays(queries, cells)),
            "neighbours": None,
            "targets": data.draw(numbers(queries, st.integers(1, 4))),
            "release": data.draw(arrays(known, cells)) if released else None,
        }
        upper, lower = strategy(data, cells), {}
        if released:
            turn = np.linalg.qr(data.draw(arrays(known, known)))[0]
            upper["frame"] = turn
            lower["release_rows"] = data.draw(arrays(2, known))
            queries += 2
        lower |= {"query_roots": data.draw(numbers(queries)), "neighbour_roots": data.draw(numbers(cells))}
        holds(problem, upper, lower | {"isometry": data.draw(arrays(queries, cells))})

    @given(st.data(), st.booleans())
    def test_estimate(self, data: st.DataObject, known: bool) -> None:
        queries, cells = (data.draw(st.integers(1, 3)) for _ in range(2))
        problem = {
            "kind": "estimate",
            "workload": data.draw(arrays(queries, cells)),
            "answers": data.draw(numbers(queries)),
            "total": data.draw(natural) if known else None,
        }
        estimate, residual = data.draw(numbers(cells, natural)), data.draw(numbers(queries))
        holds(problem, {"estimate": estimate}, {"residual": residual})

    @given(st.data(), st.booleans())
    def test_projection(self, data: st.DataObject, floored: bool) -> None:
        found = np.array([data.draw(st.permutations([4, 2, 1, 1])) for _ in range(3)]).T / 8
        problem = {
            "kind": "projection",
            "matrix": data.draw(arrays(4, 3)),
            "epsilon": 1.5,
            "floor": found.min(axis=1) if floored else None,
        }
        ratios = data.draw(arrays(4, 3))
        lower = {"sums": data.draw(numbers(3)), "ratios": np.where(ratios < 0, 0.05 * ratios, ratios)}
        holds(problem, {"strategy": found}, lower)

    @given(st.data(), st.booleans())
    def test_local(self, data: st.DataObject, worst: bool) -> None:
        found = np.array([data.draw(st.permutations([4, 2, 1, 1])) for _ in range(3)]).T / 8
        assume(np.linalg.matrix_rank(found) == 3)
        problem = {
            "kind": "local",
            "workload": data.draw(arrays(2, 3)),
            "epsilon": 1.5,
            "prior": None if worst else data.draw(numbers(3, natural)),
        }
        lower = {"matrix": data.draw(arrays(3, 2)), "costs": data.draw(numbers(3))}
        if worst:
            lower |= {"centres": data.draw(arrays(2, 1)), "prior": data.draw(numbers(3, natural))}
        holds(problem, {"strategy": found, "reconstruction": np.linalg.pinv(found)}, lower)


def prove(problem: Any, tol: float = 1e-9) -> dm.Proof:
    return dm.prove(fast.solve(problem, tol=tol))


class TestKnownOptima:
    @pytest.mark.parametrize(("types", "epsilon"), [(2, 1.0), (3, 0.1), (5, 3.0), (8, 1.0)])
    def test_histograms_of_local_privacy(self, types: int, epsilon: float) -> None:
        with mpmath.workdps(40):
            growth = mpmath.exp(epsilon)
            best = min(
                (types - 1) ** 2 * (k * growth + types - k) ** 2 / (k * (types - k) * (growth - 1) ** 2)
                for k in range(1, types)
            )
            optimum = Fraction(str(mpmath.nstr(1 + best, 35)))
        proof = prove(dm.LocalStrategy(dm.workloads.identity(types), epsilon))
        assert proof.lower <= optimum * (1 + Fraction(1, 10**30))
        assert optimum * (1 - Fraction(1, 10**30)) <= proof.upper
        assert proof.width < 2e-9

    @given(st.lists(st.lists(st.integers(1, 9), min_size=3, max_size=3), min_size=2, max_size=3))
    def test_a_volume_of_noise_on_the_same_axes(self, variances: list[list[int]]) -> None:
        mechanisms = [dm.LinearGaussianMechanism(np.eye(3), np.diag(np.array(row, float))) for row in variances]
        proof = prove(dm.CommonMechanism(mechanisms, basis=np.eye(3), criterion="volume"))
        cube = Fraction(math.prod(max(column) for column in zip(*variances, strict=True)))
        assert proof.lower**3 <= cube <= proof.upper**3 and proof.width < 2e-9

    def test_closed_forms(self) -> None:
        """Of two the optimum is the trace of ``(P + Q)/2 + |P - Q|/2``, here of diagonal matrices."""
        one, two = (dm.LinearGaussianMechanism(np.eye(3), np.diag(each)) for each in ([1, 4, 2], [3, 1, 2]))
        proof = prove(dm.CommonMechanism([one, two]))
        assert proof.lower <= 3 + 4 + 2 <= proof.upper and proof.width < 1e-9
        proof = prove(dm.SoftmaxFitness(dm.workloads.identity(4), 1.0, t1=10, t2=10))
        optimum = 2 + 2 * math.log(4) / 10
        assert float(proof.lower) <= optimum + 1e-15 and optimum - 1e-15 <= float(proof.upper)
        assert proof.width < 1e-9
        # Weights of the cells themselves are all 1: the optimum is the sum of the costs.
        for privacy in ("approximate", "pure"):
            proof = prove(dm.QueryWeighting(dm.workloads.prefix(3), np.eye(3), privacy=privacy))
            assert proof.lower <= 3 + 2 + 1 <= proof.upper and proof.width < 1e-9
        total = dm.LinearGaussianMechanism([[1, 1]], [[2]])
        proof = prove(dm.ReuseFitness(dm.workloads.identity(2), 1.0, total))
        assert proof.lower <= 1 <= proof.upper and proof.width < 1e-9
        plain = prove(dm.NonnegativeEstimate(dm.workloads.identity(3), [5.0, 4.0, -3.0]))
        known = prove(dm.NonnegativeEstimate(dm.workloads.identity(3), [5.0, 4.0, -3.0], total=6))
        assert plain.lower <= Fraction(9, 2) <= plain.upper and plain.width < 1e-9
        assert known.lower <= Fraction(27, 4) <= known.upper and known.width < 1e-9
        # The identity to what randomised response is at ε = log 3, of which no double is the exact value.
        proof = prove(dm.LocalProjection(np.eye(2), epsilon=math.log(3)))
        assert abs(float(proof.lower) - 0.125) < 1e-9 and abs(float(proof.upper) - 0.125) < 1e-9
        # One query that sees two groups of types: the best strategy has two outputs.
        proof = prove(dm.LocalStrategy(dm.Workload([[1, 1, 0, 0]]), 1.0), tol=1e-8)
        assert proof.width < 1e-8 + 1e-9

    def test_estimates_whose_columns_cancel(self) -> None:
        for workload, answers, optimum in (
            ([[-2, 1, 1]], [1], 0),
            ([[1, -1, 0], [0, 0, 1]], [-1, -2], 2),
            ([[1, -1]], [-5], 0),
            ([[1, 0, 0, 0], [0, -2, 1, 1]], [-1, -7], Fraction(1, 2)),
            ([[-1, -2], [-3, -4]], [1, 2], Fraction(5, 2)),
            ([[1, 1], [1, 1]], [1, 3], 1),
        ):
            proof = prove(dm.NonnegativeEstimate(dm.Workload(workload), answers))
            assert proof.lower <= optimum <= proof.upper and proof.upper - proof.lower < 1e-9


class TestExactNumbers:
    @given(st.data(), st.tuples(*[st.integers(1, 4)] * 3), st.integers(0, 130), st.integers(0, 130))
    def test_products(self, data: st.DataObject, shape: tuple[int, int, int], first: int, second: int) -> None:
        """Products are those of the definition, whatever the numbers of digits and the signs."""
        sizes = (shape[0], shape[1], first), (shape[1], shape[2], second)
        one, two = (
            [
                data.draw(st.lists(st.integers(-(2**bits), 2**bits), min_size=columns, max_size=columns))
                for _ in range(rows)
            ]
            for rows, columns, bits in sizes
        )
        found = exact.Matrix(one, 3).times(exact.Matrix(two, -5))
        assert found.exponent == -2
        assert found.rows == [
            [sum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*two, strict=True)] for row in one
        ]

    @given(st.fractions(min_value=0, max_value=10**30), st.sampled_from([1, 2, 3, 5, 8]))
    def test_roots(self, given_: Fraction, order: int) -> None:
        low = exact.root_below(given_, order)
        assert low**order <= given_ <= (low * (1 + Fraction(1, 2**150))) ** order
        assert given_ <= exact.root_above(given_, order) ** order

    @given(st.data(), st.integers(1, 4))
    def test_elimination(self, data: st.DataObject, size: int) -> None:
        """The determinant and the solution satisfy their definitions exactly, and other matrices are refused."""
        root = data.draw(arrays(size, size))
        matrix = as_read({"a": root @ root.T + np.eye(size), "b": root, "c": root + root.T - 2 * np.eye(size)})
        definite, right = matrix.matrix("a"), matrix.matrix("b")
        determinant, solution = exact.eliminated(definite, right)
        assert float(determinant) == pytest.approx(np.linalg.det(root @ root.T + np.eye(size)), rel=1e-9)
        for row, wanted in zip(definite.numbers(), right.numbers(), strict=True):
            assert [exact.dot(row, column) for column in zip(*solution, strict=True)] == wanted
        if np.linalg.eigvalsh(root + root.T - 2 * np.eye(size))[0] < -1e-9:
            with pytest.raises(Refused, match="positive definite"):
                exact.eliminated(matrix.matrix("c"), right)

    @given(st.fractions(min_value=-2000, max_value=300))
    def test_exponentials(self, value: Fraction) -> None:
        low, high = exact.exp_below(value), exact.exp_above(value)
        with mpmath.workdps(80):
            true = mpmath.exp(mpmath.mpf(value.numerator) / value.denominator)
            assert mpmath.mpf(low.numerator) / low.denominator <= true
            assert true <= mpmath.mpf(high.numerator) / high.denominator
        if value > -900:
            assert high - low <= low * Fraction(1, 10**50)

    @given(st.fractions(min_value=Fraction(1, 10**40), max_value=10**40))
    def test_logarithms(self, value: Fraction) -> None:
        low, high = exact.log_below(value), exact.log_above(value)
        with mpmath.workdps(80):
            true = mpmath.log(mpmath.mpf(value.numerator) / value.denominator)
            assert mpmath.mpf(low.numerator) / low.denominator <= true
            assert true <= mpmath.mpf(high.numerator) / high.denominator
        assert high - low <= Fraction(1, 10**50)

    @pytest.mark.parametrize("near", [Fraction(0), Fraction(1, 10**80), Fraction(-1, 10**80)])
    def test_logarithms_of_about_1_have_few_digits(self, near: Fraction) -> None:
        low, high = exact.log_below(1 + near), exact.log_above(1 + near)
        assert low <= near <= high <= low + Fraction(1, 10**50)
        assert max(low.denominator, high.denominator).bit_length() < 10**3

    @pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 1.0, 20.0, 100.0])
    def test_what_lies_beside_e_to_the_epsilon(self, epsilon: float) -> None:
        from dualmech.crosscheck.proofs.checker.local import growth

        low, high = growth(as_read({"epsilon": epsilon}))
        with mpmath.workdps(120):
            true = mpmath.exp(mpmath.mpf(epsilon))
            assert mpmath.mpf(low.numerator) / low.denominator < true
            assert true < mpmath.mpf(high.numerator) / high.denominator
        assert (high - low) / (low - 1) < Fraction(1, 10**18)
