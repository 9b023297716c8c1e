"""Push without an image, with a real sshd and run: cut connections, killed runs, lost nodes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.node_check.all_checks import known_checks
from tests.e2e.nodes import free_port, ssh_nodes, wire
from tests.e2e.pushing import MOODY, UNHURRIED, Operator, inside, kill_run, lose, run_processes
from tests.e2e.services import SYSTEM
from tests.patience import PATIENCE_SECONDS, until
from tests.warm import quick_python

pytestmark = pytest.mark.e2e


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    with ssh_nodes(tmp_path / "n") as nodes:
        yield Operator(tmp_path, nodes)


# --- the usual case -------------------------------------------------------------------------------------


def test_a_run_comes_back_certified_and_leaves_nothing_behind(operator: Operator) -> None:
    """The node uses an ordinary Python, as a user's node does."""
    operator = replace(operator, python=sys.executable)
    address, other = operator.nodes.addresses
    done = operator.push(operator.manifest(), address, other)
    assert done["exit_code"] == 0
    assert [node["outcome"] for node in done["nodes"]] == ["done", "done"]
    assert {node["level"] for node in done["nodes"]} == {"operator"}
    assert operator.nodes.left(address) == operator.nodes.left(other) == []
    bundles = [node["bundle"] for node in done["nodes"]]
    key = operator.folder / "config/bench/id_ed25519.pub"
    said = operator.bench("verify", *bundles, "--trust", key).stdout
    assert said.count("level      operator") == 2
    assert "tiny-gpt-neox" in operator.bench("compare", *bundles).stdout


def test_a_cut_connection_ends_nothing_and_a_person_sees_the_table(operator: Operator) -> None:
    address = operator.nodes.addresses[0]
    pushing = operator.begin(operator.manifest(), address)
    with operator.halfway(address):
        assert operator.nodes.cut() > 0
    out, err = pushing.communicate(timeout=PATIENCE_SECONDS)
    assert pushing.returncode == 0, err
    assert "tiny-gpt-neox" in out
    assert "level: operator" in err
    assert operator.nodes.left(address) == []


def test_the_run_survives_the_process_that_pushed_it(operator: Operator) -> None:
    address = operator.nodes.addresses[0]
    pushing = operator.begin(operator.manifest(), address)
    with operator.halfway(address):
        pushing.kill()  # as when the operator's laptop goes off
        pushing.communicate()
        assert "alive" in operator.bench("status").stdout
    done = json.loads(operator.bench("attach", "--json").stdout)
    assert done["nodes"][0]["outcome"] == "done"
    assert done["nodes"][0]["level"] == "operator"
    assert operator.nodes.left(address) == []


def test_a_detached_run_is_fetched_later(operator: Operator) -> None:
    manifest, address = operator.manifest(), operator.nodes.addresses[0]
    begun = operator.push(manifest, address, "--detach")
    run = begun["nodes"][0]["run"]
    assert begun["nodes"][0]["outcome"] == "running"
    assert json.loads(operator.bench("fetch", run, "--json").stdout)["nodes"][0]["outcome"] in (
        "running",
        "done",
    )
    until(lambda: not run_processes(operator.nodes.homes[address]), "the end of the run")
    bundle = operator.folder / f"results/{address}-{run}.tar"
    if not bundle.exists():
        operator.bench("fetch", run[:5])
    assert (
        "level      operator"
        in operator.bench("verify", bundle, "--trust", operator.folder / "config/bench/id_ed25519.pub").stdout
    )
    assert operator.nodes.left(address) == []


def test_a_second_push_of_the_same_run_attaches(operator: Operator) -> None:
    manifest, address = operator.manifest(), operator.nodes.addresses[0]
    first = operator.push(manifest, address, "--detach")["nodes"][0]["run"]
    second = operator.push(manifest, address)["nodes"][0]
    assert (second["run"], second["outcome"]) == (first, "done")
    assert operator.push(manifest, address, "--once")["nodes"][0]["outcome"] == "unchanged"


def test_cancelled_runs_keep_their_results_and_can_continue(operator: Operator) -> None:
    manifest, address = operator.manifest(), operator.nodes.addresses[0]
    run = operator.push(manifest, address, "--detach")["nodes"][0]["run"]
    with operator.halfway(address, watched=False):
        operator.bench("cancel", run, "--detach")
    done = json.loads(operator.bench("attach", run, "--json", code=5).stdout)["nodes"][0]
    assert (done["outcome"], done["run_exit_code"]) == ("incomplete", 5)
    assert "incomplete" in operator.bench("verify", f"results/{address}-{run}.tar").stdout
    again = operator.push(manifest, address)["nodes"][0]
    assert (again["run"], again["outcome"], again["level"]) == (run, "done", "operator")
    assert operator.nodes.left(address) == []


