"""The solvers of soft maxima: Newton's method, and the fitness-for-use paper's own algorithms."""
