"""Judge a node: the readings, the standards they are compared with, and the findings that follow.

Pure: no I/O, no torch, so that `bench verify` can judge the readings of a bundle again.
"""

from typing import Literal

# How thorough a node check is. Manifests, results and options call it the level.
Depth = Literal["passive", "prolog", "quick", "standard", "soak", "nodes"]
DEPTHS: tuple[Depth, ...] = ("passive", "prolog", "quick", "standard", "soak", "nodes")
WITHOUT_LOAD: tuple[Depth, ...] = ("passive", "prolog")
