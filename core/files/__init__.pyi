"""What `dualmech.files` offers, each loaded when it is first used; `core/files/__init__.py` reads this list."""

from . import atomic as atomic
from . import reading as reading
from .archives import read_archive as read_archive
from .archives import read_npz as read_npz
from .archives import require as require
from .archives import write_npz as write_npz
from .atomic import atomic_folder as atomic_folder
from .atomic import atomic_write as atomic_write
from .atomic import check_new_folder as check_new_folder
from .atomic import check_writable as check_writable
from .formats import SCHEMA as SCHEMA
from .formats import SUFFIXES as SUFFIXES
from .formats import VECTORS as VECTORS
from .formats import VERSION as VERSION
from .formats import as_text_array as as_text_array
from .formats import read_by_name as read_by_name
from .formats import read_matrix as read_matrix
from .formats import read_vector as read_vector
from .formats import read_workload as read_workload
from .formats import workload_arrays as workload_arrays
from .formats import workload_from_arrays as workload_from_arrays
from .formats import write_workload as write_workload
from .reading import errors_naming as errors_naming
