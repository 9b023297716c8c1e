"""What was measured, to run: a training script and the files of its setting, for one of four frameworks.

Each kind is one file here with `files(trial)` and `refuse(trial)`; the scripts are real files in templates/,
and read trial.json beside them. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Literal

from bench import __version__
from bench.codec import pretty_json, to_json
from bench.errors import BadInput, EnvironmentCannot
from bench.result import NodeFacts, Trial
from bench.summary import TrialResult
from bench.words import bytes_text, interval_text

Kind = Literal["script", "trainer", "accelerate", "deepspeed"]
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
    command = maker.COMMAND.format(gpus=trial.gpus)
    made["README.md"] = _readme(trial, found, source, command, maker.NOTE, made)
    return _written(folder, made)


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
    pins = [f"{name}=={node.packages[name]}" for name in PINNED if name in node.packages]
    return "\n".join([f"bench=={__version__}", *pins]) + "\n"


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
pip install -r requirements.txt
{command}
```

{listed}

{note}
The data are made up, of the recipe's form and size; a comment in `train.py` says where yours go. `--steps`
is there to try it out. What one training step computes is what the trial computed; the
script's own time for a step stands in its log.
"""
