"""What is checked before any record is read: no seed, and no more privacy spent than allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError

SEEDS = ("rng", "seed", "random_state", "random_seed", "generator", "key", "sampler", "noise")
UNBOUNDED = 100  # the ρ above which a release is refused unless a limit was given: ε is about 190 at δ = 1e-9
GRID = 1e-5  # how much more the grid may make noise cost once it is scaled, relative


def require_no_seed(refused: Mapping[str, Any]) -> None:
    """Refuse a seed, and all else that a release takes no argument for."""
    shown = ", ".join(refused)
    if any(name in SEEDS for name in refused):
        raise InputTypeError(
            f"a release takes no {shown}: noise that can be drawn again protects nobody; a mechanism's simulate takes "
            f"a seed, for study"
        )
    if refused:
        raise InputTypeError(
            f"a release takes no {shown}: what it costs is settled by the mechanism, and limited by rho; accuracy is "
            f"asked of the problem, levels of what is returned"
        )


def as_fraction(rho: Any) -> Fraction | None:
    """Return a positive number or a text such as ``1/2`` as a fraction, None as it is."""
    if rho is None:
        return None
    try:
        found = Fraction(rho if isinstance(rho, str | Fraction) else validate.positive_number(rho=rho))
    except (ValueError, ZeroDivisionError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(
            f"rho must be a positive number or a fraction such as '1/2', got {rho!r}"
        ) from error
    if found <= 0:
        raise InvalidInputError(f"rho must be positive, got {rho!r}")
    return found


def require_within(squared_cost: Fraction, rho: Fraction | None) -> None:
    """Refuse an exact squared privacy cost of more than twice the ρ allowed: what is given, or UNBOUNDED."""
    if rho is None and squared_cost > 2 * UNBOUNDED:
        raise InvalidInputError(
            f"mechanism costs rho = {float(squared_cost / 2):.6g}, which protects next to nothing: no more than "
            f"{UNBOUNDED} is released unless rho says so; ask for less accuracy, or allow so much, rho=… (--rho …)"
        )
    if rho is not None and squared_cost > 2 * rho:
        larger = float(squared_cost / (2 * rho)) * (1 + GRID)
        raise InvalidInputError(
            f"mechanism costs rho = {float(squared_cost / 2):.12g}, more than the {float(rho):.12g} allowed: solve for "
            f"that rho; or, since noise that is larger by a factor costs less by as much, take scaled({larger:.12g})"
        )


def rounded_up(number: Fraction) -> float:
    """Return the least double that is not below a fraction."""
    found = float(number)
    return found if Fraction(found) >= number else math.nextafter(found, math.inf)