def test_nodes_check_themselves_and_one_that_does_not_pass_is_told(operator: Operator) -> None:
    good, bad = operator.folder / "good.json", operator.folder / "bad.json"
    asked = {"schema": "bench/node-check/v1", "gpus": 2, "level": "standard", "levels": {"quick": UNHURRIED}}
    good.write_text(json.dumps(asked | {"skip": MOODY}))
    bad.write_text(json.dumps(asked | {"skip": ["soak"], "expect": {"host_gb_per_second": 1e6}}))
    address, other = operator.nodes.addresses
    done = operator.push(good, address, other, "--level", "quick")
    assert [node["check"] for node in done["nodes"]] == ["pass", "pass"]
    assert {node["level"] for node in done["nodes"]} == {"operator"}
    assert operator.nodes.left(address) == operator.nodes.left(other) == []
    bundles = [Path(node["bundle"]) for node in done["nodes"]]
    assert [bundle.name.rpartition("-")[0] for bundle in bundles] == [address, other]
    key = operator.folder / "config/bench/id_ed25519.pub"
    said = operator.bench("verify", *bundles, "--trust", key).stdout
    assert said.count("level      operator") == 2
    assert said.count("judged again") == 2
    assert inside(bundles[0], "results.json")["level"] == "quick"

    pushing = operator.begin(bad, address, "--level", "quick")
    home = operator.nodes.homes[address]
    until(lambda: list(home.glob(".bench/runs/*/out/*")), "the check", every=0.02)
    kill_run(home)
    _, err = pushing.communicate(timeout=PATIENCE_SECONDS)
    assert pushing.returncode == 3
    assert "killed" in err
    failed = operator.push(bad, address, "--level", "quick", code=1)
    (node,) = failed["nodes"]
    assert (node["outcome"], node["check"], node["exit_code"], node["run_exit_code"]) == (
        "done",
        "fail",
        1,
        1,
    )
    assert node["run"] in err  # the same run starts again
    assert operator.push(bad, address, "--once", code=1)["nodes"][0]["outcome"] == "unchanged"
    table = operator.bench("attach", code=1)
    assert "FAIL host-memory: the host: " in table.stderr
    assert operator.nodes.left(address) == []


def test_training_options_are_refused_for_a_node_check(operator: Operator) -> None:
    check = operator.folder / "check.json"
    check.write_text('{"schema": "bench/node-check/v1"}')
    hosts = operator.nodes.addresses
    for option in (["--budget", "5m"], ["--together", "127.0.0.1:29500"], ["--continue", "abc"]):
        said = operator.bench(*operator.pushing(check, *hosts, *option), code=2).stderr
        assert f"{option[0]} is for training, and the manifest is a node check" in said
    said = operator.bench(*operator.pushing(operator.manifest(), *hosts, "--level", "quick"), code=2).stderr
    assert "--level is for node checks" in said


# --- faults ---------------------------------------------------------------------------------------------


def test_a_run_that_was_killed_goes_on_and_measures_nothing_twice(operator: Operator) -> None:
    manifest, address = operator.manifest(), operator.nodes.addresses[0]
    pushing = operator.begin(manifest, address)
    with operator.halfway(address):
        kill_run(operator.nodes.homes[address])
    _, err = pushing.communicate(timeout=PATIENCE_SECONDS)
    assert pushing.returncode == 3
    assert "killed" in err
    before = operator.journal()
    operator.push(manifest, address)
    assert operator.journal().startswith(before[: before.rfind("\n") + 1])
    assert operator.journal().count('"event":"trial"') == 2


def test_a_node_that_lost_everything_gets_the_journal_back(operator: Operator) -> None:
    manifest, address = operator.manifest(), operator.nodes.addresses[0]
    pushing = operator.begin(manifest, address)
    with operator.halfway(address):
        lose(operator.nodes.homes[address])
    _, err = pushing.communicate(timeout=PATIENCE_SECONDS)
    assert "gone" in err or "killed" in err
    before = operator.journal()
    done = operator.push(manifest, address)["nodes"][0]
    assert done["outcome"] == "done"
    assert operator.journal().startswith(before[: before.rfind("\n") + 1])


