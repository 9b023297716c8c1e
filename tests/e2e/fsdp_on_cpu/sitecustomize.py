"""Make accelerate treat CPU processes as GPUs for FSDP, which it supports only on GPUs; active on PYTHONPATH.

Everything else is accelerate's own code: its plugin, its preparation of a sharded model, its clipping.
"""

import importlib.util
import sys
from importlib.abc import MetaPathFinder


def change(module):
    begin = module.PartialState.__init__

    def start(self, *given, **more):
        begin(self, *given, **more)
        if self.distributed_type == module.DistributedType.MULTI_CPU:
            self.distributed_type = module.DistributedType.MULTI_GPU

    module.PartialState.__init__ = start


class State(MetaPathFinder):
    """Import hook that changes accelerate.state when it is imported."""

    def find_spec(self, name, path=None, target=None):
        if name != "accelerate.state":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            change(module)

        spec.loader.exec_module = exec_module
        return spec


if "accelerate.state" in sys.modules:  # already imported in a process of tests/warm.py
    change(sys.modules["accelerate.state"])
else:
    sys.meta_path.insert(0, State())
