"""A real job under slurmctld, slurmd and munge is submitted, certified, preempted and fetched."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.documented_commands import printed
from tests.e2e.nodes import ssh_nodes
from tests.e2e.pushing import PAIR, Operator, descendants
from tests.e2e.reader import Reader
from tests.e2e.slurm import slurm_cluster
from tests.patience import PATIENCE_SECONDS, until
from tests.warm import quick_python

pytestmark = pytest.mark.e2e


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    with slurm_cluster(tmp_path / "slurm") as environment, ssh_nodes(tmp_path / "n", 1, environment) as nodes:
        yield Operator(tmp_path, nodes)


def ask(operator: Operator, *command: str) -> str:
    environment = os.environ | {"SLURM_CONF": str(operator.folder / "slurm/slurm.conf")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_a_job_is_submitted_on_the_login_node_and_its_bundle_comes_back(operator: Operator) -> None:
    login = operator.nodes.addresses[0]
    words = (operator.manifest(), login, "--slurm", "--partition", "main", "--time", "10")
    done = operator.push(*words)["nodes"][0]
    assert (done["outcome"], done["level"]) == ("done", "operator")
    node = ask(operator, "sinfo", "-h", "-N", "-o", "%N").split()[0]
    assert Path(done["bundle"]).name == f"{login}-{node}-{done['run']}.tar"
    assert operator.push(*words, "--once")["nodes"][0]["outcome"] == "unchanged"
    script = (operator.folder / f"results/{done['run']}/run.sh").read_text()
    assert "#SBATCH --partition=main" in script
    assert operator.nodes.left(login) == []


def test_a_requeued_job_continues_its_journal(operator: Operator) -> None:
    login, manifest = operator.nodes.addresses[0], operator.manifest()
    pushing = operator.begin(manifest, login, "--slurm")
    with operator.halfway(login):
        job = ask(operator, "squeue", "-h", "-o", "%i").strip()
        before = operator.journal()
        ask(operator, "scontrol", "requeue", job)
    # Slurm delays a requeued job for two minutes; some seconds are enough to observe that it waits. A shorter
    # delay fails: slurmd confuses a job that starts in the second in which the first one ended with that one.
    until(lambda: "PENDING" in ask(operator, "squeue", "-h", "-o", "%T"), "the job in the queue again")
    ask(operator, "scontrol", "update", f"JobId={job}", "StartTime=now+5")
    out, err = pushing.communicate(timeout=PATIENCE_SECONDS)
    assert pushing.returncode == 0, err
    assert operator.journal().startswith(before[: before.rfind("\n") + 1])
    assert "tiny-gpt-neox" in out


def test_a_cancelled_job_keeps_its_results(operator: Operator) -> None:
    login = operator.nodes.addresses[0]
    pushing = operator.begin(operator.manifest(), login, "--slurm")
    with operator.halfway(login):
        operator.bench("cancel", "--detach")
    _, err = pushing.communicate(timeout=PATIENCE_SECONDS)
    assert pushing.returncode == 5, err
    assert "level: operator" in err


def test_the_local_machine_may_be_the_login_node(operator: Operator) -> None:
    """The user of the login node has a Python environment in ~/venv."""
    python = operator.folder / "venv/bin/python"
    for folder in (python.parent, operator.folder / "manifests"):
        folder.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {quick_python()} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    operator.manifest(models=["tiny-vit"]).rename(operator.folder / "manifests/paper.json")
    own = operator.environment() | {"SLURM_CONF": str(operator.folder / "slurm/slurm.conf")}
    line = printed("bench push manifests/paper.json --slurm --engine none --python ~/venv/bin/python")
    assert "level: operator" in Reader(operator.folder, own).type(line)


class OnCluster(Operator):
    def processes(self, address: str) -> list[int]:
        """Return the processes of the job; those that srun started are not descendants of run.sh."""
        place, found = self.nodes.homes[address] / ".bench/runs", set[int]()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
                started = Path(f"/proc/{parent}/comm").read_text().startswith("slurmstepd")
                if started and (process / "cwd").readlink().is_relative_to(place):
                    found.add(int(process.name))
        return descendants(found)


@pytest.fixture
def of_two(tmp_path: Path) -> Iterator[Operator]:
    """Yield an operator for the login node of a cluster of two nodes."""
    with (
        slurm_cluster(tmp_path / "slurm", 2) as environment,
        ssh_nodes(tmp_path / "n", 1, environment) as nodes,
    ):
        yield OnCluster(tmp_path, nodes)


def test_two_nodes_of_a_cluster_train_as_one(of_two: Operator) -> None:
    login = of_two.nodes.addresses[0]
    words = [of_two.manifest(**PAIR), login, "--slurm", "--slurm-nodes", "2", "--time", "30"]
    pushing = of_two.begin(*words)
    with of_two.halfway(login):
        assert ask(of_two, "squeue", "-h", "-o", "%D %T").split() == ["2", "RUNNING"]
        of_two.bench("cancel", "--detach")
    _, err = pushing.communicate(timeout=PATIENCE_SECONDS)
    assert pushing.returncode == 5, err
    done = of_two.push(*words)["nodes"][0]
    assert (done["outcome"], done["level"]) == ("done", "operator")
    with tarfile.open(done["bundle"]) as tar:
        found, env = (json.load(tar.extractfile(name)) for name in ("results.json", "env.json"))  # type: ignore[arg-type]
    assert {(trial["outcome"], trial["gpus"]) for trial in found["trials"]} == {("measured", 2)}
    assert len(env["nodes"]) == 2
    assert of_two.nodes.left(login) == []
