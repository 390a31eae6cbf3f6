"""The names of `dualmech.crosscheck`, each loaded when it is first used; `crosscheck/__init__.py` reads this list."""

from . import plots as plots
from .agreement import Agreement as Agreement
from .agreement import Comparison as Comparison
from .agreement import compare as compare
from .caps import Capped as Capped
from .caps import capped as capped
from .judging import Judgement as Judgement
from .judging import covariance_of_strategy as covariance_of_strategy
from .judging import judge as judge
from .judging import judged as judged
from .plots import curve as curve
from .wasting import Waste as Waste
from .wasting import waste as waste
