"""Shared by all solvers: dual functions, ascent, Newton's method, and the loop that they run in."""
