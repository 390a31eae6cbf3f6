"""Files: workloads, vectors, matrices and archives, read and written whole or not at all."""

from dualmech.files.formats import *  # noqa: F403
from dualmech.files.formats import __all__ as __all__
