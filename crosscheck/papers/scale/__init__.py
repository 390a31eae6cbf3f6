"""Marginal tables and census lists at scale, beside what others print."""

SHEETS = ("dense", "adult", "sixty", "domains", "published", "growth", "census")
