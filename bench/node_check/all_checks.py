"""The checks by name, in the order in which they run and are shown.

A new check is a new file in bench/node_check/checks with a value `CHECK`, and a line here. The files are
imported on the first call, since most commands need none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Protocol

from bench.node_check.checks import Check


class CheckFile(Protocol):
    """A module of bench/node_check/checks."""

    CHECK: Check


@cache
def known_checks() -> Mapping[str, Check]:
    """Every check by name: first those that need a quiet node, then the load, which ends with the soak."""
    from bench.node_check.checks import (
        agreement,
        alike,
        all_reduce,
        clock,
        copies,
        disk,
        ecc,
        fabric,
        host_memory,
        matmul,
        memory,
        nvlink,
        pcie,
        peers,
        power,
        present,
        rows,
        soak,
        strangers,
        xid,
    )

    before_load: tuple[CheckFile, ...] = (present, alike, strangers, clock, disk, host_memory)
    load: tuple[CheckFile, ...] = (matmul, memory, copies, peers, all_reduce, agreement, soak)
    after_load: tuple[CheckFile, ...] = (pcie, nvlink, fabric, power, ecc, rows, xid)
    return {file.CHECK.name: file.CHECK for file in (*before_load, *load, *after_load)}
