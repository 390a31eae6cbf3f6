"""Geometries: the structure of a problem's workload, and the evaluation of noise on it.

Their modules are loaded when they are first asked.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, ["blocks", "dense", "epochs", "product", "split", "stream"]
)
