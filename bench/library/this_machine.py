"""Find out the facts of this machine, to measure it or to plan for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.base.operating_system import require_linux

if TYPE_CHECKING:
    from bench.records.trial import NodeFacts


def probed(advice: str, *, gpus_too: bool = True) -> NodeFacts:
    """Return the facts of this machine; EnvironmentCannot if bench cannot measure on it."""
    require_linux("measuring", advice)
    from bench.runner.machine.probe import probe

    return probe(gpus_too=gpus_too)
