"""One file that trains as a trial did, with torch and what the setting uses, and without bench.

The file is put together from parts, one a subject, and has only those that the setting uses. Tests train
with it where bench cannot be imported, and compare its losses with those of bench's own loop.
"""

from __future__ import annotations

from bench.base.errors import BadInput
from bench.export.standalone.checkpoints import checkpoint_part
from bench.export.standalone.data import data_parts
from bench.export.standalone.header import Facts as Facts
from bench.export.standalone.header import docstring, metadata, settings
from bench.export.standalone.loop import loop_parts, several_processes
from bench.export.standalone.model import model_parts
from bench.export.standalone.python_source import imports_of, joined
from bench.export.standalone.refusals import EXPRESSED as EXPRESSED
from bench.export.standalone.refusals import KIND as KIND
from bench.export.standalone.refusals import plain as plain
from bench.export.standalone.refusals import refuse as refuse
from bench.export.standalone.updates import update_parts
from bench.records.trial import Trial
from bench.training.setting import sharded_by

LONGEST = 300  # lines of a file that people are meant to read
ONE = "python train.py --out checkpoints"
TORCHRUN = "torchrun --standalone --nproc-per-node {gpus} train.py --out checkpoints"


def command_of(trial: Trial) -> str:
    """Return the command for one node, with a place for the number of devices."""
    return TORCHRUN if several_processes(trial) else ONE


def packages_of(trial: Trial) -> tuple[str, ...]:
    """Return the packages that the script of a trial imports."""
    library = "timm" if trial.model.family == "timm" else "transformers"
    return "torch", library, "numpy", *(("deepspeed",) if sharded_by(trial.setting) == "zero" else ())


def script(trial: Trial, facts: Facts) -> str:
    """Return the text of train.py; BadInput if its architecture alone makes it too long to be read."""
    parts = [*model_parts(trial), *data_parts(trial), *update_parts(trial)]
    parts += [checkpoint_part(trial), *loop_parts(trial)]
    text = "\n\n".join(
        [f"{metadata(facts)}\n{docstring(trial, facts)}", imports_of(parts), settings(trial, facts)]
    )
    text += f"\n\n\n{joined(parts)}\n"
    if (lines := text.count("\n")) > LONGEST:
        raise BadInput(
            f"{facts.result.label}: its script would have {lines} lines, more than {LONGEST}",
            where=trial.model.name,
            advice="--to script has the same losses, and reads the architecture from trial.json",
        )
    return text
