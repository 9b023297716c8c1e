"""A real slurmctld and slurmd with bench as HealthCheckProgram and Prolog; the GPUs are simulated."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.pushing import UNHURRIED
from tests.e2e.slurm import slurm_cluster
from tests.patience import until
from tests.warm import ROOT, quick_python

pytestmark = pytest.mark.e2e

SCRIPTS = Path(str(files("bench.data"))) / "monitoring"
INTERVAL_SECONDS = 5
# The shipped scripts name no manifest: this one gives the checks more time than they need on a busy machine.
MANIFEST = {"schema": "bench/node-check/v1", "levels": {"passive": UNHURRIED, "prolog": UNHURRIED}}
JOB = [{"pid": 7, "usedGpuMemory": 2**33}]


class CheckedCluster:
    """A cluster of one node with four simulated GPUs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm/slurm.conf")}

    def machine(self, **scenario: Any) -> None:
        path = self.folder / "machine.json"
        path.with_suffix(".new").write_text(json.dumps({"count": 4, **scenario}))
        path.with_suffix(".new").replace(path)

    def ask(self, *command: str) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    @property
    def node(self) -> tuple[str, str]:
        """The node's state in Slurm, and the reason for it."""
        state, _, reason = self.ask("sinfo", "-h", "-N", "-o", "%T|%E").partition("|")
        return state, reason

    def told(self) -> list[str]:
        """Return the verdicts of all checks, in their order, as Slurm was told them."""
        lines = (self.folder / "out/history.jsonl").read_text().splitlines()
        return [json.loads(line).get("told") for line in lines]

    def script(self, name: str) -> Path:
        """Return a program that calls a shipped script in this test's environment, as Slurm does."""
        path = self.folder / f"call-{name}"
        (self.folder / "bin").mkdir(exist_ok=True)
        bench = self.folder / "bin/bench"
        manifest = self.folder / "manifest.json"
        manifest.write_text(json.dumps(MANIFEST))
        call = f'{quick_python()} -m bench "$@" {manifest} 2>>{self.folder}/bench.txt'
        bench.write_text(f"#!/bin/sh\nexec {call}\n")
        environment = {
            "PATH": f"{bench.parent}:/usr/bin:/bin",
            "PYTHONPATH": ROOT,
            "BENCH_FAKE_NVML": self.folder / "machine.json",
            "BENCH_OUT": self.folder / "out",
            "XDG_CONFIG_HOME": self.folder / "config",
            "SLURM_CONF": self.environment["SLURM_CONF"],
        }
        lines = [f"export {name}='{value}'" for name, value in environment.items()]
        log = f"exec >>{self.folder}/{name}.txt 2>&1; env"
        path.write_text("\n".join(["#!/bin/sh", *lines, log, f"exec {SCRIPTS / name}"]) + "\n")
        for program in (path, bench):
            program.chmod(0o755)
        return path


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[CheckedCluster]:
    cluster = CheckedCluster(tmp_path)
    cluster.machine()
    health = cluster.script("slurm-health.sh")
    more = f"HealthCheckProgram={health}\nHealthCheckInterval={INTERVAL_SECONDS}\n"
    with slurm_cluster(tmp_path / "slurm", more=more):
        yield cluster


def test_an_xid_drains_the_node_at_the_next_check_and_a_pass_resumes_it(watched: CheckedCluster) -> None:
    until((watched.folder / "out/history.jsonl").exists, "the first check")
    assert watched.node == ("idle", "none")
    watched.machine(xids={"1": [79]})
    before = len(watched.told())
    until(lambda: watched.node[0] == "drained", "the node to be drained")
    assert watched.node[1].startswith("bench: xid: GPU 1: Xid 79")
    until(lambda: "fail" in watched.told(), "the failed check in the history")
    assert watched.told()[before:].index("fail") <= 1  # a check may have read the machine before
    watched.machine()
    before = len(watched.told())
    until(lambda: watched.node == ("idle", "none"), "the node to be resumed")
    until(lambda: watched.told()[-1] == "pass", "the good check in the history")
    assert watched.told()[before:].index("pass") <= 1


def test_a_node_that_somebody_else_drained_stays_drained(watched: CheckedCluster) -> None:
    name = watched.ask("sinfo", "-h", "-N", "-o", "%N")
    watched.ask("scontrol", "update", f"NodeName={name}", "State=DRAIN", "Reason=new fans")
    until((watched.folder / "out/history.jsonl").exists, "the first check")
    watched.machine(xids={"1": [79]})
    until(lambda: "fail" in watched.told(), "the failed check")
    watched.machine()
    until(lambda: watched.told()[-1] == "pass", "the next good check")
    assert watched.node == ("drained", "new fans")


@pytest.fixture
def with_prolog(tmp_path: Path) -> Iterator[CheckedCluster]:
    cluster = CheckedCluster(tmp_path)
    cluster.machine()
    for gpu, device in enumerate(("null", "zero", "full", "random")):  # Slurm wants devices, and opens none
        (tmp_path / f"gpu{gpu}").symlink_to(f"/dev/{device}")
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm/gres.conf").write_text(f"Name=gpu File={tmp_path}/gpu[0-3]\n")
    prolog = cluster.script("slurm-prolog.sh")
    more = f"GresTypes=gpu\nProlog={prolog}\n"
    with slurm_cluster(tmp_path / "slurm", more=more, gres="Gres=gpu:4"):
        yield cluster


def test_a_job_begins_only_on_gpus_that_nobody_uses(with_prolog: CheckedCluster) -> None:
    out = with_prolog.folder / "job.txt"
    submit = ("sbatch", "--gres=gpu:1", f"--output={out}", "--wrap", "echo began on $CUDA_VISIBLE_DEVICES")
    with_prolog.machine(gpus={"3": {"ComputeRunningProcesses": JOB}})
    with_prolog.ask(*submit)
    until(lambda: out.exists() and out.read_text() == "began on 0\n", "the job on GPU 0")
    until(lambda: with_prolog.ask("squeue", "-h") == "", "its end")
    out.unlink()
    with_prolog.machine(gpus={"0": {"ComputeRunningProcesses": JOB}})
    with_prolog.ask(*submit)
    until(lambda: with_prolog.node[0] in ("drained", "draining"), "the node to be drained")
    assert with_prolog.node[1] == "bench: strangers: GPU 0: 1 processes compute there (pid 7)"
    until(lambda: "PENDING" in with_prolog.ask("squeue", "-h", "-o", "%T"), "the job in the queue again")
    assert not out.exists() or "began" not in out.read_text()
