"""Releases that look before they go on: chains, decisions, and what is still uncertain."""
