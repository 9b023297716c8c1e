"""Compare estimates with real training on this machine: tiny models, at least 30 steps of 8 passes.

    python benchmarks/accuracy.py [ROUNDS]

In each round, one new process measures an estimate while another one really trains. The two processes
alternate after every step. On a machine with other work, the speed drifts within seconds by more than the
error of an estimate; alternating exposes both processes to the same drift. The remaining drift shows in the
differences between rounds. The script asserts nothing; the reader judges. On a GPU, use
benchmarks/gpu/proof.sh.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean, median
from typing import Any

from tabulate import tabulate

from bench.planning.manifest import load_manifest
from bench.planning.plan import make_plan, target_of
from bench.records.estimate import step_interval
from bench.records.trial import Proving, Trial
from bench.runner.machine.probe import probe
from bench.runner.trial import team
from bench.runner.trial.device import Device
from bench.runner.trial.run_trial import TrialRun

MANIFEST = Path(__file__).parents[1] / "manifests" / "prove-tiny.json"
HEADERS = (
    "model", "batch", "predicted s/step", "really s/step", "real steps", "error", "error of each round",
)  # fmt: skip
CONTEXT = multiprocessing.get_context("spawn")


class Turns:
    """Event handler of a run that lets the other process continue after each step of one phase."""

    def __init__(self, phase: str, other: Connection, *, first: bool) -> None:
        self.phase, self.other, self.first = phase, other, first
        self.now = ""
        self.together = True
        self.began = 0.0
        self.seconds: list[float] = []

    def __call__(self, event: dict[str, Any]) -> None:
        if "phase" in event:
            if self.now == self.phase:
                self.other.close()
            self.now = event["phase"]
            if self.now == self.phase:
                self._wait(hand_over=not self.first)
        elif self.now == self.phase and self.together:
            self.seconds.append(time.perf_counter() - self.began)
            self._wait(hand_over=True)

    def _wait(self, *, hand_over: bool) -> None:
        try:
            if hand_over:
                self.other.send(None)
            self.other.recv()
        except (EOFError, OSError):
            self.together = False
        self.began = time.perf_counter()


def estimate(trial: Trial, other: Connection, answer: Connection) -> None:
    """Estimated seconds of a step, measured in the same way as every trial."""
    with tempfile.TemporaryDirectory() as folder:
        measured = trial_run(trial, folder, Turns("measure", other, first=False)).run()
    interval = step_interval(measured.steps, trial.accumulation)
    assert interval is not None
    answer.send(interval.value)


def train(proving: Proving, trial: Trial, other: Connection, answer: Connection) -> None:
    """Seconds of each step of real training, done while the other process measured its estimate."""
    turns = Turns("train", other, first=True)
    with tempfile.TemporaryDirectory() as folder:
        trial_run(trial, folder, turns).prove(proving.steps, 60 * proving.minutes)
    answer.send(turns.seconds)


def trial_run(trial: Trial, folder: str, turns: Turns) -> TrialRun:
    """Make a run of a trial on the CPU of this process; `turns` takes its events."""
    return TrialRun(trial, Device("cpu"), team.join("cpu", True), Path(folder), turns)


def one_round(trial: Trial, proving: Proving) -> tuple[float, list[float]]:
    """Measure one estimate while a real run trains; returns the estimate and the real steps."""
    ends = CONTEXT.Pipe()
    answers = []
    for work, end in zip((estimate, partial(train, proving)), ends, strict=True):
        answer, told = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=work, args=(trial, end, told))
        process.start()
        told.close()
        answers.append(answer)
    for end in ends:  # close our copies, so that the other process sees the end of a process that dies
        end.close()
    return answers[0].recv(), answers[1].recv()


def row(trial: Trial, rounds: list[tuple[float, list[float]]]) -> tuple[str, ...]:
    """Return a line of the table: the errors of the model's predictions in percent, and their spread."""
    errors = [100 * (predicted / mean(steps) - 1) for predicted, steps in rounds]
    return (
        trial.model.name,
        f"{trial.micro_batch} x {trial.accumulation}",
        f"{median(predicted for predicted, _ in rounds):.4f}",
        f"{median(mean(steps) for _, steps in rounds):.4f}",
        str(sum(len(steps) for _, steps in rounds)),
        f"{median(errors):+.1f}%",
        " ".join(f"{error:+.1f}" for error in errors),
    )


def main() -> int:
    """Print a table of predicted and measured steps."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("rounds", nargs="?", type=int, default=5, metavar="ROUNDS", help="default: 5")
    rounds = parser.parse_args().rounds
    os.environ.setdefault(
        "TRANSFORMERS_VERBOSITY", "error"
    )  # transformers would otherwise recommend packages that need a GPU
    manifest = load_manifest(MANIFEST)
    assert manifest.prove is not None
    plan = make_plan(manifest, target_of(probe(), 1))
    rows = []
    for cell in plan.cells:
        rows.append(row(cell.trials[0], [one_round(cell.trials[0], manifest.prove) for _ in range(rounds)]))
        print(*rows[-1], sep="   ", file=sys.stderr, flush=True)
    print(tabulate(rows, HEADERS, disable_numparse=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
