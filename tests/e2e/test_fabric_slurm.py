"""The fabric between the nodes of a real Slurm job is checked; each node has its own network namespace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.bundle.tar_format import CERTIFICATE
from tests.e2e.network import Network, network
from tests.e2e.pushing import ROOT, inside
from tests.e2e.slurm import slurm_cluster
from tests.patience import PATIENCE_SECONDS, until
from tests.warm import quick_python

pytestmark = pytest.mark.e2e

NODES = 4
# A silent node is soon down. A prolog takes long on a node for which there is such a file.
MORE = "SlurmdTimeout=20\nProlog={folder}/prolog\nPartitionName=short Nodes=ALL MaxTime=10\n"
PROLOG = "#!/bin/sh\n[ -e {folder}/slow-$SLURMD_NODENAME ] && sleep 15\ntrue\n"
SHORT = {"minutes": 5, "warm_seconds": 0, "seconds": 0.2, "soak_seconds": 0}
# Other tests use the same cores and slow these nodes down, so a node is named only if it is far slower.
SHARES = "import bench.node_check.judging.slow_parts as s\ns.NODE_SHARE = s.PAIR_SHARE = 0.85\n"
# The wait of a check, so short that a test of a node that does not come ends.
WAIT = "import bench.runner.check.between_nodes as b\nb.JOIN_SECONDS = 60.0\n"


@dataclass(frozen=True)
class Cluster:
    """A cluster of n1, n2, ..., and an operator at its controller."""

    folder: Path
    net: Network

    def begin(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "bench", *words]
        own = {f"XDG_{name}_HOME": str(self.folder / name) for name in ("CONFIG", "STATE", "CACHE")}
        own |= {"HOME": str(self.folder), "PYTHONPATH": f"{self.folder / 'patch'}:{ROOT}", "COLUMNS": "200"}
        return subprocess.Popen(
            self.net.inside_switch(*command), cwd=self.folder, env=self.environment | own, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm/slurm.conf")}

    def check(self, *words: str) -> subprocess.Popen[str]:
        command = ["push", str(self.folder / "fabric.json"), "--slurm", f"--slurm-nodes={NODES}", "--json"]
        command += ["--engine=none", f"--python={self.folder / 'python'}", "--device=cpu"]
        return self.begin(*command, *words)

    def ask(self, *command: str) -> str:
        asking = self.net.inside_switch(*command)
        return subprocess.run(
            asking, env=self.environment, capture_output=True, text=True, check=True
        ).stdout.strip()

    def until_begun(self) -> None:
        """Wait until the leader's check has begun, which it does with its certificate."""
        runs = self.folder / ".bench/runs"
        until(lambda: any(runs.glob(f"*/out/*/{CERTIFICATE}")), "the certificate")

    def lose(self, node: str) -> None:
        """Kill all that runs on a node, as a power cut would."""
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                name = f"SLURMD_NODENAME={node}\0".encode() in (process / "environ").read_bytes()
                words = (process / "cmdline").read_bytes().split(b"\0")
                if name or (words[:1] == [b"slurmd"] and node.encode() in words):
                    os.kill(int(process.name), signal.SIGKILL)


def ended(pushing: subprocess.Popen[str], code: int) -> tuple[dict[str, Any], str]:
    out, err = pushing.communicate(timeout=PATIENCE_SECONDS)
    assert pushing.returncode == code, out + err
    return json.loads(out)["nodes"][0], err


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    tmp_path.chmod(0o755)
    (tmp_path / "patch").mkdir()
    (tmp_path / "patch/sitecustomize.py").write_text(SHARES)
    python = f"#!/bin/sh\n[ ! -e {tmp_path}/no-python-$(hostname) ] || exit 127\n"
    python += f'PYTHONPATH="{tmp_path}/patch:$PYTHONPATH" exec {quick_python()} "$@"\n'
    (tmp_path / "python").write_text(python)
    (tmp_path / "prolog").write_text(PROLOG.format(folder=tmp_path))
    for program in ("python", "prolog"):
        (tmp_path / program).chmod(0o755)
    manifest = {"schema": "bench/node-check/v1", "level": "nodes", "levels": {"nodes": SHORT}}
    (tmp_path / "fabric.json").write_text(json.dumps(manifest))
    more = MORE.format(folder=tmp_path)
    with network(NODES) as net, slurm_cluster(tmp_path / "slurm", NODES, more=more, net=net):
        yield Cluster(tmp_path, net)


