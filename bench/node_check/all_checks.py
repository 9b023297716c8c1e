"""The checks by name, in the order in which they run and are shown.

A new check is a new file in bench/node_check/checks with a value `CHECK`, and its name in a tuple below.
The files are imported on the first call, since most commands need none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.node_check.checks import Check

BEFORE_LOAD = (
    "present", "alike", "strangers", "clock", "disk", "file_systems", "host_memory", "numa", "host_errors",
    "network", "bmc", "ports", "gpudirect", "drift",
)  # fmt: skip
LOAD = ("own_card", "matmul", "memory", "copies", "peers", "all_reduce", "agreement", "soak")
BETWEEN_NODES = ("pairs", "exchange")
AFTER_LOAD = ("pcie", "nvlink", "fabric", "power", "ecc", "rows", "xid")
FILES = (*BEFORE_LOAD, *LOAD, *BETWEEN_NODES, *AFTER_LOAD)
NAMES = tuple(file.replace("_", "-") for file in FILES)  # of the checks, without importing them


@cache
def known_checks() -> Mapping[str, Check]:
    """Return every check by name: before the load, under load, between nodes, and after the load."""
    files = (import_module(f"bench.node_check.checks.{name}") for name in FILES)
    return {file.CHECK.name: file.CHECK for file in files}
