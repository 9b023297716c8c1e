"""A push through a queue of Kueue: admitted, held back with a reason, and refused where nothing admits it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documented_commands import printed
from tests.e2e.kubernetes_api import small_cluster
from tests.e2e.nodes import Nodes
from tests.e2e.reader import Reader
from tests.e2e.services import SYSTEM, require, require_root
from tests.e2e.test_push_kubernetes import IMAGE, Administrator
from tests.patience import PATIENCE_SECONDS, until
from tests.warm import ROOT, quick_python

pytestmark = pytest.mark.e2e

FULL = "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu, 24 more needed"
LINE = printed(
    "bench push manifests/node-check.json --kubernetes --nodes 3 --namespace gpu --queue team-a"
    " --image REGISTRY/bench@sha256:..."
)


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Administrator]:
    """An operator of three nodes, who has the reader's manifest; bench in pods is this checkout's."""
    require("kubectl")
    manifest = tmp_path / "manifests/node-check.json"
    manifest.parent.mkdir()
    manifest.write_text(json.dumps({"schema": "bench/node-check/v1", "level": "passive"}))
    nodes = {"gpu-06": 8, "gpu-07": 8, "gpu-08": 8}
    with small_cluster(tmp_path / "cluster", nodes, f"{tmp_path}/programs:{SYSTEM}") as (cluster, config):
        cluster.queues = {"team-a": ""}
        yield Administrator(tmp_path, Nodes(tmp_path, 0, (), {}), cluster=cluster, config=config)


@pytest.fixture
def out() -> Iterator[None]:
    """Make the folder at which a pod mounts its volume, for itself alone."""
    require_root("a pod's mounts")
    made = not Path("/out").exists()
    Path("/out").mkdir(exist_ok=True)
    yield
    if made:
        Path("/out").rmdir()


@pytest.mark.usefixtures("out")
def test_the_documented_line_checks_three_nodes_when_its_queue_admits_it(operator: Administrator) -> None:
    operator.call(
        f'cd "$POD_VOLUME${{PWD#/out}}"\nPYTHONPATH={ROOT} exec {quick_python()} -m bench "$@" --device cpu'
    )
    said = Reader(operator.folder, operator.environment(), {"REGISTRY/bench@sha256:...": IMAGE}).type(LINE)
    assert ", 3 pass" in said
    assert {path.name[:6] for path in operator.folder.glob("results/*.tar")} == {"gpu-06", "gpu-07", "gpu-08"}
    assert not operator.small.jobs


def test_a_push_says_why_its_queue_does_not_admit_it(operator: Administrator) -> None:
    operator.small.queues = {"team-a": FULL}
    pushing = operator.begin(operator.folder / "manifests/node-check.json", "--queue", "team-a")
    asked = "/workloads?"
    until(lambda: any(asked in each for each in operator.small.asked), "a question for the reason")
    # The answer to this question was read when the next one comes.
    until(lambda: sum(asked in each for each in operator.small.asked) > 1, "the next question")
    pushing.send_signal(signal.SIGINT)
    _, err = pushing.communicate(timeout=PATIENCE_SECONDS)
    assert pushing.returncode == 5, err
    assert f"warn: the queue team-a admits nothing now: {FULL}" in err
    assert f"waits: the queue team-a has not admitted the job yet: {FULL}" in err
    assert not operator.small.pods
    assert not operator.small.jobs


def test_a_queue_that_nobody_serves_is_refused(operator: Administrator) -> None:
    manifest = operator.folder / "manifests/node-check.json"
    said = operator.refused(manifest, "--queue", "team-b")
    assert "the namespace default has no local queue team-b" in said
    assert "kubectl get localqueues" in said
    operator.small.queues = None
    said = operator.refused(manifest, "--queue", "team-a")
    assert "would start without waiting for the queue team-a" in said
    assert "leave --queue out" in said
