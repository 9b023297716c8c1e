"""The files for clusters in bench/data/kubernetes, by the schemas of Kubernetes; and the marks on a node."""

from __future__ import annotations

import datetime
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import bench.data
from bench.cli.main import parser
from bench.data.kubernetes import node_change
from bench.data.kubernetes.node_change import label_and_taints
from bench.push.kubernetes import pod_job
from bench.push.kubernetes.cluster_preflight import NEEDED
from tests.push.chart import rendered
from tests.push.kubernetes_schemas import KINDS, VERSIONS, mistakes
from tests.push.pod_security import violations

FOLDER = Path(*bench.data.__path__) / "kubernetes"
CHART = FOLDER / "chart"
PLAIN = ("node-check.yaml", "operator.yaml", "gate-job.yaml")


def objects(text: str) -> list[dict[str, Any]]:
    return [made for made in yaml.safe_load_all(text) if made]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", PLAIN)
def test_every_object_is_one_of_each_version_of_kubernetes(name: str, version: str) -> None:
    made = objects((FOLDER / name).read_text())
    assert {each["kind"] for each in made} <= KINDS.keys()
    assert [mistakes(each, version) for each in made] == [[]] * len(made)


def test_the_plain_manifest_is_the_chart_with_its_own_values() -> None:
    head, _, plain = (FOLDER / "node-check.yaml").read_text().partition("---\n")
    namespace, *others = [line for line in head.splitlines() if not line.startswith("#")]
    assert namespace == "apiVersion: v1"
    assert plain == rendered(CHART, "bench")
    assert {line.strip() for line in others} >= {"name: bench", "kind: Namespace"}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_chart_with_other_values_is_valid_too(version: str) -> None:
    text = rendered(
        CHART, "gpu-checks", image=f"registry.example/bench@sha256:{'0' * 64}", runtimeClass="",
        everySeconds=60, taintEffect="PreferNoSchedule", privileged=False, history="/srv/bench",
    )  # fmt: skip
    made = objects(text)
    assert [mistakes(each, version) for each in made] == [[]] * len(made)
    assert {each["metadata"].get("namespace") for each in made} == {"gpu-checks", None}


def test_a_chart_with_more_of_helms_language_is_refused(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "values.yaml").write_text("a: 1\n")
    (tmp_path / "templates/x.yaml").write_text("{{ if .Values.a }}x{{ end }}\n")
    with pytest.raises(ValueError, match="more of Helm's language"):
        rendered(tmp_path, "bench")


def pods_behind_gates() -> list[dict[str, Any]]:
    job = objects((FOLDER / "gate-job.yaml").read_text())[0]
    runtime = objects((FOLDER / "gate-trainer.yaml").read_text())[0]
    in_runtime = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    return [job["spec"]["template"]["spec"], in_runtime["template"]["spec"]]


@pytest.mark.parametrize("pod", pods_behind_gates())
@pytest.mark.parametrize("version", VERSIONS)
def test_a_gate_is_a_restricted_pod_whose_gpus_are_those_of_the_training(pod: Any, version: str) -> None:
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": pod}
    assert mistakes(made, version) == []
    assert violations(pod) == []
    (gate,), (training,) = pod["initContainers"], pod["containers"]
    assert gate["resources"]["limits"] == training["resources"]["limits"]
    assert pod["restartPolicy"] == "Never"


def test_the_commands_in_the_files_are_commands_of_bench() -> None:
    for pod in pods_behind_gates():
        assert parser().parse_args(pod["initContainers"][0]["command"][1:]).level == "prolog"
    daemon = objects((FOLDER / "node-check.yaml").read_text())[-1]
    script = daemon["spec"]["template"]["spec"]["containers"][0]["args"][0]
    assert "bench check --level passive" in script
    assert f"python3 -m {node_change.__name__}" in script


def test_a_push_tolerates_the_taint_of_a_node_that_failed() -> None:
    assert node_change.UNFIT == pod_job.UNFIT


def test_the_service_account_may_do_what_marks_a_node_and_nothing_else() -> None:
    role = next(
        each for each in objects((FOLDER / "node-check.yaml").read_text()) if each["kind"] == "ClusterRole"
    )
    assert [(rule["resources"], rule["verbs"]) for rule in role["rules"]] == [
        (["nodes"], ["get", "patch"]),
        (["nodes/status"], ["patch"]),
    ]


