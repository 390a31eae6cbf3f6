"""The elementary linear algebra that judges share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg

from dualmech import linalg


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
        assert not linalg.spans_all(matrix)
