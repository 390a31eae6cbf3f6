"""The elementary linear algebra that judges share."""

from typing import Any

import mpmath as mp
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from dualmech import linalg
from dualmech.verified import Enclosure

quick = settings(max_examples=60)


class TestEitherAlgorithm:
    """LAPACK's divide and conquer gives up on some matrices with many equal singular values."""

    @pytest.fixture(autouse=True)
    def divide_and_conquer_gives_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        honest = scipy.linalg.svd

        def svd(matrix: Any, *arguments: Any, lapack_driver: str = "gesdd", **options: Any) -> Any:
            if lapack_driver == "gesdd":
                raise np.linalg.LinAlgError("SVD did not converge")
            return honest(matrix, *arguments, lapack_driver=lapack_driver, **options)

        def svdvals(*_: Any, **__: Any) -> Any:
            raise np.linalg.LinAlgError("SVD did not converge")

        monkeypatch.setattr(scipy.linalg, "svd", svd)
        monkeypatch.setattr(scipy.linalg, "svdvals", svdvals)

    @pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (1, 1)])
    @pytest.mark.parametrize("full", [False, True])
    def test_decomposition(self, shape: tuple[int, int], full: bool) -> None:
        matrix = np.random.default_rng(0).standard_normal(shape)
        left, values, right = linalg.svd(matrix, full_matrices=full)
        size = min(shape)
        np.testing.assert_allclose(left[:, :size] * values @ right[:size], matrix, atol=1e-12)
        np.testing.assert_allclose(linalg.singular_values(matrix), values, rtol=1e-12)
        if full:
            assert (left.shape[0], right.shape[1]) == shape and left.shape[1] == shape[0]

    def test_a_trace_norm_and_a_row_space_need_only_one_of_them(self) -> None:
        matrix = np.kron(np.eye(3), np.ones((1, 2))).astype(np.float64)
        assert linalg.trace_norm(matrix)[0] == pytest.approx(3 * 2**0.5)
        assert linalg.row_space(matrix).shape == (3, 6) and linalg.rank(matrix) == 3


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_columns_that_are_clearly_independent_need_no_singular_values(scale: float) -> None:
    rng = np.random.default_rng(0)
    full = scale * rng.standard_normal((7, 5))
    assert linalg.spans_all(full) and linalg.spans_all(np.vstack([full, np.zeros((2, 5))]))
    assert linalg.spans_all(full * 10.0 ** np.arange(7)[:, None])
    deficient = full.copy()
    deficient[:, 4] = deficient[:, 0] + deficient[:, 1]
    nearly = deficient.copy()
    nearly[0, 4] += scale * 1e-9
    empty = full.copy()
    empty[:, 2] = 0
    for matrix in (deficient, nearly, empty, full[:4]):
        assert not linalg.spans_all(matrix) and not linalg.spans_all(np.vstack([matrix] * 5))
        assert not linalg.are_clearly_independent(matrix.T @ matrix)
    assert linalg.spans_all(np.vstack([full] * 5)) and linalg.are_clearly_independent(full.T @ full)


