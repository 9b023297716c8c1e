"""Nodes without a container engine: which Python is chosen, and how a run in an environment starts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bench.cli.main import main
from bench.images.variants import find_variant
from bench.node_check.check_manifest import load_any
from bench.planning.manifest import parse_manifest
from bench.push import run_script
from bench.push.hosts import Host
from bench.push.image_store import ImageStore
from bench.push.node_findings import Need, judge, python_for
from bench.push.node_survey import InstalledEngine, NodePython, Survey, read_survey
from bench.push.push_record import Records
from bench.push.push_to_node import NodePush
from bench.push.request import HostPart, PushRequest, Shared
from bench.push.run_script import Job
from tests.push.test_mirror import KEY
from tests.push.test_node_survey import ANSWERS
from tests.push.test_push_to_node import QUICKSTART, Silent

CPU, CUDA = find_variant("cpu"), find_variant("cuda13")
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


def test_where_no_engine_is_installed_the_environment_is_chosen_and_said(tmp_path: Path) -> None:
    one, said = push(tmp_path)
    chosen = one._choose(survey(P311))
    assert (chosen.engine, chosen.variant, chosen.python) == ("venv", CPU, P311)
    assert said == ["gpu1: has no container engine: the locked environment is installed (--engine venv)"]


def test_it_is_not_chosen_where_an_engine_is_broken_or_an_image_is_named(tmp_path: Path) -> None:
    broken = {"docker": InstalledEngine(None, "permission denied")}
    for node, options in (
        (survey(P311, **broken), {}),
        (survey(P311), {"image": "bench:cpu"}),
        (survey(P310), {}),
    ):
        one, said = push(tmp_path, **options)
        assert one._choose(node).engine == "docker"
        assert said == []
    named = b'{"schema": "bench/manifest/v1", "models": ["tiny-vit"], "image": "%s"}' % DIGEST.encode()
    assert push(tmp_path, named)[0]._choose(survey(P311)).engine == "docker"


def test_a_manifest_that_names_an_environment_takes_no_other_engine(tmp_path: Path) -> None:
    named = b'{"schema": "bench/manifest/v1", "models": ["tiny-vit"], "environment": "%s"}' % DIGEST.encode()
    assert push(tmp_path, named)[0]._engines == ("venv",)


def test_the_variant_follows_the_driver_or_the_option(tmp_path: Path) -> None:
    node = survey(P312)
    gpu = dataclasses.replace(node, host=dataclasses.replace(node.host, driver="580.95.05"))
    one, _ = push(tmp_path, engine="venv", on_cpu=False)
    chosen = one._choose(gpu)
    assert (chosen.variant, chosen.python) == (CUDA, P312)
    named, _ = push(tmp_path, engine="venv", on_cpu=False, variant="cpu")
    assert named._choose(gpu).variant == CPU


# --- the run --------------------------------------------------------------------------------------------


def test_a_run_starts_confined_in_its_environment() -> None:
    job = Job(
        "aaaa00000000", "/home/me/.bench", "venv", "/home/me/.bench/code/1234", None, "python3", (1, 1),
        2**34, None, on_cpu=True, environment=DIGEST, data=(Path("/data/a"),),
    )  # fmt: skip
    folder = f"/home/me/.bench/environments/{DIGEST.removeprefix('sha256:')}"
    words = run_script.argv(job, None)
    assert words[: words.index("--")] == [
        f"{folder}/bin/python", "-m", "bench.environment.confined", folder, "--data", "/data/a",
    ]  # fmt: skip
    assert words[words.index("--") + 1 :][:2] == ["run", "manifest.json"]
    script = run_script.script(job)
    assert 'HOME="$PWD/tmp"' in script
    assert "ulimit -c 0" in script
    assert "BENCH_TOGETHER" not in script


# --- options --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["--engine", "none", "--index", "https://i/simple"],
            "with --engine none the node downloads nothing",
        ),
        (["--engine", "none", "--variant", "cpu"], "--variant goes with --engine venv"),
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
