"""Each step of installing an environment by itself: what is asked, sent and told, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import EnvironmentCannot
from bench.environment.identity import environment_digest
from bench.images.locked_wheels import LockedWheel
from bench.images.locks import Pin
from bench.images.variants import find_variant
from bench.push import install_environment
from bench.push.install_environment import (
    EnvironmentInstaller,
    Installed,
    InstallPlan,
    PlannedInstall,
    Shipment,
    check_room,
    choose,
    folder_of_code,
    forecast,
    here_text,
    read_plan,
    split_bytes,
)
from bench.push.locked_environment import LockedEnvironment
from bench.push.remote import CommandResult
from bench.push.shared_place import ClaimedNode, PlaceClaim
from tests.environment.made_wheels import PYTHON, make_wheel, sha256_of
from tests.push.test_ship_steps import Says, failed

VARIANT = find_variant("cpu")
PINS = {name: Pin(name, "1", frozenset({"3" * 64, "2" * 64})) for name in ("a", "b")}
KNOWN = LockedWheel("a-1-py3-none-any.whl", 700, "sha256:" + "c" * 64)
LOCKED = LockedEnvironment(VARIANT, "sha256:" + "1" * 64, PINS, ("kernel",), {"a": (KNOWN,)})
PLAN = InstallPlan(None, PYTHON, {"a": 1000}, {"b": "the index does not have it"}, (), 1e6, 10**10)
LACKS_ALL = dataclasses.replace(PLAN, sizes={}, lacking={"a": "x", "b": "y"}, index_rate=None)
PARTS = {"lock": LOCKED.lock, "python": "3.11.2", "build": "3" * 64, "files": "4" * 64}
DIGEST = environment_digest(PARTS["lock"], PARTS["python"], PARTS["build"], PARTS["files"])
DESCRIBED = {**PARTS, "digest": DIGEST}
ANSWER = {
    "python": "3.11.2", "version": "3.11", "glibc": [2, 36], "found": None, "sizes": {"a": 1000},
    "lacking": {"b": "the index does not have it"}, "troubles": [], "index_rate": 1e6, "free_bytes": 10**10,
}  # fmt: skip
OF_BENCH = "the node does not answer as bench's program does"


def installer(node: Says, **changes: Any) -> EnvironmentInstaller:
    made = EnvironmentInstaller(
        node, "/place", "/code of bench", "/usr/bin/python3", LOCKED, "https://index", None,
        lambda text: None, lambda done, total: None,
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


def plan_of(**changes: Any) -> str:
    return json.dumps({"plan": ANSWER | changes})


def claimed_by(node: Says) -> ClaimedNode:
    return ClaimedNode(node, PlaceClaim("/place", "p-0"))


@pytest.fixture
def rate(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Let this machine's line carry 2 MB a second; return the nodes for which it was measured."""
    measured: list[object] = []

    def measure(node: object) -> float:
        measured.append(node)
        return 2e6

    monkeypatch.setattr(install_environment, "measured_rate", measure)
    return measured


# --- the question ---------------------------------------------------------------------------------------


def test_the_node_is_asked_by_its_own_python_with_all_that_is_locked(rate: list[object]) -> None:
    node = Says(lambda _: plan_of())
    installer(node).ask()
    assert node.asked == [
        "cd / && umask 022 && PYTHONPATH='/code of bench' /usr/bin/python3 -P -s -B -m "
        "bench.environment.on_node plan"
    ]
    assert (node.seconds, node.most_bytes) == ([300], [2**22])
    assert json.loads(node.sent[0]) == {
        "place": "/place", "variant": "cpu", "lock": LOCKED.lock, "pins": LOCKED.pins,
        "packages": [
            ["a", "1", ["2" * 64, "3" * 64], [KNOWN.contents]],
            ["b", "1", ["2" * 64, "3" * 64], []],
        ],
        "without": ["kernel"], "index": "https://index", "sent": {},
    }  # fmt: skip


