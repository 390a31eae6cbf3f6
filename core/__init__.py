"""dualmech: the best noise for private linear queries, stated exactly, solved fast, and proved.

This folder, `core/`, imports as `dualmech`: workloads, mechanisms, the problems and their judges. The solvers
are in `dualmech.reference` (CVXPY) and `dualmech.fast` (the library's own); `dualmech.crosscheck` puts both
before the judge.

Names are loaded when they are first used; `core/__init__.pyi` lists them.
"""

import lazy_loader

_offered, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("dualmech")
    return _offered(name)
