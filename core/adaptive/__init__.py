"""Adaptive releases: chains of mechanisms, decisions on noisy answers, and what is still uncertain."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["decisions", "sampling", "uncertainty"])
