"""dualmech.reference: every problem as a CVXPY program. This folder, `reference/`, imports as `dualmech.reference`.

The module of each family begins with its program, in a function whose example ends with a certified gap. A backend's
answer is repaired to exact feasibility and judged by the problem, like any other. Names are loaded on first use;
`reference/__init__.pyi` lists them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
