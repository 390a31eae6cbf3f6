"""What `dualmech.reference` offers, each loaded when it is first used; `reference/__init__.py` reads this list."""

from . import backends as backends
from .common import chain as chain
from .estimate import reconstruct as reconstruct
from .local import lower_bound as lower_bound
from .refinement import refine as refine
from .solving import formulate as formulate
from .solving import latex as latex
from .solving import matrix_inequalities as matrix_inequalities
from .solving import solve as solve