def test_the_line_is_measured_only_if_something_is_sent(rate: list[object]) -> None:
    nothing = Says(lambda _: plan_of(sizes={"a": 1, "b": 1}, lacking={}, index_rate=None))
    assert installer(nothing).ask().shipment == Shipment((), "")
    there = installer(Says(lambda _: plan_of(found=DESCRIBED))).ask()
    assert (there.plan.found, there.shipment) == (Installed(DIGEST), Shipment((), ""))
    assert rate == []
    slow = Says(lambda _: plan_of(index_rate=None))
    assert installer(slow).ask().shipment == Shipment(("b",), "b: the index does not have it", 2e6)
    assert rate == [slow]
    slower = Says(lambda _: plan_of(index_rate=1e5))
    assert installer(slower).ask().shipment.rate == 2e6
    assert rate == [slow, slower]  # once


def test_a_disk_without_room_is_told_when_the_node_is_asked(rate: list[object]) -> None:
    sent, downloaded = split_bytes(PLAN, Shipment(("b",), ""), LOCKED)
    needed = 5 * (sent + downloaded)
    installer(Says(lambda _: plan_of(free_bytes=needed))).ask()
    with pytest.raises(EnvironmentCannot, match=r"/place: .* are free, the environment and its wheels need"):
        installer(Says(lambda _: plan_of(free_bytes=needed - 1))).ask()


# --- what a node's program says -------------------------------------------------------------------------


@pytest.mark.parametrize("said", ["", "\n", "Segmentation fault", '{"plan": {}}\nKilled', "[]"])
def test_a_program_whose_last_line_is_no_object_cannot_install(said: str) -> None:
    node = Says(lambda _: CommandResult(1, said.encode(), b"No module named bench"))
    with pytest.raises(
        EnvironmentCannot, match="Python cannot install an environment: No module named bench"
    ):
        installer(node).ask()


def test_lines_before_the_last_one_are_warnings(rate: list[object]) -> None:
    assert installer(Says(lambda _: f"a warning\n{plan_of()}\n")).ask().plan.sizes == {"a": 1000}


@pytest.mark.parametrize(
    "error", [5, "text", [], {"message": 7}, {"advice": "x"}, {"message": "m", "advice": 7}]
)
def test_an_error_in_another_form_is_none_of_benchs_program(error: object) -> None:
    with pytest.raises(EnvironmentCannot) as caught:
        installer(Says(lambda _: json.dumps({"error": error}))).ask()
    assert caught.value.message == OF_BENCH


@pytest.mark.parametrize(
    ("error", "message", "advice"),
    [
        ({"message": "m\x07"}, "m?", None),
        ({"message": "m" * 601, "advice": "a" * 401}, "m" * 599 + "…", "a" * 399 + "…"),
        ({"message": "m" * 600, "advice": "a\x1b" + "a" * 398}, "m" * 600, "a?" + "a" * 398),
    ],
)
def test_an_error_of_the_program_is_cut_and_shown_without_control_characters(
    error: Mapping[str, str], message: str, advice: str | None
) -> None:
    with pytest.raises(EnvironmentCannot) as caught:
        installer(Says(lambda _: json.dumps({"error": error}))).ask()
    assert (caught.value.message, caught.value.advice) == (message, advice)


def test_an_empty_error_is_no_error(rate: list[object]) -> None:
    said = json.dumps({"error": {}, "plan": ANSWER})
    assert installer(Says(lambda _: said)).ask().plan.sizes == {"a": 1000}


# --- sending and installing -----------------------------------------------------------------------------


@dataclasses.dataclass
class Install:
    """An installation of packages on a node that answers each attempt with the next of `ends`."""

    folder: Path
    ends: list[Mapping[str, Any]]
    plan: InstallPlan = LACKS_ALL
    rate: float | None = 1e6
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    said: list[str] = dataclasses.field(default_factory=list)
    progress: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    requests: list[Any] = dataclasses.field(default_factory=list)
    written: CommandResult | str = ""
    names: str = "ab"  # of the packages

    def __post_init__(self) -> None:
        self.wheels = {name: make_wheel(self.folder / "wheels", name, "1") for name in self.names}
        pins = {name: Pin(name, "1", frozenset({sha256_of(path)})) for name, path in self.wheels.items()}
        self.locked = dataclasses.replace(LOCKED, packages=pins, wheels={})
        self.node = Says(self._answer)

    def _answer(self, script: str) -> CommandResult | str:
        if "on_node install" in script:
            lines = [
                json.dumps({"done": 1, "total": 4}),
                json.dumps({"done": "x"}),
                json.dumps(self.ends.pop(0)),
            ]
            return "\n".join(lines) + "\n"
        if "/request" in script:
            return self.written
        return "whole" if "echo whole" in script else ""

    def run(self, **changes: Any) -> Installed:
        shipment = Shipment(tuple(sorted(self.plan.lacking)), "it is offline", self.rate)
        work = installer(
            self.node, locked=self.locked, wheelhouse=self.folder / "wheels", say=self.said.append,
            progress=lambda done, total: self.progress.append((done, total)), **changes,
        )  # fmt: skip
        try:
            return work.install(PlannedInstall(self.plan, shipment), _Reads(self.node))
        finally:
            self.requests = [
                json.loads(sent)["sent"]
                for asked, sent in zip(self.node.asked, self.node.sent, strict=True)
                if "cat >" in asked and "/request" in asked
            ]

    @property
    def installed(self) -> dict[str, Any]:
        return {"installed": DESCRIBED}

    @property
    def discarded(self) -> list[str]:
        return [script for script in self.node.asked if "for f in blobs/" in script]


