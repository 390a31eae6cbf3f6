"""What the Eigen-Design paper prints: its numbers as texts, digits included, and nothing computed.

All are from Li and Miklau, "An adaptive mechanism for accurate query answering under differential privacy",
PVLDB 5(6), 2012 ("EIG"), section 5: the table of alternative workloads, and what the text says of its figures.
The text at hand has lost most of its numbers of cells, attributes and queries, so what they were is assumed
(`dualmech.crosscheck.papers.eigen.instances`).
"""

from __future__ import annotations

from dataclasses import dataclass

EIG = "Li and Miklau, PVLDB 5(6), 2012"

WAVELET, HIERARCHICAL, FOURIER, DATACUBE = "wavelet", "hierarchical", "Fourier", "DataCube"

BOUND = "bound"  # the column of the singular value bound (Theorem 2) over the error of the Eigen-Design

ALTERNATIVES = {
    "1D Range, permuted": {WAVELET: "9.62", HIERARCHICAL: "13.16", BOUND: "0.99"},
    "1Way Range": {DATACUBE: "1.30", FOURIER: "7.69", BOUND: "0.98"},
    "2Way Range": {HIERARCHICAL: "1.63", FOURIER: "3.23", BOUND: "0.95"},
    "1D CDF": {WAVELET: "1.01", HIERARCHICAL: "1.01", BOUND: "0.80"},
    "Predicate": {WAVELET: "1.39", FOURIER: "1.94", BOUND: "1.00"},
}
"""The table of alternative workloads, absolute errors: the best rival, then the worst, over the Eigen-Design."""

RELATIVE = {
    "1D Range, permuted": {WAVELET: "1.51", HIERARCHICAL: "2.43"},
    "1Way Range": {DATACUBE: "1.36", FOURIER: "4.93"},
    "2Way Range": {WAVELET: "1.81", DATACUBE: "2.38"},
    "1D CDF": {WAVELET: "0.46", HIERARCHICAL: "0.54"},
    "Predicate": {FOURIER: "1.42", HIERARCHICAL: "3.55"},
}
"""The same, relative errors, of the best and the worst rival; on which of the two data sets is not said."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What the text says of a figure of absolute errors."""

    factor: tuple[str, str]  # Least and largest error of the best rival over that of the Eigen-Design
    over_bound: str  # Largest error of the Eigen-Design over the singular value bound


RANGES = Claim(("1.2", "2.1"), "1.3")
MARGINALS = Claim(("1.3", "2.2"), "1.0")

PERMUTED_DESIGNS = 4.0
"""Other design queries are said to be "worse than the eigen-queries by more than 4 times" on permuted ranges."""
