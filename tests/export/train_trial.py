"""Train the first steps of a trial by the code that measures; print their losses as a JSON list.

`python -m tests.export.train_trial trial.json STEPS`, also under torchrun.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import torch

from bench.base.strict_json import from_json, strict_loads
from bench.records.trial import Trial
from bench.runner.trial.device import Device
from bench.runner.trial.run_trial import TrialRun
from bench.runner.trial.team import join


def main(file: str, steps: str) -> None:
    trial = from_json(Trial, strict_loads(Path(file).read_bytes()))
    torch.set_num_threads(1)
    team = join("cpu", alone="RANK" not in os.environ)
    with tempfile.TemporaryDirectory() as scratch:
        run = TrialRun(trial, Device("cpu"), team, Path(scratch), lambda _event: None)
        run.prepare()
        losses = [team.mean(float(run.step(trial.accumulation))) for _ in range(int(steps))]
    if team.rank == 0:
        print(json.dumps(losses), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