class _Reads(ClaimedNode):
    """A claimed node whose output arrives in pieces that no line fits into."""

    def __init__(self, node: Says) -> None:
        super().__init__(node, PlaceClaim("/place", "p-0"))

    def read(self, script: str, take: Callable[[bytes], object], *, seconds: float = 60.0) -> CommandResult:
        out = self.ask(script, seconds=seconds).out
        for start in range(0, len(out), 7):
            take(out[start : start + 7])
        return CommandResult(0, b"", b"")


def test_an_environment_that_is_there_is_used_as_it_is(tmp_path: Path) -> None:
    work = Install(tmp_path, [], dataclasses.replace(PLAN, found=Installed(DIGEST)))
    assert work.run() == Installed(DIGEST)
    (script,) = work.node.asked
    assert f"test -d /place/environments/{DIGEST.removeprefix('sha256:')[:16]}" in script


def test_an_environment_that_was_removed_meanwhile_is_planned_again(
    tmp_path: Path, rate: list[object]
) -> None:
    node = Says(lambda script: failed(1) if "test -d" in script else plan_of(found=DESCRIBED, sizes={}))
    plan = PlannedInstall(dataclasses.replace(PLAN, found=Installed(DIGEST)), Shipment((), ""))
    made = installer(node)
    assert made._still_there(plan, node).plan != plan.plan
    assert [script for script in node.asked if "on_node plan" in script]
    unfinished = PlannedInstall(PLAN, Shipment((), ""))
    assert made._still_there(unfinished, Says(lambda _: failed(1))) is unfinished


def test_what_is_sent_is_announced_with_its_size_and_time_and_removed_once_it_is_installed(
    tmp_path: Path,
) -> None:
    work = Install(tmp_path, [{"installed": DESCRIBED, "wheels": ["5" * 64]}])
    total = sum(path.stat().st_size for path in work.wheels.values())
    sent = {name: sha256_of(path) for name, path in work.wheels.items()}
    assert work.run() == Installed(DIGEST, 0, changed=True)  # the node had all pieces already
    assert work.said == [
        f"2 of 2 wheels, {total / 1000:.1f} kB, are sent over this line (it is offline): "
        "about 0 s at 8 Mbit/s"
    ]
    assert work.requests == [sent]
    assert (1, 4) in work.progress
    (discard,) = work.discarded
    assert all(f"blobs/{digest}" in discard for digest in (*sent.values(), "5" * 64))


def test_a_line_that_was_not_measured_is_measured_before_it_is_announced(
    tmp_path: Path, rate: list[object]
) -> None:
    work = Install(tmp_path, [{"installed": DESCRIBED}], rate=None)
    work.run()
    assert rate == [work.node]
    assert work.said[0].endswith("at 16 Mbit/s")


def test_nothing_is_sent_of_what_the_node_downloads(tmp_path: Path) -> None:
    plan = dataclasses.replace(PLAN, sizes={"a": 10, "b": 10}, lacking={})
    work = Install(tmp_path, [{"installed": DESCRIBED}], plan)
    assert work.run().changed
    assert (work.said, work.requests) == ([], [{}])


