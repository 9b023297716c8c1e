"""A small Kubernetes on this machine: an API server that kubectl talks to, a scheduler, and nodes for pods.

It answers as the real one does where `bench push --kubernetes` and kubectl look: discovery, rights, quotas,
Jobs with an index, pods that wait, run, end and are evicted, and commands in containers. A container is a
process in a separate mount namespace, with the pod's volume for results at its place; it shares the rest
with this machine. Every Job is held against the schema of Kubernetes. Kueue can be there too: it suspends a
Job that names a queue, also in a dry run, until its queue admits it, and says why one is not admitted.
"""

from __future__ import annotations

import copy
import json
import os
import secrets
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.e2e.remote_streams import carry, open_streams
from tests.e2e.services import ONE_THREAD
from tests.push.kubernetes_schemas import mistakes

QUEUE, JOB_UID = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/job-uid"
JOB_NAME, INDEX = "batch.kubernetes.io/job-name", "batch.kubernetes.io/job-completion-index"
GPU = "nvidia.com/gpu"
Made = dict[str, Any]


@dataclass
class Pod:
    """A pod, its processes and its volume."""

    shown: Made  # the object of the API
    volume: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.shown["metadata"]["name"])

    @property
    def node(self) -> str | None:
        name = self.shown["spec"].get("nodeName")
        return None if name is None else str(name)


