"""dualmech.crosscheck: both layers before the judge, compared with the papers. This folder imports under that name.

It also holds the ``dualmech`` command (`dualmech.command.main`) and the benchmarks. Names are loaded when
they are first used; `crosscheck/__init__.pyi` lists them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
