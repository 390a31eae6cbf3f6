"""Marginal tables and census lists at scale, beside what others print."""
