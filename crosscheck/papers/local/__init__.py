"""Figures of the local privacy paper (LDP)."""

SHEETS = (
    "histograms",
    "descent",
    "initialisation",
    "epsilon",
    "epsilon512",
    "size",
    "worst",
    "steps",
    "consistency",
)
