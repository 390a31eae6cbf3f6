"""The solvers of common mechanisms."""
