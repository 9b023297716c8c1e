"""Nodes whose run asks for its certificate as it should, and then hands a forged bundle to the push.

The scripts of a push run in a real shell, on the folder of a run; only the run itself is played by the test.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal
from unittest.mock import Mock

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.base.errors import VerificationFailed
from bench.bundle.handshake import Challenge, key_id, make_request, principal
from bench.bundle.pack import pack, write_bundle
from bench.bundle.statement import parse_statement
from bench.bundle.tar_format import STATEMENT
from bench.bundle.verify import verify_bundle
from bench.node_check.check_manifest import AnyManifest, load
from bench.node_check.check_results import CheckContents
from bench.node_check.judging import Depth
from bench.node_check.recompute_any import recompute
from bench.operator import certify_and_receive
from bench.operator.ledger import Ledger
from bench.operator.ssh_keygen import OperatorKey
from bench.push import host_push, mirror
from bench.push.image_store import ImageStore
from bench.push.push_record import Records, now
from bench.push.push_to_node import NodePush
from bench.push.remote import CommandResult, Here
from bench.push.request import HostPart, Result, Shared
from bench.signing.ssh_keys import Certificate
from tests.authority import STRANGER, contents
from tests.authority import certificate as certificate_by
from tests.cli.test_keys import ssh_key
from tests.needs import needs
from tests.node_check import made as check_made
from tests.node_check.checks.node import evidence
from tests.push.test_push_record import R
from tests.push.test_push_to_node import Silent, request_of
from tests.report import made

pytestmark = needs("ssh-keygen")

MANIFEST = made.manifest()
MINUTES_AGO = 600
RUN_KEY, ANOTHER_KEY = (Ed25519PrivateKey.from_private_bytes(letter * 32) for letter in (b"1", b"2"))


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> OperatorKey:
    return OperatorKey.find(ssh_key(tmp_path_factory.mktemp("keys") / "operator"))


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def challenged(ledger: Path, manifest: AnyManifest = MANIFEST) -> Challenge:
    digest = manifest.digest.removeprefix("sha256:")
    return certify_and_receive.challenge(Ledger(ledger), digest, now() - MINUTES_AGO)


def events(ledger: Path) -> list[tuple[str, str]]:
    with Ledger(ledger) as opened:
        return [(line.event, line.run_id) for line in opened.lines]


def bundle(
    path: Path, run: Challenge, certificate: Certificate | None, key: Ed25519PrivateKey = RUN_KEY
) -> Path:
    """Write the bundle of a run, signed by its certified key."""
    made.bundle(path, run_id=run.run_id, of=MANIFEST)
    facts = parse_statement(contents(path)[STATEMENT]).predicate
    answered = replace(facts, level="operator", nonce=run.nonce) if certificate else facts
    pack(path, made.payload(path), answered, key, certificate)
    return path


class Operation:
    """An operator with a run on a node, and with an earlier run of the same manifest."""

    def __init__(self, folder: Path, ledger: Path, key: OperatorKey) -> None:
        self.ledger, self.key, self.folder = ledger, key, folder
        self.earlier, self.run = challenged(ledger), challenged(ledger)
        request = make_request(self.earlier, RUN_KEY)
        self.certificate = certify_and_receive.certify(Ledger(ledger), key, request, now(), 7200)
        self.earlier_bundle = bundle(folder / "earlier.tar", self.earlier, self.certificate)
        self.record = replace(
            R, run_id=self.run.run_id, local=True, place=str(folder / "place"), out=str(folder / "results"),
            engine="none", state="running", ledger=str(ledger),
        )  # fmt: skip
        self.record.mirror.mkdir(parents=True)
        self.records = Records(folder / "runs")
        self.records.save(self.record)

    def receive_the_earlier_bundle(self) -> None:
        path, ledger = self.earlier_bundle, Ledger(self.ledger)
        certify_and_receive.receive(ledger, self.key, path, path, now(), host_push.recompute)

    def attach(self, node: Here) -> Result:
        request = replace(request_of(self.record), key=self.key)
        shared = Shared(self.records, ImageStore(print), Silent())
        push = NodePush(HostPart(self.record.to_host(), local=True), request, shared)
        push.node = node
        return push.attach(self.record)


@pytest.fixture
def operation(
    tmp_path: Path, ledger: Path, key: OperatorKey, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Operation]:
    """Begin the operator's run on the node; its process lives until the test ends."""
    monkeypatch.setattr(host_push, "_LOOK_SECONDS", 0.0)
    with begun(Operation(tmp_path, ledger, key)) as operation:
        yield operation


@contextmanager
def begun(operation: Operation) -> Iterator[Operation]:
    folder = Path(operation.record.folder)
    (folder / "out" / operation.run.run_id).mkdir(parents=True)
    waits = ["sh", "-c", "read end", operation.run.run_id]
    with subprocess.Popen(waits, stdin=subprocess.PIPE) as process:
        (folder / "pid").write_text(f"{process.pid}\n")
        yield operation


