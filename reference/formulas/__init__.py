"""Every problem in formulas: its symbols, its program, its dual and the proof, written once in LaTeX."""
