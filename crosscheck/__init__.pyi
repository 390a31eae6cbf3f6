"""What `dualmech.crosscheck` offers, each loaded when it is first used; `crosscheck/__init__.py` reads this list."""

from . import plots as plots
from .agreement import Agreement as Agreement
from .agreement import Comparison as Comparison
from .agreement import compare as compare
from .capped import Capped as Capped
from .capped import capped as capped
from .curve import curve as curve
from .judging import Judgement as Judgement
from .judging import covariance_of_strategy as covariance_of_strategy
from .judging import judge as judge
from .waste import Waste as Waste
from .waste import waste as waste
