"""The most memory that a process held since a moment."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

OWN = Path("/proc/self")
PEAK = "VmHWM:"  # the line of Linux that holds it, in kibibytes
RESET = "5"  # what Linux takes as the word to begin anew


def start_peak() -> None:
    """Begin anew; where the system cannot, the peak is that of the process since it began."""
    with contextlib.suppress(OSError):
        (OWN / "clear_refs").write_text(RESET)


def peak_mebibytes() -> float | None:
    """Return the most memory of the process in MiB, None where the system does not say.

    Examples
    --------
    >>> start_peak()
    >>> most = peak_mebibytes()
    >>> most is None or most > 1
    True
    """
    with contextlib.suppress(OSError):
        for line in (OWN / "status").read_text().splitlines():
            if line.startswith(PEAK):
                return int(line.split()[1]) / 1024
    try:
        import resource
    except ImportError:  # of a system without it
        return None
    unit = 1024 if sys.platform != "darwin" else 1024**2
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