def test_room_is_needed_for_what_is_sent_and_downloaded(tmp_path: Path) -> None:
    size = make_wheel(tmp_path / "same", "b", "1").stat().st_size
    plan = dataclasses.replace(PLAN, sizes={"a": 1000, "b": 7000}, free_bytes=5 * (1000 + size))
    assert Install(tmp_path, [{"installed": DESCRIBED}], plan).run().changed
    with pytest.raises(EnvironmentCannot, match=r"/place: .* are free"):
        Install(tmp_path, [], dataclasses.replace(plan, free_bytes=plan.free_bytes - 1)).run()


def test_what_the_node_refuses_is_told_and_sent_once(tmp_path: Path) -> None:
    refused = {name: f"{name} was changed\x07" for name in ("b", "a")}
    plan = dataclasses.replace(PLAN, sizes={"a": 10, "b": 10}, lacking={})
    work = Install(tmp_path, [{"refused": refused}, {"installed": DESCRIBED}], plan)
    assert work.run().changed
    assert work.said[:2] == ["refused: a: a was changed?", "refused: b: b was changed?"]
    assert "2 of 2 wheels" in work.said[2] and "(b was changed?)" in work.said[2]
    assert [sorted(request) for request in work.requests] == [[], ["a", "b"]]


def test_a_package_that_is_refused_twice_ends_the_installation(tmp_path: Path) -> None:
    refused = {"b": "no", "a": "n" * 201}
    work = Install(tmp_path, [{"refused": refused}, {"refused": refused}])
    with pytest.raises(EnvironmentCannot) as caught:
        work.run()
    assert caught.value.message == "the node cannot install a: " + "n" * 199 + "…"
    assert work.discarded == []


@pytest.mark.parametrize(
    "end",
    [
        {"refused": {"c": "unknown"}},
        {"refused": ["a"]},
        {"installed": DESCRIBED, "wheels": ["../x"]},
        {"installed": DESCRIBED, "wheels": ["5" * 63]},
        {"installed": DESCRIBED, "wheels": "5" * 64},
        {"refused": {}},
    ],
)
def test_an_end_that_benchs_program_never_prints_is_refused(tmp_path: Path, end: Mapping[str, Any]) -> None:
    work = Install(tmp_path, [end])
    with pytest.raises(EnvironmentCannot) as caught:
        work.run()
    assert caught.value.message == OF_BENCH
    assert work.discarded == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    work = Install(tmp_path, [], written=failed(1, "Read-only file system"))
    with pytest.raises(EnvironmentCannot, match="/place: writing failed: Read-only file system"):
        work.run()


def test_an_installation_may_be_silent_for_a_quarter_of_an_hour(tmp_path: Path) -> None:
    work = Install(tmp_path, [{"installed": DESCRIBED}])
    work.run()
    at = next(at for at, script in enumerate(work.node.asked) if "on_node install" in script)
    assert work.node.seconds[at] == 900
    assert (
        "(cd / && umask 022 && " in work.node.asked[at]
        and ") </place/.load-p-0/request" in work.node.asked[at]
    )


def test_at_most_five_refusals_are_told(tmp_path: Path) -> None:
    refused = dict.fromkeys("gfedcba", "x")
    work = Install(tmp_path, [{"refused": refused}, {"installed": DESCRIBED}], names="abcdefg")
    work.run()
    assert [line for line in work.said if line.startswith("refused")] == [f"refused: {n}: x" for n in "abcde"]


def test_output_beyond_its_limit_ends_an_installation() -> None:
    reader = install_environment._ProgressReader(lambda done, total: None)
    reader.take(b"a" * 2**22)
    with pytest.raises(EnvironmentCannot, match="its answer is larger than 4,194,304 bytes"):
        reader.take(b"a")


def test_progress_is_read_from_whole_lines_and_the_last_one_is_kept() -> None:
    seen: list[tuple[int, int]] = []
    reader = install_environment._ProgressReader(lambda done, total: seen.append((done, total)))
    reader.take(b'{"done": 1, "to')
    assert (reader.text, seen) == ("", [])
    reader.take(
        b'tal": 2}\nno json\n[1]\n{"done": 2}\n{"done": null, "total": 2}\n{"done": 2, "total": 2}\nres'
    )
    assert seen == [(1, 2), (2, 2)]
    reader.take(b"ult\xff\n")
    assert reader.text == "result\ufffd"


