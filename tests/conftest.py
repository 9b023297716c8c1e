"""For all tests: one thread each, so that tests side by side do not wait for each other's cores."""

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("COLUMNS", None)  # workers of xdist have no terminal, and are told of one
# A shell starts what runs in its background with interrupts ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and nohup does so with this one
