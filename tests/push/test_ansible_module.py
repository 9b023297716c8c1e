"""The Ansible module: its arguments reach `bench push` unchanged, and its result reports every failure."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

from bench.base.names import ENGINES_OF_NODES

MODULE = Path(__file__).parents[2] / "ansible/plugins/modules/push.py"
BENCH = """#!/bin/sh
for word; do echo "$word"; done >"$(dirname "$0")/told"
echo '{"nodes": [{"changed": false, "bundle": null, "image": null, "error": null, "outcome": "done"}]}'
"""


def test_the_collection_offers_the_same_engines() -> None:
    """The module runs in Ansible's Python and cannot import bench, so it repeats the list."""
    choices = ["auto", *ENGINES_OF_NODES]
    options = next(
        ast.literal_eval(node.value)
        for node in ast.parse(MODULE.read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ARGUMENTS"
    )
    assert options["engine"]["choices"] == choices
    assert f"choices: [{', '.join(choices)}]" in MODULE.read_text()
    role = MODULE.parents[2] / "roles/push/meta/argument_specs.yml"
    assert f"choices: [{', '.join(choices)}]" in role.read_text()


def module(tmp_path: Path, script: str, **arguments: str | list[str]) -> subprocess.CompletedProcess[str]:
    """Run the module with a shell script in place of `bench` and a home directory of its own."""
    (tmp_path / "bench").write_text(script)
    (tmp_path / "bench").chmod(0o755)
    asked = {"manifest": "hour.json", "host": "gpu1", "command": "~/bench", **arguments}
    return subprocess.run(
        [sys.executable, str(MODULE)],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": asked}),
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        text=True,
        check=False,
        capture_output=True,
    )


def told(tmp_path: Path, **arguments: str | list[str]) -> list[str]:
    """The arguments with which the module calls `bench`."""
    done = module(tmp_path, BENCH, **arguments)
    assert done.returncode == 0, done.stdout
    return (tmp_path / "told").read_text().splitlines()


def test_a_place_on_the_host_is_not_one_of_the_controller(tmp_path: Path) -> None:
    words = told(tmp_path, place="$HOME/scratch", python="~/env/bin/python")
    assert words[words.index("--place") + 1] == "$HOME/scratch"
    assert words[words.index("--python") + 1] == "~/env/bin/python"


def test_a_controller_without_bench_is_told_what_to_do(tmp_path: Path) -> None:
    done = module(tmp_path, BENCH, command="no-such-bench")
    assert done.returncode == 1
    assert json.loads(done.stdout)["msg"] == (
        "no-such-bench cannot be started: No such file or directory "
        "(pip install it on the controller, or set push_command to its path)"
    )


def test_files_of_the_controller_may_lie_in_its_home(tmp_path: Path) -> None:
    words = told(tmp_path, manifest="~/hour.json", image="~/bench-cuda13.tar", key="$HOME/key.pub")
    assert words[:2] == ["push", f"{tmp_path}/hour.json"]
    assert words[words.index("--image") + 1] == f"{tmp_path}/bench-cuda13.tar"
    assert words[words.index("--key") + 1] == f"{tmp_path}/key.pub"


def test_a_relative_file_is_the_first_that_exists_in_the_folders(tmp_path: Path) -> None:
    beside, started = tmp_path / "inventory", tmp_path / "work"
    for folder in (beside, started):
        folder.mkdir()
        (folder / "hour.json").touch()
    (beside / "config").touch()
    folders = [str(started), str(beside)]
    words = told(tmp_path, ssh_config="config", image="bench:cuda13", folders=folders)
    assert words[1] == str(started / "hour.json")
    assert words[words.index("--ssh-config") + 1] == str(beside / "config")
    assert words[words.index("--image") + 1] == "bench:cuda13", "the name of an image, not of a file"
    assert told(tmp_path, manifest="none.json", folders=folders)[1] == "none.json"


def test_bundles_are_never_written_into_an_installed_collection(tmp_path: Path) -> None:
    inside = tmp_path / "ansible_collections/bench/appliance/playbooks/results"
    done = module(tmp_path, BENCH, out=str(inside))
    assert (done.returncode, json.loads(done.stdout)["msg"]) == (
        1,
        f"{inside} is inside an installed collection; an upgrade would delete its bundles "
        "(set push_out to another folder)",
    )
    assert not (tmp_path / "told").exists()


def test_a_bundle_is_named_after_the_inventory_host(tmp_path: Path) -> None:
    words = told(tmp_path, host="203.0.113.7", name="r7-n01")
    assert words[2] == "203.0.113.7"
    assert words[words.index("--name") + 1] == "r7-n01"


def test_a_host_that_does_not_pass_its_check_fails_the_task_and_its_bundle_is_named(tmp_path: Path) -> None:
    node = {"changed": True, "bundle": "results/gpu1-ab.tar", "image": None, "error": None, "outcome": "done"}
    said = json.dumps({"nodes": [node | {"check": "fail", "worst": "power: GPU 0 limit: 650 W"}]})
    done = module(tmp_path, f"#!/bin/sh\necho '{said}'\nexit 1\n", manifest="node-check.json", level="quick")
    found = json.loads(done.stdout)
    assert (done.returncode, found["failed"], found["rc"]) == (1, True, 1)
    assert found["msg"] == "the verdict of its check is fail: power: GPU 0 limit: 650 W (results/gpu1-ab.tar)"
    assert found["bundle"] == "results/gpu1-ab.tar"
