"""What is asked of a node check, and what measuring found: shared by measuring and by packing the bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.node_check.check_manifest import CheckManifest
from bench.node_check.judging import Depth
from bench.node_check.judging.evidence import Reading
from bench.node_check.judging.standards import Past
from bench.records.trial import Gpu


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What the user wants of a check, besides the manifest."""

    manifest: CheckManifest
    level: Depth
    out: Path
    device: Literal["cpu", "cuda"]
    skip: tuple[str, ...]
    scratch: Path | None
    history: Mapping[str, Past]


@dataclass(frozen=True, slots=True)
class NodeReadings:
    """The node as a check found it, and what its checks read."""

    gpus: tuple[Gpu, ...]
    driver: str | None
    readings: Mapping[str, Reading]
