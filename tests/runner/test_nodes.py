"""Two nodes that train together, as two runs on this machine: torchrun's rendezvous, gloo for NCCL."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from bench.base.errors import BadInput, EnvironmentCannot
from bench.cli.meeting import SECRET
from bench.records.trial import Outcome
from bench.runner.processes import nodes as several
from bench.runner.processes.jobs import FactsJob, FollowJob, Nodes, WorkerEvent
from bench.runner.processes.meeting_proxy import NONCE_BYTES, open_proxy
from bench.runner.processes.node_member import place
from bench.runner.processes.nodes import (
    FAILED,
    across_nodes,
    interface_of,
    own_address,
    short_path,
    torchrun,
)
from bench.runner.processes.ranks import written_reasons
from bench.runner.processes.supervisor import Limits, Supervisor
from tests.e2e.neighbour import ASKS_THE_STORE, Neighbour, answer_of, listeners, scanned
from tests.e2e.network import Network, network
from tests.e2e.nodes import free_port
from tests.patience import PATIENCE_SECONDS, until
from tests.warm import quick_python

MANIFEST: dict[str, Any] = {
    "schema": "bench/manifest/v1",
    "models": ["tiny-gpt-neox"],
    "methods": ["naive", ["fsdp-3"]],
    "micro_batch": 8,
    "gpus": 1,
    # Long steps, whose passes can be told from their updates on a busy machine: it ends at five rounds.
    "timing": {"target_percent": 50, "measure_seconds": 3.0, "warmup_seconds": 0.2},
}


def command(python: str, folder: Path, node: int, meet: str) -> list[str]:
    place = ["--device", "cpu", "--nodes", "2", "--node", str(node), "--meet", meet]
    return [
        python,
        "-m",
        "bench",
        "run",
        str(folder / "m.json"),
        "--out",
        str(folder / "out"),
        *place,
    ]


@contextmanager
def both(
    folder: Path,
    other_has: dict[str, str] | None = None,
    leader: str | None = None,
    inside: Network | None = None,
    port: int | None = None,
    **changes: Any,
) -> Iterator[tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]]:
    """Run both nodes, on this machine or inside of a network's namespaces; they meet at the leader's port.

    They meet at `leader`, or else at the address that the leader has in the network or on this machine.

    A node with a sitecustomize.py of its own has an ordinary Python: tests.warm imported what it changes.
    """
    pythons = [quick_python(), sys.executable if "PYTHONPATH" in (other_has or {}) else quick_python()]
    leader = leader or ("127.0.0.1" if inside is None else inside.address(0))
    (folder / "m.json").write_text(json.dumps(MANIFEST | changes))
    port = port or free_port()
    environment = os.environ | {"XDG_CONFIG_HOME": str(folder), "COLUMNS": "200", SECRET: "s" * 32}
    commands = [command(pythons[i], folder, i, f"{leader}:{port}") for i in range(2)]
    if inside is not None:
        commands = [inside.inside(i, *words) for i, words in enumerate(commands)]
    nodes = [
        subprocess.Popen(
            commands[i],
            env=environment | (other_has or {}) if i else environment,
            stderr=(folder / f"node-{i}.txt").open("w"),
        )
        for i in range(2)
    ]
    try:
        yield nodes[0], nodes[1]
    finally:
        for node in nodes:
            node.kill()
            node.wait()


def said(folder: Path) -> list[str]:
    return [path.read_text()[-2000:] for path in sorted(folder.glob("node-*.txt"))]


def results(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    (bundle,) = (folder / "out").glob("*.tar")
    with tarfile.open(bundle) as tar:
        found = [json.load(tar.extractfile(name)) for name in ("results.json", "env.json")]  # type: ignore[arg-type]
    return found[0], found[1]


@pytest.mark.e2e
def test_two_nodes_measure_together_and_the_leader_has_the_bundle(tmp_path: Path) -> None:
    with both(tmp_path, prove={"steps": 2, "minutes": 0}) as (leader, other):
        assert leader.wait(PATIENCE_SECONDS) == 0, said(tmp_path)
        assert other.wait(PATIENCE_SECONDS) == 0, said(tmp_path)
    found, environment = results(tmp_path)
    assert [(t["outcome"], t["gpus"], t["accumulation"]) for t in found["trials"]] == [("measured", 2, 4)] * 2
    assert found["trials"][1]["loss_difference"] < 1e-5
    assert {ceiling["device"] for ceiling in found["ceilings"]} == {0, 1}
    assert len(environment["nodes"]) == 2
    assert any(trial["proof"] for trial in found["trials"])


def is_away(pid: int) -> bool:
    """Is this process in another network namespace than the tests?"""
    return Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()


LATE = """
import datetime
class Late(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) - datetime.timedelta(minutes=7)
Late.__module__, Late.__qualname__ = "datetime", "datetime"  # as the other node reads it
datetime.datetime = Late
"""


@pytest.mark.e2e
def test_nodes_whose_clocks_are_minutes_apart_measure_together_beside_a_neighbour_who_gets_nothing(
    tmp_path: Path,
) -> None:
    """The neighbour scans the leader, and speaks the protocols of torchrun, gloo and NCCL to every port.

    During the scan the other node is stopped, so that the leader waits for it, however long the scan takes.
    """
    (tmp_path / "sitecustomize.py").write_text(LATE)
    late = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    meeting = free_port()
    with (
        network(3, megabit=1000) as net,
        both(tmp_path, late, inside=net, port=meeting, methods=["naive"]) as (leader, other),
        ThreadPoolExecutor(1) as pool,
    ):
        for node in (leader, other):
            until(partial(is_away, node.pid), "a node in its namespace")
        other.send_signal(signal.SIGSTOP)
        neighbour = Neighbour({leader.pid: net.address(0), other.pid: net.address(1)})
        speaking = pool.submit(neighbour.speak, net.namespace(2))
        try:
            while not neighbour.ports:
                assert leader.poll() is None and not speaking.done(), said(tmp_path)
                time.sleep(0.1)
            programs = scanned(net, 2, 0, f"1-1024,{meeting}")
            assert neighbour.ports == {meeting}
            other.send_signal(signal.SIGCONT)
            assert leader.wait(PATIENCE_SECONDS) == 0, said(tmp_path)
            assert other.wait(PATIENCE_SECONDS) == 0, said(tmp_path)
        finally:
            neighbour.stop()
        speaking.result(PATIENCE_SECONDS)
    assert programs == {meeting: ""}  # nmap cannot say what is there
    assert len(neighbour.ports) > 2  # the meeting's, and gloo's
    for answer in neighbour.answers:
        # The proxy answers its own greeting with a number drawn for this connection, and then hangs up.
        most = (
            NONCE_BYTES if (answer.port, answer.message) == (meeting, "the proxy, without the secret") else 0
        )
        assert len(answer.data) <= most, answer
    found, environment = results(tmp_path)
    assert [trial["outcome"] for trial in found["trials"]] == ["measured"]
    assert len(environment["nodes"]) == 2


def test_the_neighbour_finds_every_port_but_those_of_loopback() -> None:
    """A port of all addresses is open to the network, also where IPv6 holds it."""
    open_to_all = [("", socket.AF_INET), ("::", socket.AF_INET6)]
    of_loopback = [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)]
    with ExitStack() as stack:

        def ports(addresses: list[tuple[str, socket.AddressFamily]]) -> set[int]:
            made = (socket.create_server((host, 0), family=family) for host, family in addresses)
            return {stack.enter_context(one).getsockname()[1] for one in made}

        wanted, hidden = ports(open_to_all), ports(of_loopback)
        found = set(listeners(os.getpid(), "10.77.0.1"))
    assert {("10.77.0.1", port) for port in wanted} <= found
    assert not hidden & {port for _, port in found}


def test_a_store_without_a_proxy_answers_what_the_neighbour_asks() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    store.set("a", "secret")
    assert answer_of("127.0.0.1", store.port, ASKS_THE_STORE)


@pytest.mark.e2e
@pytest.mark.parametrize("leader", ["127.0.0.1", "127.0.0.2"])  # torch would choose the lower address
def test_nodes_with_different_switches_do_not_train_together(tmp_path: Path, leader: str) -> None:
    with both(tmp_path, other_has={"NVIDIA_TF32_OVERRIDE": "0"}, leader=leader) as (leading, other):
        assert leading.wait(PATIENCE_SECONDS) == 3, said(tmp_path)
        assert other.wait(PATIENCE_SECONDS) == 3, said(tmp_path)  # it learned of it
    why = "the nodes differ: NVIDIA_TF32_OVERRIDE missing on node 0, 0 on node 1"
    assert all(why in text for text in said(tmp_path))


@pytest.mark.e2e
def test_a_node_that_is_lost_ends_the_run_and_decides_no_trial(tmp_path: Path) -> None:
    with both(tmp_path, trial_minutes=0.4, timing={"measure_seconds": 600}) as (leader, other):
        trials = (tmp_path / "out").glob
        until(lambda: list(trials(f"*/logs/{16 * '[0-9a-f]'}.txt")), "the first trial")
        time.sleep(8)  # it trains by then; on a slow machine it still joins, and the loss ends it as well
        other.kill()
        assert leader.wait(PATIENCE_SECONDS) == 5, said(tmp_path)
    found, _ = results(tmp_path)
    assert found["run"]["complete"] is False
    assert "is gone" in found["run"]["stopped"]
    assert found["trials"] == []  # the loss of a node does not count against the trial


WAITS = """
import sys, time
from pathlib import Path
from bench.runner.processes.node_member import end_with_others
end_with_others(Path(sys.argv[1]), 3)
print("inside", flush=True)
time.sleep(600)
"""


@contextmanager
def inside_a_collective(folder: Path, store: str) -> Iterator[subprocess.Popen[bytes]]:
    """Simulate a member inside NCCL, which no error reaches."""
    environment = os.environ | {"BENCH_STORE": store, "TORCHELASTIC_RUN_ID": "abc-7"}
    command = [quick_python(), "-c", WAITS, str(folder)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as member:
        assert member.stdout is not None
        assert member.stdout.readline() == b"inside\n"
        try:
            yield member
        finally:
            member.kill()


def test_a_member_waiting_for_a_failed_one_ends_with_the_same_reason(tmp_path: Path) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    full = {"kind": "out-of-memory", "where": "gpu", "detail": "CUDA out of memory"}
    with inside_a_collective(tmp_path, f"127.0.0.1:{store.port}") as member:
        another_job = dist.PrefixStore("abc-6", store)
        another_job.set(FAILED, '{"kind": "crashed", "reason": "late"}')
        dist.PrefixStore("abc-7", store).set(FAILED, json.dumps(full))
        assert member.wait(PATIENCE_SECONDS) == 1
    assert written_reasons(tmp_path) == {3: full}


def test_a_member_whose_leader_is_gone_does_not_wait_for_it(tmp_path: Path) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    with inside_a_collective(tmp_path, f"127.0.0.1:{store.port}") as member:
        del store
        assert member.wait(PATIENCE_SECONDS) == 1
    assert "gone" in written_reasons(tmp_path)[3]["reason"]


def test_a_killed_member_is_reported_by_its_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several, "torchrun", lambda *_: ["sh", "-c", "touch $BENCH_FOLDER/begun; kill -9 $$"])
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    nodes = Nodes(2, 1, "127.0.0.1:9", "abc", store=f"127.0.0.1:{store.port}")
    job = FollowJob(nodes=nodes, number=7, gpus=2, device="cpu")
    assert across_nodes(job, print, tmp_path) == 1
    assert "on node 1" in json.loads(dist.PrefixStore("abc-7", store).get(FAILED))["reason"]


@pytest.mark.parametrize(("user", "per_node", "given"), [(None, 2, "3"), ("5", 2, "5"), (None, 1, "")])
def test_members_on_several_nodes_have_as_many_threads_as_on_one(
    user: str | None, per_node: int, given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default torchrun gives each of several processes one thread; host updates would be slow."""
    monkeypatch.setattr(several, "cores", lambda: 3, raising=False)
    monkeypatch.setattr(
        several, "torchrun", lambda *_: ["sh", "-c", 'echo "$OMP_NUM_THREADS" > $BENCH_FOLDER/told']
    )
    monkeypatch.delenv("OMP_NUM_THREADS")
    if user:
        monkeypatch.setenv("OMP_NUM_THREADS", user)
    nodes = Nodes(2, 1, "127.0.0.1:9", "abc")
    job = FollowJob(nodes=nodes, number=7, gpus=2 * per_node, device="cuda")
    assert across_nodes(job, print, tmp_path) == 0
    assert (tmp_path / "told").read_text() == f"{given}\n"


