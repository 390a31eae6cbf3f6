"""Mechanisms: noise of a known distribution, what it costs, how accurate it is, and how it is measured."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["records"])
