"""Is this node good? What was read of it, what that is held against, and the verdicts that follow.

Everything here is pure but `commands`: the runner reads, the report shows, `bench verify` judges again.
"""

from typing import Literal

Level = Literal["quick", "standard", "soak"]
LEVELS: tuple[Level, ...] = ("quick", "standard", "soak")
