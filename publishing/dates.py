"""Attributes of dates: their days, weeks, months, quarters or years, the formats and time zones of records."""

from __future__ import annotations

import contextlib
import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar
from zoneinfo import ZoneInfo

from dualmech.publishing.attributes import Attribute, Grouping, read_number

DAY, WEEK, MONTH, QUARTER, YEAR = STEPS = ("day", "week", "month", "quarter", "year")

DAYS = {DAY: 1, WEEK: 7}  # days in a period
MONTHS = {MONTH: 1, QUARTER: 3, YEAR: 12}  # months in a period

DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ](?!24).+)?")
"""A day, optionally with a time. Hour 24 is refused, since versions of Python disagree on it."""

YEAR_MONTH = re.compile(r"(\d{4})-(\d\d)")

QUARTERLY = re.compile(r"(\d{4})-Q([1-4])")

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

COARSER = {"months": MONTH, "quarters": QUARTER, "years": YEAR}
"""Groupings of days, months and quarters, with the step of each."""

EXCEL, EXCEL_DAY = "excel", datetime.datetime(1899, 12, 30)
"""The format of Excel's day numbers, and day 0; correct from March 1900."""

CODE = re.compile("%.?")
CODES = {f"%{letter}" for letter in "dmYybBjHIMSfpz%"}
"""Codes allowed in a format: independent of the machine's settings, except for names of months and AM or PM."""

