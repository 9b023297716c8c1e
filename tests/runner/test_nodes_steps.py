"""Each step of a job on several nodes by itself: what a node starts, what its members tell, how they end."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from bench.base.errors import EnvironmentCannot
from bench.base.strict_json import to_json, union_from_json
from bench.records.trial import Crashed, OutOfMemory
from bench.runner.processes import node_member
from bench.runner.processes import nodes as several
from bench.runner.processes.jobs import AnyRunJob, FactsJob, FollowJob, LastJob, Nodes
from bench.runner.processes.nodes import across_nodes, interface_among, interface_of, own_address, torchrun
from bench.runner.processes.ranks import write_reason, written_reasons
from bench.training.vendor import torch_inside
from tests.patience import PATIENCE_SECONDS, until

LEADER = Nodes(2, 0, "gpu0:29400", "abc", "127.0.0.1:4000")
OTHER = Nodes(2, 1, "gpu0:29400", "abc", "127.0.0.1:4001")
FULL = to_json(OutOfMemory("gpu", "CUDA out of memory"))


# --- what a node starts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("nodes", "seconds"), [(LEADER, 600), (OTHER, 20)])
def test_torchrun_is_started_once_for_each_job_and_hosts_no_meeting(nodes: Nodes, seconds: int) -> None:
    """A node counts as lost after an hour without a sign, since clocks of nodes differ."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=4", "--max-restarts=0",
        "--rdzv-backend=c10d", f"--rdzv-endpoint={nodes.store}", "--rdzv-id=abc-7",
        f"--rdzv-conf=is_host=False,join_timeout={seconds},keep_alive_max_attempt=720",
    ]  # fmt: skip
    program = ["-m", "bench.runner.processes.node_member"]
    assert torchrun(nodes, 7, 4) == torchrun(nodes, 7, 4, "") == [*command, *program]
    assert torchrun(nodes, 7, 4, "10.0.0.1") == [*command, "--local-addr=10.0.0.1", *program]


def test_several_members_of_a_node_get_all_its_threads_unless_the_user_gave_them_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(several, "cores", lambda: 6)
    assert several.threads({}, 2) == {"OMP_NUM_THREADS": "6", "BENCH_OWN_THREADS": "yes"}
    assert several.threads({}, 1) == several.threads({"OMP_NUM_THREADS": ""}, 2) == {}


class Datagram:
    """A socket whose own address is 10.0.0.9, or that has no route."""

    def __init__(self, *kind: int) -> None:
        self.kind = kind

    def __enter__(self) -> Datagram:
        return self

    def __exit__(self, *_: object) -> None: ...

    def connect(self, target: tuple[str, int]) -> None:
        if target[0] != "10.0.0.1":
            raise OSError("Network is unreachable")

    def getsockname(self) -> tuple[str, int]:
        return "10.0.0.9", 1


def test_the_address_of_a_node_is_that_of_its_way_to_the_meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(host: str, port: int, type: int) -> list[Any]:
        assert (port, type) == (29400, socket.SOCK_DGRAM)
        if host == "unknown":
            raise socket.gaierror("Name or service not known")
        address = {"gpu0": "10.0.0.1", "far": "192.0.2.1"}[host]
        return [(socket.AF_INET, type, 17, "", (address, port)), (0, 0, 0, "", ("192.0.2.9", port))]

    monkeypatch.setattr(several.socket, "getaddrinfo", found)
    monkeypatch.setattr(several.socket, "socket", Datagram)
    assert own_address("gpu0:29400") == "10.0.0.9"
    assert own_address("unknown:29400") is own_address("far:29400") is None


