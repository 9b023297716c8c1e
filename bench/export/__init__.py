"""Write a measured trial as a training script: for one of four frameworks with bench, or as a single file.

In:  a trial, its result and the facts of its node. Out: train.py, trial.json, requirements.txt, README.md
and the framework's own files, in a new folder; or train.py alone.

Each kind with bench is a module with `files(trial, save_every)`, which makes the framework's own files,
`refuse(trial)` and constants that README.md quotes. The scripts are the files in templates/: they read
trial.json beside them, and import `bench.export.runtime` alone. Only that module and the scripts import
torch. The kind without bench is the folder standalone/, whose parts make the text of the file.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from bench import __version__
from bench.base.errors import BadInput
from bench.base.paths import using
from bench.base.pip_commands import BUILD, BUILD_TOOLS, BUILT_WITH_TORCH, environment_line
from bench.base.sizes import bytes_text
from bench.base.strict_json import pretty_json, to_json
from bench.export import standalone
from bench.export.origin import TrialOrigin as TrialOrigin
from bench.export.requirements import needed, requirements
from bench.planning.memory_prediction import FP32, moment_bytes
from bench.records.run_results import TrialResult
from bench.records.switches import deciding
from bench.records.text import count_text, interval_text
from bench.records.trial import NodeFacts, Trial
from bench.training.methods import method_named
from bench.training.models import counts_by_formula, own_module
from bench.training.models.own_models import mistakes_of_meaning
from bench.training.setting import sharded_by

Kind = Literal["script", "trainer", "accelerate", "deepspeed", "standalone"]
# Command that starts a script on several nodes, for kinds that define no SEVERAL of their own.
SEVERAL = (
    "torchrun --nnodes {nodes} --nproc-per-node {each} --rdzv-backend c10d --rdzv-endpoint HOST:29400 "
    "train.py --out checkpoints"
)
WITH_BENCH: tuple[Kind, ...] = ("script", "trainer", "accelerate", "deepspeed")  # import bench when they run
KINDS: tuple[Kind, ...] = (*WITH_BENCH, standalone.KIND)
HOUR = 3600  # seconds
# Bundles are not trusted: their texts go into shell and pip lines only in one of these forms.
SWITCH = re.compile(r"[A-Z][A-Z0-9_]*")
# Everything else becomes a question mark in README.md: Markdown and HTML have no meaning without it.
NOT_PLAIN = re.compile(r"[^\w .,%°()+/@-]")


def script_of(kind: Kind, save_every: int) -> str:
    """Return the text of this kind's script, which saves a checkpoint every `save_every` steps."""
    script = (files("bench.export.templates") / f"{kind}.py").read_text(encoding="utf-8")
    return script.replace("SAVE_EVERY = 1000", f"SAVE_EVERY = {save_every}")


def save_every(trial: Trial, result: TrialResult) -> int:
    """Return the steps between two checkpoints: the recipe's, else as many as take about an hour."""
    if (named := trial.model.recipe.save_every_steps) is not None:
        return named
    return max(1, round(HOUR / result.estimate.step_seconds.value)) if result.estimate else 1000


def refuse(kind: Kind, trial: Trial) -> str | None:
    """Return why this kind of script cannot train as measured; None if it can."""
    if kind != "script" and trial.model.recipe.aim.compares_samples:
        return "its loop does not compare the samples of all passes and devices with each other"
    reason: str | None = import_module(f"bench.export.{kind}").refuse(trial)
    return reason


def write(
    kind: Kind,
    folder: Path,
    trial: Trial,
    result: TrialResult,
    node: NodeFacts,
    origin: TrialOrigin,
    *,
    plain: bool = False,
) -> list[Path]:
    """Write every file of this kind into a new or empty folder; return their paths.

    Refuses a setting that the kind cannot run as measured, and a model that bench would not run. `origin`
    says which run on which machine was measured.
    """
    _require_known(trial)
    if plain and kind != standalone.KIND:
        raise BadInput(f"--plain with {kind}, which runs every method of bench", advice="leave it out")
    if reason := refuse(kind, standalone.plain(trial) if plain else trial):
        message = f"{result.label} cannot be exported to {kind}: {reason}"
        raise BadInput(message, advice=_what_can_run(kind, trial, plain=plain))
    if kind == standalone.KIND:
        return _write_all(folder, _alone(trial, result, node, origin, plain=plain))
    return _write_all(folder, _with_bench(kind, trial, result, node, origin))


def _what_can_run(kind: Kind, trial: Trial, *, plain: bool) -> str:
    """Say which other kinds of script can run a trial that this kind refuses, and whether --plain helps."""
    advice = f"these can run it: {', '.join(each for each in KINDS if refuse(each, trial) is None)}"
    if kind == standalone.KIND and not plain and refuse(kind, standalone.plain(trial)) is None:
        advice += "; or leave out what is code of bench and only makes steps faster: --plain"
    return advice


