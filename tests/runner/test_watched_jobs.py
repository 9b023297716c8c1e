"""How a supervisor watches a job, second by second, on a clock and with processes that the test moves.

tests/runner/test_supervise.py does it with real processes.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.base.errors import EnvironmentCannot
from bench.records.trial import Crashed, OutOfMemory, Proving, TimedOut
from bench.runner.processes import supervisor as supervising
from bench.runner.processes.jobs import Nodes
from bench.runner.processes.supervisor import AwakeClock, Compilers, Limits, Supervisor
from tests.builders import trial

Event = dict[str, Any] | None
START: Event = {"pid": 7}
END: Event = {"exited": 0}
READ: Event = {"reading": "found"}
NOTHING: Event = None


class Machine:
    """The time, and the work of processes, as a supervisor asks for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 1000.0
        self.ticks: dict[int, int] = {}
        self.bytes = 0
        self.killed: list[int] = []
        self.asked: list[int] = []  # groups whose programs were counted
        for name, double in {
            "time": SimpleNamespace(monotonic=lambda: self.seconds),
            "kill_group": self.killed.append,
            "group_bytes": lambda group: self.bytes,
            "programs_ticks": self._programs_ticks,
            "oom_kills": lambda: 0,
        }.items():
            monkeypatch.setattr(supervising, name, double)

    def _programs_ticks(self, group: int) -> dict[int, int]:
        self.asked.append(group)
        return dict(self.ticks)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


class Played(Supervisor):
    """A supervisor whose server sends these events, each at a number of seconds after the one before."""

    def __init__(self, machine: Machine, script: Sequence[tuple[float, Event]], folder: Path, **options: Any):
        self.heard: list[Event] = []
        super().__init__([], self.heard.append, folder / "server.txt", **options)
        self._machine, self._script, self.log_file = machine, script, folder / "log.txt"
        self.sent: list[dict[str, Any]] = []
        self.closed = 0

    def _ensure_server(self) -> None:
        self._socket = cast(socket.socket, SimpleNamespace(sendall=self._send))

    def _send(self, line: bytes) -> None:
        self.sent.append(json.loads(line))

    def _events(self) -> Iterator[Event]:
        for seconds, event in self._script:
            self._machine.seconds += seconds
            yield event

    def close(self) -> None:
        self.closed += 1

    def outcome(self, limits: Limits) -> Any:
        """Run a job that is no job of a run, and return its reading or its failure."""
        return self.reading({}, self.log_file, limits)


@pytest.fixture
def play(machine: Machine, tmp_path: Path) -> Any:
    return lambda *script: Played(machine, script, tmp_path)


