"""The operator's key in the hands of ssh-keygen: what it is asked, and what of its answers is believed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import BadInput, EnvironmentCannot
from bench.bundle.handshake import RECEIPT_NAMESPACE, key_id, principal
from bench.operator import ssh_keygen
from bench.operator.ssh_keygen import OperatorKey, run_ssh_keygen
from bench.signing.ssh_keys import Certificate, PublicKey
from bench.signing.sshsig import sign
from tests.authority import CHALLENGED, NONCE, OPERATOR, RUN_ID, RUN_KEY, STRANGER, UNTIL, Token, certificate

KEY = OperatorKey(Path("/keys/operator"), PublicKey.of(OPERATOR), in_agent=False)
RUN_PUBLIC = PublicKey.of(RUN_KEY)

Asked = list[tuple[list[str], str, bytes | None]]
Answer = Callable[[Certificate | bytes], Asked]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Return a function that lets ssh-keygen answer; what it returns notes the questions."""

    def answer(found: Certificate | bytes) -> Asked:
        asked: Asked = []

        def run(arguments: list[str], *, where: str, stdin: bytes | None = None) -> bytes:
            asked.append((arguments, where, stdin))
            if isinstance(found, bytes):
                return found
            file = Path(arguments[-1])
            assert file.read_bytes() == f"{RUN_PUBLIC.line()}\n".encode()
            assert file.name == "run.pub" and file.parent.name.startswith("bench-certify-")
            file.with_name("run-cert.pub").write_text(f"{found.line()} a comment of words\n")
            return b""

        monkeypatch.setattr(ssh_keygen, "run_ssh_keygen", run)
        return asked

    return answer


def certified(key: OperatorKey = KEY) -> Certificate:
    return key.certify(RUN_PUBLIC, RUN_ID, NONCE, 7, (CHALLENGED, UNTIL))


@pytest.mark.parametrize("in_agent", [False, True])
def test_a_run_is_certified_for_its_name_its_challenge_and_its_time_alone(
    answers: Answer, in_agent: bool
) -> None:
    asked = answers(certificate())
    assert certified(replace(KEY, in_agent=in_agent)) == certificate()
    ((arguments, where, stdin),) = asked
    assert arguments[:-1] == [
        "-q", "-s", "/keys/operator", *(["-U"] if in_agent else []),
        "-I", key_id(RUN_ID), "-n", principal(RUN_ID), "-z", "7", "-O", "clear",
        "-O", "critical:bench-namespace@v1=bench-bundle@v1", "-O", f"critical:bench-nonce@v1={NONCE}",
        "-V", "20270115080000:20270115100000",
    ]  # fmt: skip
    assert (where, stdin) == ("/keys/operator", None)
    assert not Path(arguments[-1]).parent.exists()


@pytest.mark.parametrize("wrong", [certificate(authority=STRANGER), certificate(STRANGER)])
def test_a_certificate_by_or_for_another_key_is_refused(answers: Answer, wrong: Certificate) -> None:
    answers(wrong)
    with pytest.raises(EnvironmentCannot, match="ssh-keygen signed with another key") as refused:
        certified()
    assert refused.value.where == "/keys/operator"


def test_a_receipt_is_signed_in_its_namespace(answers: Answer) -> None:
    signature = sign(b"receipt", OPERATOR, RECEIPT_NAMESPACE)
    asked = answers(signature)
    assert KEY.sign(b"receipt", RECEIPT_NAMESPACE) == signature
    arguments = ["-q", "-Y", "sign", "-n", RECEIPT_NAMESPACE, "-f", "/keys/operator"]
    assert asked == [(arguments, "/keys/operator", b"receipt")]
    answers(sign(b"receipt", STRANGER, RECEIPT_NAMESPACE))
    with pytest.raises(EnvironmentCannot, match="ssh-keygen signed with another key") as refused:
        KEY.sign(b"receipt", RECEIPT_NAMESPACE)
    assert refused.value.where == "/keys/operator"


def test_the_touch_of_a_token_is_asked_for_on_stderr(
    answers: Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    token = Token()
    in_token = replace(KEY, public=token.public)
    answers(certificate(authority=token))
    certified(in_token)
    assert capsys.readouterr() == ("", f"touch the token to certify run {RUN_ID}\n")
    answers(sign(b"receipt", OPERATOR, RECEIPT_NAMESPACE))
    with pytest.raises(EnvironmentCannot):
        in_token.sign(b"receipt", RECEIPT_NAMESPACE)
    assert capsys.readouterr() == ("", "touch the token to sign the receipt\n")
    answers(certificate())
    certified()
    assert capsys.readouterr() == ("", "")


# --- which key --------------------------------------------------------------------------------------------


def test_a_key_lies_in_its_file_or_in_an_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_keygen, "public_half", lambda path: KEY.public)
    private, public = tmp_path / "operator", tmp_path / "operator.pub"
    public.touch()
    assert OperatorKey.find(public) == OperatorKey(public, KEY.public, in_agent=True)
    private.touch()
    assert OperatorKey.find(public) == OperatorKey(private, KEY.public, in_agent=False)
    assert OperatorKey.find(private) == OperatorKey(private, KEY.public, in_agent=False)
    other = tmp_path / "operator.key"
    other.touch()
    assert OperatorKey.find(other) == OperatorKey(other, KEY.public, in_agent=False)
    monkeypatch.setattr(ssh_keygen, "default_key_path", lambda: private)
    assert OperatorKey.find(None).path == private


def test_a_key_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no key to certify with") as refused:
        OperatorKey.find(tmp_path / "key")
    assert refused.value.where == str(tmp_path / "key")


# --- the program ------------------------------------------------------------------------------------------


def run_ends(monkeypatch: pytest.MonkeyPatch, code: int, err: bytes = b"") -> list[tuple[Any, ...]]:
    """Let the program end so; return what it was given."""
    given: list[tuple[Any, ...]] = []

    def run(
        command: list[str], *, input: Any, capture_output: bool, check: bool, env: Any
    ) -> subprocess.CompletedProcess[bytes]:
        given.append((command, input, capture_output, check, env))
        return subprocess.CompletedProcess(command, code, b"out", err)

    monkeypatch.setattr(subprocess, "run", run)
    return given


def test_the_program_runs_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """ssh-keygen reads the times of a certificate in the local time."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    given = run_ends(monkeypatch, 0)
    assert run_ssh_keygen(["-q"], where="key", stdin=b"in") == b"out"
    assert given == [(["ssh-keygen", "-q"], b"in", True, False, dict(os.environ) | {"TZ": "UTC"})]


@pytest.mark.parametrize(
    ("err", "reason"),
    [
        (b"first\n second \n\n", "second"),
        (b"first\nsecond\nthird\n", "third"),
        (b"", "no reason given"),
        (b"\n \n", "no reason given"),
        (b"\xff" + b"x" * 300, "\ufffd" + "x" * 299),
    ],
)
def test_the_last_line_of_its_errors_is_the_reason(
    monkeypatch: pytest.MonkeyPatch, err: bytes, reason: str
) -> None:
    run_ends(monkeypatch, 1, err)
    with pytest.raises(EnvironmentCannot) as refused:
        run_ssh_keygen([], where="key")
    assert (refused.value.message, refused.value.where) == (f"ssh-keygen refused: {reason}", "key")


def test_a_machine_without_the_program_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentCannot, match="ssh-keygen is not installed") as missing:
        run_ssh_keygen([], where="key")
    assert missing.value.advice == "install OpenSSH's client programs"
