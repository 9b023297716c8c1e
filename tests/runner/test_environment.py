"""The environment that a run reports, and the environments in which it refuses to run."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.names import ENVIRONMENT_VARIABLE
from bench.base.strict_json import to_json
from bench.planning.manifest import Manifest, parse_manifest
from bench.records.text import software_digest, software_line
from bench.records.trial import Environment, NodeFacts
from bench.report.reproduce.verdicts import stack_differences
from bench.runner.machine.own_environment import environment_here, require_environment
from bench.runner.machine.probe import all_packages

HERE = Environment("cpu", "sha256:1", "3.11.2", "b" * 64, "c" * 64, ("deepspeed",), ("no new privileges",))
PREFIX = f"/home/me/.bench/environments/{HERE.digest.removeprefix('sha256:')}"


def told(value: object) -> dict[str, str]:
    return {ENVIRONMENT_VARIABLE: value if isinstance(value, str) else json.dumps(value)}


def test_the_environment_is_the_one_whose_folder_python_runs_from() -> None:
    assert environment_here(told(to_json(HERE)), PREFIX) == HERE
    assert environment_here(told(to_json(HERE)), "/usr") is None  # left over from another process
    assert environment_here({}, PREFIX) is None


@pytest.mark.parametrize("text", ["no json", "[]", '{"variant": 1}', '{"unknown": ""}'])
def test_a_malformed_description_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="does not say which environment this is"):
        environment_here(told(text), PREFIX)


def manifest(**more: str) -> Manifest:
    document = {"schema": "bench/manifest/v1", "models": ["tiny-vit"], "methods": "naive"}
    return parse_manifest(json.dumps(document | more).encode(), "m.json")


def test_a_manifest_runs_only_in_its_own_environment() -> None:
    wanted = manifest(environment=HERE.digest)
    require_environment(wanted, HERE)
    require_environment(manifest(), None)
    require_environment(manifest(), HERE)
    for other in (None, replace(HERE, files="d" * 64)):
        with pytest.raises(EnvironmentCannot, match=f"asks for the environment {HERE.digest}"):
            require_environment(wanted, other)


def test_a_manifest_cannot_ask_for_an_image_and_an_environment() -> None:
    digest = "sha256:" + "a" * 64
    with pytest.raises(BadInput) as caught:
        manifest(image=digest, environment=digest)
    (mistake,) = caught.value.mistakes
    assert (mistake.path, mistake.allowed) == ("/environment", "allowed: one of both")


def test_tables_say_whether_a_figure_is_from_an_image_or_an_environment() -> None:
    node = NodeFacts("cpu", 1, 2**40, "os", "kernel", "3", environment=HERE)
    assert software_digest(node) == ("environment", HERE.digest)
    kind, text = software_line(node)
    assert kind == "environment"
    assert text == f"cpu {HERE.digest}, Python 3.11.2, without deepspeed; no container"
    assert software_digest(replace(node, environment=None)) == ("image", "none")


def test_another_environment_is_another_software_stack() -> None:
    node = NodeFacts("cpu", 1, 2**40, "os", "kernel", "3", environment=HERE)
    assert list(stack_differences(node, node)) == []
    differing = list(stack_differences(node, replace(node, environment=None)))
    assert differing == [f"environment {HERE.digest} here, image none there"]
    freer = replace(node, environment=replace(HERE, confinement=()))
    assert list(stack_differences(node, freer)) == []  # the same software, confined otherwise


def test_a_node_without_an_environment_has_the_json_of_older_bundles() -> None:
    node = NodeFacts("cpu", 1, 2**40, "os", "kernel", "3")
    assert "environment" not in to_json(node)
    assert to_json(replace(node, environment=HERE))["environment"]["files"] == "c" * 64


def test_a_package_that_is_installed_between_two_runs_of_a_process_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for number, name in enumerate(("first", "second"), 1):
        (tmp_path / f"{name}-1.0.dist-info").mkdir()
        (tmp_path / f"{name}-1.0.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n\nx")
        os.utime(tmp_path, (number, number))  # the clock of a file system may be coarse
        assert all_packages()[name] == "1.0"
    assert all_packages()["first"] == "1.0"
