"""The names of `dualmech.fast`, each loaded when it is first used; `fast/__init__.py` reads this list."""

from .causal import ClassOptimum as ClassOptimum
from .causal import strategy as strategy
from .common import chain as chain
from .eigen import EigenDesign as EigenDesign
from .eigen import eigen_design as eigen_design
from .eigen import eigen_weights as eigen_weights
from .methods import Auto as Auto
from .methods import ClosedForm as ClosedForm
from .methods import Exact as Exact
from .methods import FixedPoint as FixedPoint
from .methods import Newton as Newton
from .methods import ProjectedGradient as ProjectedGradient
from .methods import PublishedGradient as PublishedGradient
from .methods import Restart as Restart
from .methods import SoftmaxGradient as SoftmaxGradient
from .methods import SoftmaxNewton as SoftmaxNewton
from .methods import register as register
from .refinement import refine as refine
from .solving import solve as solve
