"""Proofs of optima in exact arithmetic: files that need no solver, no library and no trust in rounding."""
