"""Releases that look before they go on: chains, decisions, and what is still uncertain."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["decisions", "sampling", "uncertainty"])