def test_another_node_continues_the_run_of_a_lost_one(operator: Operator) -> None:
    manifest, (gone, other) = operator.manifest(), operator.nodes.addresses
    pushing = operator.begin(manifest, gone)
    with operator.halfway(gone):
        lose(operator.nodes.homes[gone])
    pushing.communicate(timeout=PATIENCE_SECONDS)
    before = operator.journal()
    (run,) = (path.name for path in operator.folder.glob("results/*"))
    done = operator.push(manifest, other, "--continue", run)["nodes"][0]
    assert (done["run"], done["outcome"], done["level"]) == (run, "done", "operator")
    assert operator.journal().startswith(before[: before.rfind("\n") + 1])
    assert operator.journal().count('"event":"trial"') == 2


def test_a_node_with_an_unknown_host_key_is_refused(operator: Operator) -> None:
    address = operator.nodes.addresses[0]
    known = operator.nodes.folder / "known"
    right = known.read_text()
    known.write_text("")
    found = operator.push(operator.manifest(), address, code=3)["nodes"][0]
    assert "its host key is not known: ssh-ed25519 SHA256:" in found["error"]["message"]
    another = (operator.nodes.folder / "id.pub").read_text().split()[1]
    known.write_text(f"[{address}]:{operator.nodes.port} ssh-ed25519 {another}\n")
    found = operator.push(operator.manifest(), address, code=3)["nodes"][0]
    assert "its host key has changed" in found["error"]["message"]
    known.write_text(right)
    assert operator.nodes.left(address) == []


def test_each_problem_has_its_own_line(operator: Operator) -> None:
    address, port = operator.nodes.addresses[0], operator.nodes.port
    cases = {
        f"127.77.0.1:{free_port()}": "connection refused",
        "no-such-machine.invalid": 'no machine is called "no-such-machine.invalid"',
        f"nobody@{address}": 'user "nobody" was refused',
    }
    for host, said in cases.items():
        found = operator.push(operator.manifest(), host, code=3)["nodes"][0]
        assert said in found["error"]["message"].lower() or said in found["error"]["message"]
    config = operator.nodes.ssh_config
    wrong = ["push", operator.manifest(), address, "--ssh-config", config, "--device", "cpu"]
    said = operator.bench(*wrong, "--engine", "apptainer", code=3).stderr
    assert "apptainer: not installed" in said
    said = operator.bench(*wrong, "--engine", "none", "--python", "/usr/bin/python3", code=3).stderr
    assert "lacks" in said
    said = operator.bench(*wrong, f"127.77.0.1:{port}", address, code=2).stderr
    assert "the same machine" in said
    config.write_text(f"Host alias\n  HostName {address}\n{config.read_text()}")
    said = operator.bench(*wrong, f"nobody@{address}", "alias", code=2).stderr
    assert said.count(f"the same machine as {address}: {address} port {port}") == 2


def test_a_wrong_clock_is_reported_before_anything_is_sent(tmp_path: Path) -> None:
    with ssh_nodes(tmp_path / "n", 1, {"PATH": f"{tmp_path}/bin:{SYSTEM}"}) as nodes:
        operator, address = Operator(tmp_path, nodes), nodes.addresses[0]
        (tmp_path / "bin").mkdir()
        date = tmp_path / "bin/date"
        date.write_text('#!/bin/sh\nexec /bin/date -d "10 minutes" "$@"\n')
        date.chmod(0o755)
        error = operator.push(operator.manifest(), address, code=3)["nodes"][0]["error"]
        assert "s ahead: certificates would not be valid on it" in error["message"]
        assert "timedatectl" in error["advice"]
        assert nodes.left(address) == []


def test_a_jump_host_is_checked_like_a_node(operator: Operator) -> None:
    jump, address = operator.nodes.addresses
    config = operator.nodes.ssh_config
    config.write_text(f"Host far\n  HostName {address}\n  ProxyJump {jump}\n{config.read_text()}")
    dry = operator.push(operator.manifest(), "far", "--dry-run")["nodes"][0]
    assert dry["outcome"] == "would"
    known = operator.nodes.folder / "known"
    known.write_text("".join(line for line in known.read_text().splitlines(True) if jump not in line))
    assert (
        "host key is not known"
        in operator.push(operator.manifest(), "far", code=3)["nodes"][0]["error"]["message"]
    )


