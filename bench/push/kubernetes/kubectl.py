"""Call the user's kubectl, and turn what it says when it fails into errors with advice.

Every login of kubectl serves bench too: a kubeconfig, an exec plugin, a proxy, a pod's service account.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.base.errors import BadInput, BenchError, EnvironmentCannot
from bench.base.operating_system import PIPES_CAN_WAIT
from bench.push.connection import Unreachable, plain

_ANSWER_SECONDS = 30  # of one request to the API server
_LONGEST_SECONDS = 90  # of one call of kubectl, which may log in first
_INSTALL = "install kubectl (Debian: kubernetes-client) and log in to the cluster with it"
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
ROLE_FILE = "kubernetes/operator.yaml"  # of bench/data: the rights that a push needs
_LOG_LINE = re.compile(r"[EIW]\d{4} |Warning: ")
_NO_CONTEXT = re.compile(
    r"current-context|context \S+ does not exist|context was not found|no context exists"
    r"|cannot locate context"
)


class NotThere(EnvironmentCannot):
    """The API server has no object of this name."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster of the user's kubeconfig, and the namespace to work in there."""

    context: str | None  # None: kubectl runs in a pod, with its service account
    server: str  # URL of the API server: two clusters may be called by one name
    namespace: str


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl, for one context and namespace; None: those that kubectl takes by default."""

    context: str | None = None
    namespace: str | None = None

    def words(self, *arguments: str) -> list[str]:
        """Return a command line of kubectl; EnvironmentCannot if it is not installed."""
        program = shutil.which("kubectl")
        if program is None:
            raise EnvironmentCannot("kubectl is not installed on this machine", advice=_INSTALL)
        if not PIPES_CAN_WAIT:
            raise EnvironmentCannot("bench cannot use kubectl on Windows", advice="use WSL")
        context = [f"--context={self.context}"] if self.context else []
        namespace = [f"--namespace={self.namespace}"] if self.namespace else []
        return [program, *context, *namespace, *arguments]

    def run(self, *arguments: str, data: bytes = b"") -> str:
        """Run kubectl with `data` as its input; return its output, or raise an error that says what to do."""
        command = self.words(f"--request-timeout={_ANSWER_SECONDS}s", *arguments)
        try:
            done = subprocess.run(
                command, input=data, capture_output=True, timeout=_LONGEST_SECONDS, check=False,
                start_new_session=True,  # Ctrl-C is for bench, and nothing can be asked on the terminal
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Unreachable(f"kubectl has no answer after {_LONGEST_SECONDS} s") from None
        if done.returncode:
            raise refusal(done.stderr.decode(errors="replace"), self.namespace)
        return done.stdout.decode(errors="replace")

    def get(self, *arguments: str) -> dict[str, Any]:
        """Return the result of `kubectl get`, an object or a list of the API."""
        return _object(self.run("get", *arguments, "--output=json"))

    def items(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the objects of a list that `kubectl get` finds."""
        items = self.get(*arguments).get("items")
        return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []

    def create_job(self, made: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Create a Job, or let the API server say whether it would; return what the server made of it.

        The request goes out as it is: fields that an older cluster does not know are an error, and not lost.
        """
        query = f"fieldValidation=Strict{'&dryRun=All' if dry_run else ''}"
        return self._post(f"/apis/batch/v1/namespaces/{self.namespace}/jobs?{query}", made)

    def config(self) -> dict[str, Any]:
        """Return the part of the kubeconfig that this context uses; BadInput if there is no such context."""
        return _object(self.run("config", "view", "--minify", "--output=json"))

    def may(self, verb: str, resource: str) -> bool:
        """Return whether this user may do something in the namespace, such as create pods/exec."""
        name, _, sub = resource.partition("/")
        name, _, group = name.partition(".")
        asked = {
            "namespace": self.namespace,
            "verb": verb,
            "group": group,
            "resource": name,
            "subresource": sub,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        status = self._post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review).get("status")
        return isinstance(status, dict) and status.get("allowed") is True

    def _post(self, path: str, made: Mapping[str, Any]) -> dict[str, Any]:
        return _object(self.run("create", "--raw", path, "--filename=-", data=json.dumps(made).encode()))


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise EnvironmentCannot("kubectl's answer is no object of the API", advice="kubectl version")
    return value


def find_cluster(context: str | None, namespace: str | None) -> Cluster:
    """Return the cluster that kubectl would talk to; BadInput if it knows none."""
    try:
        config = Kubectl(context).config()
    except BadInput:
        host = os.environ.get("KUBERNETES_SERVICE_HOST")
        if host is None or context is not None:
            raise
        server = f"https://{host}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}"
        return Cluster(None, server, namespace or _own_namespace())
    try:
        own = config["contexts"][0]
        server = config["clusters"][0]["cluster"]["server"]
        given = own["context"].get("namespace")
    except (LookupError, TypeError, AttributeError):
        raise _no_cluster("the kubeconfig has no cluster for this context") from None
    return Cluster(str(own["name"]), str(server), namespace or str(given or "default"))


def _own_namespace() -> str:
    """Return the namespace of the pod that this process runs in."""
    try:
        return _SERVICE_ACCOUNT.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"


def refusal(said: str, namespace: str | None) -> BenchError:
    """Return the error for kubectl's error output."""
    text = _reason(said)
    if _NO_CONTEXT.search(text):
        return _no_cluster(text)
    if "exceeded quota" in text:
        advice = "ask for more quota, or name another --namespace: kubectl describe resourcequota"
        return EnvironmentCannot(text, advice=advice)
    if "violates PodSecurity" in text:
        advice = "bench's pods keep to the level restricted: report what this cluster demands beyond it"
        return EnvironmentCannot(text, advice=advice)
    if "Forbidden" in text or "forbidden" in text:
        what = f"this user lacks a right in the namespace {namespace or 'of the context'}: {text}"
        return EnvironmentCannot(what, advice=f"ask for the role in bench/data/{ROLE_FILE}")
    if "Unauthorized" in text or "must be logged in" in text or "getting credentials" in text:
        return EnvironmentCannot(
            f"the cluster accepts no login: {text}", advice="log in again: kubectl get pods"
        )
    if "NotFound" in text or "not found" in text:
        return NotThere(text)
    if "x509" in text or "certificate" in text:
        return EnvironmentCannot(
            text, advice="the kubeconfig has another certificate than the server: fetch it again"
        )
    if "strict decoding error" in text:
        advice = "bench needs Kubernetes 1.29 or newer, which can end one pod of a job alone"
        return EnvironmentCannot(f"this cluster is too old: {text}", advice=advice)
    if "AlreadyExists" in text:
        return EnvironmentCannot(text, advice="push again: the next push has a name of its own")
    return Unreachable(text)  # what else kubectl says is of the way to the server, and may pass


def _reason(said: str) -> str:
    """Return the last line that is no log line of kubectl, without control characters."""
    lines = [line for line in said.splitlines() if line.strip() and not _LOG_LINE.match(line)]
    return plain((lines or said.splitlines() or ["no message"])[-1])[:500]


def _no_cluster(text: str) -> BadInput:
    advice = "set KUBECONFIG, or name one: --context NAME; kubectl config get-contexts lists them"
    return BadInput(f"kubectl knows no such cluster: {text}", advice=advice)
