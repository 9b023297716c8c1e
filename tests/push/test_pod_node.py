"""A pod as a node, by a kubectl that runs commands on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench.base.errors import BadInput, EnvironmentCannot
from bench.push.connection import Unreachable
from bench.push.kubernetes import pod_node
from bench.push.kubernetes.kubectl import Cluster, Kubectl, find_cluster
from bench.push.kubernetes.pod_node import PodGone, PodNode
from bench.push.push_record import PodPlace
from tests.push.test_push_record import R

PLACE = PodPlace("prod", "https://api.example", "team", "bench-1", 1, "bench-1-0-x")
CONFIG = {
    "clusters": [{"name": "c", "cluster": {"server": PLACE.server}}],
    "contexts": [{"name": "prod", "context": {"cluster": "c", "namespace": "own"}}],
}
RUNNING = {"status": {"containerStatuses": [{"name": "keeper", "state": {"running": {}}}]}}
EVICTED = {"status": {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."}}
RUN = 'while [ "$1" != -- ]; do shift; done; shift; "$@"'  # what `kubectl exec` does, on this machine
NOT_FOUND = "echo 'Error from server (NotFound): pods \"bench-1-0-x\" not found' >&2; exit 1"
NO_CONTEXT = "echo 'error: current-context must exist in order to minify' >&2; exit 1"

Fake = Callable[..., PodNode]


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Return a pod whose kubectl answers with these objects and runs this script for `kubectl exec`."""

    def make(run: str = RUN, found: object = RUNNING, config: object = CONFIG) -> PodNode:
        (tmp_path / "pod").write_text(json.dumps(found))
        (tmp_path / "config").write_text(json.dumps(config))
        get = f"cat {tmp_path}/pod" if found is not None else NOT_FOUND
        view = f"cat {tmp_path}/config" if config is not None else NO_CONTEXT
        cases = f"*' exec '*) {run};;\n*' config '*) {view};;\n*' get '*) {get};;"
        program = tmp_path / "kubectl"
        program.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/called\ncase " $* " in\n{cases}\nesac\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        return PodNode("gpu-a", PLACE)

    return make


def test_a_script_answers_with_its_code_output_and_errors(pod: Fake) -> None:
    answer = pod().ask("cat; echo problem >&2; exit 3", [b"in", b"put"])
    assert (answer.code, answer.out, answer.err.strip()) == (3, b"input", b"problem")
    assert answer.reason == "problem"


def test_commands_go_into_the_keeper_of_the_run_in_its_context_and_namespace(
    pod: Fake, tmp_path: Path
) -> None:
    pod().ask("true")
    called = (tmp_path / "called").read_text()
    assert "--context=prod --namespace=team exec --stdin bench-1-0-x --container=keeper -- sh" in called


@pytest.mark.parametrize("code", [0, 1])
def test_a_connection_that_breaks_is_no_answer_whatever_kubectls_exit_code(pod: Fake, code: int) -> None:
    with pytest.raises(Unreachable):
        pod(f"{RUN} 2>/dev/null; exit {code}").ask("echo half")


@pytest.mark.parametrize(
    "loses", ["tail -c +10", "tail -c +30", "head -c -1", "head -c -30", "cat >/dev/null"]
)
def test_lost_output_is_no_answer_though_the_exit_code_arrived(pod: Fake, loses: str) -> None:
    """The script's own errors are not taken for kubectl's reason."""
    with pytest.raises(Unreachable, match=r"lost the output|connection broke"):
        pod(f"{{ {RUN}; }} | {loses}").ask("echo access is forbidden >&2; echo whole")


def test_output_that_resembles_the_mark_at_its_end_is_output(pod: Fake) -> None:
    for size in range(1, 8):
        assert pod().ask(f"printf %s {'bench-b'[:size]}").text == "bench-b"[:size]


def test_errors_longer_than_are_read_are_no_answer(pod: Fake) -> None:
    with pytest.raises(Unreachable):
        pod().ask("head -c 3000000 /dev/zero >&2", seconds=2)


