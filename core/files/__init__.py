"""Files: workloads, vectors, matrices and archives, read and written whole or not at all.

Names are loaded when they are first used; `core/files/__init__.pyi` lists them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
