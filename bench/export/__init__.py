"""What was measured, to run: a training script and the files of its setting, for one of four frameworks.

Each kind is one file here with `files(trial, save_every)` and `refuse(trial)`; the scripts are real files
in templates/, and read trial.json beside them. Nothing here imports torch.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from bench import __version__
from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.strict_json import pretty_json, to_json
from bench.planning.memory_prediction import FP32, MOMENTS
from bench.records.run_results import TrialResult
from bench.records.switches import deciding
from bench.records.text import bytes_text, count_text, interval_text
from bench.records.trial import NodeFacts, Trial
from bench.training.models import parameters_of
from bench.training.setting import sharded_by

Kind = Literal["script", "trainer", "accelerate", "deepspeed"]
# On several nodes, unless a kind has a way of its own.
SEVERAL = (
    "torchrun --nnodes {nodes} --nproc-per-node {each} --rdzv-backend c10d --rdzv-endpoint HOST:29400 "
    "train.py --out checkpoints"
)
KINDS: tuple[Kind, ...] = ("script", "trainer", "accelerate", "deepspeed")
HOUR = 3600  # seconds
# Of what a kind needs beyond what measured: the versions that its scripts were tried with.
TRIED = {"accelerate": ">=1.10,<2", "deepspeed": ">=0.19.8,<0.20"}
SWITCH = re.compile(r"[A-Z][A-Z0-9_]*")  # nor into lines for a shell
VERSION = re.compile(r"[\w.!+]+")  # of a stranger's bundle: nothing else gets into a file for pip


def template(name: str) -> str:
    return (files("bench.export.templates") / f"{name}.py").read_text(encoding="utf-8")


def saving(script: str, every: int) -> str:
    """The script with its own number of steps between two checkpoints."""
    return script.replace("SAVE_EVERY = 1000", f"SAVE_EVERY = {every}")


def save_every(trial: Trial, found: TrialResult) -> int:
    """The recipe's steps between two checkpoints; where it names none, about an hour of the measured ones."""
    if (named := trial.model.recipe.save_every_steps) is not None:
        return named
    return max(1, round(HOUR / found.estimate.step_seconds.value)) if found.estimate else 1000


def write(
    kind: Kind, folder: Path, trial: Trial, found: TrialResult, node: NodeFacts, source: str
) -> list[Path]:
    """Every file of this kind; into an empty folder or a new one."""
    maker = import_module(f"bench.export.{kind}")
    if reason := maker.refuse(trial):
        others = ", ".join(k for k in KINDS if import_module(f"bench.export.{k}").refuse(trial) is None)
        raise BadInput(f"{found.label} cannot be said to {kind}: {reason}", advice=f"it can to: {others}")
    every = save_every(trial, found)
    made: dict[str, str] = {
        **maker.files(trial, every),
        "trial.json": pretty_json(to_json(trial)).decode(),
        "requirements.txt": _requirements(node.packages, _needed(maker, trial)),
    }
    note = _saves(trial, every) + _weights(maker, trial) + _switches(node) + getattr(maker, "NOTE", "")
    made["README.md"] = _readme(trial, found, source, _command(maker, trial, node), note, made)
    return _written(folder, made)


def _saves(trial: Trial, every: int) -> str:
    recipe = trial.model.recipe
    why = "the recipe's" if recipe.save_every_steps is not None else "an hour or so: the recipe names none"
    large = ""
    if weights := parameters_of(trial.model):
        large = f", {bytes_text(weights * (FP32 + MOMENTS))} or so each"
    return (
        f"A checkpoint goes to `checkpoints` after every {every:,} steps ({why})\n"
        "and after the last one; `--save-every` changes that. `--resume` goes on from the last.\n"
        f"None is deleted: {-(-recipe.steps // every):,} by the end{large}. "
        "Several nodes share a disk for them.\n" + _evaluation(trial)
    )


def _weights(maker: Any, trial: Trial) -> str:
    """Where they are in a checkpoint of step N; what is divided takes its own library's tool."""
    return "" if sharded_by(trial.setting) else f"\nThe weights of step N: {maker.WEIGHTS}.\n"


def _evaluation(trial: Trial) -> str:
    recipe = trial.model.recipe
    if not (recipe.eval_every_steps and recipe.eval_samples):
        return ""
    return (
        f"\nThe recipe evaluates on {recipe.eval_samples:,} samples "
        f"every {recipe.eval_every_steps:,} steps.\n"
        "The time for it is in the days above; `train.py` does not do it.\n"
    )