@pytest.mark.parametrize(("lacking", "why"), [({"a": "offline"}, "offline"), ({}, "it is slow")])
def test_a_wheel_that_neither_the_node_nor_this_machine_has_is_named_with_both_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: Mapping[str, str], why: str
) -> None:
    asked: list[tuple[Any, ...]] = []

    def wheels(pins: Any, cache: Path, python: str, *, newest_glibc: int, fits: Callable[[str], bool]) -> Any:
        asked.append(([pin.name for pin in pins], python, newest_glibc, fits("a-1-py3-none-any.whl")))
        raise EnvironmentCannot("no connection")

    monkeypatch.setattr(install_environment, "wheels", wheels)
    plan = dataclasses.replace(PLAN, lacking=lacking)
    with pytest.raises(EnvironmentCannot) as caught:
        installer(Says(lambda _: ""))._wheels_here(plan, Shipment(("a", "b"), "it is slow"))
    assert caught.value.message == (
        f"neither the node nor this machine can get a 1: the node: {why}; here: no connection"
    )
    assert caught.value.advice is not None and "--wheelhouse DIR" in caught.value.advice
    assert asked == [(["a", "b"], "3.11", 36, True)]


def test_wheels_come_from_the_folder_first_and_the_rest_from_this_machines_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Install(tmp_path, [])
    work.wheels["b"].unlink()

    def wheels(pins: list[Pin], *_: object, **__: object) -> Mapping[str, Path]:
        assert pins, "asked for nothing"
        return {pin.name: Path("downloaded") for pin in pins}

    monkeypatch.setattr(install_environment, "wheels", wheels)
    made = installer(work.node, locked=work.locked, wheelhouse=tmp_path / "wheels")
    held = made._wheels_here(PLAN, Shipment(("a", "b"), ""))
    assert held == {"a": work.wheels["a"], "b": Path("downloaded")}
    assert made._wheels_here(PLAN, Shipment(("a",), "")) == {"a": work.wheels["a"]}


# --- decisions ------------------------------------------------------------------------------------------


def unused() -> float:
    pytest.fail("the line was measured for nothing")


@pytest.mark.parametrize(
    ("index_rate", "here", "sent", "rate"),
    [
        (12.5e6, None, ("b",), None),  # fast enough
        (12.4e6, 24.8e6, ("b",), 24.8e6),  # twice as fast is not faster
        (12.4e6, 24.9e6, ("a", "b"), 24.9e6),
        (None, None, ("b",), None),
    ],
)
def test_everything_is_sent_if_this_line_is_more_than_twice_as_fast_as_a_slow_index(
    index_rate: float | None, here: float | None, sent: tuple[str, ...], rate: float | None
) -> None:
    plan = dataclasses.replace(PLAN, index_rate=index_rate)
    shipment = choose(plan, LOCKED, unused if here is None else lambda: here)
    assert (shipment.packages, shipment.rate) == (sent, rate)
    slow = "the node's own line to its index gives 99.2 Mbit/s"
    assert shipment.why == (slow if sent == ("a", "b") else "b: the index does not have it")


def test_a_node_that_lacks_all_that_it_needs_gets_that_whatever_its_line() -> None:
    plan = dataclasses.replace(PLAN, here={"a": 5}, sizes={}, index_rate=1.0)
    assert choose(plan, LOCKED, unused) == Shipment(("b",), "b: the index does not have it")


def test_the_reason_is_the_first_trouble_or_the_first_package_by_name() -> None:
    lacking = {"b": "absent", "a": "withdrawn"}

    def why(**changes: Any) -> str:
        return choose(dataclasses.replace(PLAN, lacking=lacking, **changes), LOCKED, unused).why

    assert why() == "a: withdrawn"
    assert why(troubles=("x: refused", "y: refused")) == "the node cannot download: x: refused"
    assert choose(dataclasses.replace(PLAN, lacking={}, index_rate=None), LOCKED, unused).why == ""


