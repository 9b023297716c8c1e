"""What an exported script asks before it trains and while it does; a mistake ends it in one line."""

from __future__ import annotations

import math
from pathlib import Path

from bench.records.text import count_text
from bench.records.trial import Trial


def right_devices(trial: Trial, here: int) -> None:
    if here != trial.gpus:
        raise SystemExit(
            f"this setting was measured on {count_text(trial.gpus, 'device')}, here are {here}: "
            "README.md has the command; "
            "for another number of devices export what was measured on as many"
        )


def nothing_lost(folder: Path | None, resume: bool) -> None:
    """Begun anew, it would write over what hours of training left, and --resume would find its own."""
    if folder is None or resume or not folder.is_dir():
        return
    names = [path.name for path in folder.iterdir()]
    if any(name in ("latest-step", "latest") or name.startswith(("step-", "checkpoint-")) for name in names):
        raise SystemExit(f"{folder} holds checkpoints: --resume goes on from the last; or name another --out")


def finite(loss: float, step: int) -> float:
    """Before it is logged or saved: weights that are no numbers never become any again."""
    if not math.isfinite(loss):
        raise SystemExit(
            f"the loss is {loss} by step {step}, and nothing of that was saved: lower the recipe's learning "
            "rate, or look at the data since the last checkpoint, from which --resume goes on"
        )
    return loss
