"""The models that scripts of this folder measure: bench's own by name, and those of models.json."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch

from bench.planning.manifest import resolve_models
from bench.training.methods import Target, free_lunch, known_methods, ordered
from bench.training.models import Model
from bench.training.setting import Setting

BROUGHT = Path(__file__).with_name("models.json")  # shapes that people bring, as a manifest describes them


def find_model(name: str) -> Model:
    """Return the model of this name; raise SystemExit with the reason if there is none."""
    brought = json.loads(BROUGHT.read_text())
    models, mistakes = resolve_models([brought.get(name, name)])
    if mistakes:
        raise SystemExit("\n".join(f"{name}: {mistake.found}; {mistake.allowed}" for mistake in mistakes))
    return models[0]


def setting_here(
    model: Model, methods: Sequence[str], *, device: Literal["cpu", "cuda"], beside: Sequence[str] = ()
) -> Setting:
    """Return the setting of these methods; without methods, the free lunch on this machine's device.

    The free lunch stands beside those methods of `beside` that are not refused.
    """
    if methods:
        return ordered(methods)
    cuda = device == "cuda"
    target = Target(device, 1, torch.cuda.get_device_properties(0).total_memory if cuda else 2**34)
    taken = [name for name in beside if known_methods()[name].refuse(model, target) is None]
    return free_lunch(model, target, ordered(taken))


@contextmanager
def turn_on_gpu() -> Iterator[None]:
    """Wait until no other script of this folder uses the same GPUs, so that several can start side by side.

    Imports take most of the time that a script needs to start.
    """
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    with (Path(tempfile.gettempdir()) / f"bench-gpu-turn-{gpus}").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
