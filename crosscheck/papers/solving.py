"""What every paper's rows are solved with."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from dualmech.crosscheck.agreement import Agreement
from dualmech.errors import UncertifiedWarning


@contextmanager
def without_warnings() -> Iterator[None]:
    """Solve without warnings: the table shows what is not certified."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncertifiedWarning)
        yield


def certified_outcome(certified: bool) -> Agreement:
    """Return the outcome of a row in which nothing can disagree."""
    return Agreement.AGREE if certified else Agreement.WIDE
