"""Local privacy through CVXPY."""
