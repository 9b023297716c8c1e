"""Functions that measure call what only Linux has, and refuse any other system by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.node_check.checks import file_systems, network, numa
from bench.node_check.checks.numa import NumaNode

RIG: Any = None
CALLS: dict[str, Callable[[], object]] = {
    "network: firmware": lambda: network._firmware("eth0"),
    "numa: nodes": lambda: numa.read_nodes(Path("/"), tiny=True),
    "numa: busy cores": numa._busy_seconds,
    "numa: measured": lambda: numa._measured(RIG, NumaNode(0), 1.0),
    "numa: own process": lambda: numa._in_own_process(NumaNode(0), lambda: (True, [])),
    "file systems: nameless file": lambda: file_systems.nameless_file("/tmp"),
    "file systems: past the cache": lambda: file_systems.allows_direct(0),
    "file systems: Python": lambda: next(file_systems.by_python(0, 0, 0.0)),
    "file systems: in sequence": lambda: file_systems._in_sequence(0, 0, 0.0, 0, writing=False),
    "file systems: at random": lambda: file_systems._read_pieces(0, 0, 0.0, []),
}


@pytest.mark.parametrize("name", CALLS)
def test_another_system_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(NotImplementedError, match="runs on measured machines, which have Linux"):
        CALLS[name]()
