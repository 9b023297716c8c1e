"""Operator and node are two folders with files copied between them, from challenge to verification."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.base.strict_json import canonical_json
from bench.bundle.tar_format import SIGNATURE, STATEMENT
from tests.authority import contents
from tests.needs import needs
from tests.patience import PATIENCE_SECONDS, until
from tests.runner.test_run import bench, environment, gone, manifest, wait_for_trials
from tests.warm import quick_python

pytestmark = [pytest.mark.slow, needs("ssh-keygen")]


class Desk:
    """The operator: a key, a ledger, and the files copied from the node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = manifest(folder)
        self.does("keys", "new", "--no-passphrase")

    def does(self, *arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        kept = ("challenge", "certify", "receive")
        ledger = ["--ledger", self.folder / "ledger"] if arguments[0] in kept else []
        done = bench(*arguments, *ledger, folder=self.folder)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    def asks(self, *more: str) -> Path:
        path = self.folder / f"challenge-{len(list(self.folder.glob('challenge-*')))}.json"
        self.does("challenge", self.manifest, "-o", path, *more)
        return path


class Node:
    def __init__(self, folder: Path, desk: Desk, challenge: Path) -> None:
        self.folder = folder
        self.run_id = json.loads(challenge.read_text())["run_id"]
        self.command = ["run", str(desk.manifest), "--challenge", str(challenge)]
        self.place = folder / "out" / self.run_id

    @contextmanager
    def runs(self, *more: str) -> Iterator[subprocess.Popen[str]]:
        command = [quick_python(), "-m", "bench", *self.command, *more]
        process = subprocess.Popen(
            command, cwd=self.folder, env=environment(self.folder),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def requested(self) -> Path:
        request = self.place / "request.json"
        until(request.exists, "the request for a certificate", every=0.02)
        return request

    @property
    def bundle(self) -> Path:
        return self.place.with_suffix(".tar")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    (tmp_path / "operator").mkdir()
    return Desk(tmp_path / "operator")


@pytest.fixture
def node(tmp_path: Path, desk: Desk) -> Node:
    (tmp_path / "node").mkdir()
    return Node(tmp_path / "node", desk, desk.asks())


def certify(desk: Desk, node: Node) -> None:
    """Copy the request to the operator, certify it there, and copy the certificate back."""
    carried = desk.folder / "request.json"
    carried.write_bytes(node.requested().read_bytes())
    desk.does("certify", carried)
    (node.place / "run-cert.pub").write_bytes((desk.folder / "run-cert.pub").read_bytes())


def receive(desk: Desk, node: Node, code: int = 0) -> Path:
    carried = desk.folder / node.bundle.name
    carried.write_bytes(node.bundle.read_bytes())
    desk.does("receive", carried, code=code)
    return carried


def level(desk: Desk, bundle: Path) -> str:
    key = desk.folder / "config" / "bench" / "id_ed25519.pub"
    verdict = desk.does("verify", bundle, "--trust", key, "--json")
    (found,) = json.loads(verdict.stdout)
    return str(found["level"])


def private_keys(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file() and b"PRIVATE KEY" in p.read_bytes()]


def test_a_certified_run_is_received_and_a_stranger_verifies_it(desk: Desk, node: Node) -> None:
    with node.runs() as process:
        certify(desk, node)
        assert process.wait(PATIENCE_SECONDS) == 0
    assert private_keys(node.folder) == []
    bundle = receive(desk, node)
    assert level(desk, bundle) == "operator"
    # ssh-keygen verifies the whole chain without bench, with the lines that `keys show` prints.
    shown = desk.does("keys", "show").stderr
    signers = desk.folder / "signers"
    signers.write_text("\n".join(line.strip() for line in shown.splitlines() if line.startswith("  ")) + "\n")
    signature = desk.folder / "signature"
    signature.write_bytes(contents(bundle)[SIGNATURE])
    command = ["ssh-keygen", "-Y", "verify", "-n", "bench-bundle@v1", "-f", signers, "-s", signature]
    command += ["-I", f"bench-run:{node.run_id}"]
    subprocess.run(command, input=contents(bundle)[STATEMENT], capture_output=True, check=True)


@pytest.mark.e2e
def test_a_node_that_was_lost_goes_on_with_a_new_key_under_the_same_run(desk: Desk, node: Node) -> None:
    with node.runs() as process:
        certify(desk, node)
        wait_for_trials(node.folder, 1)
        process.kill()
        process.wait(PATIENCE_SECONDS)
    first = (node.place / "request.json").read_bytes()
    measured = (node.place / "journal.jsonl").read_bytes()
    (node.place / "request.json").unlink()
    with node.runs("--resume") as process:
        certify(desk, node)
        assert process.wait(PATIENCE_SECONDS) == 0
    assert (node.place / "request.json").read_bytes() != first
    assert (node.place / "journal.jsonl").read_bytes().startswith(measured)
    assert level(desk, receive(desk, node)) == "operator"


@pytest.mark.e2e
def test_another_node_can_restart_a_lost_run_and_only_one_bundle_is_received(
    desk: Desk, node: Node, tmp_path: Path
) -> None:
    """Another machine answers the same challenge with its own key; only one bundle gets a receipt."""
    with node.runs() as process:
        wait_for_trials(node.folder, 1)
        process.kill()
        process.wait(PATIENCE_SECONDS)
    (tmp_path / "other").mkdir()
    other = Node(tmp_path / "other", desk, Path(node.command[3]))
    with other.runs() as process:
        certify(desk, other)
        assert process.wait(PATIENCE_SECONDS) == 0
    assert level(desk, receive(desk, other)) == "operator"
    # The first node comes back; its answer to the same challenge is refused.
    (node.place / "request.json").unlink()
    with node.runs("--resume") as process:
        carried = desk.folder / "request.json"
        carried.write_bytes(node.requested().read_bytes())
        assert "was received" in desk.does("certify", carried, code=4).stderr
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_SECONDS)
    receive(desk, node, code=4)


@pytest.mark.e2e
def test_a_run_of_one_node_is_not_continued_on_another(desk: Desk, node: Node) -> None:
    """The run's folder was copied to a machine with another identity."""
    with node.runs() as process:
        wait_for_trials(node.folder, 1)
        process.kill()
        process.wait(PATIENCE_SECONDS)
    journal = node.place / "journal.jsonl"
    first, rest = journal.read_bytes().split(b"\n", 1)
    header = json.loads(first)
    if header["machine"] is None:  # a container has no stable name, so the facts of the node identify it
        header["node"]["cpu"] = "another"
    header["machine"] = "0" * 16
    journal.write_bytes(canonical_json(header) + b"\n" + rest)
    done = bench(*node.command, "--resume", folder=node.folder)
    assert done.returncode == 2
    assert "was begun on another machine" in done.stderr
    assert "--out names another directory" in done.stderr
    with node.runs("--out", "again") as process:
        node.place = node.folder / "again" / node.run_id
        certify(desk, node)
        assert process.wait(PATIENCE_SECONDS) == 0
    assert level(desk, receive(desk, node)) == "operator"


@pytest.mark.e2e
def test_without_a_certificate_the_bundle_has_level_self_and_can_be_certified_later(
    desk: Desk, node: Node
) -> None:
    with node.runs() as process:
        wait_for_trials(node.folder, 4)
        process.send_signal(signal.SIGINT)  # during the wait or just before it; an interrupt ends the wait
        code = process.wait(PATIENCE_SECONDS)
    assert code == 5
    assert gone({process.pid})
    (verdict,) = json.loads(desk.does("verify", node.bundle, "--json").stdout)
    assert (verdict["level"], verdict["level_claimed"], verdict["nonce"]) == ("self", "self", None)
    receive(desk, node, code=4)
    (node.place / "request.json").unlink()
    before = (node.place / "journal.jsonl").read_text().count('"event":"trial"')
    with node.runs("--resume") as process:
        certify(desk, node)
        assert process.wait(PATIENCE_SECONDS) == 0
    assert (node.place / "journal.jsonl").read_text().count('"event":"trial"') == max(before, 4)
    assert level(desk, receive(desk, node)) == "operator"


def test_a_certified_bundle_is_not_replaced_by_one_without_a_certificate(desk: Desk, node: Node) -> None:
    with node.runs() as process:
        certify(desk, node)
        assert process.wait(PATIENCE_SECONDS) == 0
    certified = node.bundle.read_bytes()
    again = bench(*node.command, "--resume", folder=node.folder)
    assert again.returncode == 0, again.stderr
    assert "bench receive countersigns it\nthis run was finished before" in again.stderr
    assert "tiny-vit" in again.stdout
    assert node.bundle.read_bytes() == certified
    node.bundle.write_bytes(received := receive(desk, node).read_bytes())
    again = bench(*node.command, "--resume", folder=node.folder)
    assert "received\nthis run was finished before" in again.stderr
    # The operator requests the same run again and does not certify it.
    node.command[3] = str(desk.asks("--run", node.run_id))
    (node.place / "request.json").unlink()
    with node.runs("--resume") as process:
        assert process.stderr is not None
        assert any("measured; waiting" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 5
    assert "is certified, and was not changed" in said
    assert node.bundle.read_bytes() == received
    assert level(desk, node.bundle) == "operator"


def test_a_run_is_not_started_twice_by_mistake(desk: Desk, node: Node) -> None:
    node.place.mkdir(parents=True)
    done = bench(*node.command, folder=node.folder)
    assert done.returncode == 2
    assert "--resume goes on with it" in done.stderr


def test_a_challenge_for_another_manifest_is_refused(desk: Desk, node: Node) -> None:
    other = node.folder / "other.json"
    other.write_text(desk.manifest.read_text().replace('"test"', '"other"'))
    done = bench("run", other, *node.command[2:], folder=node.folder)
    assert done.returncode == 2
    assert "the challenge is for another manifest" in done.stderr
    assert not (node.folder / "out").exists()


def test_key_and_challenge_exclude_each_other(desk: Desk, node: Node) -> None:
    done = bench(*node.command, "--key", "id", folder=node.folder)
    assert done.returncode == 2
    assert "not allowed with" in done.stderr