def test_the_role_in_the_file_is_all_that_a_push_asks_for() -> None:
    role, reader = objects((FOLDER / "operator.yaml").read_text())
    granted = {
        (verb, f"{resource}{f'.{group}' if group else ''}")
        for rule in (*role["rules"], *reader["rules"])
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert set(NEEDED) <= granted
    optional = {("list", "nodes"), ("list", "events"), ("list", "resourcequotas"), ("get", "pods/exec")}
    optional |= {("get", "localqueues.kueue.x-k8s.io"), ("list", "workloads.kueue.x-k8s.io")}
    assert granted - set(NEEDED) == optional


# --- the marks on a node ----------------------------------------------------------------------------------

OTHER = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
OURS = {"key": "bench/unfit", "value": "fail", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("before", "verdict", "after"),
    [
        (None, "pass", []),
        (None, "fail", [OURS]),
        ([OTHER], "fail", [OTHER, OURS]),
        ([OURS, OTHER], "fail", [OTHER, OURS]),
        ([OTHER, OURS], "pass", [OTHER]),
        ([OURS], "not-run", [OURS | {"value": "not-run"}]),
    ],
)
def test_bench_adds_and_removes_its_own_taint_alone(before: Any, verdict: str, after: Any) -> None:
    node = {"metadata": {"resourceVersion": "7"}, "spec": {"taints": before}}
    patch = label_and_taints(node, verdict, "NoSchedule")
    assert patch["spec"]["taints"] == after
    assert patch["metadata"] == {"resourceVersion": "7", "labels": {"bench/verdict": verdict}}


class OneNode(BaseHTTPRequestHandler):
    """The part of an API server that has one node."""

    node: dict[str, Any]
    conflicts: int  # times that somebody else changes the node first
    forbidden: bool

    def do_GET(self) -> None:
        self._say(200, self.node)

    def do_PATCH(self) -> None:
        cls = type(self)
        patch = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers["Authorization"] != "Bearer secret" or cls.forbidden:
            self._say(403, {"reason": "Forbidden", "message": "nodes is forbidden"})
        elif self.path.endswith("/status"):
            self.node["status"] = patch["status"]
            self._say(200, self.node)
        elif (
            cls.conflicts or patch["metadata"]["resourceVersion"] != self.node["metadata"]["resourceVersion"]
        ):
            cls.conflicts -= 1
            self._say(409, {"reason": "Conflict"})
        else:
            self.node["metadata"]["labels"] = patch["metadata"]["labels"]
            self.node["spec"] |= patch["spec"]
            self._say(200, self.node)

    def log_message(self, format: str, *args: object) -> None: ...

    def _say(self, code: int, document: Any) -> None:
        data = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def one_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[type[OneNode], dict[str, str]]]:
    """Start an API server with one node; yield it with the environment of a pod there."""
    node = {"metadata": {"resourceVersion": "1"}, "spec": {}}
    handler = type("Handler", (OneNode,), {"node": node, "conflicts": 0, "forbidden": False})
    key = ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "ca.crt").write_bytes(certificate(key))
    (tmp_path / "key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    (tmp_path / "token").write_text("secret\n")
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "ca.crt", tmp_path / "key")
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(node_change, "ACCOUNT", tmp_path)
    port = str(server.server_port)
    address = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}
    yield (
        handler,
        address | {"NODE_NAME": "gpu-a", "BENCH_TO": "fail", "BENCH_REASON": "bench: xid: GPU 3: 79"},
    )
    server.shutdown()
    server.server_close()


def certificate(key: ec.EllipticCurvePrivateKey) -> bytes:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kubernetes")])
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    made = (
        x509.CertificateBuilder(
            name, name, key.public_key(), x509.random_serial_number(), now - day, now + day
        )
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


def test_a_node_that_fails_is_marked_and_a_pass_takes_the_taint_away(
    one_node: Any,
) -> None:
    handler, environment = one_node
    assert node_change.main(environment) == 0
    (found,) = handler.node["status"]["conditions"]
    assert (found["type"], found["status"], found["message"]) == (
        "BenchUnfit",
        "True",
        "bench: xid: GPU 3: 79",
    )
    assert handler.node["metadata"]["labels"] == {"bench/verdict": "fail"}
    assert handler.node["spec"]["taints"] == [OURS]
    assert node_change.main(environment | {"BENCH_TO": "pass", "BENCH_REASON": ""}) == 0
    assert handler.node["status"]["conditions"][0]["status"] == "False"
    assert handler.node["spec"]["taints"] == []


def test_a_node_that_somebody_changes_meanwhile_is_read_again(one_node: Any) -> None:
    handler, environment = one_node
    handler.conflicts = 2
    assert node_change.main(environment) == 0
    assert handler.node["spec"]["taints"] == [OURS]


def test_trouble_is_said_and_fails_so_that_the_next_check_calls_again(one_node: Any, capsys: Any) -> None:
    handler, environment = one_node
    handler.conflicts = 99
    assert node_change.main(environment) == 3
    assert "refuses to mark gpu-a: 409" in capsys.readouterr().err
    handler.conflicts, handler.forbidden = 0, True
    assert node_change.main(environment) == 3
    assert "nodes is forbidden" in capsys.readouterr().err
    assert node_change.main(environment | {"KUBERNETES_SERVICE_PORT": "9"}) == 3
    assert "cannot be asked to mark gpu-a" in capsys.readouterr().err
    assert node_change.main({"NODE_NAME": "gpu-a"}) == 2
    assert node_change.main(environment | {"BENCH_TAINT_EFFECT": "Never"}) == 2
