"""The checks by name, in the order in which they run and are shown.

A new check is a new file in bench/node_check/checks with a value `CHECK`, and its name in a tuple below.
The files are imported on the first call, since most commands need none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from bench.node_check.checks import Check

BEFORE_LOAD = ("present", "alike", "strangers", "clock", "disk", "host_memory", "ports", "gpudirect")
LOAD = ("own_card", "matmul", "memory", "copies", "peers", "all_reduce", "agreement", "soak")
AFTER_LOAD = ("pcie", "nvlink", "fabric", "power", "ecc", "rows", "xid")


@cache
def known_checks() -> Mapping[str, Check]:
    """Return every check by name: those of the quiet node, those that load it, and those after the load."""
    files = (import_module(f"bench.node_check.checks.{file}") for file in (*BEFORE_LOAD, *LOAD, *AFTER_LOAD))
    return {file.CHECK.name: file.CHECK for file in files}
