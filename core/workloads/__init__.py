"""Workloads, and builders of the named ones: `dualmech.workloads.prefix(64)`.

Names are loaded when they are first used; `core/workloads/__init__.pyi` lists them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
