"""Solutions on disk; loaded when something is saved or read."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["codec", "store"])
