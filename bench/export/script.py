"""Our own loop, written down: every setting that can be measured."""

from __future__ import annotations

from bench.export import template
from bench.result import Trial

COMMAND = "torchrun --standalone --nproc-per-node {gpus} train.py --out checkpoints"
NOTE = "Checkpoints hold all that training goes on from: `--resume`.\n"


def refuse(_trial: Trial) -> str | None:
    return None


def files(_trial: Trial) -> dict[str, str]:
    return {"train.py": template("script")}