TIMES = ("", " %H:%M", " %H:%M:%S")
FORMATS = tuple(
    form + time
    for time in TIMES
    for form in (
        *("%d.%m.%Y", "%d.%m.%y", "%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y", "%d/%m/%y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y"),
        *("%Y.%m.%d", "%Y%m%d", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%d-%b-%Y"),
    )
)
"""Formats of dates to propose in messages."""


@dataclass(frozen=True, slots=True)
class Dated(Attribute):
    """An attribute of days, weeks, months, quarters or years; weeks begin on the weekday of `first`."""

    has_labels: ClassVar[bool] = True

    first: datetime.date = datetime.date.min
    last: datetime.date = datetime.date.min
    step: str = DAY
    clamp: bool = False
    format: str = ""  # of dates in records besides ISO, for `datetime.strptime`, or `EXCEL`
    timezone: str = ""  # zone whose day is used for times with a UTC offset; without it they are refused
    _calendar: Mapping[str, Grouping] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_calendar", {} if self.step == WEEK else self._coarser())

    @property
    def groupings(self) -> Mapping[str, Grouping]:
        """The declared groupings, and the months, quarters and years coarser than the step, with weekdays for days."""
        return {**self._calendar, **self.groups}

    @property
    def worth(self) -> None:
        return None

    @property
    def demand(self) -> str:
        return f"a date, as in {self.written(self.first)}" if self.clamp else self.named_demand

    @property
    def named_demand(self) -> str:
        return f"a date from {self.first} to {self.last}, as in {self.written(self.first)}"

    def written(self, day: datetime.date) -> str:
        """Return a day in the format of records."""
        if self.format == EXCEL:
            return str((day - EXCEL_DAY.date()).days)
        midnight = datetime.datetime.combine(day, datetime.time(), ZoneInfo(self.timezone or "UTC"))
        return midnight.strftime(self.format) if self.format else str(day)

    def _code(self, text: str, clamp: bool = False) -> int | None:
        day = self._day(text)
        if day is None or not (clamp or self.first <= day <= self.last):
            return None
        return self.place(min(max(day, self.first), self.last))

    def _coarser(self) -> dict[str, dict[str, list[int]]]:
        groupings: dict[str, dict[str, list[int]]] = {}
        first_days = [self._begin(code) for code in range(self.values)]
        for word, step in COARSER.items():
            if STEPS.index(step) > STEPS.index(self.step):
                for code, day in enumerate(first_days):
                    groupings.setdefault(word, {}).setdefault(_period(day, step), []).append(code)
        if self.step == DAY:
            days = ((name, (index - self.first.weekday()) % 7) for index, name in enumerate(WEEKDAYS))
            groupings["weekdays"] = {name: [*range(day, self.values, 7)] for name, day in days if day < self.values}
        return groupings

    def _day(self, text: str, form: str | None = None) -> datetime.date | None:
        """Return the day of a text, or a day of its period if the step is a month, a quarter or a year."""
        form = self.format if form is None else form
        plain, is_coarse = text.strip(), self.step in MONTHS
        quarterly, monthly = QUARTERLY.fullmatch(plain), YEAR_MONTH.fullmatch(plain)
        if quarterly and self.step == QUARTER:
            return self._first_day(int(quarterly[1]), 3 * int(quarterly[2]) - 2)
        if self.step == YEAR and len(plain) == 4 and plain.isdecimal() and int(plain):
            return self._first_day(int(plain), 1)
        try:
            if monthly and is_coarse:
                return self._first_day(int(monthly[1]), int(monthly[2]))
            time = _time(plain, form)
        except (ValueError, OverflowError):
            return None
        if time is None or (time.tzinfo is not None and not self.timezone):
            return None
        has_no_day = is_coarse and form not in ("", EXCEL) and not {"%d", "%j"} & {*CODE.findall(form)}
        day = (time if time.tzinfo is None else time.astimezone(ZoneInfo(self.timezone))).date()
        return self._first_day(day.year, day.month) if has_no_day and not DATE.fullmatch(plain) else day

    def _hint(self, text: str) -> str:
        if self._day(text) is not None:
            return ""  # a day beyond the ends
        with contextlib.suppress(ValueError, OverflowError):
            time = _time(text, self.format)
            if time is not None and time.tzinfo is not None:
                return '; the option timezone = "America/Chicago" determines the time zone of its day'
        if DATE.fullmatch(text[:10]):
            return "" if len(text) == 10 else "; after a date there may only be a time, as in 2024-01-05 06:30:00"
        readings = {form: day for form in (*FORMATS, EXCEL) if (day := self._day(text, form)) is not None}
        plausible = {form: day for form, day in readings.items() if self.first <= day <= self.last} or readings
        proposals = ", ".join(f'format = "{form}" reads it as {day}' for form, day in plausible.items())
        return f"; the option {proposals}" if proposals else ""

    def _first_day(self, year: int, month: int) -> datetime.date:
        """Return the first day of a month, or `first` if this is later and in the same period."""
        begin = datetime.date(year, month, 1)
        return max(begin, self.first) if _period(begin, self.step) == _period(self.first, self.step) else begin

    def place(self, day: datetime.date) -> int:
        """Return the code of a day from `first` to `last`."""
        if self.step in DAYS:
            return (day - self.first).days // DAYS[self.step]
        first, place = ((12 * date.year + date.month - 1) // MONTHS[self.step] for date in (self.first, day))
        return place - first

    def _begin(self, code: int) -> datetime.date:
        """Return the first day of the period of a code, which may precede `first`."""
        if self.step in DAYS:
            return self.first + datetime.timedelta(days=code * DAYS[self.step])
        width = MONTHS[self.step]
        months = ((12 * self.first.year + self.first.month - 1) // width + code) * width
        return datetime.date(months // 12, months % 12 + 1, 1)

    def _keys(self, first: int, last: int) -> tuple[str, str]:
        end = min(self.last, self._begin(last + 1) - datetime.timedelta(days=1))
        return str(max(self.first, self._begin(first))), str(end)

    def _label(self, code: int) -> str:
        return _period(self._begin(code), self.step)

    @property
    def reading(self) -> list[tuple[str, list[str]]]:
        words = f"times with a time zone count on their day in {self.timezone}, other times on the written day"
        return [(words, [])] if self.timezone else []

    def _spec(self) -> dict[str, object]:
        spec: dict[str, object] = {"from": str(self.first), "to": str(self.last), "step": self.step}
        options = {"clamp": self.clamp, "format": self.format, "timezone": self.timezone}
        return spec | {key: value for key, value in options.items() if value}


def _time(text: str, form: str) -> datetime.datetime | None:
    """Return the time of a text in ISO form or in a format.

    Returns None without a format, or for an invalid day number of Excel; raises ValueError or OverflowError for a text
    that does not match the format.
    """
    if DATE.fullmatch(text):
        return datetime.datetime.fromisoformat(text)
    if form == EXCEL:
        days = read_number(text)
        return None if days is None or days < 61 else EXCEL_DAY + datetime.timedelta(days=days)
    return datetime.datetime.strptime(text, form) if form else None


def _period(day: datetime.date, step: str) -> str:
    """Return the label of a day's month, quarter or year, such as 2013-01 or 2013-Q1; of other steps the day itself."""
    if step == QUARTER:
        return f"{day.year:04}-Q{(day.month + 2) // 3}"
    return str(day)[: {MONTH: 7, YEAR: 4}.get(step, 10)]
