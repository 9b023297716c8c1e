"""For `bench check --on-change` in a pod: tell Kubernetes whether its node is fit.

    bench check --level passive ... --on-change "python3 -m bench.data.kubernetes.node_change"

The node NODE_NAME gets the condition BenchUnfit and the label bench/verdict; unless its check passes, it also
gets the taint bench/unfit with the effect BENCH_TAINT_EFFECT, so that no new pod is placed there. A pass
removes that taint. Taints of others stay. Needs nothing but Python's own library and a service account.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
UNFIT, VERDICT, CONDITION = "bench/unfit", "bench/verdict", "BenchUnfit"
_STATUS = {"pass": "False", "fail": "True", "not-run": "Unknown"}
_REASON = {"pass": "CheckPassed", "fail": "CheckFailed", "not-run": "CheckNotRun"}
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_ANSWER_SECONDS = 5  # of the API server: the whole command has twenty
_TRIES = 3  # if somebody else changes the node meanwhile
_CONFLICT = 409


def condition(verdict: str, reason: str, now: str) -> dict[str, Any]:
    """Return the patch of the node's status. Pure."""
    made = {
        "type": CONDITION,
        "status": _STATUS[verdict],
        "reason": _REASON[verdict],
        "message": reason or "the node passes its check",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    return {"status": {"conditions": [made]}}


def label_and_taints(node: Mapping[str, Any], verdict: str, effect: str) -> dict[str, Any]:
    """Return the patch that labels and taints a node; it fails if the node has changed meanwhile. Pure."""
    before: Sequence[Mapping[str, Any]] = node["spec"].get("taints") or ()
    taints = [taint for taint in before if taint.get("key") != UNFIT]
    if verdict != "pass":
        taints.append({"key": UNFIT, "value": verdict, "effect": effect})
    metadata = {"resourceVersion": node["metadata"]["resourceVersion"], "labels": {VERDICT: verdict}}
    return {"metadata": metadata, "spec": {"taints": taints}}


class ApiServer:
    """The cluster's API server, as a pod reaches it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        host, port = environment["KUBERNETES_SERVICE_HOST"], environment["KUBERNETES_SERVICE_PORT"]
        self._url = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        self._token = (ACCOUNT / "token").read_text(encoding="utf-8").strip()
        self._tls = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))

    def ask(self, method: str, path: str, patch: object = None, kind: str = "merge") -> dict[str, Any]:
        """Send a request, with a patch of a kind (merge, strategic-merge) if there is one."""
        data = None if patch is None else json.dumps(patch).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": f"application/{kind}-patch+json"}
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS, context=self._tls) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


def change(server: ApiServer, node: str, verdict: str, reason: str, effect: str) -> None:
    """Write the verdict to a node: its label and taint first, which keep pods away."""
    path = f"/api/v1/nodes/{node}"
    for attempt in range(_TRIES):
        patch = label_and_taints(server.ask("GET", path), verdict, effect)
        try:
            server.ask("PATCH", path, patch)
            break
        except urllib.error.HTTPError as error:
            if error.code != _CONFLICT or attempt == _TRIES - 1:
                raise
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    server.ask("PATCH", f"{path}/status", condition(verdict, reason, now), "strategic-merge")


def main(environment: Mapping[str, str]) -> int:
    """Return 0 once the node is marked; else say why not, so that the next check calls again."""
    effect = environment.get("BENCH_TAINT_EFFECT", "NoSchedule")
    verdict, node = environment.get("BENCH_TO", ""), environment.get("NODE_NAME", "")
    if verdict not in _STATUS or not node or effect not in _EFFECTS:
        print(f"needs BENCH_TO ({', '.join(_STATUS)}), NODE_NAME, and of BENCH_TAINT_EFFECT one of "
              f"{', '.join(_EFFECTS)}", file=sys.stderr)  # fmt: skip
        return 2
    try:
        change(ApiServer(environment), node, verdict, environment.get("BENCH_REASON", ""), effect)
    except urllib.error.HTTPError as error:
        said = error.read(500).decode(errors="replace")
        print(f"the API server refuses to mark {node}: {error.code}: {said}", file=sys.stderr)
        return 3
    except (OSError, KeyError) as error:
        print(f"the API server cannot be asked to mark {node}: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(os.environ))
