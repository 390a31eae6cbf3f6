"""Adaptive releases: chains of mechanisms, decisions on noisy answers, and the uncertainty that remains."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["decisions", "sampling", "uncertainty"])
