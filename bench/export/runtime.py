"""All that exported training scripts use of bench: the only module of bench that they import.

The names in `__all__` are a promise. A script that this version of bench exports keeps working with later
versions: they may move what is behind a name, but they neither remove a name nor change how it is called.

In:  trial.json beside the script, the script's arguments, and checkpoints.
Out: the parts of training (model, data, optimizer, sharding), JSON lines on stdout, the marker of the last
complete checkpoint. Imports torch at module level; only exported scripts import this module.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from bench.base.strict_json import from_json, strict_loads
from bench.records.text import count_text
from bench.records.trial import Trial
from bench.runner.trial.device import Device
from bench.runner.trial.fsdp_strategy import shard
from bench.runner.trial.made_up_data import Batches, Samples, Share, batches_of, samples_of
from bench.runner.trial.pool_sizes import PIXEL_DEVIATION, PIXEL_MEAN
from bench.runner.trial.run_trial import TrialRun, freeze_garbage_collector
from bench.runner.trial.team import Team, join
from bench.runner.trial.training_loop import Strategy, WithLoss, make_optimizer, make_scheduler, trained
from bench.runner.trial.zero_strategy import drop_stale_locks, even_first, optimizer_of
from bench.training.methods import apply_all, known_methods, prepare_all
from bench.training.models import adapters, family_of, uses_all_weights
from bench.training.setting import in_group, sharded_by
from bench.training.vendor.torch_inside import separate_gradients

__all__ = [
    "PIXEL_DEVIATION",
    "PIXEL_MEAN",
    "Device",
    "Samples",
    "Share",
    "StepLog",
    "Strategy",
    "Team",
    "TrainingOptions",
    "Trial",
    "TrialRun",
    "WithLoss",
    "apply_all",
    "check_devices",
    "drop_stale_locks",
    "even_first",
    "family_of",
    "freeze_garbage_collector",
    "in_group",
    "join",
    "known_methods",
    "latest_step",
    "made_up_batches",
    "make_optimizer",
    "make_scheduler",
    "mark_complete",
    "no_checkpoint",
    "optimizer_of",
    "parse_options",
    "prepare_all",
    "read_trial",
    "samples_of",
    "save_adapters",
    "separate_gradients",
    "shard",
    "sharded_by",
    "trained",
    "uses_all_weights",
]  # fmt: skip

LATEST_STEP = "latest-step"  # file beside the checkpoints, with the step of the last complete one
LOG_EVERY = 10  # steps between two lines, if the recipe names no number


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """The length of a training, and when it logs and saves, as a script is told when it is started."""

    last_step: int
    out: Path | None  # folder of the checkpoints; None: no checkpoint is saved
    resume: bool
    log_every: int  # steps
    save_every: int  # steps

    def saves(self, step: int) -> bool:
        """Whether a checkpoint is saved after this step; the last step is always saved."""
        return self.out is not None and (step == self.last_step or step % self.save_every == 0)

    def logs(self, step: int) -> bool:
        """Whether this step is logged. A saved step is, because logging checks that the loss is finite."""
        return self.saves(step) or step == self.last_step or step % self.log_every == 0


class StepLog:
    """Prints one JSON line for each logged step, with the mean time of the steps since the previous line."""

    def __init__(self, step: int, *, prints: bool) -> None:
        """`step` is the last step that was done before; `prints` is True in one process of a run."""
        self.step = step
        self._prints = prints
        self._since = time.perf_counter()

    def write(self, step: int, loss: float) -> None:
        """Print the mean loss since the previous line; end the script if the loss is not finite.

        Weights that are not finite never recover, so nothing of such a step may be logged or saved.
        """
        if not math.isfinite(loss):
            raise SystemExit(
                f"the loss is {loss} by step {step}, and no checkpoint was saved of it: lower the recipe's "
                "learning rate, or look at the data since the last checkpoint; --resume continues from there"
            )
        now = time.perf_counter()
        if self._prints:
            seconds = (now - self._since) / (step - self.step)
            print(json.dumps({"step": step, "loss": loss, "step_seconds": seconds}), flush=True)
        self.step, self._since = step, now


def read_trial(folder: Path) -> Trial:
    """Read trial.json, the trial that the script repeats."""
    return from_json(Trial, strict_loads((folder / "trial.json").read_bytes()))


def parse_options(
    description: str | None,
    trial: Trial,
    *,
    save_every: int,
    steps: int | None = None,
    log_every: int | None = None,
    out: Path | None = None,
) -> TrainingOptions:
    """Parse the script's arguments. The keywords are defaults; those left out are taken from the recipe.

    Ends the script if --resume lacks --out, or if a new run would overwrite checkpoints.
    """
    recipe = trial.model.recipe
    steps = steps or recipe.steps
    log_every = log_every or recipe.log_every_steps or LOG_EVERY
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    steps_help = f"the last step (default: {steps:,})"
    add("--steps", dest="last_step", metavar="STEPS", type=_count, default=steps, help=steps_help)
    saved = f"default: {out}" if out else "default: no checkpoint is saved"
    add("--out", type=Path, default=out, help=f"where checkpoints go, the last step's too ({saved})")
    add("--resume", action="store_true", help="continue from the last checkpoint in --out")
    between = (("--log-every", "lines of the log", log_every), ("--save-every", "checkpoints", save_every))
    for name, what, every in between:
        every_help = f"steps between two {what} (default: {every:,})"
        add(name, type=_count, default=every, metavar="STEPS", help=every_help)
    add("--local_rank", help=argparse.SUPPRESS)  # passed by launchers, which set LOCAL_RANK too
    arguments = vars(parser.parse_args())
    del arguments["local_rank"]
    options = TrainingOptions(**arguments)
    if options.out is None and options.resume:
        parser.error("--resume needs --out, where the checkpoints are")
    if options.out is not None and not options.resume:
        _refuse_overwriting(options.out)
    return options


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _refuse_overwriting(folder: Path) -> None:
    """Refuse a folder with checkpoints: a new run would overwrite them, and --resume would mix both runs."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if any(name in (LATEST_STEP, "latest") or name.startswith(("step-", "checkpoint-")) for name in names):
        raise SystemExit(
            f"{folder} holds checkpoints: --resume continues from the last one; "
            "to start over, name another --out"
        )


