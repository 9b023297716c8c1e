"""The parts of a script that save and load checkpoints. Pure: takes a trial and returns source."""

from __future__ import annotations

from bench.export.standalone.python_source import SourcePart
from bench.records.trial import Trial
from bench.training.setting import sharded_by

PATH, TORCH = "from pathlib import Path", "import torch"


def checkpoint_part(trial: Trial) -> SourcePart:
    """Return the functions `save` and `load` of the setting."""
    return {None: REPLICATED, "fsdp": DIVIDED, "zero": BY_ENGINE}[sharded_by(trial.setting)]


def kept(trial: Trial) -> dict[str, str]:
    """Return the objects whose state a checkpoint has, by their names in it, without shards of weights."""
    found = {"model": "whole", "optimizer": "optimizer"} if sharded_by(trial.setting) is None else {}
    found["schedule"] = "schedule"
    if trial.model.recipe.precision == "fp16":
        found["scaler"] = "scaler"
    return found


REPLICATED = SourcePart(
    '''
def save(folder, step, parts):
    """Write the state of each part after a step."""
    folder.mkdir(parents=True, exist_ok=True)
    states = {name: part.state_dict() for name, part in parts.items()}
    torch.save({"step": step, "source": SOURCE, **states}, folder / "unfinished")
    (folder / "unfinished").replace(folder / f"step-{step}.pt")


def load(folder, device, parts):
    """Load the last checkpoint; return its step."""
    found = sorted(folder.glob("step-*.pt"), key=lambda path: int(path.stem.removeprefix("step-")))
    if not found:
        raise SystemExit(f"{folder} holds no checkpoint to continue from")
    state = torch.load(found[-1], map_location=device, weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    return state["step"]
''',
    (PATH, TORCH),
)
DIVIDED = SourcePart(
    '''
def save(folder, step, whole, optimizer, parts):
    """Write weights and moments after a step, of which each process has its shards."""
    model, moments = get_state_dict(whole, optimizer)
    dcp.save({"model": model, "optimizer": moments}, checkpoint_id=folder / f"step-{step}")
    if dist.get_rank() == 0:
        states = {name: part.state_dict() for name, part in parts.items()}
        torch.save({"step": step, "source": SOURCE, **states}, folder / f"step-{step}" / "rest.pt")
        (folder / "latest-step").write_text(str(step))


def load(folder, whole, optimizer, parts):
    """Load the last complete checkpoint; return its step."""
    if not (folder / "latest-step").exists():
        raise SystemExit(f"{folder} holds no checkpoint to continue from")
    last = folder / f"step-{(folder / 'latest-step').read_text()}"
    model, moments = get_state_dict(whole, optimizer)
    dcp.load({"model": model, "optimizer": moments}, checkpoint_id=last)
    set_state_dict(whole, optimizer, model_state_dict=model, optim_state_dict=moments)
    rest = torch.load(last / "rest.pt", weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(rest[name])
    return rest["step"]
''',
    (
        PATH,
        TORCH,
        "import torch.distributed as dist",
        "import torch.distributed.checkpoint as dcp",
        "from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict",
    ),
)
BY_ENGINE = SourcePart(
    '''
def save(folder, step, engine, schedule):
    """Write weights and moments after a step, of which each process has its shards."""
    rest = {"steps_done": step, "source": SOURCE, "schedule": schedule.state_dict()}
    engine.save_checkpoint(str(folder), tag=f"step-{step}", client_state=rest)


def load(folder, engine, schedule):
    """Load the last checkpoint; return its step."""
    path, rest = engine.load_checkpoint(str(folder))
    if path is None:
        raise SystemExit(f"{folder} holds no checkpoint to continue from")
    schedule.load_state_dict(rest["schedule"])
    return rest["steps_done"]
''',
    (PATH,),
)
