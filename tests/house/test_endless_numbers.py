"""Every text that becomes a number is refused by its length and its exponent before it is converted."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from commanded import run
from hypothesis import given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast, threads, validate
from dualmech.crosscheck.proofs.checker import check
from dualmech.publishing.ledger import Ledger

ENDLESS = {
    "large": "1e999999999",
    "small": "1e-99999999",
    "signed": "+1E+0000999999999",
    "spaced": " 1e999999999 ",
    "underscored": "1e9_999_999",
    "many digits": "9" * 5000,
    "many places": f"0.{'1' * 20_000}",
    "fraction": f"1/{'9' * 20_000}",
}
PREFIX = dm.workloads.prefix(4)
SCHEMA = dm.Schema({"age": range(3), "sex": ["f", "m"]})
SPECIFICATION = (
    '[attributes.age]\nfrom = 0\nto = 2\n[[tables]]\nname = "ages"\nask = { age = "values" }\nvariance = 1\n'
)
MANY = "9" * 5000
NESTED = "[" * 100_000


@given(st.fractions(), st.decimals(-1000, 1000, allow_nan=False), st.floats(1e-300, 1e300))
def test_what_is_short_is_what_it_says(fraction: Fraction, decimal: object, double: float) -> None:
    for each in (fraction, decimal, double):
        assert validate.rational(str(each)) == Fraction(str(each))
    assert validate.rational("1e-999") == Fraction(1, 10**999)


@given(st.text(st.characters(codec="utf-8"), max_size=25))
def test_whole_numbers_are_digits(text: str) -> None:
    found = validate.whole(text)
    assert (found is not None) == (0 < len(text) <= 18 and text.isascii() and text.isdigit())
    assert found is None or found == int(text)


DOORS: dict[str, Callable[[str], object]] = {
    "validator": lambda text: validate.exact_number(x=text),
    "rho of a problem": lambda text: dm.PrivacyFirst(PREFIX, 1.0, rho=text),
    "accounting": dm.accounting.squared_cost_from_rho,
    "release": lambda text: dm.release(dm.FitnessForUse(PREFIX), [1, 2, 3, 4], rho=text),
    "limits": lambda text: dm.crosscheck.capped(PREFIX, 1.0, {"cell 0": 1.0}, rho=text),
    "neighbours": lambda text: dm.FitnessForUse(PREFIX, neighbours=f"replace:{text}"),
    "contributions": lambda text: dm.neighbours.Relation.of(f"contributions:a:{text}:2"),
    "workload": lambda text: dm.workloads.names.builtin_workload(f"prefix:{text}"),
    "sizes": lambda text: dm.Schema({"age": {"size": text}}),
    "number in JSON": lambda text: dm.Schema.of_json(json.dumps({"age": {"from": 0, "to": text}})),
    "text in a specification": lambda text: dm.Specification.of(
        {"attributes": {"age": {"size": 3}}, "tables": [{"ask": {"age": "values"}, "variance": 1}], "rho": text}
    ),
}


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_python(door: Callable[[str], object]) -> None:
    for text in ENDLESS.values():
        with pytest.raises(dm.errors.DualmechError):
            door(text)


@pytest.mark.parametrize("read", [dm.Schema.of_json, dm.Specification.of_json])
@pytest.mark.parametrize("text", [f'{{"age": {MANY}}}', NESTED, "[1e999999999]", "no"])
def test_json(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(dm.errors.DualmechError):
        read(text)


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ENDLESS.values():
        monkeypatch.setenv(threads.THREADS, text)
        with pytest.raises(dm.errors.InvalidInputError, match="DUALMECH_THREADS must be an integer"):
            fast.solve(dm.FitnessForUse(PREFIX))


def test_ledgers(tmp_path: Path) -> None:
    path = tmp_path / "ledger.toml"
    unit = 'neighbours = "replace"\nunit = { of = "record" }\n'
    for text in ENDLESS.values():
        entry = f'[[releases]]\nrho = "{text}"\nwhat = ""\nwhen = ""\nworkload = ""\n{unit}'
        for content in (f'limit = "{text}"\n', f'limit = "1"\n{unit}{entry}'):
            path.write_text(content)
            with pytest.raises(dm.errors.FileFormatError, match="must be a positive number"):
                Ledger.read(path)
        with pytest.raises(dm.errors.InvalidInputError, match="rho must be a positive number"):
            Ledger(path, Fraction(1), ({"rho": text},)).spent  # noqa: B018


def test_specifications(tmp_path: Path) -> None:
    path = tmp_path / "asked.toml"
    for number in (MANY, f"0x{'f' * 5000}", "1e999999999", "-1e999999999", '"1e999999999"'):
        for text in (f"rho = {number}\n{SPECIFICATION}", SPECIFICATION.replace("variance = 1", f"variance = {number}")):
            path.write_text(text)
            with pytest.raises(dm.errors.FileFormatError):
                dm.Specification.read(path)
        path.write_text(f"[age]\nfrom = 0\nto = {number}\n")
        with pytest.raises(dm.errors.FileFormatError):
            dm.Schema.read(path)
        path.write_text(f'workloads = "prefix:4"\nrho = {number}\n')
        assert run("sweep", path, "-o", tmp_path / "rows.csv").exit_code == 1


def test_commands() -> None:
    for text in ENDLESS.values():
        for arguments in (
            ("solve", "prefix:4", "--rho", text),
            ("solve", f"prefix:{text}"),
            ("solve", "prefix:4", "--neighbours", f"replace:{text}"),
            ("solve", "prefix:4", "--tol", f"-{text.strip()}"),
        ):
            done = run(*arguments)
            refused = isinstance(done.exception, SystemExit | dm.errors.DualmechError)
            assert done.exit_code in (1, 2) and refused, (arguments, done.exception)


def test_proofs(tmp_path: Path) -> None:
    path = tmp_path / "proof.json"
    dm.prove(fast.solve(dm.FitnessForUse(PREFIX))).save(path)
    document = json.loads(path.read_text())
    for number in (MANY, '"1e999999999"', '"0x1p999999999"', f'"0x{"f" * 9000}p0"', "1e999999999", NESTED):
        for spoilt in ({"claim": {**document["claim"], "lower": "PLACE"}}, {"schema": "PLACE"}):
            path.write_text(json.dumps(document | spoilt).replace('"PLACE"', number))
            with pytest.raises(dm.errors.CertificateError):
                dm.verify(path)
            assert check.main([str(path)]) == 3
