"""What was measured, to run: a training script and the files of its setting, for one of four frameworks.

Each kind is one file here with `files(trial)` and `refuse(trial)`; the scripts are real files in templates/,
and read trial.json beside them. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from bench import __version__
from bench.codec import pretty_json, to_json
from bench.errors import BadInput, EnvironmentCannot
from bench.result import NodeFacts, Trial
from bench.summary import TrialResult
from bench.words import bytes_text, interval_text

Kind = Literal["script", "trainer", "accelerate", "deepspeed"]
# On several nodes, unless a kind has a way of its own.
SEVERAL = (
    "torchrun --nnodes {nodes} --nproc-per-node {each} --rdzv-backend c10d --rdzv-endpoint HOST:29400 "
    "train.py --out checkpoints"
)
KINDS: tuple[Kind, ...] = ("script", "trainer", "accelerate", "deepspeed")
# What must be the same for the same figures; the rest of the environment is in the bundle.
PINNED = ("torch", "transformers", "accelerate", "deepspeed", "numpy", "mamba-ssm", "causal-conv1d", "triton")


def template(name: str) -> str:
    return (files("bench.export.templates") / f"{name}.py").read_text(encoding="utf-8")


def write(
    kind: Kind, folder: Path, trial: Trial, found: TrialResult, node: NodeFacts, source: str
) -> list[Path]:
    """Every file of this kind; into an empty folder or a new one."""
    maker = import_module(f"bench.export.{kind}")
    if reason := maker.refuse(trial):
        others = ", ".join(k for k in KINDS if import_module(f"bench.export.{k}").refuse(trial) is None)
        raise BadInput(f"{found.label} cannot be said to {kind}: {reason}", advice=f"it can to: {others}")
    made: dict[str, str] = {
        **maker.files(trial),
        "trial.json": pretty_json(to_json(trial)).decode(),
        "requirements.txt": _requirements(node),
    }
    made["README.md"] = _readme(trial, found, source, _command(maker, trial, node), maker.NOTE, made)
    return _written(folder, made)


def _command(maker: Any, trial: Trial, node: NodeFacts) -> str:
    """How to start it. A bundle knows the GPUs of the node that led; the others had as many."""
    nodes = -(-trial.gpus // len(node.gpus)) if node.gpus else 1
    if nodes == 1:
        return str(maker.COMMAND.format(gpus=trial.gpus))
    several = getattr(maker, "SEVERAL", SEVERAL).format(nodes=nodes, each=trial.gpus // nodes)
    return f"{several}\n# on each of {nodes} nodes; HOST is one of them, and the same for all"


def _written(folder: Path, made: Mapping[str, str]) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise BadInput("is not empty", where=str(folder), advice="name a new directory")
        for name, text in made.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentCannot(f"cannot be written: {error.strerror}", where=str(folder)) from None
    return [folder / name for name in made]


def _requirements(node: NodeFacts) -> str:
    """Without bench, which is on no index, and without what a local build adds to a version."""
    pins = [f"{name}=={node.packages[name].partition('+')[0]}" for name in PINNED if name in node.packages]
    return "\n".join(pins) + "\n"


def _readme(
    trial: Trial, found: TrialResult, source: str, command: str, note: str, made: Mapping[str, str]
) -> str:
    e = found.estimate
    measured = ""
    if e is not None:
        measured = (
            f"Measured: {interval_text(e.step_seconds)} s a step, {interval_text(e.days)} days, "
            f"{bytes_text(e.peak_bytes)} a GPU."
        )
    shape = f"{trial.micro_batch} samples a pass, {trial.accumulation} passes a step, {trial.gpus} devices"
    listed = "\n".join(f"- `{name}`" for name in sorted(made))
    return f"""# {trial.model.name}, {found.label}

From {source}, trial {trial.id}: {shape}. {measured}

```
pip install PATH/TO/bench                # version {__version__}: from its repository, it is on no index
pip install -r requirements.txt
{command}
```

{listed}

{note}
The data are made up, of the recipe's form and size; a comment in `train.py` says where yours go. `--steps`
is there to try it out. What one training step computes is what the trial computed; the
script's own time for a step stands in its log.
"""