def test_the_slow_node_of_a_job_is_named_as_slurm_names_it_and_one_that_was_drained_meanwhile_too(
    cluster: Cluster,
) -> None:
    cluster.net.slow(2, 3)
    (cluster.folder / "slow-n4").touch()  # srun itself would give up on it
    checking = cluster.check()
    cluster.until_begun()
    cluster.ask("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=new fans")
    done, _ = ended(checking, 1)
    assert (done["level"], done["check"]) == ("operator", "fail")
    assert done["worst"].startswith("pairs: node 2 (n3): ")
    assert [node["name"] for node in done["job_nodes"]] == ["n1", "n2", "n3", "n4"]
    drained = done["job_nodes"][1]
    assert (drained["state"], drained["reason"]) == ("draining", "new fans")
    assert inside(done["bundle"], "results.json")["level"] == "nodes"
    assert "n3" not in json.dumps(inside(done["bundle"], "results.json"))  # a bundle names no host
    shown = cluster.begin("attach", done["run"])
    out, _ = shown.communicate(timeout=PATIENCE_SECONDS)
    assert "node 1 is n2 (Slurm: draining: new fans)" in out
    assert "node 2 (n3)" in out


def test_a_node_that_is_lost_and_one_that_does_not_start_are_told_and_the_others_are_checked(
    cluster: Cluster,
) -> None:
    (cluster.folder / "no-python-n2").touch()
    (cluster.folder / "patch/sitecustomize.py").write_text(SHARES + WAIT)
    checking = cluster.check()
    cluster.until_begun()
    cluster.lose("n4")
    done, _ = ended(checking, 1)
    found = inside(done["bundle"], "results.json")["findings"]
    lost = {one["subject"]: one["found"] for one in found if one["verdict"] == "fail"}
    assert list(lost) == ["node 1", "node 3"]
    assert lost["node 1"] == "it did not come within 60 s"
    assert "Exited with exit code 127" in done["job_nodes"][1]["said"]
    assert done["job_nodes"][3]["state"].startswith("down")
    assert any(one["figure"] == "pairs node 2" and one["verdict"] == "pass" for one in found)


def test_a_job_that_can_never_start_says_what_to_change_and_is_cancelled(cluster: Cluster) -> None:
    checking = cluster.check("--partition=short", "--detach")
    done, err = ended(checking, 0)
    assert done["outcome"] == "running"
    assert "waits in Slurm's queue: Partition" in err  # by version: PartitionTimeLimit or PartitionConfig
    assert "--time" in err
    cancelled = cluster.begin("cancel", done["run"])
    said = cancelled.communicate(timeout=PATIENCE_SECONDS)
    assert cancelled.returncode == 0, said
    assert cluster.ask("squeue", "-h") == ""


def test_a_job_that_starts_again_begins_its_check_anew_and_says_so(cluster: Cluster) -> None:
    checking = cluster.check()
    cluster.until_begun()
    job = cluster.ask("squeue", "-h", "-o", "%i")
    cluster.ask("scontrol", "requeue", job)
    until(lambda: "PENDING" in cluster.ask("squeue", "-h", "-o", "%T"), "the job in the queue again")
    cluster.ask("scontrol", "update", f"JobId={job}", "StartTime=now+5")
    done, err = ended(checking, 0)
    assert (done["level"], done["check"]) == ("operator", "pass")
    assert "waits in Slurm's queue: " in err
    assert "Slurm started the job again, on n[1-4]: the run starts over" in err


def test_a_cancelled_check_keeps_what_it_found(cluster: Cluster) -> None:
    checking = cluster.check()
    cluster.until_begun()
    run = next((cluster.folder / "results").iterdir()).name
    cancelling = cluster.begin("cancel", "--detach", run)
    said = cancelling.communicate(timeout=PATIENCE_SECONDS)
    assert cancelling.returncode == 0, said
    done, _ = ended(checking, 5)
    assert (done["outcome"], done["level"]) == ("incomplete", "operator")
