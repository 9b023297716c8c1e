"""Train by a script of one file where bench cannot be imported, and by bench's own loop, for comparison."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from bench.base.strict_json import pretty_json, to_json
from bench.export import TrialOrigin, standalone
from bench.records.run_results import TrialResult
from bench.records.trial import NodeFacts, Trial
from tests.conftest import PATH
from tests.warm import quick_python

ROOT = Path(__file__).parents[2]
PACKAGES = {"torch": "2.13.0", "transformers": "5.17.0", "numpy": "2.4.6", "triton": "3.5.0"}
NODE = NodeFacts("a CPU", 2, 1 << 30, "Debian", "6.1", "3.13.1", packages=PACKAGES)
ORIGIN = TrialOrigin("one.tar", "0" * 64, "ba16513b266c", "a CPU")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
WITHOUT_BENCH = """
import runpy, sys

sys.modules["bench"] = None  # importing it now raises ModuleNotFoundError
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def facts_of(trial: Trial, **changes: Any) -> standalone.Facts:
    """Return what a script's header says, for a trial without a bundle."""
    result = cast(TrialResult, SimpleNamespace(label=" + ".join(trial.setting) or "naive", estimate=None))
    return standalone.Facts(
        **{
            "measured": trial, "result": result, "node": NODE, "origin": ORIGIN,
            "requirements": ["torch==2.13.0"],
            "command": standalone.command_of(trial).format(gpus=trial.gpus), "save_every": 1000,
        }
        | changes
    )  # fmt: skip


def script_of(trial: Trial) -> str:
    assert standalone.refuse(trial) is None
    return standalone.script(trial, facts_of(trial))


def losses_of_script(
    trial: Trial, folder: Path, *arguments: str, steps: int = 3, cold: bool = False
) -> list[float]:
    """Train with the exported file; `cold` starts an ordinary Python, otherwise the one of tests/warm.py."""
    (folder / "train.py").write_text(script_of(trial), encoding="utf-8")
    (folder / "alone.py").write_text(WITHOUT_BENCH, encoding="utf-8")
    words = ("alone.py", "train.py", "--steps", str(steps), "--log-every", "1", *arguments)
    done = _run(trial, folder, words, cold=cold, several=standalone.several_processes(trial))
    return [json.loads(line)["loss"] for line in done.splitlines() if line.startswith('{"step"')]


def losses_of_bench(trial: Trial, folder: Path, steps: int = 3) -> list[float]:
    """Train the same steps with the code that measures."""
    (folder / "trial.json").write_bytes(pretty_json(to_json(trial)))
    words = ("-m", "tests.export.train_trial", str(folder / "trial.json"), str(steps))
    several = standalone.several_processes(trial)
    losses: list[float] = json.loads(_run(trial, ROOT, words, several=several).splitlines()[-1])
    return losses


def _run(trial: Trial, folder: Path, words: tuple[str, ...], *, several: bool, cold: bool = False) -> str:
    started = (*TORCHRUN, str(trial.gpus), *words) if several else words
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "PATH": PATH}
    environment["PYTHONPATH"] = str(ROOT) if folder == ROOT else ""
    done = subprocess.run(
        [sys.executable if cold else quick_python(), *started],
        check=False, cwd=folder, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done.stdout