@pytest.mark.parametrize(
    ("sizes", "lacking", "packages", "split"),
    [
        ({"a": 1000, "b": 50}, {}, (), (0, 1050)),
        ({"a": 1000, "b": 50}, {}, ("b",), (50, 1000)),
        ({}, {"a": "x"}, ("a",), (700, 0)),  # as the lock has it
        ({"a": 1000}, {"b": "x"}, ("b",), (VARIANT.wheel_bytes - 1000, 1000)),
        ({"a": VARIANT.wheel_bytes + 5}, {"b": "x"}, ("b",), (0, VARIANT.wheel_bytes + 5)),
        ({"a": 900}, {"a": "x"}, ("a",), (900, 0)),  # as the node's index has it
    ],
)
def test_bytes_are_those_of_the_index_then_of_the_lock_then_the_rest_of_the_variant(
    sizes: Mapping[str, int], lacking: Mapping[str, str], packages: tuple[str, ...], split: tuple[int, int]
) -> None:
    plan = dataclasses.replace(PLAN, sizes=sizes, lacking=lacking)
    assert split_bytes(plan, Shipment(packages, ""), LOCKED) == split


def test_a_forecast_has_the_bytes_the_lines_and_the_time_to_unpack_and_copy() -> None:
    plan = dataclasses.replace(PLAN, sizes={"a": 300, "b": 300_000_000}, here={"c": 800_000_000})
    made = forecast(PlannedInstall(plan, Shipment(("b",), "slow", 5e6)), LOCKED)
    assert (made.send_bytes, made.download_bytes) == (300_000_000, 300)
    assert (made.up_bytes_per_second, made.down_bytes_per_second, made.why_sent) == (5e6, 1e6, "slow")
    assert made.install_seconds == pytest.approx(4 * 300_000_300 / 60e6 + 2)
    there = forecast(
        PlannedInstall(dataclasses.replace(plan, found=Installed(DIGEST)), Shipment((), "")), LOCKED
    )
    assert there.sentence == "the environment cpu with Python 3.11 is there already"


@pytest.mark.parametrize(
    ("here", "differing", "text"),
    [
        ({}, {}, ""),
        ({"a": 5_000}, {}, " (1 of 2 packages, 5.0 kB, are there already)"),
        ({}, {"b": "2"}, " (0 of 2 packages are there already, 1 in another version or changed)"),
        (
            {"a": 5_000},
            {"b": "2"},
            " (1 of 2 packages, 5.0 kB, are there already, 1 in another version or changed)",
        ),
    ],
)
def test_what_the_nodes_own_python_has_is_told(
    here: Mapping[str, int], differing: Mapping[str, str], text: str
) -> None:
    assert here_text(dataclasses.replace(PLAN, here=here, differing=differing), LOCKED) == text


def test_wheels_need_five_times_their_size_and_copies_their_own() -> None:
    plan = dataclasses.replace(PLAN, here={"a": 100}, free_bytes=5_100)
    check_room(plan, 1_000, "/place")
    with pytest.raises(EnvironmentCannot, match=r"/place: .* are free"):
        check_room(plan, 1_001, "/place")


# --- the folder of bench's code ---------------------------------------------------------------------------

CODE = ("a" * 64, b"code")
KEPT = "/a place/code/" + "a" * 16


def folder(node: Says) -> str:
    with folder_of_code(node, PlaceClaim("/a place", "p-0"), CODE) as found:
        return found


def test_code_of_an_earlier_push_is_used_under_a_claim() -> None:
    node = Says(lambda _: "")
    assert folder(node) == KEPT
    assert [("test -d" in script, ".claim-p-0" in script) for script in node.asked] == [
        (True, False), (False, True), (True, False), (False, True),
    ]  # fmt: skip
    assert node.sent == [b""] * 4


def test_code_that_is_removed_before_it_is_claimed_is_sent() -> None:
    looks = iter([0, 1])
    node = Says(lambda script: failed(next(looks)) if "test -d" in script else "/tmp/bench-ask.x\n")
    assert folder(node) == "/tmp/bench-ask.x"


def test_code_that_is_not_there_is_in_a_folder_that_is_deleted_again() -> None:
    node = Says(lambda script: failed(1) if "test -d" in script else "/tmp/bench-ask a\n")
    assert folder(node) == "/tmp/bench-ask a"
    assert node.asked[-1] == "rm -rf '/tmp/bench-ask a'"
    assert node.sent == [b"", b"code", b""]