def test_a_pod_that_was_evicted_or_deleted_is_gone_with_the_reason(pod: Fake) -> None:
    with pytest.raises(PodGone, match="Evicted: The node was low on memory"):
        pod("exit 1", EVICTED).ask("true")
    with pytest.raises(PodGone, match="is gone: it was evicted or deleted"):
        pod("exit 1", None).ask("true")


def test_what_kubectl_says_is_the_reason_if_the_pod_is_still_there(pod: Fake) -> None:
    with pytest.raises(Unreachable, match="error dialing backend"):
        pod("echo 'Error from server: error dialing backend: EOF' >&2; exit 1").ask("true")
    forbidden = "Error from server (Forbidden): pods is forbidden: User u cannot create resource pods/exec"
    with pytest.raises(EnvironmentCannot, match="lacks a right") as error:
        pod(f"echo '{forbidden}' >&2; exit 1").ask("true")
    assert "operator.yaml" in (error.value.advice or "")


def test_a_pod_of_another_cluster_with_the_same_name_is_not_entered(pod: Fake) -> None:
    other = {**CONFIG, "clusters": [{"name": "c", "cluster": {"server": "https://other.example"}}]}
    with pytest.raises(BadInput, match=r"leads to https://other\.example"):
        pod(config=other).ask("true")


def test_a_pod_that_is_gone_needs_no_release(pod: Fake) -> None:
    pod("exit 1", None).release("/out")


def test_releasing_a_pod_tells_its_keeper(pod: Fake, tmp_path: Path) -> None:
    pod().release(str(tmp_path))
    assert (tmp_path / "taken").exists()


def test_a_record_without_a_pod_has_none() -> None:
    with pytest.raises(EnvironmentCannot, match="is in no pod"):
        PodNode.of(R)
    assert PodNode.of(replace(R, pod=PLACE))


@pytest.mark.usefixtures("pod")
def test_the_cluster_is_the_one_that_kubectl_names(pod: Fake) -> None:
    pod()
    assert find_cluster(None, None) == Cluster("prod", PLACE.server, "own")
    assert find_cluster(None, "team") == Cluster("prod", PLACE.server, "team")


def test_in_a_pod_the_service_account_names_the_cluster(pod: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    pod(config=None)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    assert find_cluster(None, None) == Cluster(None, "https://10.0.0.1:6443", "default")
    with pytest.raises(BadInput, match="knows no such cluster"):
        find_cluster("prod", None)


def test_an_answer_that_is_no_object_is_an_error(pod: Fake, tmp_path: Path) -> None:
    pod()
    (tmp_path / "pod").write_text("[]")
    with pytest.raises(EnvironmentCannot, match="no object of the API"):
        Kubectl("prod", "team").get("pod", "x")


def test_a_reason_in_another_encoding_is_told(pod: Fake) -> None:
    with pytest.raises(Unreachable, match="error dialing \ufffd backend"):
        pod("printf 'Error from server: error dialing \\377 backend' >&2; exit 1").ask("true")


def test_a_pod_that_vanished_between_two_questions_is_out_of_reach(pod: Fake) -> None:
    """`kubectl exec` finds no pod, and `kubectl get` finds one: the next question will tell."""
    with pytest.raises(Unreachable, match="not found"):
        pod(NOT_FOUND).ask("true")


def test_kubectl_that_says_nothing_broke_the_connection(pod: Fake) -> None:
    with pytest.raises(Unreachable, match="connection broke"):
        pod("echo >&2; exit 1").ask("true")


def test_a_cluster_out_of_reach_before_the_first_command_is_told(
    pod: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> Cluster:
        raise Unreachable("kubectl has no answer after 90 s")

    monkeypatch.setattr(pod_node, "find_cluster", away)
    with pytest.raises(Unreachable, match="kubectl has no answer after 90 s"):
        pod().ask("true")
