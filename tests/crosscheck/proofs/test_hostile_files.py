"""Files of proofs, programs and libraries that were made to do harm: refused in words, or harmless."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commanded import run

import dualmech as dm
from dualmech import fast
from dualmech.crosscheck import leaderboard, library

MANY = 10**6
NAME = "fitness-prefix-2"

GOOD = dm.prove(fast.solve(library.problems()[NAME](), tol=1e-9)).document
TEXT = json.dumps(GOOD)


def changed(place: str, key: str, value: Any) -> bytes:
    return json.dumps({**GOOD, place: {**GOOD[place], key: value}}).encode()


PROOFS: dict[str, bytes] = {
    "brackets without end": b"[" * MANY,
    "objects without end": b'{"a":' * MANY,
    "a whole number of many digits": b'{"schema": ' + b"1" * MANY + b"}",
    "an exponent of many digits": b'{"schema": 1e' + b"9" * MANY + b"}",
    "not a number": b'{"schema": NaN}',
    "hexadecimal digits": changed("problem", "allowed", "0x" + "f" * MANY + "p0"),
    "a power of many digits": changed("problem", "allowed", "0x1p" + "9" * MANY),
    "a number that is none": changed("problem", "allowed", 1.0),
    "powers far apart": changed("upper", "strategy", [["0x1p9999", "0x0p0"], ["0x0p0", "0x1p-9999"]]),
    "one long row": changed("problem", "workload", [["0x1p0"] * 10**5]),
    "many rows": changed("problem", "workload", [["0x1p0"]] * 10**5),
    "a claim that comes twice": TEXT[:-1].encode() + b', "claim": {"lower": "0x0p0", "upper": "0x1p0"}}',
    "no text": b'{"schema": "\xff\xfe"}',
    "NUL": b"\0" * MANY,
    "nothing": b"",
}


@pytest.mark.parametrize("label", PROOFS)
def test_a_proof_that_is_none_is_refused_in_a_line(label: str, tmp_path: Path) -> None:
    path = tmp_path / "proof.json"
    path.write_bytes(PROOFS[label])
    with pytest.raises((dm.errors.CertificateError, dm.errors.FileFormatError), match=r"proof\.json") as raised:
        dm.verify(path)
    assert len(str(raised.value)) < 500
    result = run("verify", path)
    assert result.exit_code == 3 and result.stderr.count("\n") == 1


def test_a_claim_wider_than_any_number_is_still_a_claim(tmp_path: Path) -> None:
    path = tmp_path / "proof.json"
    path.write_bytes(changed("claim", "upper", "0x1p9999"))
    assert dm.verify(path).upper == 2**9999


@pytest.mark.parametrize("claim", [("0x1p0", "0x1p9999"), ("0x1p-9999", "0x1p1"), ("-0x1p0", "0x1p1")])
def test_a_library_keeps_no_proof_that_says_little(claim: tuple[str, str], tmp_path: Path) -> None:
    """It is true, but the interval is not the one that is promised: it is proven again."""
    wide = {**GOOD, "claim": {"lower": claim[0], "upper": claim[1]}}
    (tmp_path / f"{NAME}.json").write_text(json.dumps(wide))
    (made,) = library.build(tmp_path, [NAME])
    assert made.upper < made.lower * (1 + 2e-9)
    assert dm.verify(tmp_path / f"{NAME}.json").width < 2e-9


ENTRY = {
    **{"name": NAME, "family": "FitnessForUse", "kind": "targets", "queries": 2, "cells": 2},
    **{"lower": 1.0, "upper": 2.0},
}

INDEXES: dict[str, Callable[[], str]] = {
    "nested": lambda: "[" * MANY,
    "no list": lambda: "3",
    "no objects": lambda: "[3]",
    "a key too many": lambda: json.dumps([ENTRY | {"more": 1}]),
    "a key too few": lambda: json.dumps([{"name": NAME}]),
    "a name that is none": lambda: json.dumps([ENTRY | {"name": ["x"]}]),
    "no number": lambda: json.dumps([ENTRY | {"upper": float("nan")}]),
    "without end": lambda: json.dumps([ENTRY | {"upper": float("inf")}]),
    "many digits": lambda: json.dumps([ENTRY]).replace("2.0", "2" * 10**5),
    "bounds that cross": lambda: json.dumps([ENTRY | {"lower": 3.0}]),
}


@pytest.mark.parametrize("label", INDEXES)
def test_an_index_that_is_none_is_refused(label: str, tmp_path: Path) -> None:
    (tmp_path / library.INDEX).write_text(INDEXES[label]())
    with pytest.raises(dm.errors.FileFormatError, match=r"index\.json"):
        library.read(tmp_path)
    result = run("leaderboard", tmp_path, tmp_path)
    assert isinstance(result.exception, dm.errors.FileFormatError)


def test_names_out_of_the_folder_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("1,0\n0,1\n")
    folder = tmp_path / "answers"
    folder.mkdir()
    (folder / library.INDEX).write_text(json.dumps([ENTRY | {"name": "../secret"}]))
    assert not list(leaderboard.entries(folder, [folder]))