class SmallCluster:
    """The state of the cluster, and its controllers."""

    def __init__(self, folder: Path, nodes: Mapping[str, int], path: str) -> None:
        self.folder, self.path = folder, path
        self.nodes = dict(nodes)  # names, with the number of their GPUs
        self.cordoned: set[str] = set()
        self.jobs: dict[str, Made] = {}
        self.pods: dict[str, Pod] = {}
        self.events: list[Made] = []
        self.quota: dict[str, str] = {}  # hard limits of the namespace's only quota
        self.forbidden: set[tuple[str, str]] = set()  # verbs and resources
        self.broken_image: tuple[str, str] | None = None  # reason and message of a container that waits
        self.applied: dict[tuple[str, str], Made] = {}  # what has no controller here, by resource and name
        # Kueue's local queues, with the reason for which each admits nothing now, if any; None: no Kueue.
        self.queues: dict[str, str] | None = None
        self.asked: list[str] = []  # methods and paths of all requests
        self.lock = threading.RLock()

    # --- controllers --------------------------------------------------------------------------------------

    def step(self) -> None:
        """Let every controller work once."""
        with self.lock:
            for job in list(self.jobs.values()):
                self._admit(job)
                self._make_pods(job)
            for pod in list(self.pods.values()):
                if pod.node is None:
                    self._schedule(pod)
                self._refresh(pod)

    def _admit(self, job: Made) -> None:
        """Let a Job go whose queue admits Jobs, as Kueue does."""
        queue = job["metadata"]["labels"].get(QUEUE)
        if self.queues and self.queues.get(queue) == "":
            job["spec"]["suspend"] = False

    def _make_pods(self, job: Made) -> None:
        name, spec = job["metadata"]["name"], job["spec"]
        if spec.get("suspend"):
            return
        made = job["status"].setdefault("made", [])
        for index in range(spec["completions"]):
            if index in made:
                continue
            if self.quota.get("pods") == "0":
                message = (
                    f'pods "{name}-" is forbidden: exceeded quota: small, requested: pods=1, used: pods=0'
                )
                if not self.events:
                    self.events.append({"reason": "FailedCreate", "message": message})
                return
            made.append(index)
            template = copy.deepcopy(spec["template"])
            labels = template["metadata"]["labels"] | {JOB_NAME: name, INDEX: str(index)}
            pod_name = f"{name}-{index}-{secrets.token_hex(2)}"
            metadata = {"name": pod_name, "namespace": job["metadata"]["namespace"], "labels": labels}
            shown = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
            shown["status"] = {"phase": "Pending"}
            self.pods[pod_name] = Pod(shown, self.folder / pod_name)

    def _schedule(self, pod: Pod) -> None:
        """Give a pod a node that it names, that has the GPUs, and that has no other pod of bench."""
        spec = pod.shown["spec"]
        terms = spec["affinity"].get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
        named = [term["matchFields"][0]["values"][0] for term in (terms or {}).get("nodeSelectorTerms", [])]
        gpus = int(spec["containers"][0]["resources"].get("limits", {}).get(GPU, 0))
        taken = {other.node for other in self.pods.values()}
        for node, offered in self.nodes.items():
            fits = offered >= gpus and node not in taken | self.cordoned and (not named or node in named)
            if fits:
                spec["nodeName"] = node
                self._start(pod)
                return
        message = f"0/{len(self.nodes)} nodes are available: {len(self.nodes)} Insufficient {GPU}."
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        pod.shown["status"] = {"phase": "Pending", "conditions": [condition]}

    def _start(self, pod: Pod) -> None:
        names = [container["name"] for container in pod.shown["spec"]["containers"]]
        if self.broken_image:
            reason, message = self.broken_image
            waiting = {"waiting": {"reason": reason, "message": message}}
            states = [{"name": name, "state": waiting} for name in names]
            pod.shown["status"] = {"phase": "Pending", "containerStatuses": states}
            return
        pod.volume.mkdir()
        for container in pod.shown["spec"]["containers"]:
            mounts = [m["mountPath"] for m in container["volumeMounts"] if m["name"] == "out"]
            bind = f'mount --bind {pod.volume} {mounts[0]} && exec "$@"'
            own = {each["name"]: each["value"] for each in container["env"]}
            environment = {"PATH": self.path, "HOME": str(self.folder), **ONE_THREAD, **own}
            # /tmp is this machine's own, and the quick Python of tests sees no mounts but this machine's.
            environment |= {"XDG_CONFIG_HOME": str(pod.volume / ".config"), "POD_VOLUME": str(pod.volume)}
            pod.processes[container["name"]] = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", bind, "sh", *container["command"]],
                env=environment, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def _refresh(self, pod: Pod) -> None:
        """Write the kubelet's status of the containers, by their processes."""
        if not pod.processes or pod.shown["status"].get("reason"):
            return
        codes = {name: process.poll() for name, process in pod.processes.items()}
        states = [{"name": name, "state": _container_state(code)} for name, code in codes.items()]
        ended = all(code is not None for code in codes.values())
        phase = ("Failed" if any(codes.values()) else "Succeeded") if ended else "Running"
        pod.shown["status"] = {"phase": phase, "containerStatuses": states}

    def command_in(self, pod: Pod, container: str, words: list[str]) -> subprocess.Popen[bytes]:
        """Start a command in a container's mount namespace."""
        process = pod.processes[container]
        enter = ["nsenter", f"--mount=/proc/{process.pid}/ns/mnt", "--wd=/"]
        pipe = subprocess.PIPE
        environment = {"PATH": self.path, "HOME": str(self.folder), **ONE_THREAD}
        return subprocess.Popen([*enter, *words], stdin=pipe, stdout=pipe, stderr=pipe, env=environment)

    # --- what happens to clusters -------------------------------------------------------------------------

    def evict(self, name: str) -> None:
        """Kill a pod, like a kubelet whose node is short of memory."""
        with self.lock:
            pod = self.pods[name]
            _kill(pod)
            message = "The node was low on resource: memory."
            pod.shown["status"] = {"phase": "Failed", "reason": "Evicted", "message": message}

    def drain(self, name: str) -> None:
        """Ask a pod to end, like `kubectl drain`; its containers have their grace period."""
        with self.lock:
            self.cordoned |= {str(self.pods[name].node)}
            for process in self.pods[name].processes.values():
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGTERM)

    def delete_pod(self, name: str) -> None:
        with self.lock:
            _kill(self.pods.pop(name))

    def delete_job(self, name: str) -> None:
        with self.lock:
            del self.jobs[name]
            for pod in [*self.pods.values()]:
                if pod.shown["metadata"]["labels"][JOB_NAME] == name:
                    self.delete_pod(pod.name)

    def end(self) -> None:
        with self.lock:
            for pod in self.pods.values():
                _kill(pod)

    # --- objects ------------------------------------------------------------------------------------------

    def node_objects(self) -> list[Made]:
        return [
            {
                "metadata": {"name": name},
                "spec": {"unschedulable": True} if name in self.cordoned else {},
                "status": {
                    "allocatable": {"cpu": "2", "memory": "4Gi", **({GPU: str(gpus)} if gpus else {})},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
            for name, gpus in self.nodes.items()
        ]

    def queue_objects(self) -> dict[str, Made]:
        return {
            name: {
                "apiVersion": "kueue.x-k8s.io/v1beta1",
                "kind": "LocalQueue",
                "metadata": {"name": name},
                "status": {"conditions": [_condition("Active", why)]},
            }
            for name, why in (self.queues or {}).items()
        }

    def workload_objects(self) -> list[Made]:
        """Return Kueue's own objects, one for each Job with a queue."""
        return [
            {
                "apiVersion": "kueue.x-k8s.io/v1beta1",
                "kind": "Workload",
                "metadata": {
                    "name": f"job-{job['metadata']['name']}",
                    "labels": {JOB_UID: job["metadata"]["uid"]},
                },
                "status": {"conditions": [_condition("QuotaReserved", (self.queues or {})[queue])]},
            }
            for job in self.jobs.values()
            if (queue := job["metadata"]["labels"].get(QUEUE)) is not None
        ]

    def quota_objects(self) -> list[Made]:
        if not self.quota:
            return []
        used = dict.fromkeys(self.quota, "0")
        return [{"metadata": {"name": "small"}, "status": {"hard": self.quota, "used": used}}]


def _condition(kind: str, why_not: str) -> Made:
    """Return a condition of Kueue's, which is false for a reason."""
    if why_not:
        return {"type": kind, "status": "False", "reason": "Pending", "message": why_not}
    return {"type": kind, "status": "True", "reason": "Ready", "message": ""}


def _container_state(code: int | None) -> Made:
    if code is None:
        return {"running": {}}
    return {"terminated": {"exitCode": code % 256, "reason": "Error" if code else "Completed"}}


def _kill(pod: Pod) -> None:
    for process in pod.processes.values():
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# --- the API server ---------------------------------------------------------------------------------------

_CORE = ("pods", "nodes", "resourcequotas", "events")
_APPLIED = {
    "namespaces": "Namespace", "serviceaccounts": "ServiceAccount", "clusterroles": "ClusterRole",
    "clusterrolebindings": "ClusterRoleBinding", "daemonsets": "DaemonSet", "secrets": "Secret",
}  # fmt: skip
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_KINDS = {"pods": "Pod", "nodes": "Node", "resourcequotas": "ResourceQuota", "events": "Event", "jobs": "Job"}
_KINDS |= _APPLIED
_OF_KUEUE = {"localqueues": "LocalQueue", "workloads": "Workload"}
_KINDS |= _OF_KUEUE


class RefusalByServer(Exception):
    """An answer of the API server that is no success."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code,
        }  # fmt: skip
        self.code = code


class ApiHandler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # the second write of an answer waits for nothing
    cluster: SmallCluster

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def do_PATCH(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        self.cluster.asked.append(f"{self.command} {self.path}")

    def _answer(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/openapi/v2":  # kubectl skips its own check of what an empty document does not know
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if url.path.endswith("/exec"):
            self._exec(url.path, parse_qs(url.query))
            return
        body = self._body()
        try:
            with self.cluster.lock:
                found = self._found(url.path, parse_qs(url.query), body)
            code = 201 if self.command == "POST" else 200
        except RefusalByServer as refused:
            found, code = refused.status, refused.code
        data = json.dumps(found).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _found(self, path: str, query: Mapping[str, list[str]], body: bytes) -> Made:
        if (known := discovery(with_kueue=self.cluster.queues is not None).get(path)) is not None:
            return known
        if path.endswith("/selfsubjectaccessreviews"):
            return self._review(json.loads(body))
        parts = path.strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = parts[1] if parts[:1] == ["namespaces"] and len(parts) > 2 else None
        resource, *rest = (parts[2:] if namespace else parts) or [""]
        if resource not in _KINDS or (resource in _OF_KUEUE and self.cluster.queues is None):
            raise RefusalByServer(404, "NotFound", "the server could not find the requested resource")
        verb = _VERBS.get(self.command, "get" if rest else "list")
        self._demand(verb, resource)
        if resource in _APPLIED:
            if body and namespace and ("namespaces", namespace) not in self.cluster.applied:
                raise RefusalByServer(404, "NotFound", f'namespaces "{namespace}" not found')
            return self._applied(resource, rest, _object(body) if body else None)
        if verb == "create":
            return self._create_job(json.loads(body), namespace or "default", query)
        if verb == "delete":
            self._one(self.cluster.jobs, "jobs", rest[0])
            self.cluster.delete_job(rest[0])
            return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        if rest and resource == "localqueues":
            queue: Made = self._one(self.cluster.queue_objects(), resource, rest[0])
            return queue
        if rest and resource == "jobs":
            job: Made = self._one(self.cluster.jobs, resource, rest[0])
            return job
        if rest:
            self.cluster.step()
            pod: Pod = self._one(self.cluster.pods, resource, rest[0])
            return pod.shown
        return {"kind": f"{_KINDS[resource]}List", "apiVersion": "v1", "items": self._items(resource, query)}

    def _items(self, resource: str, query: Mapping[str, list[str]]) -> list[Made]:
        cluster = self.cluster
        if resource in ("pods", "workloads"):
            wanted = dict(term.split("=") for term in query.get("labelSelector", [""])[0].split(",") if term)
            cluster.step()
            pods = [pod.shown for pod in cluster.pods.values()]
            found = pods if resource == "pods" else cluster.workload_objects()
            return [each for each in found if wanted.items() <= each["metadata"]["labels"].items()]
        lists = {"nodes": cluster.node_objects, "resourcequotas": cluster.quota_objects}
        return lists[resource]() if resource in lists else cluster.events

    def _demand(self, verb: str, resource: str) -> None:
        if (verb, resource) in self.cluster.forbidden:
            message = f'{resource} is forbidden: User "reader" cannot {verb} resource "{resource}"'
            raise RefusalByServer(403, "Forbidden", message)

    def _review(self, review: Made) -> Made:
        wanted = review["spec"]["resourceAttributes"]
        resource = wanted["resource"] + (f"/{wanted['subresource']}" if wanted.get("subresource") else "")
        return review | {"status": {"allowed": (wanted["verb"], resource) not in self.cluster.forbidden}}

    def _create_job(self, job: Made, namespace: str, query: Mapping[str, list[str]]) -> Made:
        name = job["metadata"]["name"]
        if wrong := mistakes(job):
            raise RefusalByServer(422, "Invalid", f'Job.batch "{name}" is invalid: {wrong[0]}')
        if self.cluster.quota.get("count/jobs.batch") == "0":
            message = (
                f'jobs.batch "{name}" is forbidden: exceeded quota: small, requested: count/jobs.batch=1'
            )
            raise RefusalByServer(403, "Forbidden", message)
        if name in self.cluster.jobs:
            raise RefusalByServer(409, "AlreadyExists", f'jobs.batch "{name}" already exists')
        if self.cluster.queues is not None and QUEUE in job["metadata"]["labels"]:
            job["spec"]["suspend"] = True
        job = job | {"status": {}}
        job["metadata"] |= {"uid": secrets.token_hex(8), "namespace": namespace}
        if not query.get("dryRun"):
            self.cluster.jobs[name] = job
            self.cluster.step()
        return job

    def _applied(self, resource: str, names: list[str], made: Made | None) -> Made:
        """Take an object as it is, or return the one of this name."""
        if made is None:
            own = {name: each for (of, name), each in self.cluster.applied.items() if of == resource}
            if not names:
                items = list(own.values())
                return {"kind": f"{_APPLIED[resource]}List", "apiVersion": "v1", "items": items}
            found: Made = self._one(own, resource, names[0])
            return found
        name = made["metadata"]["name"]
        made.pop("status", None)  # a server writes it
        if resource != "secrets" and (wrong := mistakes(made)):
            raise RefusalByServer(422, "Invalid", f'{resource} "{name}" is invalid: {wrong[0]}')
        self.cluster.applied[resource, name] = made
        return made

    def _one(self, objects: Mapping[str, Any], resource: str, name: str) -> Any:
        if name not in objects:
            raise RefusalByServer(404, "NotFound", f'{resource} "{name}" not found')
        return objects[name]

    def _exec(self, path: str, query: Mapping[str, list[str]]) -> None:
        self.log_request(101)
        pod = self.cluster.pods.get(path.split("/")[-2])
        container = query["container"][0]
        if pod is None or container not in pod.processes or pod.processes[container].poll() is not None:
            data = json.dumps(RefusalByServer(404, "NotFound", f'container "{container}" not found').status)
            self.send_response(404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data.encode())
            return
        process = self.cluster.command_in(pod, container, query["command"])
        with suppress(OSError, EOFError):
            carry(open_streams(self), process)
        process.kill()


def _object(body: bytes) -> Made:
    """Return the object of a request in JSON or YAML; of a secret in protobuf, as Helm sends it, the name."""
    if not body.startswith(b"k8s\0"):
        made: Made = yaml.safe_load(body)
        return made
    secret = _fields(body[4:])[2]
    name = _fields(_fields(secret)[1])[1].decode()
    return {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": name}}


def _fields(message: bytes) -> dict[int, bytes]:
    """Return the fields of a protobuf message that have a length: texts, bytes and messages, by number."""
    found, at = dict[int, bytes](), 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = message[at], at + 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key, size = number(), number()
        if key % 8 == 2:
            found.setdefault(key // 8, message[at : at + size])
            at += size
    return found


def _resource(name: str, *verbs: str, namespaced: bool = True) -> Made:
    kind = _KINDS.get(name, "SelfSubjectAccessReview")
    return {
        "name": name,
        "singularName": kind.lower(),
        "kind": kind,
        "namespaced": namespaced,
        "verbs": [*verbs],
    }


def _resources(version: str, *resources: Made) -> Made:
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": [*resources]}


def _group(name: str, only: str = "v1") -> Made:
    version = {"groupVersion": f"{name}/{only}", "version": only}
    return {"name": name, "versions": [version], "preferredVersion": version}


_PLAIN: dict[str, Made] = {
    "/version": {"major": "1", "minor": "37", "gitVersion": "v1.37.0", "platform": "linux/amd64"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [
            _group(name) for name in ("batch", "apps", "rbac.authorization.k8s.io", "authorization.k8s.io")
        ],
    },
    "/api/v1": _resources(
        "v1",
        *(_resource(name, "get", "list", namespaced=name != "nodes") for name in _CORE),
        _resource("namespaces", "create", "get", namespaced=False),
        _resource("serviceaccounts", "create", "get", "patch"),
        _resource("secrets", "create", "get", "list", "update"),
    ),
    "/apis/apps/v1": _resources("apps/v1", _resource("daemonsets", "create", "get", "patch")),
    "/apis/rbac.authorization.k8s.io/v1": _resources(
        "rbac.authorization.k8s.io/v1",
        *(
            _resource(name, "create", "get", "patch", namespaced=False)
            for name in ("clusterroles", "clusterrolebindings")
        ),
    ),
    "/apis/batch/v1": _resources("batch/v1", _resource("jobs", "create", "get", "list", "delete")),
    "/apis/authorization.k8s.io/v1": _resources(
        "authorization.k8s.io/v1", _resource("selfsubjectaccessreviews", "create", namespaced=False)
    ),
}
_WITH_KUEUE: dict[str, Made] = _PLAIN | {
    "/apis": _PLAIN["/apis"] | {"groups": [*_PLAIN["/apis"]["groups"], _group("kueue.x-k8s.io", "v1beta1")]},
    "/apis/kueue.x-k8s.io/v1beta1": _resources(
        "kueue.x-k8s.io/v1beta1", *(_resource(name, "get", "list") for name in _OF_KUEUE)
    ),
}


def discovery(*, with_kueue: bool) -> dict[str, Made]:
    """Return the documents by which kubectl learns what a server has, by their paths."""
    return _WITH_KUEUE if with_kueue else _PLAIN


@contextmanager
def small_cluster(folder: Path, nodes: Mapping[str, int], path: str) -> Iterator[tuple[SmallCluster, Path]]:
    """Start a cluster; yield it with a kubeconfig. `path` is the PATH of containers, as of an image."""
    folder.mkdir()
    cluster = SmallCluster(folder, nodes, path)
    handler = type("Handler", (ApiHandler,), {"cluster": cluster})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    stop = threading.Event()
    threads = [threading.Thread(target=server.serve_forever, daemon=True)]
    threads.append(threading.Thread(target=_work, args=(cluster, stop), daemon=True))
    for thread in threads:
        thread.start()
    try:
        yield cluster, kubeconfig(folder / "config", f"http://127.0.0.1:{server.server_port}")
    finally:
        stop.set()
        server.shutdown()
        server.server_close()
        cluster.end()


def _work(cluster: SmallCluster, stop: threading.Event) -> None:
    while not stop.wait(0.2):
        cluster.step()


def kubeconfig(path: Path, server: str, context: str = "small") -> Path:
    """Write a kubeconfig with one context."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": {"server": server}}],
        "users": [{"name": "operator", "user": {"token": "none"}}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": "operator"}}],
        "current-context": context,
    }
    path.write_text(yaml.safe_dump(config))
    return path