def test_a_folder_for_temporary_files_is_needed_and_has_an_absolute_path() -> None:
    with pytest.raises(EnvironmentCannot, match="no folder for temporary files can be written: Read-only"):
        folder(Says(lambda script: failed(1, "Read-only")))
    with pytest.raises(EnvironmentCannot, match="the node does not answer as mktemp does"):
        folder(Says(lambda script: failed(1) if "test -d" in script else "x"))


# --- reading the plan -----------------------------------------------------------------------------------


def read(**changes: Any) -> InstallPlan:
    return read_plan({"plan": ANSWER | changes}, LOCKED)


def test_a_plan_has_every_field_of_the_answer() -> None:
    found = read(here={"a": 5}, differing={"b": "2\x07"}, troubles=["x\x07"], lacking={"b": "b" * 201})
    assert found == InstallPlan(
        None, dataclasses.replace(PYTHON, executable=Path(), build=""), {"a": 1000},
        {"b": "b" * 199 + "…"}, ("x?",), 1e6, 10**10, {"a": 5}, {"b": "2?"},
    )  # fmt: skip


def test_a_plan_may_leave_out_what_it_does_not_have() -> None:
    answer = {name: ANSWER[name] for name in ("python", "version", "glibc")}
    found = read_plan({"plan": answer}, LOCKED)
    assert (found.found, found.sizes, found.lacking, found.troubles) == (None, {}, {}, ())
    assert (found.index_rate, found.free_bytes, found.here, found.differing) == (None, 0, {}, {})


def test_twenty_troubles_of_a_node_are_read() -> None:
    assert read(troubles=[f"t{n}" for n in range(25)]).troubles == tuple(f"t{n}" for n in range(20))


@pytest.mark.parametrize(
    ("rate", "is_read"), [(0.5, True), (3, True), (0, False), (-1.0, False), ("1", False)]
)
def test_a_rate_is_a_number_above_zero(rate: object, is_read: bool) -> None:
    assert read(index_rate=rate).index_rate == (rate if is_read else None)


@pytest.mark.parametrize(
    ("size", "is_size"), [(0, True), (2**50 - 1, True), (2**50, False), (-1, False), (1.0, False)]
)
@pytest.mark.parametrize("field", ["sizes", "here"])
def test_a_size_is_less_than_2_to_the_50(field: str, size: object, is_size: bool) -> None:
    if is_size:
        assert read(**{field: {"a": size}})
        return
    with pytest.raises(EnvironmentCannot, match=OF_BENCH):
        read(**{field: {"a": size}})


@pytest.mark.parametrize("field", ["sizes", "here", "lacking", "differing"])
def test_only_packages_of_the_lock_are_named(field: str) -> None:
    with pytest.raises(EnvironmentCannot, match=OF_BENCH):
        read(**{field: {"c": 1}})


@pytest.mark.parametrize("release", ["3.11.2", "3.9.0", "3.13.100rc1+aaaaaaaa"])
def test_an_environment_that_was_found_has_the_digest_of_its_parts(release: str) -> None:
    parts = PARTS | {"python": release}
    digest = environment_digest(parts["lock"], release, parts["build"], parts["files"])
    assert read(found=parts | {"digest": digest}).found == Installed(digest)


@pytest.mark.parametrize(
    "changes",
    [
        {"build": "3" * 63}, {"files": "4" * 65}, {"build": "G" * 64}, {"files": 7}, {"python": "2.7.18"},
        {"python": "3.11"}, {"python": "3.11.2.3"}, {"python": "3.111.2"}, {"python": "3.11.2 a"},
        {"lock": "sha256:" + "9" * 64}, {"digest": DIGEST[:-1] + "x"},
    ],
)  # fmt: skip
def test_an_environment_with_a_part_in_another_form_is_not_the_one_asked_for(changes: dict[str, Any]) -> None:
    """The digest follows from the parts where it can, so that each form is checked by itself."""
    parts = {**DESCRIBED, **changes}
    if "digest" not in changes:
        given = (str(parts[name]) for name in ("lock", "python", "build", "files"))
        parts["digest"] = environment_digest(*given)
    with pytest.raises(EnvironmentCannot, match=OF_BENCH):
        read(found=parts)


def test_every_part_of_an_environment_is_needed() -> None:
    for name in DESCRIBED:
        with pytest.raises(EnvironmentCannot, match=OF_BENCH):
            read(found={key: value for key, value in DESCRIBED.items() if key != name})