def test_the_interface_is_that_of_the_first_address_that_others_can_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    towards = {"10.0.0.2:1": "10.0.0.1", "10.0.1.2:1": "10.0.1.1", "127.0.0.2:1": "127.0.0.1"}
    monkeypatch.setattr(several, "own_address", towards.get)
    names = {"127.0.0.1": "lo", "127.0.1.1": "lo", "10.0.0.1": "eth0", "10.0.1.1": "eth1"}
    monkeypatch.setattr(several, "interface_of", names.get)
    assert interface_among("10.0.1.1", ["10.0.0.2"]) == "eth1"
    assert interface_among("127.0.1.1", ["10.0.0.2", "10.0.1.2"]) == "eth0"
    assert interface_among("192.0.2.1", ["unknown", "10.0.1.2"]) == "eth1"  # an address of a router
    assert interface_among("", ["10.0.0.2"]) == "eth0"
    assert interface_among("127.0.0.1", ["127.0.0.2"]) is interface_among("127.0.0.1", []) is None


def test_an_interface_is_found_by_its_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[bytes] = []

    def ioctl(_socket: object, request: int, given: bytes) -> bytes:
        assert (request, len(given)) == (0x8915, 256)
        name = given.rstrip(b"\0")
        asked.append(name)
        if name == b"down":
            raise OSError("Cannot assign requested address")
        return bytes(20) + socket.inet_aton({b"lo": "127.0.0.1", b"eth0": "10.0.0.1"}[name]) + bytes(232)

    monkeypatch.setattr(several.fcntl, "ioctl", ioctl)
    monkeypatch.setattr(several.socket, "if_nameindex", lambda: [(1, "down"), (2, "lo"), (3, "eth0")])
    assert (interface_of("10.0.0.1"), interface_of("10.0.0.9")) == ("eth0", None)
    assert asked == [b"down", b"lo", b"eth0"] * 2


def test_an_interface_is_found_by_its_ipv6_address_without_a_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = f"{'0' * 31}1 01 80 10 80 lo\nfe80{'0' * 27}1 02 40 20 80 eth0\n"
    monkeypatch.setattr(several.Path, "read_text", lambda path, **_: lines if path.name == "if_inet6" else "")
    found = [interface_of(address) for address in ("::1", "fe80::1", "fe80::1%eth0", "fe80::2")]
    assert found == ["lo", "eth0", "eth0", None]


def test_a_meeting_is_a_store_whose_keys_belong_to_one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    address = f"127.0.0.1:{store.port}"
    several.meeting(address, "abc-7").set("key", "seven")
    several.meeting(address, "abc-8").set("key", "eight")
    assert [several.meeting(address, job).get("key") for job in ("abc-7", "abc-8")] == [b"seven", b"eight"]
    given: list[Any] = []
    monkeypatch.setattr(dist, "TCPStore", lambda *words, **options: given.append((words, options)) or store)
    several.meeting("127.0.0.1:9", "abc-7")
    several.meeting("127.0.0.1:9", "abc-7", timedelta(seconds=5))
    assert given == [
        (("127.0.0.1", 9), {"is_master": False, "timeout": timedelta(seconds=seconds)})
        for seconds in (300, 5)
    ]


def test_a_path_is_short_while_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed, close = list[int](), os.close
    monkeypatch.setattr(
        several.os, "close", lambda descriptor: (closed.append(descriptor), close(descriptor))
    )
    with several.short_path(tmp_path / "events") as path:
        *folder, descriptor, name = path.split("/")
        assert (folder, name) == (["", "proc", "self", "fd"], "events")
        assert Path(path).parent.resolve() == tmp_path
        assert int(descriptor) not in closed
    assert int(descriptor) in closed


# --- a node's part of a job -------------------------------------------------------------------------------


