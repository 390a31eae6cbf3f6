"""Mechanisms: noise of a known distribution, what it costs, how accurate it is, and how it is measured.

Their modules are loaded when they are first used: a geometry makes its mechanism without importing it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, ["block", "epochs", "frames", "gaussian", "noise", "product", "split", "stream", "tables"]
)
