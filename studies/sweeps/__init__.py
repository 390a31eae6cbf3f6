"""Sweeps: many problems from a small file, their runs, and the page of their results."""
