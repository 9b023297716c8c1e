"""A setting: the names of the methods that are used together, and the group of each.

Pure. Models import this module to predict memory by a setting, and methods to refuse models.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

Setting = tuple[str, ...]
NAIVE: Setting = ()
# A search asks the same about each setting a hundred thousand times; a model has some hundreds of settings.
SETTINGS_KEPT = 4096
Group = Literal["attention", "compilation", "sharding"]

# A setting holds at most one method of a group. A contract test compares this table with the methods.
GROUPS: Mapping[str, Group] = {
    "full-attention": "attention",
    "flex-attention": "attention",
    "compile": "compilation",
    "compile-blocks": "compilation",
    "zero-1": "sharding",
    "zero-2": "sharding",
    "zero-3": "sharding",
    "fsdp-2": "sharding",
    "fsdp-3": "sharding",
}


@lru_cache(SETTINGS_KEPT)
def in_group(setting: Setting, group: Group) -> str | None:
    """Return the setting's method of this group, or None."""
    return next((name for name in setting if GROUPS.get(name) == group), None)


@lru_cache(SETTINGS_KEPT)
def fuses_attention(setting: Setting) -> bool:
    """Whether scores of attention are not kept: by kernels of a family, or by a method for attention."""
    return "kernels" in setting or in_group(setting, "attention") is not None


@lru_cache(SETTINGS_KEPT)
def sharded_by(setting: Setting) -> Literal["zero", "fsdp"] | None:
    """Return the engine that shards the model: "zero" (DeepSpeed), "fsdp" (PyTorch's FSDP2), or None."""
    sharding = in_group(setting, "sharding")
    return None if sharding is None else "zero" if sharding.startswith("zero-") else "fsdp"


@lru_cache(SETTINGS_KEPT)
def halves_weights(setting: Setting) -> bool:
    """Whether weights have the precision in which matrix products compute, so that no pass casts them."""
    return "half-weights" in setting or in_group(setting, "sharding") is not None