def test_a_connection_that_breaks_while_sending_is_continued_by_the_next_push(operator: Operator) -> None:
    with wire(operator.nodes, operator.nodes.addresses[0]) as line:
        line.cut_at = 120_000
        host = f"{line.address}:{line.port}"
        operator.push(operator.manifest(), host, "--no-run", code=3)
        assert operator.push(operator.manifest(), host, "--no-run")["nodes"][0]["outcome"] == "ready"
        assert operator.push(operator.manifest(), host, "--no-run")["nodes"][0]["outcome"] == "unchanged"


# --- many nodes -----------------------------------------------------------------------------------------


MANY = 24  # six times as many as are pushed to at once, behind two sshd
# What dozens of nodes do takes a moment of a processor: each has a simulated GPU, and checks it.
CHECK: dict[str, Any] = {
    "schema": "bench/node-check/v1",
    "level": "quick",
    "levels": {"quick": UNHURRIED},
    "skip": [name for name in known_checks() if name != "memory"],
}


def test_five_of_many_nodes_fail_in_different_ways(tmp_path: Path) -> None:
    """The faults: refused, hung, disk full, killed mid-run, and another environment than requested."""
    full = tmp_path / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(full)], check=True)
    own = {1: {"HOME": str(full)}, 2: {"PATH": "/usr/bin:/bin"}}
    for name, machine in {"good": {"count": 1}, "stuck": {"count": 1, "stuck": ["memory"]}}.items():
        (tmp_path / name).write_text(json.dumps(machine))
    own[3] = {"BENCH_FAKE_NVML": str(tmp_path / "stuck")}  # its check is in the middle until it is killed
    python = Path(quick_python()).parent
    usual = {"PATH": f"{python}:{os.environ['PATH']}", "BENCH_FAKE_NVML": str(tmp_path / "good")}
    try:
        with ssh_nodes(tmp_path / "n", MANY - 2, usual, own) as nodes:
            operator = Operator(tmp_path, nodes)
            with socket.create_server(("127.77.1.1", 0)) as hung:
                refused, silent = f"127.77.1.2:{free_port()}", f"127.77.1.1:{hung.getsockname()[1]}"
                _push_to_many(operator, refused, silent)
    finally:
        subprocess.run(["umount", str(full)], check=True)


def _push_to_many(operator: Operator, refused: str, silent: str) -> None:
    nodes = operator.nodes
    check = operator.folder / "check.json"
    check.write_text(json.dumps(CHECK))
    hosts = [*nodes.addresses, refused, silent]
    command = ["push", check, *hosts, "--engine", "none", "--python", "python3", "--ssh-config",
               nodes.ssh_config, "--parallel", "4", "--json", "--anyway"]  # fmt: skip
    out, err = operator.folder / "out.json", operator.folder / "err.txt"
    with out.open("wb") as answers, err.open("wb") as words:
        pushing = subprocess.Popen(
            operator.command(*command),
            cwd=operator.folder,
            env=operator.environment(),
            stdout=answers,
            stderr=words,
        )
    victim = nodes.homes[nodes.addresses[3]]
    until(lambda: list(victim.glob(".bench/runs/*/out/*")), "the victim's check", every=0.02)
    kill_run(victim)
    peak_kib = 0
    while pushing.poll() is None:
        with suppress(OSError, StopIteration):
            status = Path(f"/proc/{pushing.pid}/status").read_text().splitlines()
            peak_kib = max(
                peak_kib, int(next(line for line in status if line.startswith("VmHWM")).split()[1])
            )
        time.sleep(0.2)
    document = json.loads(out.read_text())
    found = {node["host"]: node for node in document["nodes"]}
    assert pushing.returncode == document["exit_code"] == 5
    bad = {host: node["error"]["message"] for host, node in found.items() if node["outcome"] != "done"}
    assert set(bad) == {refused, silent, *nodes.addresses[1:4]}, err.read_text()
    assert "refused" in bad[refused]
    assert "no SSH session" in bad[silent] or "no answer" in bad[silent]
    assert "full" in bad[nodes.addresses[1]]
    assert "bench" in bad[nodes.addresses[2]] or "exit code" in bad[nodes.addresses[2]]
    assert "killed" in bad[nodes.addresses[3]]
    assert len(list(operator.folder.glob("results/*.tar"))) == MANY - 5
    print(f"at most {peak_kib:,} KiB of memory")
    assert 0 < peak_kib < 128 * 1024
