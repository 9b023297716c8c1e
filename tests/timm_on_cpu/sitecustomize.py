"""Let timm be imported from its folder beside the virtual environment's packages; active on PYTHONPATH.

timm imports torchvision. Beside a torch that it was not compiled for, torchvision's compiled part does not
load, and its import fails, because it describes operators that only that part declares. They are declared
here; timm calls none of them.
"""

import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

OPERATORS = (
    "nms(Tensor boxes, Tensor scores, float overlap) -> Tensor",
    "qnms(Tensor boxes, Tensor scores, float overlap) -> Tensor",
)


class Operators(MetaPathFinder):
    """Import hook that declares the operators before torchvision is imported.

    PyTorch withdraws the declarations when the library object is deleted. The hook holds the object and stays
    in `sys.meta_path`.
    """

    library = None

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision" and self.library is None:
            import torch

            self.library = torch.library.Library("torchvision", "DEF")
            for operator in OPERATORS:
                self.library.define(operator)
        return


sys.path.append(str(Path(sys.prefix) / "timm"))
if "torchvision" not in sys.modules:
    sys.meta_path.insert(0, Operators())