Forge = Callable[[Operation, Path, Certificate], object]


class Forger(Here):
    """A node whose run asks for a certificate, and then ends with the bundle that `forge` writes."""

    def __init__(self, operation: Operation, forge: Forge) -> None:
        self._operation, self._forge = operation, forge
        self._folder = Path(operation.record.folder)
        self._out = self._folder / "out" / operation.run.run_id
        (self._out / "request.json").write_bytes(make_request(operation.run, RUN_KEY))

    def ask(
        self, script: str, pieces: Iterable[bytes] = (), *, seconds: float = 60.0, most_bytes: int = 2**20
    ) -> CommandResult:
        certificate = self._out / "run-cert.pub"
        if certificate.exists() and not (self._folder / "exit").exists():
            given = Certificate.from_line(certificate.read_text())
            self._forge(self._operation, self._out.with_suffix(".tar"), given)
            (self._folder / "exit").write_text("0\n")
        return super().ask(script, pieces, seconds=seconds, most_bytes=most_bytes)


def honest(of: Operation, path: Path, certificate: Certificate) -> None:
    bundle(path, of.run, certificate)


def of_another_run(of: Operation, path: Path, _: Certificate) -> None:
    path.write_bytes(of.earlier_bundle.read_bytes())


def of_another_run_that_was_received(of: Operation, path: Path, _: Certificate) -> None:
    of.receive_the_earlier_bundle()
    path.write_bytes(of.earlier_bundle.read_bytes())


def of_another_run_under_this_nonce(of: Operation, path: Path, certificate: Certificate) -> None:
    bundle(path, replace(of.earlier, nonce=of.run.nonce), certificate)


def signed_by_a_strangers_key(of: Operation, path: Path, _: Certificate) -> None:
    bundle(path, of.run, None, STRANGER)


def signed_by_a_key_that_was_not_certified(of: Operation, path: Path, certificate: Certificate) -> None:
    bundle(path, of.run, certificate, ANOTHER_KEY)


def certified_by_a_stranger(of: Operation, path: Path, certificate: Certificate) -> None:
    own = certificate_by(
        RUN_KEY, STRANGER, key_id=key_id(of.run.run_id), principals=(principal(of.run.run_id),),
        valid=(certificate.valid_after, certificate.valid_before),
        options={"bench-namespace@v1": "bench-bundle@v1", "bench-nonce@v1": of.run.nonce},
    )  # fmt: skip
    bundle(path, of.run, own)


def figures_changed_before_signing(of: Operation, path: Path, certificate: Certificate) -> None:
    bundle(path, of.run, certificate)
    members = contents(path)
    results = json.loads(members["results.json"])
    results["trials"][0]["estimate"]["days"]["value"] *= 0.99
    changed = made.payload(path) | {"results.json": json.dumps(results).encode()}
    pack(path, changed, parse_statement(members[STATEMENT]).predicate, RUN_KEY, certificate)


def figures_changed_after_signing(of: Operation, path: Path, certificate: Certificate) -> None:
    bundle(path, of.run, certificate)
    members = contents(path)
    write_bundle(path, members | {"samples.jsonl": members["samples.jsonl"].replace(b"0.5", b"0.4")})


def with_a_name_that_a_terminal_obeys(of: Operation, path: Path, certificate: Certificate) -> None:
    bundle(path, of.run, certificate)
    results = json.loads(contents(path)["results.json"])
    results["models"][0]["name"] = "\x1b]0;owned\x07\x1b[31mgood  level operator\x1b[0m"
    changed = made.payload(path) | {"results.json": json.dumps(results).encode()}
    pack(path, changed, parse_statement(contents(path)[STATEMENT]).predicate, RUN_KEY, certificate)


FORGERIES: list[tuple[Forge, str]] = [
    (of_another_run, "is of run {earlier}, not of run {run}"),
    (of_another_run_that_was_received, "is of run {earlier}, not of run {run}"),
    (
        of_another_run_under_this_nonce,
        "certificate is for bench-run:{run}, not bench-run:{earlier}",
    ),
    (signed_by_a_strangers_key, "not trusted"),
    (signed_by_a_key_that_was_not_certified, "the signature does not fit the signed bytes"),
    (certified_by_a_stranger, "not trusted"),
    (figures_changed_before_signing, "value does not follow from the samples"),
    (with_a_name_that_a_terminal_obeys, "the manifest names tiny-gpt-neox"),
    (figures_changed_after_signing, "its sha256 is not the signed one: it was changed"),
]


def test_an_honest_bundle_is_received(operation: Operation) -> None:
    result = operation.attach(Forger(operation, honest))
    assert (result.outcome, result.error, result.exit_code) == ("done", None, 0)
    assert result.verdict is not None and result.verdict.level == "operator"
    assert events(operation.ledger)[-1] == ("received", operation.run.run_id)
    assert not Path(operation.record.folder).exists()  # the node is clean


