"""Matrix Market files are read as scipy reads them, where they are whole, and refused where they are not."""

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.io
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dualmech import files
from dualmech.errors import FileFormatError
from dualmech.files.formats import format_matrix_market, read_matrix_market
from dualmech.linalg import to_dense

COORDINATE = "%%MatrixMarket matrix coordinate real general\n"
ARRAY = "%%MatrixMarket matrix array real general\n"


def parse(content: bytes | str) -> npt.NDArray[np.float64]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.mtx"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return to_dense(read_matrix_market(path))


@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric"])
@pytest.mark.parametrize(("layout", "field"), [("sparse", "real"), ("sparse", "integer"), ("dense", "real")])
def test_reads_what_scipy_writes(tmp_path: Path, layout: str, field: str, symmetry: str) -> None:
    rng = np.random.default_rng(3)
    matrix = rng.integers(-4, 5, (5, 5)).astype(float) * (rng.random((5, 5)) < 0.6)
    matrix = {"general": matrix, "symmetric": matrix + matrix.T, "skew-symmetric": matrix - matrix.T}[symmetry]
    path = tmp_path / "m.mtx"
    written: Any = sp.coo_array(matrix) if layout == "sparse" else matrix
    scipy.io.mmwrite(path, written, comment="from scipy", field=field, symmetry=symmetry)
    read = read_matrix_market(path)
    assert sp.issparse(read) == (layout == "sparse")
    np.testing.assert_array_equal(to_dense(read), matrix)


@settings(max_examples=24)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 99), st.booleans())
def test_keeps_every_bit(rows: int, columns: int, seed: int, sparse: bool) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((rows, columns)) * 10.0 ** rng.integers(-300, 300, (rows, columns))
    matrix *= rng.random((rows, columns)) < 0.5
    again = parse(format_matrix_market(sp.csr_array(matrix) if sparse else matrix))
    np.testing.assert_array_equal(again, matrix)


def test_layouts() -> None:
    for content, expected in (
        (COORDINATE.upper() + "% a comment\n\n2 2 3\n1 1 1\n1 1 2\n2 1 -1e0\n", [[3, 0], [-1, 0]]),
        ("%%MatrixMarket matrix coordinate pattern symmetric\n2 2 2\n1 1\n2 1\n", [[1, 1], [1, 0]]),
        (COORDINATE + "1 2 0\n", [[0, 0]]),
        (ARRAY + "2 2\n1\n2\n3\n4", [[1, 3], [2, 4]]),
        (ARRAY + "2 2\n1 2 3 4\n", [[1, 3], [2, 4]]),
    ):
        np.testing.assert_array_equal(parse(content), expected)


def test_refused(tmp_path: Path) -> None:
    for content, match in (
        ("", "must begin with '%%MatrixMarket matrix'.* got nothing"),
        ("1 0\n0 1\n", "must begin with"),
        ("%%MatrixMarket vector coordinate real general\n", "must begin with"),
        ("%%MatrixMarket matrix list real general\n", "got .* list real general"),
        ("%%MatrixMarket matrix array complex general\n1 1\n1 2\n", "got .* array complex general"),
        ("%%MatrixMarket matrix array pattern general\n", "got .* array pattern general"),
        ("%%MatrixMarket matrix array real hermitian\n1 1\n1\n", "got .* hermitian"),
        (COORDINATE, "sizes, got nothing"),
        (COORDINATE + "2 2\n", "sizes, got 2 2"),
        (COORDINATE + "0 2 0\n", "sizes, got 0 2 0"),
        (COORDINATE + "2 -2 0\n", "sizes, got 2 -2 0"),
        (COORDINATE + "2 x 0\n", "'x'"),
        (COORDINATE.replace("general", "symmetric") + "2 3 0\n", "symmetric matrix must be square"),
        (COORDINATE + "2 2 1\n%\n3 1 1\n", "entries must lie within 2 x 2"),
        (COORDINATE + "2 2 1\n0 1 1\n", "entries must lie within 2 x 2"),
        (COORDINATE + "2 2 1\n1.5 1 1\n", "entries must lie within 2 x 2"),
        (COORDINATE + "2 2 1\n1 1\n", "must have 1 entries of 3 numbers"),
        (COORDINATE + "2 2 2\n1 1 1\n1 2\n", "number of columns"),
        (COORDINATE + "2 2 1\n1 1 x\n", "'x'"),
        (COORDINATE + "2 2 2\n1 1 1\n", "must have 2 entries"),
        (COORDINATE + "2 2 0\n1 1 1\n", "must have 0 entries"),
        (ARRAY + "2 2\n1\n2\n3\n", "must have 4 entries, got 3"),
        (ARRAY + "2 2\n1\n2_0\n", "'2_0'"),
        (ARRAY + "99999999 99999999\n1\n", "must have 9999999800000001 entries, got 1"),
        (ARRAY.encode() + b"1 1\n\xff\n", "not UTF-8"),
    ):
        path = tmp_path / "m.mtx"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        for read in (files.read_workload, lambda path: files.read_matrix(path, "covariance")):
            with pytest.raises(FileFormatError, match=match) as caught:
                read(path)
            assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 99), st.data())
def test_a_broken_file_is_read_or_refused(tmp_path: Path, seed: int, data: st.DataObject) -> None:
    """Scipy's own reader ends the process on some of these, such as a file that stops in the middle of a number."""
    rng = np.random.default_rng(seed)
    matrix = rng.integers(-4, 5, (4, 4)).astype(float)
    text = bytearray(format_matrix_market(sp.csr_array(matrix) if seed % 2 else matrix))
    for place in data.draw(st.lists(st.integers(0, len(text) - 1), max_size=4)):
        text[place] = data.draw(st.sampled_from(b"0123456789 \n.-ex%\xff\0"))
    path = tmp_path / "m.mtx"
    path.write_bytes(text[: data.draw(st.integers(0, len(text)))])
    with contextlib.suppress(FileFormatError):
        files.read_workload(path)
