"""Mechanisms: noise of a known distribution, what it costs, how accurate it is, and how it is measured."""
