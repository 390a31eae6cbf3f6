"""A grid of one's own in place of the settings that the paper's tables have: a file with a line for each setting."""

from __future__ import annotations

from dataclasses import dataclass

from dualmech import validate
from dualmech.crosscheck.papers.common.printed import GAMMA, Setting
from dualmech.errors import FileFormatError, InvalidInputError
from dualmech.files import csv

NOISE = ("rho", "sigma")
OWN, COUNTED = (
    "ρ, x, y",
    "ρ, x, y, γ",
)  # what a setting says of itself, without and with what a head count costs
COLUMNS = (*NOISE, "x", "y", "gamma")
"""What a header may name. One of the first two must be there; what else is left out is as in the paper."""


@dataclass(frozen=True, slots=True)
class OwnTable:
    """A choice under settings of one's own, of which nothing is printed; `AccuracyTable` is what is printed."""

    choice: str  # Between which mechanisms
    rows: dict[str, Setting]  # By what it says of itself
    varied = OWN

    @property
    def title(self) -> str:
        """What stands above the table."""
        return f"Your grid, {self.choice}"

    @property
    def fixed(self) -> Setting:
        """The setting under which releases are timed."""
        return next(iter(self.rows.values()))

    def setting(self, row: str) -> Setting:
        """Return the parameters of a row."""
        return self.rows[row]

    def printed(self, row: str) -> tuple[str, ...]:  # noqa: ARG002
        """Return what is printed of a row: nothing."""
        return ()


def read_grid(path: str, usual: Setting, coarsest: float) -> list[Setting]:
    """Read settings from a CSV file whose header names columns out of `COLUMNS`.

    - `usual`: the paper's setting, for columns that are left out;
    - `coarsest`: variance of an answer of the coarsest mechanism at squared privacy cost 1, by which ``sigma``, the
      standard deviation of each of its answers, becomes ρ.

    Raises `FileFormatError` for a file that holds no such table, or numbers out of range.
    """
    table = csv.read_table(path)
    names = [name.strip() for name in table.cell_names or ()]
    known = f"a header of columns out of {', '.join(COLUMNS)}"
    if not names or table.names is not None or len(set(names)) < len(names) or set(names) - {*COLUMNS}:
        raise FileFormatError(f"{path}: a grid needs {known}, each once")
    if sum(name in names for name in NOISE) != 1:
        raise FileFormatError(f"{path}: a grid needs either rho or sigma")
    settings = []
    for number, row in enumerate(table.values.tolist(), 1):
        given = dict(zip(names, row, strict=True))
        try:
            settings.append(_setting(given, usual, coarsest))
        except InvalidInputError as error:
            raise FileFormatError(f"{path}: setting {number}: {error}") from error
    return settings


def _setting(given: dict[str, float], usual: Setting, coarsest: float) -> Setting:
    numbers = {name: validate.positive_number(**{name: value}) for name, value in given.items()}
    for name in ("x", "gamma"):
        if name in numbers and not numbers[name] <= 1:
            raise InvalidInputError(f"{name} must be at most 1, got {numbers[name]:g}")
    rho = numbers.get("rho") or coarsest / (2 * numbers["sigma"] ** 2)
    share, level = numbers.get("x", usual.share), numbers.get("y", usual.level)
    return Setting(validate.positive_number(rho=rho), share, level, numbers.get("gamma", GAMMA))


def by_name(settings: list[Setting], counted: bool) -> dict[str, Setting]:
    """Return settings by what they say of themselves, each once, with γ where heads are counted."""
    numbers = [(each.rho, each.share, each.level, *([each.gamma] * counted)) for each in settings]
    for digits in (4, 17):
        names = [", ".join(f"{number:.{digits}g}" for number in own) for own in numbers]
        if len({*names}) == len({*numbers}):
            break
    return dict(zip(names, settings, strict=True))
