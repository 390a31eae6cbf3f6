"""Figures of the local privacy paper (LDP)."""