def check_devices(trial: Trial, devices: int) -> None:
    """End the script unless it runs on as many devices as the trial did."""
    if devices != trial.gpus:
        raise SystemExit(
            f"this setting was measured on {count_text(trial.gpus, 'device')}, here are {devices}: "
            "README.md has the command; "
            "for another number of devices, export a bundle that was measured on as many"
        )


def made_up_batches(trial: Trial, device: torch.device, team: Team, scratch: Path, first: int) -> Batches:
    """Return this device's micro-batches, as the trial had them, endlessly from number `first` on."""
    workers = Device.own("cuda" if device.type == "cuda" else "cpu").loaders()
    return batches_of(trial, scratch, device, team, workers, first)


def mark_complete(folder: Path, step: int) -> None:
    """Record that the checkpoint `step-STEP` is complete; call this once all of its files are written."""
    (folder / LATEST_STEP).write_text(str(step))


def latest_step(folder: Path) -> int:
    """Return the step of the last complete checkpoint; end the script if no checkpoint is complete."""
    marker = folder / LATEST_STEP
    if not marker.exists():
        raise no_checkpoint(folder)
    return int(marker.read_text())


def save_adapters(trial: Trial, model: nn.Module, folder: Path, *, writes: bool) -> None:
    """Write a model's adapters into `folder` as peft does; nothing without adapters.

    Every process calls this, because each may hold a part of the weights; the one with `writes` writes.
    """
    if trial.model.recipe.lora is None:
        return
    names = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    state = {name: _undivided(weight) for name, weight in names.items()}
    if writes:
        adapters.save_adapters(state, trial.model, model, folder)


def _undivided(weight: nn.Parameter) -> Tensor:
    """Return a whole weight in fp32, also if FSDP2 or ZeRO-3 has divided it among processes."""
    if isinstance(weight, DTensor):
        return weight.detach().full_tensor().float()
    if hasattr(weight, "ds_id"):
        from deepspeed.zero import GatheredParameters

        with GatheredParameters([weight]):
            return weight.detach().float().clone()
    return weight.detach().float()


def no_checkpoint(folder: Path | str) -> SystemExit:
    """Return the exit with which a script ends that was told to continue from an empty folder."""
    return SystemExit(f"{folder} holds no complete checkpoint to continue from")