def _alone(
    measured: Trial, result: TrialResult, node: NodeFacts, origin: TrialOrigin, *, plain: bool
) -> Mapping[str, str]:
    """Return the text of the only file."""
    trial = standalone.plain(measured) if plain else measured
    pins = requirements(node.packages, standalone.packages_of(trial))
    facts = standalone.Facts(
        measured=measured,
        result=result,
        node=node,
        origin=origin,
        requirements=[line for line in pins.splitlines() if not line.startswith("#")],
        command=_command(standalone.command_of(trial), trial, node, SEVERAL),
        save_every=save_every(trial, result),
    )
    return {"train.py": standalone.script(trial, facts)}


def _with_bench(
    kind: Kind, trial: Trial, result: TrialResult, node: NodeFacts, origin: TrialOrigin
) -> Mapping[str, str]:
    """Return the texts of all files of a kind whose script imports bench, by their names."""
    maker = import_module(f"bench.export.{kind}")
    every = save_every(trial, result)
    contents: dict[str, str] = {
        "train.py": script_of(kind, every),
        **maker.files(trial, every),
        "trial.json": pretty_json(to_json(trial)).decode(),
        "requirements.txt": requirements(node.packages, needed(maker, trial)),
    }
    note = (
        _about_checkpoints(trial, every)
        + _about_weights(maker, trial)
        + _about_code(trial)
        + _about_adapters(trial)
        + _about_recording(kind, trial)
        + _about_switches(node)
        + getattr(maker, "NOTE", "")
    )
    contents["README.md"] = _readme(
        trial,
        result,
        origin,
        _installation(node, contents["requirements.txt"]),
        _command(maker.COMMAND, trial, node, getattr(maker, "SEVERAL", SEVERAL)),
        note,
        sorted(contents),
    )
    return contents


def _require_known(trial: Trial) -> None:
    """Refuse a method or a model that this version of bench would not train.

    `verify` takes both on trust, since a bundle may be by a later version.
    """
    for name in trial.setting:
        method_named(name)
    if mistakes := mistakes_of_meaning(trial.model, ""):
        raise BadInput.of(mistakes, trial.model.name, "this version of bench would not run this model")


def _about_checkpoints(trial: Trial, every: int) -> str:
    recipe = trial.model.recipe
    why = "the recipe's" if recipe.save_every_steps is not None else "about an hour: the recipe names none"
    counts = counts_by_formula(trial.model)
    bytes_each = FP32 * counts.parts.total + moment_bytes(trial.model, counts.parts) if counts else 0
    size = f", about {bytes_text(bytes_each)} each" if counts else ""
    return (
        f"A checkpoint goes to `checkpoints` after every {every:,} steps ({why})\n"
        "and after the last one; `--save-every` changes that. `--resume` continues from the last.\n"
        f"None is deleted: {-(-recipe.steps // every):,} by the end{size}. "
        "Several nodes need a shared disk for them.\n" + _about_evaluation(trial)
    )


def _about_weights(maker: Any, trial: Trial) -> str:
    """Say where a checkpoint has the weights; empty if they are sharded, which a library's tool joins."""
    return "" if sharded_by(trial.setting) else f"\nThe weights of step N: {maker.WEIGHTS}.\n"


def _about_code(trial: Trial) -> str:
    if trial.model.family != own_module.NAME:
        return ""
    own = trial.model.architecture
    file, digest = _plain(own_module.code_file(own)), own_module.code_digest(own)
    return (
        f"\n`trial.json` holds the code of {file}, and `train.py` runs it\n(sha256 {digest}).\n"
        "Read it before you start a script from somebody else's bundle.\n"
    )


def _about_adapters(trial: Trial) -> str:
    if trial.model.recipe.lora is None:
        return ""
    return (
        "\nThe adapters of each checkpoint are in its folder `adapter`, as peft writes them:\n"
        "`PeftModel.from_pretrained(model, FOLDER)` loads them. The frozen weights are random:\n"
        "to train from published ones, load them into the model where `train.py` says so.\n"
    )


def _about_evaluation(trial: Trial) -> str:
    recipe = trial.model.recipe
    if not (recipe.eval_every_steps and recipe.eval_samples):
        return ""
    return (
        f"\nThe recipe evaluates on {recipe.eval_samples:,} samples "
        f"every {recipe.eval_every_steps:,} steps.\n"
        "The days above include the time for it; `train.py` does not evaluate.\n"
    )


