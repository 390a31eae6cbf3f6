"""Adaptive releases: chains of mechanisms, decisions on noisy answers, and what is still uncertain."""
