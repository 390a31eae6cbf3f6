"""Optima in exact numbers: fractions and square roots, found from many digits and proven without rounding."""