@pytest.mark.parametrize(("forge", "reason"), FORGERIES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_forged_bundle_is_refused(operation: Operation, forge: Forge, reason: str) -> None:
    """The reason is told; neither the bundle nor a part of it is kept, and no nonce is consumed by it."""
    received_before = forge is of_another_run_that_was_received
    result = operation.attach(Forger(operation, forge))
    assert isinstance(result.error, VerificationFailed)
    wanted = reason.format(earlier=operation.earlier.run_id, run=operation.run.run_id)
    assert wanted in result.error.message
    assert (result.outcome, result.exit_code, result.bundle) == ("failed", 4, None)
    assert [path.name for path in Path(operation.record.out).iterdir()] == [operation.record.mirror.name]
    assert [record.state for record in operation.records.all()] == ["incomplete"]
    received = [run_id for event, run_id in events(operation.ledger) if event == "received"]
    assert received == [operation.earlier.run_id] * received_before


# --- node checks ------------------------------------------------------------------------------------------


def test_a_check_that_leaves_out_a_part_is_refused(check: Operation) -> None:
    result = check.attach(Forger(check, check_answering("quick", left_out="matmul")))
    assert isinstance(result.error, VerificationFailed)
    assert result.error.message == (
        "is not a whole check: its run left out what its manifest asks for: matmul"
    )
    assert ("received", check.run.run_id) not in events(check.ledger)


def check_answering(level: Depth, left_out: str | None = None) -> Forge:
    """Return what writes the bundle of a node check of this depth, certified and without a fault."""

    def forge(of: Operation, path: Path, certificate: Certificate) -> None:
        found = check_made.at_level(evidence(of.folder, count=2), level)
        found = check_made.without(found, left_out) if left_out else found
        done = check_made.results(found, of.run.run_id, at=now() - MINUTES_AGO + 1)
        payload = check_made.files(done, found)
        check_made.packed(path, done, payload)
        facts = parse_statement(contents(path)[STATEMENT]).predicate
        pack(path, payload, replace(facts, level="operator", nonce=of.run.nonce), RUN_KEY, certificate)

    return forge


@pytest.fixture
def check(operation: Operation) -> Iterator[Operation]:
    """Begin the operator's node check, which is asked for at level quick."""
    operation.run = challenged(operation.ledger, load(None))
    operation.record = replace(
        operation.record,
        run_id=operation.run.run_id,
        manifest_sha256=operation.run.manifest_sha256,
        level="quick",
    )
    operation.record.mirror.mkdir()
    operation.records.save(operation.record)
    with begun(operation):
        yield operation


def test_an_honest_check_is_received(check: Operation) -> None:
    result = check.attach(Forger(check, check_answering("quick")))
    assert (result.outcome, result.error, result.exit_code) == ("done", None, 0)


@pytest.mark.parametrize("level", ["passive", "prolog", "standard"])
def test_a_check_of_another_depth_than_asked_is_refused(check: Operation, level: Depth) -> None:
    """A node whose GPUs fail under load would pass without load."""
    result = check.attach(Forger(check, check_answering(level)))
    assert isinstance(result.error, VerificationFailed)
    assert result.error.message == (
        f"is of a check at level {level} on cuda, and the push asked for one at level quick on cuda"
    )
    assert (result.outcome, result.exit_code, result.bundle) == ("failed", 4, None)
    assert ("received", check.run.run_id) not in events(check.ledger)


@pytest.mark.parametrize(("on_cpu", "device"), [(False, "cpu"), (True, "cuda")])
def test_a_check_of_another_device_than_asked_is_refused(
    operation: Operation,
    on_cpu: bool,
    device: Literal["cpu", "cuda"],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rehearsal on the CPU expects no GPUs, so that a node without any would pass."""
    record = replace(operation.record, level="quick")
    found = verify_bundle(check_made.bundle(tmp_path / "n1.tar", tmp_path), recompute).contents
    assert isinstance(found, CheckContents)
    answer = replace(found, results=replace(found.results, device=device))
    monkeypatch.setattr(mirror, "recompute", lambda files: answer)
    with pytest.raises(VerificationFailed, match=f"is of a check at level quick on {device}, and the push"):
        mirror.as_asked(replace(record, on_cpu=on_cpu))(Mock())
    assert mirror.as_asked(replace(record, on_cpu=not on_cpu))(Mock()) is answer
    of_network = replace(found, results=replace(found.results, device=device, level="nodes"))
    monkeypatch.setattr(mirror, "recompute", lambda files: of_network)
    assert mirror.as_asked(replace(record, level="nodes", on_cpu=on_cpu))(Mock()) is of_network
    with pytest.raises(VerificationFailed, match="is of a check at level nodes"):
        mirror.as_asked(replace(record, on_cpu=not on_cpu))(Mock())
    monkeypatch.setattr(mirror, "recompute", lambda files: answer)
    older = replace(record, level=None, on_cpu=on_cpu)  # older records do not say what was asked for
    assert mirror.as_asked(older)(Mock()) is answer
