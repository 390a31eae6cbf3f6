"""Measurements of the solvers: gap and size first, then decompositions, seconds and memory."""