def connect_to(events: Path) -> socket.socket:
    line = socket.socket(socket.AF_UNIX)
    with several.short_path(events) as path:
        line.connect(path)
    return line


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """Let torchrun be a program of the test, which ends with `code` after `during` has happened."""
    made = SimpleNamespace(
        code=0, during=lambda: None, commands=[], environments=[], kills=[0, 0], store=dist.HashStore(),
        meetings=[], given=[],
    )  # fmt: skip

    def run(command: list[str], env: Mapping[str, str], check: bool) -> SimpleNamespace:
        assert not check
        made.commands.append(command)
        made.environments.append(env)
        made.during()
        connect_to(Path(env["BENCH_EVENTS"])).close()  # a node listens until a member has come and gone
        return SimpleNamespace(returncode=made.code)

    def meeting(*where: Any) -> dist.Store:
        made.meetings.append(where)
        return made.store

    def start(*given: Any) -> list[str]:
        made.given.append(given)
        return ["torchrun"]

    monkeypatch.setattr(several.subprocess, "run", run)
    monkeypatch.setattr(several, "torchrun", start)
    monkeypatch.setattr(several, "own_address", lambda meet: f"way to {meet}")
    monkeypatch.setattr(several, "oom_kills", lambda: made.kills.pop(0))
    monkeypatch.setattr(several, "meeting", meeting)
    return made


def do(nodes: Nodes, folder: Path, told: list[Any] | None = None, **changes: Any) -> int:
    kind = FactsJob if nodes.node == 0 else FollowJob
    job = kind(nodes=nodes, number=7, gpus=4, device="cuda", **changes)
    return across_nodes(job, (told if told is not None else []).append, folder)


def test_the_leader_gives_its_members_the_job_and_its_address_as_it_was_given(
    part: SimpleNamespace, tmp_path: Path
) -> None:
    told: list[Any] = []
    assert do(LEADER, tmp_path, told) == 0
    assert part.given == [(LEADER, 7, 2, "gpu0")]
    (environment,) = part.environments
    job: AnyRunJob = union_from_json(AnyRunJob, json.loads(environment["BENCH_JOB"]))
    assert job == FactsJob(nodes=LEADER, number=7, gpus=4, device="cuda")
    assert {name: environment[name] for name in ("BENCH_DEVICE", "BENCH_FOLDER", "BENCH_EVENTS")} == {
        "BENCH_DEVICE": "cuda", "BENCH_FOLDER": str(tmp_path), "BENCH_EVENTS": str(tmp_path / "events"),
    }  # fmt: skip
    assert (environment["BENCH_NODE"], environment["BENCH_STORE"]) == ("0", "127.0.0.1:4000")
    assert environment["BENCH_ADDRESS"] == "way to gpu0:29400"
    assert environment.items() >= torch_inside.OWN_STORE.items()
    assert environment["PATH"] == os.environ["PATH"]
    assert (told, part.meetings) == ([], [])


