"""What the solvers share: dual functions, ascent, Newton's method, and the loop that they run in."""
