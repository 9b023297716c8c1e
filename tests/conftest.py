"""For all tests: one thread each, so that tests side by side do not wait for each other's cores."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
