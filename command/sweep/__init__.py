"""Sweeps: many runs that a small file states, a line of results each, and a page that shows them."""
