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
from tests.e2e.pushing import PAIR, TINY, Operator, descendants, inside
from tests.e2e.reader import Reader
from tests.e2e.slurm import slurm_cluster
from tests.patience import PATIENCE_SECONDS, until
from tests.warm import quick_python

pytestmark = pytest.mark.e2e


# Slurm wants a device for each GPU, and opens none.
GPUS = "GresTypes=gpu\nPartitionName=gpu Nodes=ALL MaxTime=INFINITE State=UP\n"


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    (tmp_path / "slurm").mkdir()
    for number in range(8):
        (tmp_path / f"gpu{number}").symlink_to("/dev/null")
    (tmp_path / "slurm/gres.conf").write_text(f"Name=gpu File={tmp_path}/gpu[0-7]\n")
    with (
        slurm_cluster(tmp_path / "slurm", more=GPUS, gres="Gres=gpu:8") as environment,
        ssh_nodes(tmp_path / "n", 1, environment) as nodes,
    ):
        yield Operator(tmp_path, nodes)


def ask(operator: Operator, *command: str) -> str:
    environment = os.environ | slurm_of(operator)
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def slurm_of(operator: Operator) -> dict[str, str]:
    return {"SLURM_CONF": str(operator.folder / "slurm/slurm.conf")}


def put_python(home: Path, *options: str) -> None:
    """Make ~/venv/bin/python, with torch already imported; `bench` gets these options too."""
    python = home / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {quick_python()} "$@" {" ".join(options)}\n', encoding="utf-8")
    python.chmod(0o755)


def reader_at(operator: Operator, **manifests: object) -> Reader:
    """Return a reader beside the operator's files, to whom the login node is login.cluster."""
    for name, document in manifests.items():
        path = operator.folder / f"manifests/{name.replace('_', '-')}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(document), encoding="utf-8")
    stands_for = {"login.cluster": operator.nodes.addresses[0]}
    return Reader(operator.folder, operator.environment(), stands_for, operator.nodes.ssh_config)


def bundles(operator: Operator) -> list[Path]:
    """Return the bundles that came back, the oldest first."""
    return sorted(operator.folder.glob("results/*.tar"), key=lambda path: path.stat().st_mtime_ns)


def test_a_job_is_submitted_on_the_login_node_and_its_bundle_comes_back(operator: Operator) -> None:
    login = operator.nodes.addresses[0]
    put_python(operator.nodes.homes[login])
    reader = reader_at(operator, paper=TINY | {"models": ["tiny-vit"]})
    line = printed(
        "bench push manifests/paper.json login.cluster --slurm --partition gpu"
        " --engine none --python=~/venv/bin/python"
    )
    assert "level: operator" in reader.type(line)
    assert json.loads(reader.type(f"{line} --once --json 2> once.txt"))["nodes"][0]["outcome"] == "unchanged"
    line = printed(
        "bench push manifests/paper.json login.cluster --slurm --partition gpu --account me --gpus-per-node 8"
        " --time 90 --engine none --python=~/venv/bin/python"
    )
    assert "level: operator" in reader.type(line)
    first, second = bundles(operator)
    node = ask(operator, "sinfo", "-h", "-N", "-p", "gpu", "-o", "%N").strip()
    run = second.stem.removeprefix(f"{login}-{node}-")
    assert first.name.startswith(f"{login}-{node}-")
    script = (operator.folder / f"results/{run}/run.sh").read_text()
    asked = {line for line in script.splitlines() if line.startswith("#SBATCH")}
    assert asked >= {
        f"#SBATCH --{each}" for each in ("partition=gpu", "account=me", "gpus-per-node=8", "time=90")
    }
    assert [name for name in operator.nodes.left(login) if not name.startswith("venv")] == []


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
    put_python(operator.folder)
    reader = reader_at(operator, paper=TINY | {"models": ["tiny-vit"]})
    line = printed("bench push manifests/paper.json --slurm --engine none --python ~/venv/bin/python")
    assert "level: operator" in reader.type(f"export SLURM_CONF={slurm_of(operator)['SLURM_CONF']}; {line}")


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
        slurm_cluster(tmp_path / "slurm", 2, more=GPUS) as environment,
        ssh_nodes(tmp_path / "n", 1, environment) as nodes,
    ):
        yield OnCluster(tmp_path, nodes)


def test_two_nodes_of_a_cluster_train_as_one(of_two: Operator) -> None:
    login = of_two.nodes.addresses[0]
    words: list[str | Path] = [
        of_two.manifest(**PAIR),
        login,
        "--slurm",
        "--slurm-nodes",
        "2",
        "--time",
        "30",
    ]
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


def test_the_fabric_between_nodes_is_checked_from_another_machine(of_two: Operator) -> None:
    """Processors stand in for the GPUs of the nodes."""
    login = of_two.nodes.addresses[0]
    put_python(of_two.nodes.homes[login], "--device", "cpu")
    short = {"minutes": 5, "warm_seconds": 0, "seconds": 0.1, "soak_seconds": 0}
    check = {"schema": "bench/node-check/v1", "level": "nodes", "levels": {"nodes": short}}
    reader = reader_at(of_two, fabric_check=check)
    line = printed(
        "bench push manifests/fabric-check.json login.cluster --slurm --slurm-nodes 2 --partition gpu"
        " --engine none --python=~/venv/bin/python"
    )
    said = reader.type(line)
    (bundle,) = bundles(of_two)
    assert inside(bundle, "results.json")["level"] == "nodes", said
