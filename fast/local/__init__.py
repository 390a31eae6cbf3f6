"""The solvers of local privacy."""
