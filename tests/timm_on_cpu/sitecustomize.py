"""Let timm be imported from its folder beside the virtual environment's packages; active on PYTHONPATH.

timm imports torchvision. Beside a torch that it was not compiled for, torchvision's compiled part does not
load, and its import fails, because it describes operators that only that part declares. They are declared
here; timm calls none of them.
"""

import importlib.util
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

OPERATORS = (
    "nms(Tensor boxes, Tensor scores, float overlap) -> Tensor",
    "qnms(Tensor boxes, Tensor scores, float overlap) -> Tensor",
)
KEPT = []  # a library's declarations end with the object


class Operators(MetaPathFinder):
    """Import hook that declares the operators before torchvision is imported."""

    def find_spec(self, name, path=None, target=None):
        if name != "torchvision":
            return None
        sys.meta_path.remove(self)
        import torch

        library = torch.library.Library("torchvision", "DEF")
        for operator in OPERATORS:
            library.define(operator)
        KEPT.append(library)
        return importlib.util.find_spec(name)


sys.path.append(str(Path(sys.prefix) / "timm"))
if "torchvision" not in sys.modules:
    sys.meta_path.insert(0, Operators())