def silent(seconds: float) -> list[tuple[float, Event]]:
    """Ticks for a time without an event, none of which looks like the machine's sleep."""
    count = int(seconds // 5)
    return [*[(5.0, NOTHING)] * count, *([(seconds - 5 * count, NOTHING)] if seconds % 5 else [])]


# --- time -----------------------------------------------------------------------------------------------


def test_a_job_within_its_limits_has_its_result(play: Any, machine: Machine) -> None:
    owner = play((0, START), (1, NOTHING), (1, READ), (1, END))
    assert owner.outcome(Limits(60)) == "found"
    assert (machine.killed, owner.closed) == ([], 0)
    assert owner.heard == [START, NOTHING, READ, END]


def test_a_job_may_take_exactly_its_time(play: Any, machine: Machine) -> None:
    owner = play((0, START), *silent(20), (0, READ), (0, END))
    assert owner.outcome(Limits(20)) == "found"
    late = play((0, START), *silent(20), (0.1, NOTHING), (0, END))
    assert late.outcome(Limits(20)) == TimedOut(20, "start")
    assert machine.killed == [7]


def test_what_arrives_after_the_verdict_changes_nothing(play: Any, machine: Machine) -> None:
    owner = play((0, START), *silent(21), (0, READ), (0, {"phase": "steps"}), (1, NOTHING), (1, END))
    assert owner.outcome(Limits(20)) == TimedOut(20, "start")
    assert machine.killed == [7], "it is ended once"


def test_a_job_may_be_silent_for_exactly_its_silence(play: Any) -> None:
    owner = play((0, START), *silent(8), (0, {"step": 1}), *silent(8), (0, READ), (0, END))
    assert owner.outcome(Limits(60, silence_seconds=8)) == "found"
    silent_for_longer = play((0, START), (4, {"step": 1}), *silent(8), (0.1, NOTHING), (0, END))
    found = silent_for_longer.outcome(Limits(60, silence_seconds=8))
    assert found == TimedOut(8, "start: no sign of life")


def test_a_verdict_names_the_phase_that_began_last(play: Any) -> None:
    phases = [(1, {"phase": "build"}), (1, {"phase": "warm-up"}), (1, {"step": 1})]
    owner = play((0, START), *phases, *silent(21), (0, END))
    assert owner.outcome(Limits(20)) == TimedOut(20, "warm-up")


def test_a_job_has_five_minutes_of_silence_unless_its_limits_say_otherwise(play: Any) -> None:
    owner = play((0, START), *silent(300), (0, READ), (0, END))
    assert owner.outcome(Limits(inf)) == "found"
    longer = play((0, START), *silent(301), (0, END))
    assert longer.outcome(Limits(inf)) == TimedOut(300, "start: no sign of life")


def test_a_job_whose_process_is_not_known_yet_is_given_up_without_a_kill(play: Any, machine: Machine) -> None:
    owner = play(*silent(21), (0, START), (0, END))
    assert owner.outcome(Limits(20)) == TimedOut(20, "start")
    assert machine.killed == []


def test_a_killed_job_that_does_not_end_is_abandoned_with_its_server(play: Any) -> None:
    overstepping = ((0, START), *silent(21))
    in_time = play(*overstepping, *silent(15), (0, END))
    assert in_time.outcome(Limits(20)) == TimedOut(20, "start")
    assert in_time.closed == 0
    never = play(*overstepping, *silent(15), (0.1, NOTHING), (1, END))
    assert never.outcome(Limits(20)) == TimedOut(20, "start")
    assert never.closed == 1 and END not in never.heard


# --- sleep ----------------------------------------------------------------------------------------------


def test_time_in_which_the_machine_slept_does_not_count(machine: Machine) -> None:
    clock = AwakeClock()
    readings = []
    for seconds in (1.0, 10.0, 10.5, 3600.0, 2.0):
        machine.seconds += seconds
        readings.append(clock.now())
    assert [reading - 1000.0 for reading in readings] == [1.0, 11.0, 11.0, 11.0, 13.0]


def test_a_job_is_neither_late_nor_silent_after_a_sleep(play: Any) -> None:
    owner = play((0, START), *silent(15), (7200, NOTHING), *silent(5), (0, READ), (0, END))
    assert owner.outcome(Limits(20, silence_seconds=20)) == "found"


# --- compilers ------------------------------------------------------------------------------------------


def test_programs_have_worked_if_one_of_them_began_or_computed_since_the_last_look(machine: Machine) -> None:
    compilers = Compilers(100.0)  # looks every 10 seconds
    for now, ticks, worked in (
        (10.0, {}, False),
        (20.0, {5: 0}, True),
        (30.0, {5: 0}, False),
        (40.0, {5: 3}, True),
        (50.0, {5: 3}, False),
        (60.0, {5: 3, 6: 1}, True),
        (70.0, {6: 1}, False),  # 5 has ended
        (80.0, {}, False),
    ):
        machine.ticks = ticks
        assert compilers.have_worked(7, now, heard=0.0) is worked, now
    assert machine.asked == [7] * 8


def test_programs_are_not_looked_at_too_soon(machine: Machine) -> None:
    machine.ticks = {5: 3}
    compilers = Compilers(100.0)
    assert not compilers.have_worked(7, 9.9, heard=0.0)
    assert not compilers.have_worked(7, 59.9, heard=50.0), "the job said something ten seconds ago"
    assert not compilers.have_worked(None, 90.0, heard=0.0), "the job has no process yet"
    assert machine.asked == []
    assert compilers.have_worked(7, 60.0, heard=50.0)
    machine.ticks = {5: 4}
    assert not compilers.have_worked(7, 69.9, heard=0.0), "they were looked at ten seconds ago"
    assert compilers.have_worked(7, 70.0, heard=0.0)
    assert machine.asked == [7, 7]


def test_a_silent_job_lives_as_long_as_its_compilers_compute(play: Any, machine: Machine) -> None:
    owner = play((0, START), *silent(50), (0, END))

    def tick(event: Event) -> None:
        owner.heard.append(event)
        computed = min(int(machine.seconds), 1022)  # until 22 seconds after the start
        machine.ticks = {8: computed}

    owner.tick = tick
    found = owner.outcome(Limits(100, silence_seconds=15))
    assert found == TimedOut(15, "start: no sign of life")
    assert owner.heard.count({"compiling": True}) >= 4
    assert set(machine.asked) == {7}
    assert 1022 + 15 < machine.seconds <= 1050, "its silence begins when they stop"
    assert machine.killed == [7]


def test_compilers_do_not_stretch_the_time_of_a_job(play: Any, machine: Machine) -> None:
    owner = play((0, START), *silent(25), (0, END))
    owner.tick = lambda event: machine.ticks.update({8: int(machine.seconds)})
    assert owner.outcome(Limits(20, silence_seconds=15)) == TimedOut(20, "start")


# --- memory ---------------------------------------------------------------------------------------------


def test_a_job_may_use_exactly_its_memory(play: Any, machine: Machine) -> None:
    limits, script = Limits(60, host_bytes=1 << 30), ((0, START), (1, NOTHING), (1, READ), (1, END))
    machine.bytes = 1 << 30
    assert play(*script).outcome(limits) == "found"
    machine.bytes = (1 << 30) + (1 << 28)
    assert play(*script).outcome(limits) == OutOfMemory("host", "1.2 GiB used, 1.0 GiB allowed")
    assert machine.killed == [7]


def test_memory_is_measured_only_with_a_limit_and_a_process(play: Any, machine: Machine) -> None:
    machine.bytes = 1 << 40
    assert play((0, START), (1, NOTHING), (0, READ), (0, END)).outcome(Limits(60)) == "found"
    early = play((1, NOTHING), (0, START), (0, READ), (0, END))
    assert early.outcome(Limits(60, host_bytes=1)) == "found"


# --- ends -----------------------------------------------------------------------------------------------


def test_a_job_without_a_final_event_is_judged_by_its_exit(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.base.linux_processes.oom_kills", lambda: 0)
    for status, reason in (
        (9, "ended by SIGKILL during steps"),
        (3 << 8, "ended with exit code 3 during steps, without an outcome"),
        (0, "ended with exit code 0 during steps, without an outcome"),
    ):
        owner = play((0, START), (0, {"phase": "steps"}), (0, {"exited": status}))
        assert owner.outcome(Limits(60)) == Crashed(reason)
    monkeypatch.setattr("bench.base.linux_processes.oom_kills", lambda: 1)
    owner = play((0, START), (0, {"phase": "steps"}), (0, {"exited": 9}))
    assert owner.outcome(Limits(60)) == OutOfMemory("host", "the kernel ended it for memory during steps")


def test_a_server_that_ends_crashes_the_job_and_is_closed(play: Any) -> None:
    owner = play((0, START), (1, NOTHING))
    assert owner.outcome(Limits(60)) == Crashed("the process that starts trials was ended from outside")
    assert owner.closed == 1


def test_a_server_that_cannot_be_told_of_a_job_crashes_it(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(owner: Played, line: bytes) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(Played, "_send", refuse)
    owner = play()
    assert owner.outcome(Limits(60)) == Crashed("the process that starts trials was ended from outside")
    assert owner.closed == 1


def test_a_full_disk_is_no_outcome(play: Any) -> None:
    full = {"kind": "no-room", "where": "/scratch", "reason": "no room, 0 B free"}
    owner = play((0, START), (0, {"outcome": full}), (0, END))
    with pytest.raises(EnvironmentCannot, match="no room, 0 B free"):
        owner.outcome(Limits(60))


def test_a_log_is_kept_short_while_the_job_says_nothing(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    logs: list[Path] = []
    monkeypatch.setattr(supervising, "keep_short", logs.append)
    owner = play((0, START), (1, NOTHING), (1, NOTHING), (0, READ), (0, END))
    owner.outcome(Limits(60))
    assert logs == [owner.log_file] * 2


def test_closing_ends_the_job_in_flight_once_and_the_server(machine: Machine, tmp_path: Path) -> None:
    owner = Supervisor([], lambda event: None, tmp_path / "server.txt")
    owner._group = 7
    ours, theirs = socket.socketpair()
    owner._socket = ours
    with theirs, subprocess.Popen(["sleep", "600"]) as server:
        owner._server = server
        owner.close()
        assert theirs.recv(1) == b"", "it is told to end its children and itself"
        assert server.poll() == -signal.SIGKILL
    owner.close()
    assert machine.killed == [7]


# --- jobs -----------------------------------------------------------------------------------------------

CEILING = {"name": "matmul-bf16", "device": 0, "unit": "B/s", "work": 1, "samples": [1.0]}
CRASHED = {"kind": "crashed", "reason": "no luck"}
THERE = Path("/scratch")


def final(event: Mapping[str, Any]) -> tuple[tuple[float, Event], ...]:
    return (0, START), (0, dict(event)), (0, END)


def test_a_job_says_what_to_do_on_which_devices_and_where(play: Any) -> None:
    two, limits = trial(gpus=2), Limits(60)
    owner = play(*final({"outcome": CRASHED}))
    log = owner.log_file
    calls = {
        "trial": lambda: owner.trial(two, "cuda", THERE, log, limits),
        "floor": lambda: owner.floor(two, "cuda", THERE, log, limits),
        "gradient-check": lambda: owner.gradient_check(two, "cuda", THERE, log, limits),
        "proof": lambda: owner.proof(two, Proving(30, 2.0), "cuda", THERE, log, limits),
    }
    for kind, call in calls.items():
        assert call() == Crashed("no luck")
        sent = owner.sent[-1]
        assert sent["log"] == str(log)
        told = {name: sent["job"][name] for name in ("kind", "device", "gpus", "scratch")}
        gpus = 2 if kind in ("trial", "proof") else 1
        assert told == {"kind": kind, "device": "cuda", "gpus": gpus, "scratch": "/scratch"}
        assert sent["job"]["trial"]["micro_batch"] == two.micro_batch
    assert (owner.sent[-1]["job"]["steps"], owner.sent[-1]["job"]["seconds"]) == (30, 120.0)


def test_limits_of_a_machine_and_facts_of_nodes_are_measured_or_the_run_cannot_go_on(play: Any) -> None:
    owner = play(*final({"ceilings": [CEILING]}))
    (found,) = owner.ceilings(["bf16", "fp32"], "cuda", 2, owner.log_file, Limits(60))
    assert found.name == "matmul-bf16"
    job = owner.sent[0]["job"]
    assert (job["kind"], job["precisions"], job["gpus"]) == ("ceilings", ["bf16", "fp32"], 2)
    failing = play(*final({"outcome": CRASHED}))
    with pytest.raises(EnvironmentCannot) as refused:
        failing.ceilings(["bf16"], "cuda", 1, failing.log_file, Limits(60))
    assert (refused.value.message, refused.value.where) == (
        "no ceilings: crashed: no luck",
        str(failing.log_file),
    )
    with pytest.raises(EnvironmentCannot, match="no facts: crashed: no luck"):
        failing.facts("cuda", 2, failing.log_file, 60.0)


def test_nodes_have_the_whole_time_of_their_meeting_to_come(play: Any) -> None:
    owner = play((0, START), *silent(400), (0, {"facts": []}), (0, END))
    assert owner.facts("cpu", 2, owner.log_file, 400.0) == ()
    late = play((0, START), *silent(401), (0, END))
    with pytest.raises(EnvironmentCannot, match=r"no facts: timed-out: 400\.0, start"):
        late.facts("cpu", 2, late.log_file, 400.0)


def test_a_node_that_follows_waits_for_any_time_and_ends_with_the_leader(play: Any) -> None:
    waiting = [(0.0, START), *silent(4000)]
    owner = play(*waiting, (0, {"followed": "trial"}), (0, END))
    assert owner.follow(3, "cpu", 2, owner.log_file) == "trial"
    nobody = play(*final({"followed": None}))
    assert nobody.follow(3, "cpu", 2, nobody.log_file) is None
    ended = play(*final({"followed": "last", "why": "no room"}))
    with pytest.raises(EnvironmentCannot, match=r"^the leader ends the run: no room"):
        ended.follow(3, "cpu", 2, ended.log_file)


def test_nodes_count_the_jobs_of_a_run_alike(machine: Machine, tmp_path: Path) -> None:
    nodes = Nodes(2, 0, "10.0.0.1:5000", "sha256:aa")
    script = final({"outcome": CRASHED})
    leader = Played(machine, script, tmp_path, nodes=nodes)
    for _ in range(2):
        leader.trial(trial(), "cpu", THERE, leader.log_file, Limits(60))
    leader.outcome(Limits(60))  # a node check's job belongs to no run
    leader.dismiss("cpu", 2, leader.log_file, Limits(60), "no room")
    jobs = [sent["job"] for sent in leader.sent]
    assert [job.get("number") for job in jobs] == [0, 1, None, 2]
    assert jobs[0]["nodes"]["meet"] == "10.0.0.1:5000"
    assert (jobs[-1]["kind"], jobs[-1]["why"]) == ("last", "no room")
    follower = Played(machine, final({"followed": "trial"}), tmp_path, nodes=replace(nodes, node=1))
    follower.follow(5, "cpu", 2, follower.log_file)
    assert follower.sent[0]["job"]["number"] == 5, "the leader's number, not its own"


def test_a_job_on_one_node_has_no_number_and_no_nodes(play: Any) -> None:
    owner = play(*final({"outcome": CRASHED}))
    for _ in range(2):
        owner.trial(trial(), "cpu", THERE, owner.log_file, Limits(60))
        assert (owner.sent[-1]["job"]["nodes"], owner.sent[-1]["job"]["number"]) == (None, 0)
