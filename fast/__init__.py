"""dualmech.fast: the library's own solvers. This folder, `fast/`, imports as `dualmech.fast`.

Names are loaded on first use; `fast/__init__.pyi` lists them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
