"""Every problem in formulas: its symbols, its program, its dual and the proof, in LaTeX."""

from __future__ import annotations

from collections.abc import Callable

from dualmech.problems.base import AnyProblem
from dualmech.reference.formulas import epochs, mechanisms
from dualmech.reference.formulas.writing import Formula

ON_GEOMETRY: dict[str, Callable[[AnyProblem], Formula]] = {"blocks": mechanisms.on_blocks, "epochs": epochs.stated}
"""The function that states a problem of `FAMILIES_ON_GEOMETRY`, for geometries with different formulas."""

FAMILIES_ON_GEOMETRY = ("FitnessForUse", "PrivacyFirst", "TotalVariance", "ReuseFitness")
"""The families whose formulas and programs depend on the geometry."""
