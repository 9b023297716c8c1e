"""The checks by name, in the order in which they run and are shown.

A new check is a new file in bench/node_check/checks with a value `CHECK`, and a line here. The files are
imported on the first call, since most commands need none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from bench.node_check.checks import Check


@cache
def known_checks() -> Mapping[str, Check]:
    """Every check by name: those that need a quiet node first, the soak last of those that measure."""
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

    checks: tuple[Check, ...] = (
        present.CHECK,
        alike.CHECK,
        strangers.CHECK,
        clock.CHECK,
        disk.CHECK,
        host_memory.CHECK,
        matmul.CHECK,
        memory.CHECK,
        copies.CHECK,
        peers.CHECK,
        all_reduce.CHECK,
        agreement.CHECK,
        soak.CHECK,
        pcie.CHECK,
        nvlink.CHECK,
        fabric.CHECK,
        power.CHECK,
        ecc.CHECK,
        rows.CHECK,
        xid.CHECK,
    )
    return {check.name: check for check in checks}
