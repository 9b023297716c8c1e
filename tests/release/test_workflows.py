"""Workflows of a hosted forge run the scripts that run anywhere, with no more rights than they need."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

WORKFLOWS = sorted((Path(__file__).parents[2] / ".github/workflows").glob("*.yml"))


def steps_of(path: Path) -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]]


def test_there_are_workflows() -> None:
    assert {path.name for path in WORKFLOWS} == {"operator.yml", "release.yml"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_digest_and_keep_no_login(path: Path) -> None:
    used = [step for step in steps_of(path) if "uses" in step]
    assert used
    for step in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", step["uses"])
        if step["uses"].startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
    named = re.findall(r"uses: (\S+)( # v\d+\.\d+\.\d+)?", path.read_text())
    assert all(version for _, version in named)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_rights_are_given_job_by_job_and_no_script_has_an_expression_in_it(path: Path) -> None:
    """A name of a branch or tag could otherwise be a command."""
    document = yaml.safe_load(path.read_text())
    assert document["permissions"] == {"contents": "read"}
    assert all(job.get("timeout-minutes") for job in document["jobs"].values())
    assert not [step["run"] for step in steps_of(path) if "${{" in step.get("run", "")]


def test_a_release_is_made_by_the_script_and_verified_by_the_documented_commands() -> None:
    (path,) = [path for path in WORKFLOWS if path.name == "release.yml"]
    scripts = {step["name"]: step["run"] for step in steps_of(path) if "run" in step}
    assert ".venv/bin/python -m release --key" in scripts["release"]
    documented = (path.parents[2] / "docs/release.md").read_text()
    verify = [line.strip() for line in scripts["verify"].splitlines()]
    assert len(verify) == 3 and all(line in documented for line in verify)
    assert scripts["forget the key"] == "rm -f /tmp/release-key"
