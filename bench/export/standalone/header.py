"""The beginning of a script: how it is started, where it comes from, and the constants of the recipe.

Bundles are not trusted: their texts appear only in literals of plain ASCII, or without the characters that
have a meaning in Python's comments and docstrings. Pure.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench import __version__
from bench.base.sizes import bytes_text
from bench.export.origin import TrialOrigin
from bench.export.standalone.data import data_constants
from bench.export.standalone.loop import HALF, unit_constant
from bench.export.standalone.model import architecture
from bench.export.standalone.python_source import Constant, Raw, mapping_literal, text_literal
from bench.export.standalone.updates import update_constants
from bench.records.run_results import TrialResult
from bench.records.switches import deciding
from bench.records.text import count_text, interval_text
from bench.records.trial import NodeFacts, Trial
from bench.training.models import families

NOT_PLAIN = re.compile(r"[^A-Za-z0-9_ .,%()+/@-]")  # replaced in the docstring
PACKAGES = ("torch", "transformers", "timm", "deepspeed", "numpy", "triton")
LOG_EVERY = 10  # steps, if the recipe names no number
OLDEST_PYTHON = "3.11"
LINE = 98  # columns of the docstring


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about the measurement that the header states."""

    measured: Trial  # with the methods that the script may leave out
    result: TrialResult
    node: NodeFacts
    origin: TrialOrigin
    requirements: Sequence[str]  # lines for pip
    command: str  # starts the script
    save_every: int  # steps


def plain(text: str) -> str:
    """Return a bundle's text for the docstring, without characters that could end or escape anything."""
    return NOT_PLAIN.sub("?", text.replace("\u00b0", ""))


def metadata(facts: Facts) -> str:
    """Return the block with the script's requirements for tools: Python's PEP 723."""
    needs = ", ".join(map(text_literal, facts.requirements))
    lines = ["/// script", f'requires-python = ">={OLDEST_PYTHON}"', f"dependencies = [{needs}]", "///"]
    return "\n".join(f"# {line}" for line in lines)


def docstring(trial: Trial, facts: Facts) -> str:
    """Return the script's docstring: its purpose, the command that starts it, and the parts that it omits."""
    recipe, result = trial.model.recipe, facts.result
    title = f"Train {plain(trial.model.name)}, as bench measured it: {plain(result.label)}."
    measured = f"Measured on {plain(facts.origin.device)}"
    if estimate := result.estimate:
        step, days = interval_text(estimate.step_seconds), interval_text(estimate.days)
        days = facts.origin.marked(f"{days} days")
        measured += f": {step} s a step, {days}, {bytes_text(estimate.peak_bytes)} a device"
    devices = count_text(trial.gpus, "device")
    passes, samples = count_text(trial.accumulation, "pass"), count_text(trial.micro_batch, "sample")
    measured += f". A step has {passes} of {samples} on {devices}."
    if left_out := [name for name in facts.measured.setting if name not in trial.setting]:
        measured += f" Left out here: {', '.join(left_out)}, code of bench without which a step takes longer."
    about = "Its losses are those of bench. Data and weights are made up: your own go into `Samples` and"
    about += " `build_model`."
    if recipe.eval_every_steps and recipe.eval_samples:
        about += " The days include evaluations, which are not in this file."
    if deciding(facts.node.switches or {}):
        about += " Set the variables in SOURCE first: it was measured with them."
    warnings = "".join(f" {warning}" for warning in facts.origin.warnings(plain))
    rest = f"{measured}{warnings} {about}".replace("\u00b1", "+-")
    commands = "\n".join(f"    {line}" for line in facts.command.splitlines())
    return '"""' + "\n\n".join([_wrapped(title), commands, _wrapped(rest)]) + '\n"""'


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, LINE - 3))


def settings(trial: Trial, facts: Facts) -> str:
    """Return the constants: where the script comes from, the model, and the recipe."""
    rows = [*_shape(trial, facts), *update_constants(trial), *data_constants(trial)]
    maps = {"SOURCE": _source(trial, facts), "ARCHITECTURE": architecture(trial.model)}
    mappings = [mapping_literal(name, value) for name, value in maps.items()]
    return "\n".join([*mappings, "", *(row.line() for row in rows)])


def _source(trial: Trial, facts: Facts) -> Mapping[str, Any]:
    node, origin = facts.node, facts.origin
    found: dict[str, Any] = {
        "model": trial.model.name, "bundle": origin.bundle, "sha256": origin.sha256,
        "run": origin.run, "trial": facts.measured.id, "device": origin.device,
        "setting": facts.measured.setting,
        "bench": __version__, "python": node.python,
    }  # fmt: skip
    found |= {name: node.packages[name] for name in PACKAGES if name in node.packages}
    if switches := deciding(node.switches or {}):
        found["environment"] = dict(sorted(switches.items()))
    return found


def _shape(trial: Trial, facts: Facts) -> Iterator[Constant]:
    """Yield the constants of steps and passes."""
    model, recipe = trial.model, trial.model.recipe
    if model.family == "timm":
        yield Constant("TIMM_MODEL", model.architecture["timm"])
    elif model.family not in families():
        yield Constant("FAMILY", model.family, "transformers' name of the architecture")
    yield Constant("SEED", trial.seed)
    yield Constant("GPUS", trial.gpus, "processes, one a device")
    yield Constant("MICRO_BATCH", trial.micro_batch, "samples of a pass on each device")
    yield Constant("PASSES", trial.accumulation, f"of a step: a batch has {recipe.batch_size:,} samples")
    yield Constant("STEPS", recipe.steps, "of the whole training")
    if unit_constant(trial) == "UNITS":
        yield Constant("UNITS", recipe.units_per_sample, f"{recipe.unit} of a sample")
    if recipe.half:
        yield Constant("HALF", Raw(HALF[recipe.half]), "precision of matrix products")
    yield Constant("LOG_EVERY", recipe.log_every_steps or LOG_EVERY, "steps")
    yield Constant("SAVE_EVERY", facts.save_every, "steps")