@pytest.mark.usefixtures("quick_children")
@pytest.mark.parametrize("user", [None, "1"])
def test_thread_counts_that_the_user_did_not_set_are_not_recorded_as_switches(
    user: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    if user:
        monkeypatch.setenv("OMP_NUM_THREADS", user)
    told: list[dict[str, Any]] = []
    with open_proxy(Nodes(1, 0, f"127.0.0.1:{free_port()}", "abc"), b"s" * 32) as nodes:
        job = FactsJob(nodes=nodes, number=7, gpus=2, device="cpu")
        assert across_nodes(job, told.append, tmp_path) == 0
    (node,) = told[0]["facts"]
    assert node["switches"].get("OMP_NUM_THREADS") == user


def test_ranks_follow_the_nodes_numbers_and_not_torchruns_order() -> None:
    assert ranks([1, 1, 0, 0]) == [2, 3, 0, 1]
    assert ranks([2, 0, 1], each=1) == [2, 0, 1]


def test_two_nodes_with_the_same_number_are_refused_at_once() -> None:
    with pytest.raises(EnvironmentCannot, match=r"more than one node was started with --node 1\n.*0 to 2"):
        placed([0, 0, 1, 1, 1, 1])


def test_nodes_with_different_numbers_of_devices_are_refused_at_once() -> None:
    with pytest.raises(EnvironmentCannot, match="node 0 trains on 3 GPUs, node 1 on 1 GPUs\n"):
        placed([1, 0, 0, 0], each=[1, 3, 3, 3])


def test_nodes_of_two_versions_do_not_train_together(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()
    store.set("bench/node/1", json.dumps({"node": 1, "devices": [1, "cuda"], "bench": "9", "address": ""}))
    with pytest.raises(EnvironmentCannot, match=r"node 0 has bench .*, node 1 has 9\n"):
        place(store, surroundings(0, 0, 2, 1))


def ranks(nodes: list[int], each: int = 2) -> list[int]:
    return [int(told["RANK"]) for told in placed(nodes, [each] * len(nodes))]


def placed(nodes: list[int], each: list[int] | None = None) -> list[Mapping[str, str]]:
    """Return the environment of the members on these nodes, in torchrun's order."""
    store = dist.HashStore()
    count = len(nodes)
    with ThreadPoolExecutor(count) as members:
        environments = [
            surroundings(rank, nodes[rank], count, (each or [2] * count)[rank]) for rank in range(count)
        ]
        return [*members.map(lambda environment: place(store, environment), environments)]


def surroundings(rank: int, node: int, count: int, each: int, address: str = "") -> dict[str, str]:
    return {
        "BENCH_NODE": str(node), "BENCH_DEVICE": "cuda", "BENCH_ADDRESS": address, "RANK": str(rank),
        "LOCAL_RANK": str(rank % each), "LOCAL_WORLD_SIZE": str(each), "WORLD_SIZE": str(count),
    }  # fmt: skip


def test_gloo_uses_the_interface_that_reaches_the_others_unless_the_user_sets_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This also holds if the rendezvous's host name resolves to 127.0.1.1 on the leader."""
    monkeypatch.setattr(several, "own_address", {"10.0.0.2:1": "10.0.0.1"}.get)
    monkeypatch.setattr(several, "interface_of", {"10.0.0.1": "eth1", "10.0.0.2": "eth2"}.get)
    store = dist.HashStore()
    leader, other = surroundings(0, 0, 2, 1, "127.0.1.1"), surroundings(1, 1, 2, 1, "10.0.0.2")
    with ThreadPoolExecutor(2) as members:
        told = [*members.map(lambda environment: place(store, environment), (leader, other))]
    assert [one["GLOO_SOCKET_IFNAME"] for one in told] == ["eth1", "eth2"]
    assert "GLOO_SOCKET_IFNAME" not in place(store, leader | {"GLOO_SOCKET_IFNAME": "ib0"})


def test_every_node_starts_the_same_torchrun_and_none_hosts_the_rendezvous() -> None:
    nodes = [Nodes(2, i, "10.0.0.1:29400", "abc", store=f"127.0.0.1:4000{i}") for i in range(2)]
    for node, seconds in zip(nodes, (600, 20), strict=True):
        command = torchrun(node, 7, 8)
        assert {"--nnodes=2", "--nproc-per-node=8", "--rdzv-backend=c10d", "--rdzv-id=abc-7"} <= {*command}
        assert f"--rdzv-endpoint={node.store}" in command
        assert [
            word for word in command if word.startswith(f"--rdzv-conf=is_host=False,join_timeout={seconds},")
        ]
    assert "--local-addr=10.0.0.2" in torchrun(nodes[1], 7, 8, "10.0.0.2")


def test_a_node_finds_its_address_and_interface_towards_the_others() -> None:
    assert own_address("127.0.0.1:29400") == "127.0.0.1"
    assert (interface_of("127.0.0.1"), interface_of("192.0.2.77")) == ("lo", None)


def test_a_rendezvous_may_have_an_ipv6_address() -> None:
    assert own_address("[::1]:29400") == "::1"
    assert (interface_of("::1"), interface_of("2001:db8::77")) == ("lo", None)


def test_the_leader_waits_for_the_others_for_the_stated_time(tmp_path: Path) -> None:
    """Members are silent meanwhile, which must not be mistaken for a hanging job."""
    limits: list[Limits] = []

    class Watched(Supervisor):
        def _run(self, job: object, log: Path, limit: Limits) -> WorkerEvent | Outcome:
            limits.append(limit)
            return {"facts": []}

    Watched([], print, tmp_path / "log.txt").facts("cpu", 2, tmp_path / "log.txt", 600)
    assert limits == [Limits(600, 600)]


def test_members_reach_their_supervisor_in_a_deep_folder(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 120)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as member:
        with short_path(folder / "events") as path:
            listener.bind(path)
        listener.listen()
        with short_path(folder / "events") as path:
            member.connect(path)
    assert (folder / "events").is_socket()


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        ((2, 2, "a:1"), "--node 2 of --nodes 2"),
        ((2, -1, "a:1"), "--node -1"),
        ((2, 0, None), "--meet None is not HOST:PORT"),
        ((2, 0, "a"), "--meet a"),
        ((2, 1, "a:0"), "--meet a:0"),
        ((2, 1, "a:65536"), "--meet a:65536"),
        ((0, 0, "a:1"), "--nodes 0"),
    ],
)
def test_an_invalid_nodes_argument_is_bad_input(place: tuple[int, int, str | None], wrong: str) -> None:
    from bench.cli.meeting import nodes_of
    from bench.planning.manifest import parse_manifest

    manifest = parse_manifest(json.dumps(MANIFEST).encode(), "m.json")
    with pytest.raises(BadInput, match=wrong):
        nodes_of(manifest, *place)
