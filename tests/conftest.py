"""One thread for linear algebra: the matrices here are small, and threads that wait for each other cost more."""

import os

for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")
