"""Geometries: the structure of a problem's workload, and the evaluation of noise on it."""
