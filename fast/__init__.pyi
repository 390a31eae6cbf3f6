"""The names of `dualmech.fast`, each loaded when it is first used; `fast/__init__.py` reads this list."""

from .causal import ClassOptimum as ClassOptimum
from .causal import strategy as strategy
from .common import ClosedForm as ClosedForm
from .common import chain as chain
from .custom import register as register
from .eigen import EigenDesign as EigenDesign
from .eigen import eigen_design as eigen_design
from .eigen import eigen_weights as eigen_weights
from .local.gradient import ProjectedGradient as ProjectedGradient
from .local.gradient import PublishedGradient as PublishedGradient
from .local.strategy import Exact as Exact
from .local.strategy import Restart as Restart
from .methods import Auto as Auto
from .methods import FixedPoint as FixedPoint
from .methods import Newton as Newton
from .refinement import refine as refine
from .softmax.published import SoftmaxGradient as SoftmaxGradient
from .softmax.published import SoftmaxNewton as SoftmaxNewton
from .solving import solve as solve
