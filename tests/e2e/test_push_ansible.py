"""The Ansible collection passes ansible-lint's strictest profile and runs twice against a real sshd."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.nodes import ssh_nodes
from tests.e2e.pushing import ROOT, Operator
from tests.patience import PATIENCE_SECONDS
from tests.warm import quick_python

pytestmark = pytest.mark.e2e

BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the collection once; each operator has a copy."""
    folder = tmp_path_factory.mktemp("collections")
    install = [BIN / "ansible-galaxy", "collection", "install", ROOT / "ansible", "-p", folder]
    own = {"ANSIBLE_HOME": str(folder / "home"), "LC_ALL": "C.UTF-8"}
    subprocess.run(install, check=True, capture_output=True, env=os.environ | own)
    return folder / "ansible_collections"


@pytest.fixture
def operator(collections: Path, tmp_path: Path) -> Iterator[Operator]:
    shutil.copytree(collections, tmp_path / "collections/ansible_collections")
    with ssh_nodes(tmp_path / "n", 2) as nodes:
        yield Operator(tmp_path, nodes)


def _run(operator: Operator, program: str, *words: str, code: int = 0, where: Path | None = None) -> str:
    own = {
        "ANSIBLE_COLLECTIONS_PATH": str(operator.folder / "collections"),
        "ANSIBLE_LOCAL_TEMP": str(operator.folder / "ansible"),
        "ANSIBLE_HOME": str(operator.folder / "ansible-home"),
        "ANSIBLE_NOCOLOR": "1",
        "NO_COLOR": "1",
        "ANSIBLE_TIMEOUT": f"{PATIENCE_SECONDS:.0f}",
        "ANSIBLE_CALLBACK_RESULT_FORMAT": "yaml",
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "LC_ALL": "C.UTF-8",
    }
    done = subprocess.run(
        [program, *words],
        cwd=where or operator.folder,
        env=operator.environment() | own | {"PWD": str(where or operator.folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def inventory(operator: Operator, **more: str) -> str:
    path = operator.folder / "hosts.yml"
    hosts = {
        f"node{number}": {"ansible_host": address} for number, address in enumerate(operator.nodes.addresses)
    }
    shared = {
        "push_ssh_config": str(operator.nodes.ssh_config), "push_command": str(BIN / "bench"),
        "push_engine": "none", "push_python": quick_python(), "push_device": "cpu",
        "push_out": str(operator.folder / "results"),
        "bench_manifest": str(operator.manifest(models=["tiny-gpt-neox"])),
    }  # fmt: skip
    path.write_text(json.dumps({"all": {"hosts": hosts, "vars": shared | more}}))
    return str(path)


def play(operator: Operator, book: str, *words: str, code: int = 0) -> tuple[str, dict[str, int]]:
    said = _run(
        operator, "ansible-playbook", "-i", inventory(operator), f"bench.appliance.{book}", *words, code=code
    )
    changed = {
        host: int(count) for host, count in re.findall(r"^(node\d)\s+: .*?changed=(\d+)", said, re.MULTILINE)
    }
    return said, changed


def test_the_second_run_changes_nothing(operator: Operator) -> None:
    said, changed = play(operator, "run", "--check", "--diff")
    assert changed == {"node0": 1, "node1": 1}
    assert "+a bundle of" in said
    assert not list(operator.folder.glob("results/*.tar"))
    assert play(operator, "run")[1] == {"node0": 1, "node1": 1}
    bundles = sorted(operator.folder.glob("results/*.tar"))
    assert [path.name.rpartition("-")[0] for path in bundles] == ["node0", "node1"]
    assert play(operator, "run", "--check", "--diff")[1] == {"node0": 0, "node1": 0}
    assert play(operator, "run")[1] == {"node0": 0, "node1": 0}
    assert sorted(operator.folder.glob("results/*.tar")) == bundles
    assert [operator.nodes.left(address) for address in operator.nodes.addresses] == [[], []]


def test_the_commands_of_the_readme_run_as_printed_and_an_upgrade_deletes_nothing(operator: Operator) -> None:
    """The manifest lies where the commands are given, and bundles are written beside the inventory."""
    work = operator.folder / "work"
    (work / "inventory").mkdir(parents=True)
    (work / "ansible").symlink_to(ROOT / "ansible")
    hosts = Path(inventory(operator, push_out="results", bench_manifest="hour.json"))
    hosts.rename(work / "inventory/hosts.yml")
    operator.manifest(models=["tiny-gpt-neox"]).rename(work / "hour.json")
    readme = (ROOT / "ansible/README.md").read_text()
    commands = [line.partition("#")[0] for line in readme.split("```")[1].strip().splitlines()]
    assert [command.split()[0] for command in commands] == [
        "ansible-galaxy", "ansible-playbook", "ansible-playbook", "bench",
    ]  # fmt: skip
    for command in commands:
        _run(operator, "sh", "-ec", command, where=work)
    _run(operator, "sh", "-ec", f"{commands[0]} --force", where=work)
    bundles = sorted(work.glob("inventory/results/*.tar"))
    assert [path.name.rpartition("-")[0] for path in bundles] == ["node0", "node1"]


def test_preflight_changes_nothing_and_a_failure_says_what_to_do(operator: Operator) -> None:
    assert play(operator, "preflight")[1] == {"node0": 0, "node1": 0}
    said, _ = play(operator, "preflight", "-e", "push_python=/usr/bin/python3", code=2)
    assert "its Python lacks" in said
    assert play(operator, "clean")[1] == {"node0": 0, "node1": 0}


def test_bench_and_ansible_read_the_same_inventory(operator: Operator) -> None:
    words = [
        "push",
        operator.manifest(),
        "-i",
        inventory(operator),
        "--engine",
        "none",
        "--python",
        quick_python(),
    ]
    found = json.loads(
        operator.bench(*words, "--ssh-config", operator.nodes.ssh_config, "--dry-run", "--json").stdout
    )
    assert [(node["host"], node["outcome"]) for node in found["nodes"]] == [
        ("node0", "would"),
        ("node1", "would"),
    ]
    bad = operator.folder / "bad.yml"
    bad.write_text("all:\n  hosts\n    node0:\n")
    assert (
        "cannot be read as an inventory"
        in operator.bench("push", operator.manifest(), "-i", bad, code=2).stderr
    )


def test_the_collection_passes_ansible_lint_as_for_production(operator: Operator) -> None:
    said = _run(
        operator, "ansible-lint", "--offline", "--strict", "--profile", "production", where=ROOT / "ansible"
    )
    assert "Passed: 0 failure(s), 0 warning(s)" in said