def _switches(node: NodeFacts) -> str:
    """What torch and those below it were told; a stranger's words, for a shell."""
    told = {n: value for n, value in deciding(node.switches or {}).items() if SWITCH.fullmatch(n)}
    if not told:
        return ""
    lines = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in sorted(told.items()))
    return f"\nMeasured with these set:\n\n```\n{lines.replace('`', '?')}\n```\n\n"


def _command(maker: Any, trial: Trial, node: NodeFacts) -> str:
    """How to start it. A bundle knows the GPUs of the node that led; the others had as many."""
    nodes = -(-trial.gpus // len(node.gpus)) if node.gpus else 1
    threads = _threads(trial, node, trial.gpus // nodes)
    if nodes == 1:
        return threads + str(maker.COMMAND.format(gpus=trial.gpus))
    several = getattr(maker, "SEVERAL", SEVERAL).format(nodes=nodes, each=trial.gpus // nodes)
    return f"{threads}{several}\n# on each of {nodes} nodes; HOST is one of them, and the same for all"


def _threads(trial: Trial, node: NodeFacts, each: int) -> str:
    """As the trial had them: torchrun gives each of several processes one, with which Adam crawls."""
    if "offload" not in trial.setting or each == 1:
        return ""
    given = (node.switches or {}).get("OMP_NUM_THREADS", "")
    return f"OMP_NUM_THREADS={given if given.isdecimal() else node.cpu_cores} "


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


def _needed(maker: Any, trial: Trial) -> Iterator[str]:
    """What must be the same for the same figures; the rest of the environment is in the bundle."""
    yield from ("torch", "transformers", "numpy", *maker.NEEDS)
    if sharded_by(trial.setting) == "zero" and "deepspeed" not in maker.NEEDS:
        yield "deepspeed"
    if trial.setting:  # torch brings it, and our own kernels are in it
        yield "triton"
    if "kernels" in trial.setting and trial.model.family == "mamba":
        yield from ("mamba-ssm", "causal-conv1d")


def _requirements(packages: Mapping[str, str], needed: Iterable[str]) -> str:
    """Without bench, which is on no index."""
    return "".join(
        _pin(name, packages[name])
        if VERSION.fullmatch(packages.get(name, ""))
        else f"# Not there when it was measured; tried with:\n{name}{TRIED[name]}\n"
        for name in needed
        if name in TRIED or VERSION.fullmatch(packages.get(name, ""))
    )


def _pin(name: str, version: str) -> str:
    """Without the build, which no index takes with a version; where it is from is said instead."""
    public, _, build = version.partition("+")
    source = "PyTorch's own index" if name == "torch" else "its project's releases"
    said = f"# Measured with {version}. pip's own index may have another build; that one: {source}\n"
    return f"{said if build else ''}{name}=={public}\n"


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
    devices = count_text(trial.gpus, "device")
    shape = f"{trial.micro_batch} samples a pass, {trial.accumulation} passes a step, {devices}"
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
## Your data

The data are made up, of the recipe's form and size; a comment in `train.py` says where yours go.
{_form(trial)}

`--steps` is there to try it out. What one training step computes is what the trial computed; the
script's own time for a step stands in its log.
"""


def _form(trial: Trial) -> str:
    """What the loop builds on, and nothing in it would notice if it were not so."""
    recipe, size = trial.model.recipe, trial.micro_batch
    tokens = f"`input_ids` and `labels`, int64 of {size} x {recipe.sequence_length}."
    match recipe.objective:
        case "causal-lm":
            form = (
                f"{tokens}\nThe label of a position is the token that follows it: nothing moves labels "
                "later, as\nHugging Face's models do, and where they equal the inputs it learns to copy.\n"
                "What is labelled -100 is not asked for; ask for as many in every sample: the loss of a "
                "step\nis the mean of its passes' means."
            )
        case "masked-lm":
            form = (
                f"{tokens}\nThe label of a place that is asked for is its token, that of all others -100.\n"
                f"Every sample asks for {recipe.asked_per_sample} tokens, and so must yours: the loss of a "
                "step is the mean of\nits passes' means, and `masked-head` looks at no more."
            )
        case "image-classification":
            side = recipe.image_size
            form = (
                f"`pixel_values`, fp32 of {size} x 3 x {side} x {side},\nwith mean 0 and deviation 1 or so, "
                f"and `labels`, int64 of {size}, from 0 on."
            )
    return (
        f"A micro-batch is a dict of tensors: {form}\n"
        "Each device brings other samples than the others; `--resume` goes on with those that come next."
    )