def test_another_node_has_no_job_and_the_address_of_its_way(
    part: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BENCH_JOB", raising=False)
    assert do(OTHER, tmp_path) == 0
    assert part.given == [(OTHER, 7, 2, "way to gpu0:29400")]
    assert "BENCH_JOB" not in part.environments[0]
    (tmp_path / "events").unlink()
    monkeypatch.setattr(several, "own_address", lambda _: None)
    part.kills = [0, 0]
    assert do(OTHER, tmp_path) == 0
    assert part.given[1][3] is None and part.environments[1]["BENCH_ADDRESS"] == ""


def test_the_events_of_the_member_that_reports_are_passed_on(part: SimpleNamespace, tmp_path: Path) -> None:
    told: list[Any] = []

    def report() -> None:
        with connect_to(tmp_path / "events") as line:
            line.sendall(b'{"phase": "a"}\n{"step": 1}\n')
        until(lambda: len(told) == 2, "the member's events")

    part.during = report
    assert do(LEADER, tmp_path, told) == 0
    assert told == [{"phase": "a"}, {"step": 1}]


def test_a_node_whose_members_never_report_can_end(
    part: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[bool] = []

    class Thread(threading.Thread):
        def start(self) -> None:
            started.append(self.daemon)
            super().start()

    monkeypatch.setattr(several.threading, "Thread", Thread)
    assert do(OTHER, tmp_path) == 0
    assert started == [True]  # what it listens for may never come


@pytest.mark.parametrize(
    ("kills", "written", "why"),
    [
        ([0, 0], False, to_json(Crashed("torchrun ended with 3 on node 0; its output is in the log"))),
        ([1, 2], False, to_json(OutOfMemory("host", "the kernel ended a process of node 0 for memory"))),
        ([0, 1], True, FULL),
    ],
)
def test_a_leader_emits_why_a_job_failed(
    part: SimpleNamespace, tmp_path: Path, kills: list[int], written: bool, why: dict[str, Any]
) -> None:
    told: list[Any] = []
    part.code, part.kills = 3, kills
    part.during = lambda: write_reason(tmp_path, 1, FULL) if written else None
    assert do(LEADER, tmp_path, told) == 1
    assert (told, part.meetings) == ([{"outcome": why}], [])


@pytest.mark.parametrize("begun", [True, False])
def test_another_node_tells_the_meeting_why_its_members_ended_if_they_had_begun(
    part: SimpleNamespace, tmp_path: Path, begun: bool
) -> None:
    told: list[Any] = []
    part.code = -9
    part.during = lambda: (tmp_path / "begun").touch() if begun else None
    assert do(OTHER, tmp_path, told) == 1
    assert told == []
    assert part.meetings == ([("127.0.0.1:4001", "abc-7", timedelta(seconds=5))] if begun else [])
    if begun:
        why = json.loads(part.store.get("bench/failed"))
        assert why == to_json(Crashed("torchrun ended with -9 on node 1; its output is in the log"))


def test_a_reason_that_the_meeting_has_stays_and_a_meeting_that_is_gone_costs_nothing(
    part: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part.store.set("bench/failed", json.dumps(FULL))
    part.code, part.during = 1, (tmp_path / "begun").touch
    assert do(OTHER, tmp_path) == 1
    assert json.loads(part.store.get("bench/failed")) == FULL
    (tmp_path / "events").unlink()
    part.kills = [0, 0]
    monkeypatch.setattr(several, "meeting", lambda *_: (_ for _ in ()).throw(dist.DistNetworkError("gone")))
    assert do(OTHER, tmp_path) == 1


# --- a member ---------------------------------------------------------------------------------------------

MEMBER = {
    "BENCH_NODE": "1", "BENCH_DEVICE": "cuda", "BENCH_ADDRESS": "10.0.0.2", "RANK": "0", "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2",
}  # fmt: skip


def told(**changes: Any) -> dict[str, Any]:
    return {
        "node": 0,
        "devices": [2, "cuda"],
        "bench": node_member.__version__,
        "address": "10.0.0.1",
    } | changes


def placed(monkeypatch: pytest.MonkeyPatch, interface: str | None, **changes: str) -> tuple[Any, Any, Any]:
    """Place a member beside one of node 0; return its environment, what it told, and whom it asked about."""
    store, asked = dist.HashStore(), list[Any]()
    store.set("bench/node/1", json.dumps(told()))
    monkeypatch.setattr(several, "interface_among", lambda *given: asked.append(given) or interface)
    environment = node_member.place(store, MEMBER | changes)
    return environment, json.loads(store.get("bench/node/0")), asked


def test_a_member_tells_how_it_was_started_and_gets_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    environment, mine, asked = placed(monkeypatch, "eth0")
    assert environment == {"RANK": "3", "GLOO_SOCKET_IFNAME": "eth0"}
    assert mine == told(node=1, address="10.0.0.2")
    assert asked == [("10.0.0.2", ["10.0.0.1"])]  # only members of other nodes
    assert placed(monkeypatch, None)[0] == {"RANK": "3"}
    assert placed(monkeypatch, "eth0", GLOO_SOCKET_IFNAME="ib0")[0] == {"RANK": "3"}
    assert placed(monkeypatch, None, LOCAL_RANK="0")[0] == {"RANK": "2"}


@pytest.mark.parametrize(
    ("members", "message", "advice"),
    [
        (
            [told(node=2, bench="9"), told(node=1)],
            f"node 1 has bench {node_member.__version__}, node 2 has 9",
            "install the same version on all nodes",
        ),
        (
            [told(node=1, devices=[4, "cuda"]), told(devices=[2, "cpu"])],
            "node 0 trains on 2 processes of its CPU, node 1 on 4 GPUs",
            '"gpus" in the manifest counts those of each node; CUDA_VISIBLE_DEVICES selects them',
        ),
        (
            [told(node=node) for node in (0, 0, 3, 3, 3, 1, 1, 1)],
            "more than one node was started with --node 1",
            "give each node a number of its own, 0 to 3",
        ),
    ],
)
def test_members_that_do_not_fit_together_are_told(
    members: list[dict[str, Any]], message: str, advice: str
) -> None:
    with pytest.raises(EnvironmentCannot) as caught:
        node_member._require_fitting(members)
    assert (caught.value.message, caught.value.advice) == (message, advice)


def test_members_that_fit_together_are_told_nothing() -> None:
    node_member._require_fitting([told(node=node) for node in (1, 1, 0, 0)])


def events(
    folder: Path, monkeypatch: pytest.MonkeyPatch, rank: str, leads: bool, *say: Any
) -> list[Any] | None:
    """Return what a member's callback sends to its supervisor; None if it does not connect."""
    monkeypatch.setenv("LOCAL_RANK", rank)
    monkeypatch.setenv("BENCH_EVENTS", str(folder / "events"))
    monkeypatch.setenv("BENCH_JOB", "{}") if leads else monkeypatch.delenv("BENCH_JOB", raising=False)
    with socket.socket(socket.AF_UNIX) as listener:
        with several.short_path(folder / "events") as path:
            listener.bind(path)
        listener.listen()
        emit = node_member.report_to_supervisor(*say)
        emit({"step": 1})
        if emit is node_member.silent and rank != "0":
            return None
        connection, _ = listener.accept()
        connection.settimeout(PATIENCE_SECONDS)
        with connection:
            return [json.loads(line) for line in connection.recv(4096).splitlines()]


def test_the_first_member_of_the_leader_passes_on_all_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert events(tmp_path, monkeypatch, "0", True, "facts") == [{"step": 1}]


def test_the_first_member_of_another_node_tells_the_job_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert events(tmp_path, monkeypatch, "0", False, "last", "why") == [{"followed": "last", "why": "why"}]


def test_other_members_are_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert events(tmp_path, monkeypatch, "1", True, "facts") is None


def test_events_are_json_that_any_parser_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        monkeypatch.setattr(
            node_member.socket, "socket", lambda _: SimpleNamespace(connect=print, sendall=print)
        )
        monkeypatch.setenv("LOCAL_RANK", "0")
        monkeypatch.setenv("BENCH_JOB", "{}")
        monkeypatch.setenv("BENCH_EVENTS", str(tmp_path / "events"))
        node_member.report_to_supervisor("facts")({"loss": float("nan")})


def test_a_crash_waits_for_the_reason_of_another_member(monkeypatch: pytest.MonkeyPatch) -> None:
    store, slept = dist.HashStore(), list[float]()
    monkeypatch.setattr(node_member.time, "sleep", slept.append)
    assert node_member.cause(FULL, store) == FULL
    assert slept == []
    assert node_member.cause(to_json(Crashed("then")), store) == FULL
    assert slept == [2.0]


class Ended(BaseException):
    """The end of this process, where a test runs in it."""


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """Let a member work without devices and torchrun; it is rank 5 after it was placed."""
    made = SimpleNamespace(
        store=dist.HashStore(), said=[], work=lambda *_: None, devices=[], placed={"RANK": "5"}, meetings=[]
    )
    device = SimpleNamespace(choose=lambda: made.devices.append("chosen"))

    def report(kind: str, why: str | None = None) -> Any:
        made.said.append((kind, why))
        return made.said.append

    def place(store: Any, environment: Any) -> Mapping[str, str]:
        assert store is made.store and environment is os.environ
        if isinstance(made.placed, Exception):
            raise made.placed
        return made.placed

    monkeypatch.setattr(node_member.Device, "own", lambda kind: made.devices.append(kind) or device)
    monkeypatch.setattr(several, "meeting", lambda *where: made.meetings.append(where) or made.store)
    monkeypatch.setattr(node_member, "place", place)
    monkeypatch.setattr(
        node_member, "end_with_others", lambda folder, rank: made.said.append(rank) or threading.Lock()
    )
    monkeypatch.setattr(node_member, "work", lambda *given: made.work(*given))  # noqa: PLW0108  # set later
    monkeypatch.setattr(node_member, "report_to_supervisor", report)
    monkeypatch.setattr(node_member.os, "_exit", lambda code: (_ for _ in ()).throw(Ended(code)))
    monkeypatch.setattr(node_member.traceback, "print_exc", lambda: made.said.append("traceback"))
    own = {
        "BENCH_DEVICE": "cuda", "BENCH_FOLDER": str(tmp_path), "BENCH_STORE": "127.0.0.1:4000", "RANK": "1",
        "TORCHELASTIC_RUN_ID": "abc-7", "OMP_NUM_THREADS": "6",
    }  # fmt: skip
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.mark.parametrize("own_threads", [True, False])
def test_a_member_works_at_its_place(
    member: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_threads: bool
) -> None:
    """The number of threads that bench chose is no switch of the user's."""
    worked: list[Any] = []
    member.work = lambda *given: worked.append((given, os.environ["RANK"]))
    monkeypatch.setenv("BENCH_OWN_THREADS", "yes") if own_threads else None
    assert node_member.main() == 0
    ((kind, device, folder, store), rank) = worked[0]
    assert (kind, folder, store, rank) == ("cuda", tmp_path, member.store, "5")
    assert device and member.devices == ["cuda", "chosen"]
    assert member.meetings == [("127.0.0.1:4000", "abc-7")]
    assert (tmp_path / "begun").exists() and member.said == [5]
    assert ("OMP_NUM_THREADS" in os.environ) != own_threads and "BENCH_OWN_THREADS" not in os.environ
    monkeypatch.setenv("BENCH_DEVICE", "cpu")
    node_member.main()
    assert member.devices[2] == "cpu"


def test_members_that_do_not_fit_end_with_the_reason(member: SimpleNamespace, tmp_path: Path) -> None:
    member.placed = EnvironmentCannot("node 0 has bench 1, node 1 has 2", advice="install the same")
    assert node_member.main() == 1
    why = "node 0 has bench 1, node 1 has 2\n  install the same"
    assert member.said == [("last", why)]
    assert written_reasons(tmp_path) == {1: to_json(Crashed(why))}


def test_a_member_that_fails_writes_the_first_reason_of_all(
    member: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("boom")

    member.work = fails
    member.store.set("bench/failed", json.dumps(FULL))
    monkeypatch.setattr(node_member.time, "sleep", lambda _: None)
    with pytest.raises(Ended, match="1"):
        node_member.main()
    assert written_reasons(tmp_path) == {5: FULL}
    assert member.said == [5, "traceback"]


def test_a_member_whose_disk_is_full_says_so(
    member: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    full = OutOfMemory("host", "no room")
    member.work = lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    monkeypatch.setattr(
        node_member, "no_room", lambda error, folder: asked.append((error.errno, folder)) or full
    )
    with pytest.raises(Ended):
        node_member.main()
    assert (written_reasons(tmp_path), asked) == ({5: to_json(full)}, [(28, tmp_path)])


def test_a_member_that_fails_first_tells_why(
    member: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    member.work = lambda *_: (_ for _ in ()).throw(ValueError("boom"))
    monkeypatch.setattr(node_member.time, "sleep", lambda _: None)
    with pytest.raises(Ended):
        node_member.main()
    assert "boom" in written_reasons(tmp_path)[5]["reason"]
    assert json.loads(member.store.get("bench/failed")) == written_reasons(tmp_path)[5]


class Team:
    """A team of two members, of which the other has `other`'s job."""

    def __init__(self, other: Any) -> None:
        self._other, self.gathered, self.waited = other, list[Any](), 0

    def gather(self, mine: Any) -> list[Any]:
        self.gathered.append(mine)
        return [mine, self._other]

    def wait(self) -> None:
        self.waited += 1


def works(monkeypatch: pytest.MonkeyPatch, job: Any, mine: bool) -> tuple[Team, list[Any], list[Any]]:
    """Let a member work; return its team, what it told its supervisor, and what was dispatched."""
    message = to_json(job)
    team, said, dispatched = Team(None if mine else message), list[Any](), list[Any]()
    monkeypatch.setenv("BENCH_JOB", json.dumps(message)) if mine else monkeypatch.delenv(
        "BENCH_JOB", raising=False
    )

    def join(kind: str, alone: bool, store: Any) -> Team:
        assert (kind, alone) == ("cuda", False) and isinstance(store, dist.PrefixStore)
        store.set("x", "of the team")
        return team

    def report(*given: Any) -> Any:
        said.append(given)
        return said.append

    monkeypatch.setattr(node_member.team, "join", join)
    monkeypatch.setattr(node_member, "report_to_supervisor", report)
    monkeypatch.setattr(node_member, "dispatch", lambda *given: dispatched.append(given) or {"facts": []})
    store = dist.HashStore()
    node_member.work("cuda", "a device", Path("folder"), store)  # type: ignore[arg-type]
    assert store.get("team/x") == b"of the team"
    return team, said, dispatched


@pytest.mark.parametrize("mine", [True, False])
def test_members_get_the_job_from_the_leaders_and_report_its_end_together(
    monkeypatch: pytest.MonkeyPatch, mine: bool
) -> None:
    job = FactsJob(nodes=LEADER, number=7, gpus=4, device="cuda")
    team, said, ((given, device, members, folder, emit),) = works(monkeypatch, job, mine)
    assert (given, device, members, folder) == (job, "a device", team, Path("folder"))
    assert emit == said.append
    assert (said, team.waited) == ([("facts",), {"facts": []}], 1)
    assert team.gathered == [to_json(job) if mine else None]


def test_the_last_job_is_only_told(monkeypatch: pytest.MonkeyPatch) -> None:
    job = LastJob(nodes=LEADER, number=7, gpus=4, device="cuda", why="an error")
    team, said, dispatched = works(monkeypatch, job, False)
    assert (said, dispatched, team.waited) == ([("last", "an error")], [], 0)


@pytest.mark.parametrize("gone", [False, True])
def test_a_member_ends_with_the_first_that_fails_or_with_the_meeting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    waited: list[Any] = []
    ended = threading.Event()

    class Store:
        def wait(self, keys: list[str], patience: timedelta) -> None:
            waited.append((keys, patience))
            if gone:
                raise dist.DistNetworkError("Connection reset")

        def get(self, key: str) -> bytes:
            assert key == "bench/failed"
            return json.dumps(FULL).encode()

    def end(code: int) -> None:
        waited.append(code)
        ended.set()

    monkeypatch.setenv("BENCH_STORE", "127.0.0.1:4000")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "abc-7")
    monkeypatch.setattr(several, "meeting", lambda *where: waited.append(where) or Store())
    monkeypatch.setattr(node_member.os, "_exit", end)
    lock = node_member.end_with_others(tmp_path, 5)
    assert ended.wait(PATIENCE_SECONDS)
    with lock:
        assert waited == [("127.0.0.1:4000", "abc-7"), (["bench/failed"], timedelta(days=7)), 1]
    lost = to_json(Crashed("the meeting's store is gone, and the leader with it"))
    assert written_reasons(tmp_path) == {5: lost if gone else FULL}
