"""General solvers before proven optima: how often what they call optimal is below what is possible."""
