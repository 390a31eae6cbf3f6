"""The problems: each holds data and judges any answer to it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["designs", "strategies"])
