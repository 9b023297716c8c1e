"""The preflight of a node that gets an image: what it chooses, tells and refuses before anything is sent."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import EnvironmentCannot
from bench.base.sizes import size_text
from bench.cli.main import main
from bench.images.archive import facts_of
from bench.images.engines import EngineFacts
from bench.push import node_preflight
from bench.push.node_preflight import ChosenEngine, NodePreflight, installer_for
from bench.push.node_survey import InstalledEngine
from bench.push.request import Result
from tests.images.stand_in_kernels import compiled_wheel, make_plain
from tests.push.test_missing_kernels import BOTH, node
from tests.push.test_without_engine import DIGEST, P311, PLAN, ROOT, Node, push, survey

Preflight = Callable[..., tuple[Result, list[str], list[Any]]]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image of cuda13 with a layer of kernels."""
    folder = tmp_path_factory.mktemp("image")
    plain, layer, out = make_plain(folder), folder / "kernels.tar", folder / "with-kernels.tar"
    wheel = compiled_wheel(folder / "wheels", "mamba-ssm", "9.0")
    command = ["image", "kernels", "cuda13", "--source", str(ROOT), "--wheels", str(wheel.parent), "-o"]
    assert main([*command, str(layer)]) == 0
    assert main(["image", "add", str(plain), str(layer), "-o", str(out)]) == 0
    return out


@pytest.fixture
def preflight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: Path) -> Preflight:
    """A preflight of a node with Docker alone, for a manifest with more fields."""
    docker = InstalledEngine(EngineFacts("docker", "27.5.1", "cdi", None))

    def run(
        manifest: dict[str, Any], driver: str = "580.95.05", **options: Any
    ) -> tuple[Result, list[str], list[Any]]:
        asked: list[Any] = []
        shown: list[str] = []
        data = json.dumps(json.loads(BOTH.data) | manifest).encode()
        given = {"engine": "docker", "image": str(image), "until": "preflight", "on_cpu": False} | options
        one, _ = push(tmp_path, data, **given)
        host = dataclasses.replace(node().host, driver=driver)
        surveyed = dataclasses.replace(node(), host=host, engines={"docker": docker})
        monkeypatch.setattr(node_preflight, "survey_node", lambda *given: asked.extend(given) or surveyed)
        monkeypatch.setattr(one.shared.view, "show", lambda result, text="": shown.append(text))
        one.node = Node(PLAN)
        return one.run(), shown, asked

    return run


def test_an_image_that_is_sent_is_told_with_its_size_and_with_who_waits_for_its_kernels(
    preflight: Preflight, image: Path
) -> None:
    result, shown, _ = preflight({})
    assert result.error is None and result.outcome == "would"
    assert result.image == facts_of(image).identity.config
    assert result.to_send_bytes and result.to_send_bytes > 0
    (takes,) = [text for text in shown if text.startswith("docker (docker 27.5.1 answers): ")]
    sent = size_text(result.to_send_bytes)
    assert takes.endswith(f"the image cuda13, at most {sent} over SSH: how long is unknown")
    (waits,) = [text for text in shown if "kernel layer, for mamba-2.8b alone" in text]
    assert "pythia" not in waits


def test_a_manifest_gets_the_image_that_it_names_and_no_other(preflight: Preflight, image: Path) -> None:
    config = facts_of(image).identity.config
    assert preflight({"image": config})[0].outcome == "would"
    error = preflight({"image": DIGEST})[0].error
    assert error is not None
    assert error.message == f"{image} is {config}, the manifest asks for {DIGEST}"


def test_a_manifest_that_names_an_environment_is_refused_in_a_container(preflight: Preflight) -> None:
    error = preflight({"environment": DIGEST})[0].error
    assert error is not None
    assert error.message == f"the manifest asks for the environment {DIGEST}; --engine docker has none"
    assert error.advice == "--engine venv"


@pytest.mark.parametrize(
    ("place", "word"), [(None, '"$HOME/.bench"'), ("/scratch/my runs", '"/scratch/my runs"')]
)
def test_a_node_is_surveyed_in_the_folder_of_its_runs(
    preflight: Preflight, place: str | None, word: str
) -> None:
    _, _, (_, surveyed_place, engines, python) = preflight({}, place=place, python="python3.12")
    assert (surveyed_place, engines, python) == (word, ("docker",), "python3.12")


def test_a_finding_stops_the_push_unless_it_goes_on(preflight: Preflight) -> None:
    old = "driver 570.124.06 is too old for the image cuda13, CUDA 13.0: it needs 580.65.06 or newer"
    stopped, shown, _ = preflight({}, driver="570.124.06")
    assert stopped.error is not None and stopped.error.message == old
    assert stopped.error.advice
    assert f"stop: {old}  ({stopped.error.advice})" in shown
    goes_on, shown, _ = preflight({}, driver="570.124.06", despite_findings=True)
    assert (goes_on.error, goes_on.outcome) == (None, "would")
    assert [finding.what for finding in goes_on.findings if finding.level == "stop"] == [old]
    assert any(text.startswith("continuing despite findings: ") for text in shown)
    assert not any(text.startswith("ok: ") for text in shown)
    assert any(text.startswith("ok: ") for text in preflight({})[1])


def test_several_findings_stop_with_their_number(preflight: Preflight) -> None:
    error = preflight({"gpus": 4}, driver="570.124.06")[0].error
    assert error is not None and error.message.endswith(" (and 1 more)")


def test_a_node_for_the_cpu_is_not_told_of_kernels_for_gpus(preflight: Preflight) -> None:
    assert any(finding.what.startswith("without ") for finding in preflight({})[0].findings)
    assert not any(finding.what.startswith("without ") for finding in preflight({}, on_cpu=True)[0].findings)


# --- environments -----------------------------------------------------------------------------------------


def test_an_environment_without_a_lock_on_this_machine_is_no_choice(tmp_path: Path) -> None:
    one, _ = push(tmp_path, source=tmp_path)
    choice, _ = NodePreflight(one)._choose(survey(P311))
    assert [finding.level for finding in choice.findings] == ["stop"]
    assert str(tmp_path) in choice.findings[0].what


def test_nothing_is_installed_without_a_python_that_fits(tmp_path: Path) -> None:
    one, _ = push(tmp_path)
    with pytest.raises(EnvironmentCannot, match="has no Python for the locked wheels") as refused:
        installer_for(one, ChosenEngine(survey(), "venv", None), "code")
    assert refused.value.advice == "--python FILE"
