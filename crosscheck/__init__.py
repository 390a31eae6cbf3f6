"""dualmech.crosscheck: both layers before the judge, proofs, exact optima. This folder imports under that name.

It also holds the library of problems with proven optima. Names are loaded when they are first used;
`crosscheck/__init__.pyi` lists them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