class TestWithinWhatIsProven:
    """Allowances hold against fifty digits, whatever the condition."""

    @staticmethod
    def rough(seed: int, rows: int, columns: int) -> Any:
        """Return entries of very different sizes, with rows that are nearly parallel."""
        rng = np.random.default_rng(seed)
        found = rng.standard_normal((rows, columns)) * 10.0 ** rng.uniform(-6, 0, (rows, 1))
        found[-1] = found[0] * (1 + 10.0 ** rng.uniform(-15, 0) * rng.standard_normal(columns))
        return found * 2.0 ** rng.integers(-20, 20)

    @quick
    @given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 5))
    def test_a_trace_norm_is_not_below(self, seed: int, rows: int, columns: int) -> None:
        matrix = self.rough(seed, rows, columns)
        norm, allowance = linalg.trace_norm(matrix)
        with mp.workdps(50):
            exact = sum(mp.svd_r(mp.matrix(matrix.tolist()), compute_uv=False))
            assert mp.mpf(norm) - mp.mpf(allowance) <= exact <= mp.mpf(norm) * (1 + mp.mpf("1e-12"))
        assert allowance <= 1e-13 * norm

    @quick
    @given(st.integers(0, 2**32), st.integers(4, 12), st.integers(4, 12), st.lists(st.floats(-20, -3), max_size=3))
    def test_a_trace_norm_with_few_small_singular_values(self, seed: int, rows: int, columns: int, few: list) -> None:
        """Their square roots are lost in a Gram matrix, and counted nevertheless."""
        rng = np.random.default_rng(seed)
        values = np.ones(min(rows, columns))
        few = few[: len(values) // 4]
        values[: len(few)] = 10.0 ** np.array(few)
        left, right = (np.linalg.qr(rng.standard_normal((size, len(values))))[0] for size in (rows, columns))
        matrix = (left * values) @ right.T
        norm, allowance = linalg.trace_norm(matrix)
        with mp.workdps(50):
            tall = mp.matrix((matrix if rows >= columns else matrix.T).tolist())
            exact = sum(mp.svd_r(tall, compute_uv=False))
            assert mp.mpf(norm) - mp.mpf(allowance) <= exact <= mp.mpf(norm) + mp.mpf(allowance)
        assert allowance <= 1e-13 * norm

    @quick
    @given(st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 5), st.booleans())
    def test_a_trace_norm_by_a_gram_matrix_is_not_below(self, seed: int, rows: int, columns: int, alike: bool) -> None:
        """Of whole numbers, scaled by rows of powers of 2 and columns of any size, also where columns repeat."""
        rng = np.random.default_rng(seed)
        whole = rng.integers(-3, 4, (rows, columns)).astype(np.float64)
        if alike:
            whole[:, -1] = whole[:, 0]
        factors, roots = 2.0 ** rng.integers(-9, 9, rows), 10.0 ** rng.uniform(-3, 0, columns)
        half = factors[:, None] * whole
        rank = max(int(np.linalg.matrix_rank(whole)), 1)
        judged = linalg.trace_norm_by_gram(Enclosure.of(half.T @ half), roots, rank)
        if judged is None:
            return
        norm, allowance = judged
        with mp.workdps(50):
            scaled = mp.matrix(half.tolist()) * mp.diag(roots.tolist())
            tall = scaled if rows >= columns else scaled.T
            exact = sum(mp.svd_r(tall, compute_uv=False))
            assert mp.mpf(norm) - mp.mpf(allowance) <= exact <= mp.mpf(norm) * (1 + mp.mpf("1e-9"))
        assert allowance <= 1e-12 * norm

    @pytest.mark.parametrize("rank", [1, 2])
    def test_a_wrong_rank_proves_less_or_nothing(self, rank: int) -> None:
        """Of rank 2, taken for 1, the norm is less; of rank 1, taken for 2, there is no answer."""
        half = np.array([[3.0, 0.0], [0.0, 1.0]]) if rank == 1 else np.array([[3.0, 3.0], [1.0, 1.0]])
        judged = linalg.trace_norm_by_gram(Enclosure.of(half.T @ half), np.ones(2), rank)
        assert judged is None if rank == 2 else judged is not None and judged[0] - judged[1] <= 3 <= 4

    @quick
    @given(st.integers(0, 2**32), st.integers(1, 5))
    def test_forms_of_an_inverse(self, seed: int, size: int) -> None:
        half = self.rough(seed, size, size)
        covariance, vectors = half @ half.T, self.rough(seed + 1, size, 3)
        found = linalg.inverse_forms(covariance, vectors)
        assert found is not None
        judged, forms, allowances = found
        with mp.workdps(80):
            inverse = mp.matrix(judged.tolist()) ** -1
            for form, allowance, vector in zip(forms, allowances, vectors.T, strict=True):
                column = mp.matrix(vector.tolist())
                exact = (column.T * inverse * column)[0]
                assert not np.isfinite(form) or abs(exact - mp.mpf(form)) <= mp.mpf(allowance)

    @quick
    @given(st.integers(0, 2**32), st.integers(1, 5))
    def test_eigenvalues(self, seed: int, size: int) -> None:
        half = self.rough(seed, size, size)
        matrix = half + half.T
        low, high = linalg.extreme_eigenvalues(matrix)
        with mp.workdps(50):
            exact = sorted(mp.eigsy(mp.matrix(matrix.tolist()), eigvals_only=True))
            assert mp.mpf(low) <= exact[0] and exact[-1] <= mp.mpf(high)
        assert high - low <= float(exact[-1] - exact[0]) + 1e-13 * np.abs(matrix).max()

    def test_what_nothing_proves_is_infinite(self) -> None:
        """No triangle makes a covariance near the identity that is singular exactly."""
        assert linalg.inverse_root(np.ones((2, 2)), np.array([[1.0, 1.0], [0.0, 1e-9]])) is None


@pytest.mark.parametrize("entry", [np.nan, np.inf, -np.inf])
def test_a_matrix_that_is_not_finite_has_no_singular_values(entry: float) -> None:
    """NumPy's, SciPy's and LAPACK's answers differ, from an error of another kind to NaN."""
    with pytest.raises(np.linalg.LinAlgError, match="not finite"):
        linalg.svd(np.array([[1.0, entry], [0.0, 1.0]]))