def _about_recording(kind: Kind, trial: Trial) -> str:
    if kind == "script" or "cuda-graphs" not in trial.setting:
        return ""
    return (
        "\nMeasured with recorded passes (cuda-graphs); this framework's loop launches every kernel.\n"
        "A model of short kernels may train slower than measured; `--to script` records passes.\n"
    )


def _about_switches(node: NodeFacts) -> str:
    """Return shell lines that set the trial's environment variables, quoted: bundles are not trusted."""
    switches = {
        name: value
        for name, value in deciding(node.switches or {}).items()
        # A line that shows other characters than it holds is not for anybody's shell.
        if SWITCH.fullmatch(name) and value.isprintable()
    }
    if not switches:
        return ""
    lines = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in sorted(switches.items()))
    return f"\nMeasured with these set:\n\n```\n{lines.replace('`', '?')}\n```\n\n"


def _command(one_node: str, trial: Trial, node: NodeFacts, several: str) -> str:
    """Return the command that starts the script, on one node or on each of several.

    A bundle lists the GPUs of the leading node only; every other node had as many.
    """
    nodes = -(-trial.gpus // len(node.gpus)) if node.gpus else 1
    threads = _threads(trial, node, trial.gpus // nodes)
    if nodes == 1:
        return threads + one_node.format(gpus=trial.gpus)
    started = several.format(nodes=nodes, each=trial.gpus // nodes)
    return f"{threads}{started}\n# on each of {nodes} nodes; HOST is one of them, and the same for all"


def _threads(trial: Trial, node: NodeFacts, each: int) -> str:
    """Return an assignment of OMP_NUM_THREADS as in the trial; empty unless Adam runs on the host.

    torchrun sets the variable to 1 for each of several processes, which makes the offloaded update very slow.
    """
    if "offload" not in trial.setting or each == 1:
        return ""
    threads = (node.switches or {}).get("OMP_NUM_THREADS", "")
    return f"OMP_NUM_THREADS={threads if threads.isdecimal() else node.cpu_cores} "


def _write_all(folder: Path, contents: Mapping[str, str]) -> list[Path]:
    with using(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise BadInput("is not empty", where=str(folder), advice="name a new directory")
        for name, text in contents.items():
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return [folder / name for name in contents]


def _installation(node: NodeFacts, pins: str) -> str:
    """Return the commands that install the script's packages, with the Python of the measurement."""
    pinned = [line for line in pins.splitlines() if not line.startswith("#")]
    lines = [environment_line(node.python)]
    lines.append(
        f"pip install PATH/TO/bench   # version {__version__}: from its repository, it is on no index"
    )
    if any(line.startswith(BUILT_WITH_TORCH) for line in pinned):
        torch = next((line for line in pinned if line.startswith("torch=")), "torch")
        lines.append(f"pip install {shlex.join([torch, *BUILD_TOOLS])}")
        lines.append(f"{BUILD} -r requirements.txt")
    else:
        lines.append("pip install -r requirements.txt")
    return "\n".join(filter(None, lines))


def _plain(text: str) -> str:
    """Return a bundle's text for README.md, in which it can be neither Markdown nor HTML."""
    return NOT_PLAIN.sub("?", text)


def _readme(
    trial: Trial,
    result: TrialResult,
    origin: TrialOrigin,
    installation: str,
    command: str,
    note: str,
    files: Iterable[str],
) -> str:
    estimate = result.estimate
    measured = ""
    if estimate is not None:
        measured = (
            f"Measured: {interval_text(estimate.step_seconds)} s a step, "
            f"{origin.marked(f'{interval_text(estimate.days)} days')}, "
            f"{bytes_text(estimate.peak_bytes)} a device."
        )
    warnings = "".join(f"\n{warning}\n" for warning in origin.warnings(_plain))
    devices = count_text(trial.gpus, "device")
    samples, passes = count_text(trial.micro_batch, "sample"), count_text(trial.accumulation, "pass")
    shape = f"{samples} a pass, {passes} a step, {devices}"
    listed = "\n".join(f"- `{name}`" for name in files)
    return f"""# {_plain(trial.model.name)}, {_plain(result.label)}

From {_plain(origin.text)}, trial {trial.id}: {shape}. {measured}
{warnings}
```
{installation}
{command}
```

{listed}

{note}
## Your data

The script trains on made-up data of the recipe's form and size; a comment in `train.py` says where your
data go.
{_form_of_data(trial)}

`--steps N` ends after step N, to try the script out. A training step computes what the trial computed;
the script's log has its own time for a step.
"""


def _form_of_data(trial: Trial) -> str:
    """Return README.md's text on the form of the user's data, which the training loop does not check."""
    form = trial.model.recipe.aim.form(trial.model.recipe, trial.micro_batch)
    return (
        f"A micro-batch is a dict of tensors: {form}\n"
        "Each device must read other samples than the others; after `--resume`, those that come next."
    )
