"""Nodes without a container engine: which Python is chosen, and how a run in an environment starts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from bench.base.errors import BadInput
from bench.cli.main import main
from bench.images.engines import EngineFacts
from bench.images.variants import find_variant
from bench.node_check.check_manifest import load_any
from bench.planning.manifest import parse_manifest
from bench.push import node_preflight, run_script
from bench.push.hosts import Host
from bench.push.image_store import ImageStore
from bench.push.node_findings import Need, python_for
from bench.push.node_preflight import NodePreflight
from bench.push.node_survey import InstalledEngine, NodePython, Survey, read_survey
from bench.push.push_record import Records
from bench.push.push_to_node import NodePush
from bench.push.remote import CommandResult, Here
from bench.push.request import HostPart, PushRequest, Result, Shared, to_json
from bench.push.run_script import Job
from bench.push.slurm import Slurm
from tests.push.judged import judge
from tests.push.test_mirror import KEY
from tests.push.test_node_survey import ANSWERS
from tests.push.test_push_to_node import QUICKSTART, Silent

CPU, CUDA = find_variant("cpu"), find_variant("cuda13")
ROOT = Path(__file__).parents[2]
DIGEST = "sha256:" + "ab" * 32
ENGINES = ("docker", "podman", "apptainer", "venv")


def survey(*pythons: NodePython, **engines: InstalledEngine) -> Survey:
    lines = "\n".join(f"{python.version} {python.path}" for python in pythons)
    answers = {name: answer for name, answer in ANSWERS.items() if not name.startswith("docker")}
    found = read_survey(answers | {"pythons": (0, lines)}, 1763730000.5, ENGINES)
    return dataclasses.replace(found, engines={**found.engines, **engines})


P310, P311, P312, P313 = (NodePython(f"3.{minor}", f"/usr/bin/python3.{minor}") for minor in range(10, 14))


# --- preflight ------------------------------------------------------------------------------------------


def test_the_survey_lists_each_python_once() -> None:
    assert survey(P311, P312, P311).pythons == (P311, P312)


def test_the_images_python_is_preferred_and_another_is_taken_where_the_lock_allows_it() -> None:
    assert python_for(survey(P313, P312, P311), CUDA) == P311
    assert python_for(survey(P310, P313), CUDA) == P313
    assert python_for(survey(P310, P313), CPU) is None
    assert python_for(survey(), CPU) is None


def findings(node: Survey) -> list[tuple[str, str]]:
    found = judge(node, Need("venv", CPU, on_cpu=True, gpus=None))
    return [(finding.what, finding.advice) for finding in found if finding.level == "stop"]


def test_a_node_without_a_fitting_python_is_told_which_to_install() -> None:
    assert findings(survey(P311)) == []
    ((what, advice),) = findings(survey(P310, P313))
    assert what == "it has 3.10, 3.13; the locked wheels of cpu are for Python 3.11"
    assert advice == "apt-get install python3.11 on the node; or name its path: --python FILE"
    ((what, _),) = findings(survey())
    assert what.startswith("it has no Python 3;")


def test_a_full_home_is_told_to_be_freed_or_left() -> None:
    ((what, advice),) = findings(dataclasses.replace(survey(P311), place_free_bytes=300 * 10**6))
    assert what.endswith(": 286 MiB are free, a run needs 1.0 GiB")
    assert advice == "free some space on this disk, or choose a folder on another: --place DIR"


def test_a_python_that_lacks_compiled_modules_is_not_taken() -> None:
    minimal = NodePython("3.11", "/usr/bin/python3.11", ("_ctypes", "_ssl"))
    node = dataclasses.replace(survey(), pythons=(minimal, P312))
    assert python_for(node, CPU) is None
    assert python_for(node, CUDA) == P312
    ((what, _),) = findings(node)
    assert what.startswith("it has 3.11 without _ctypes, _ssl, 3.12; the locked wheels of cpu are for")


@pytest.mark.parametrize(
    ("libc", "brings", "told"),
    [
        ("glibc 2.36", True, None),
        ("glibc 2.39", True, None),
        ("glibc 2.39", False, "are for Python 3.11"),
        ("glibc 2.35", True, "are for Python 3.11; the Python that bench brings needs glibc 2.36"),
        (None, True, "are for Python 3.11; the Python that bench brings needs glibc 2.36"),
    ],
)
def test_a_node_can_have_benchs_own_python_unless_its_c_library_is_too_old(
    libc: str | None, brings: bool, told: str | None
) -> None:
    node = dataclasses.replace(survey(P310), libc=libc)
    found = judge(node, Need("venv", CPU, on_cpu=True, gpus=None, brings_python=brings))
    stops = [finding.what for finding in found if finding.level == "stop"]
    assert [text.endswith(told or "") for text in stops] == ([True] if told else [])


# --- which engine ---------------------------------------------------------------------------------------


def push(tmp_path: Path, manifest: bytes | None = None, **options: object) -> tuple[NodePush, list[str]]:
    said: list[str] = []

    class Says(Silent):
        def say(self, text: str) -> None:
            said.append(text)

    parsed = parse_manifest(manifest, "m.json") if manifest else load_any(QUICKSTART)
    given = {"engine": "auto", "on_cpu": True} | options
    request = PushRequest(manifest=parsed, out=tmp_path, key=KEY, **given)  # type: ignore[arg-type]
    shared = Shared(Records(tmp_path / "runs"), ImageStore(print), Says())
    return NodePush(HostPart(Host("gpu1", "gpu1"), local=True), request, shared), said


def test_where_no_engine_is_installed_the_environment_is_chosen(tmp_path: Path) -> None:
    one, _ = push(tmp_path)
    choice, image = NodePreflight(one)._choose(survey(P311))
    assert (choice.engine, choice.need.variant, image) == ("venv", CPU, None)
    assert choice.why == "docker, podman, apptainer: not installed"


def test_an_image_that_is_not_on_this_machine_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where no image was built
    monkeypatch.setenv("PATH", "")  # and no engine is installed
    answering = {"podman": InstalledEngine(EngineFacts("podman", "4.9.3", None, None))}
    one, _ = push(tmp_path, source=ROOT)
    choice, image = NodePreflight(one)._choose(survey(P311, **answering))
    assert (choice.engine, image) == ("venv", None)
    assert "podman: the image for no GPU is not on this machine" in choice.why
    with pytest.raises(BadInput, match="no such file"):
        NodePreflight(push(tmp_path, image="mine.tar")[0])._choose(survey(P311, **answering))


def test_a_request_for_an_image_is_never_answered_with_an_environment(tmp_path: Path) -> None:
    named = b'{"schema": "bench/manifest/v1", "models": ["tiny-vit"], "image": "%s"}' % DIGEST.encode()
    for one, _ in (
        push(tmp_path, image="bench:cpu"),
        push(tmp_path, named),
        push(tmp_path, slurm=Slurm()),
    ):
        choice, _ = NodePreflight(one)._choose(survey(P311))
        assert (choice.engine, choice.findings[0].level) == ("docker", "stop")


def test_a_manifest_that_names_an_environment_takes_no_other_engine(tmp_path: Path) -> None:
    named = b'{"schema": "bench/manifest/v1", "models": ["tiny-vit"], "environment": "%s"}' % DIGEST.encode()
    assert push(tmp_path, named)[0].engines == ("venv",)


def test_the_variant_follows_the_driver_or_the_option(tmp_path: Path) -> None:
    node = survey(P312)
    gpu = dataclasses.replace(node, host=dataclasses.replace(node.host, driver="580.95.05"))
    one, _ = push(tmp_path, engine="venv", on_cpu=False)
    assert NodePreflight(one)._choose(gpu)[0].need.variant == CUDA
    named, _ = push(tmp_path, engine="venv", on_cpu=False, variant="cpu")
    assert NodePreflight(named)._choose(gpu)[0].need.variant == CPU


# --- what is said before anything is sent ---------------------------------------------------------------


class Node(Here):
    """A node without an engine, whose index answers with `plan`; it notes the files that it gets."""

    def __init__(self, plan: dict[str, object]) -> None:
        self._plan, self.received = plan, 0

    def ask(
        self, script: str, pieces: Iterable[bytes] = (), *, seconds: float = 60.0, most_bytes: int = 2**20
    ) -> CommandResult:
        self.received += sum(map(len, pieces))
        if "on_node plan" in script:
            return CommandResult(0, json.dumps({"plan": self._plan}).encode(), b"")
        if "mktemp" in script:
            return CommandResult(0, b"/tmp/bench-ask.1\n", b"")
        return CommandResult(1 if "test -d" in script else 0, b"", b"")


PLAN = {
    "python": "3.11.2", "version": "3.11", "glibc": [2, 36], "found": None, "sizes": {"torch": 192_000_000},
    "lacking": {}, "troubles": [], "index_rate": 50e6, "free_bytes": 10**12,
}  # fmt: skip


def dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: Survey, **plan: object
) -> tuple[Result, list[str], Node]:
    shown: list[str] = []
    one, _ = push(tmp_path, until="preflight", source=ROOT)
    monkeypatch.setattr(node_preflight, "survey_node", lambda *_: node)
    monkeypatch.setattr(one.shared.view, "show", lambda result, text="": shown.append(text))
    one.node = answering = Node(PLAN | plan)
    return one.run(), shown, answering


def test_a_dry_run_says_the_choice_its_reason_and_how_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, shown, node = dry_run(tmp_path, monkeypatch, survey(P311))
    assert (
        "venv (docker, podman, apptainer: not installed): the environment cpu with Python 3.11, "
        "192.0 MB from the node's own index at 400 Mbit/s: about 17 s"
    ) in shown
    assert (result.outcome, result.to_send_bytes) == ("would", 0)
    said = to_json(result)
    assert said["engine_reason"] == "docker, podman, apptainer: not installed"
    assert said["expected_seconds"] == pytest.approx(16.64, abs=0.01)
    assert node.received < 2_000_000, "only the code that asks was sent"


def test_a_disk_that_cannot_hold_the_environment_stops_in_preflight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, _, _ = dry_run(tmp_path, monkeypatch, survey(P311), free_bytes=500_000_000)
    assert result.error is not None
    assert "500.0 MB are free, the environment and its wheels need 960.0 MB" in result.error.message
    assert result.error.advice is not None and "--place DIR" in result.error.advice
    assert (result.phase, len(result.findings)) == ("preflight", 1)


def test_a_node_on_which_nothing_is_usable_says_so_in_preflight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, _, node = dry_run(tmp_path, monkeypatch, survey(P310))
    assert result.error is not None
    assert result.error.message.startswith("nothing there can run bench: docker, podman, apptainer: not ")
    assert (result.phase, node.received) == ("preflight", 0)


# --- the run --------------------------------------------------------------------------------------------


def test_a_run_starts_confined_in_its_environment() -> None:
    job = Job(
        "aaaa00000000", "/home/me/.bench", "venv", "/home/me/.bench/code/1234", None, "python3", (1, 1),
        2**34, None, on_cpu=True, environment=DIGEST, data=(Path("/data/a"),),
    )  # fmt: skip
    folder = f"/home/me/.bench/environments/{DIGEST.removeprefix('sha256:')}"
    words = run_script.argv(job, None)
    assert words[: words.index("--")] == [
        f"{folder}/bin/python", "-S", "-P", "-m", "bench.environment.confined", folder, "--data", "/data/a",
    ]  # fmt: skip
    assert words[words.index("--") + 1 :][:2] == ["run", "manifest.json"]
    script = run_script.script(job)
    assert 'HOME="$PWD/tmp"' in script
    assert "ulimit -c 0" in script
    assert "BENCH_TOGETHER" not in script
    assert "LD_LIBRARY_PATH" not in script
    brought = run_script.script(dataclasses.replace(job, libraries="/home/me/my libs"))
    assert "export LD_LIBRARY_PATH='/home/me/my libs'${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\n" in brought


# --- options --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["--engine", "none", "--index", "https://i/simple"],
            "with --engine none the node downloads nothing",
        ),
        (["--engine", "none", "--variant", "cpu"], "--variant needs --engine venv"),
        (["--engine", "venv", "--image", "x.tar"], "--image names an image, and --engine venv uses none"),
        (["--index", "nowhere"], "--index nowhere is no URL"),
        (["--index", "https://me:s3cret@i/simple"], "--index has a login, which bench sends to no node"),
        (["--wheelhouse", "/no/such"], "/no/such: no such folder"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    words: list[str],
    told: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert main(["push", str(QUICKSTART), "gpu1", *words]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert "s3cret" not in said
