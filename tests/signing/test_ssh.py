"""Certificates and keys in tokens, as OpenSSH makes and reads them; only one form is accepted."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.base.errors import VerificationFailed
from bench.base.stamps import YEAR_10000
from bench.bundle.handshake import BUNDLE_NAMESPACE, certificate_fault, principal
from bench.signing.ssh_keys import (
    ED25519,
    TOKEN,
    Certificate,
    FormatError,
    PublicKey,
    WrongSignature,
    wire_string,
)
from bench.signing.sshsig import _armor, _signed_data, sign, verify
from tests.authority import (
    CHALLENGED,
    NONCE,
    OPERATOR,
    RUN_ID,
    RUN_KEY,
    STRANGER,
    UNTIL,
    Token,
    certificate,
    certificate_blob,
)
from tests.needs import needs

MESSAGE = b'{"statement":1}'


def keygen(*arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["ssh-keygen", *arguments], input=stdin, capture_output=True, check=True)


# --- certificates ---------------------------------------------------------------------------------------


def test_a_certificate_says_who_certified_what() -> None:
    cert = certificate()
    assert cert.key == PublicKey.of(RUN_KEY)
    assert cert.authority == PublicKey.of(OPERATOR)
    assert (cert.valid_after, cert.valid_before) == (CHALLENGED, UNTIL)
    assert Certificate.from_line(cert.line()) == cert
    assert certificate_fault(cert, RUN_ID, NONCE) is None


@needs("ssh-keygen")
def test_ssh_keygen_reads_the_same(tmp_path: Path) -> None:
    (tmp_path / "run-cert.pub").write_text(certificate().line() + "\n")
    shown = keygen("-L", "-f", tmp_path / "run-cert.pub").stdout.decode()
    for part in (principal(RUN_ID), PublicKey.of(RUN_KEY).fingerprint, PublicKey.of(OPERATOR).fingerprint,
                 "Extensions: (none)", "Serial: 7", 'Key ID: "bench run 7f3a2c"'):  # fmt: skip
        assert part in shown


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"kind": ED25519}, "of type ssh-ed25519, not ssh-ed25519-cert"),
        ({"kind": "ssh-ed25519-cert-v02@openssh.com"}, "of type ssh-ed25519-cert-v02"),
        ({"role": 2}, "not a certificate for users"),
        ({"extensions": wire_string("permit-pty") + wire_string("")}, "grants extensions"),
        ({"reserved": b"x"}, "reserved"),
        ({"tail": b"\0"}, "1 bytes too many"),
        ({"key_id": "\x1b[2J"}, "not plain ASCII"),
        ({"principals": ("bench-run:7f3a2c\n",)}, "not plain ASCII"),
        ({"options": {"b": "1", "a": "2"}}, "not in order"),
        ({"options": {"": "1"}}, "not in order"),
        ({"after_option": b"xy"}, "2 bytes too many"),
        ({"key_id": "\x1f"}, "not plain ASCII"),
        ({"key_id": "\x7f"}, "not plain ASCII"),
        ({"valid": (UNTIL, UNTIL)}, "never valid, or valid forever"),
        ({"valid": (0, 2**64 - 1)}, "never valid, or valid forever"),
        ({"valid": (0, YEAR_10000)}, "never valid, or valid forever"),
        ({"public": bytes(32)}, "low order"),
        ({"public": b"\xff" * 32}, "non-canonical"),
        ({"public": b"x"}, "not 32 bytes"),
    ],
)
def test_another_certificate_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(FormatError, match=why):
        certificate(**changes)


def test_a_line_of_another_kind_is_no_certificate() -> None:
    blob = certificate().line().split()[1]
    with pytest.raises(FormatError, match=r"is not an ssh-ed25519-cert-v01@openssh\.com certificate"):
        Certificate.from_line(f"{ED25519} {blob}")


def test_a_strangers_name_is_told_escaped_and_up_to_60_characters() -> None:
    with pytest.raises(FormatError, match=rf"of type {'k' * 60}, not ssh"):
        certificate(kind="k" * 61)
    with pytest.raises(FormatError, match=r"of type \\x1b\[2J, not ssh"):
        certificate(kind="\x1b[2J")


@pytest.mark.parametrize(
    "changes",
    [
        {"valid": (UNTIL - 1, UNTIL)},
        {"valid": (0, YEAR_10000 - 1)},
        {"serial": 0},
        {"serial": 2**64 - 1},
        {"key_id": " ~"},
        {"options": {}},
    ],
)
def test_a_certificate_at_the_limits_of_its_form_is_read(changes: dict[str, Any]) -> None:
    found = certificate(**changes)
    valid, options = (found.valid_after, found.valid_before), dict(found.options)
    read = {"valid": valid, "serial": found.serial, "key_id": found.key_id, "options": options}
    assert {name: read[name] for name in changes} == changes


def test_nothing_may_follow_a_key_or_a_signature() -> None:
    key = PublicKey.of(OPERATOR)
    signature = wire_string(ED25519) + wire_string(OPERATOR.sign(MESSAGE))
    assert PublicKey.from_blob(key.blob) == key
    key.check_wire(signature, MESSAGE)
    with pytest.raises(FormatError, match="has 1 bytes too many"):
        PublicKey.from_blob(key.blob + b"x")
    with pytest.raises(FormatError, match="has 2 bytes too many"):
        key.check_wire(signature + b"xy", MESSAGE)


def test_no_byte_of_a_certificate_can_be_changed() -> None:
    blob = certificate_blob()
    for at in range(len(blob)):
        with pytest.raises(FormatError):
            Certificate.from_blob(blob[:at] + bytes([blob[at] ^ 1 << at % 8]) + blob[at + 1 :])


def test_a_certificate_cannot_be_cut() -> None:
    blob = certificate_blob()
    for length in range(len(blob)):
        with pytest.raises(FormatError):
            Certificate.from_blob(blob[:length])


@given(st.binary(max_size=300))
def test_nothing_random_is_a_certificate(data: bytes) -> None:
    for blob in (data, certificate_blob()[: len(data)] + data):
        with pytest.raises(FormatError):
            Certificate.from_blob(blob)


def test_a_certificate_by_a_certificate_is_refused() -> None:
    """An authority must be a plain key; chains of certificates are refused."""
    blob = certificate_blob().replace(
        wire_string(PublicKey.of(OPERATOR).blob), wire_string(certificate().blob)
    )
    with pytest.raises(FormatError, match="of type ssh-ed25519-cert-v01"):
        Certificate.from_blob(blob)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"principals": ()}, "is for anybody, not bench-run:7f3a2c"),
        ({"principals": ("bench-run:7f3a2c", "root")}, "is for bench-run:7f3a2c, root"),
        ({"key_id": "bench run other"}, "is for bench-run:7f3a2c"),
        ({"options": {}}, "not for the namespace"),
        ({"options": {**certificate().options, "force-command": "x"}}, "another challenge"),
    ],
)
def test_a_certificate_for_more_or_less_than_the_run_is_reported(change: dict[str, Any], why: str) -> None:
    fault = certificate_fault(certificate(**change), RUN_ID, NONCE)
    assert fault is not None
    assert why in fault


# --- signatures by a certified key ----------------------------------------------------------------------


def test_a_certified_key_signs_with_its_certificate() -> None:
    signature = sign(MESSAGE, RUN_KEY, BUNDLE_NAMESPACE, certificate())
    assert verify(MESSAGE, signature, BUNDLE_NAMESPACE) == (PublicKey.of(RUN_KEY), certificate())


def test_no_byte_of_such_a_signature_can_be_changed() -> None:
    signed = sign(MESSAGE, RUN_KEY, BUNDLE_NAMESPACE, certificate())
    for at in range(len(signed)):
        with pytest.raises(VerificationFailed, match="the signature"):
            verify(MESSAGE, signed[:at] + bytes([signed[at] ^ 0x01]) + signed[at + 1 :], BUNDLE_NAMESPACE)


def test_a_certificate_does_not_fit_another_keys_signature() -> None:
    with pytest.raises(VerificationFailed, match="does not fit"):
        verify(MESSAGE, sign(MESSAGE, STRANGER, BUNDLE_NAMESPACE, certificate()), BUNDLE_NAMESPACE)


@needs("ssh-keygen")
def test_ssh_keygen_verifies_the_whole_chain(tmp_path: Path) -> None:
    """One command of ssh-keygen checks signature, certificate, authority, principal, namespace and time."""
    (tmp_path / "signature").write_bytes(sign(MESSAGE, RUN_KEY, BUNDLE_NAMESPACE, certificate()))
    line = f'bench-run:* cert-authority,namespaces="{BUNDLE_NAMESPACE}" {PublicKey.of(OPERATOR).line()}\n'
    (tmp_path / "allowed_signers").write_text(line)

    def verified(who: str = principal(RUN_ID), at: str = "20270115090000Z", message: bytes = MESSAGE) -> bool:
        command = ["ssh-keygen", "-Y", "verify", "-n", BUNDLE_NAMESPACE, "-f", tmp_path / "allowed_signers"]
        command += ["-I", who, "-s", tmp_path / "signature", f"-Overify-time={at}"]
        return subprocess.run(command, input=message, capture_output=True, check=False).returncode == 0

    assert verified()
    assert not verified(who="bench-run:other")
    assert not verified(at="20270115100001Z")
    assert not verified(at="20270115075959Z")
    assert not verified(message=MESSAGE + b" ")


# --- keys in tokens -------------------------------------------------------------------------------------


def token_signature(token: Token, message: bytes, **said: int) -> bytes:
    """Make a signature as ssh-keygen -Y sign does with a FIDO token."""
    signed = token.sign_wire(_signed_data(message, BUNDLE_NAMESPACE), **said)
    return _armor(token.public.blob, BUNDLE_NAMESPACE, signed)


@needs("ssh-keygen")
def test_bench_and_ssh_keygen_agree_on_a_tokens_signature(tmp_path: Path) -> None:
    token = Token()
    (tmp_path / "signature").write_bytes(token_signature(token, MESSAGE))
    (tmp_path / "allowed_signers").write_text(f"me {token.public.line()}\n")
    checked = ["-Y", "verify", "-n", BUNDLE_NAMESPACE, "-f", tmp_path / "allowed_signers", "-I", "me"]
    said = keygen(*checked, "-s", tmp_path / "signature", stdin=MESSAGE).stdout.decode()
    assert f"with ED25519-SK key {token.public.fingerprint}" in said
    assert verify(MESSAGE, token_signature(token, MESSAGE), BUNDLE_NAMESPACE).key == token.public


@needs("ssh-keygen")
def test_bench_and_ssh_keygen_agree_on_a_tokens_certificate(tmp_path: Path) -> None:
    """The operator's key is in a token; both programs check the chain with one line of allowed_signers."""
    token = Token()
    cert = certificate(authority=token)
    assert cert.authority == token.public
    (tmp_path / "signature").write_bytes(sign(MESSAGE, RUN_KEY, BUNDLE_NAMESPACE, cert))
    (tmp_path / "allowed_signers").write_text(f"bench-run:* cert-authority {token.public.line()}\n")
    command: list[str | Path] = ["-Y", "verify", "-n", BUNDLE_NAMESPACE, "-f", tmp_path / "allowed_signers"]
    command += ["-I", principal(RUN_ID), "-s", tmp_path / "signature", "-Overify-time=20270115090000Z"]
    assert b"Good" in keygen(*command, stdin=MESSAGE).stdout
    blob = certificate_blob(authority=token)
    with pytest.raises(FormatError, match="not signed by the authority"):
        Certificate.from_blob(blob[:-5] + bytes([blob[-5] ^ 0x04]) + blob[-4:])


@pytest.mark.parametrize("flags", [0x00, 0x04, 0x41, 0x81])
def test_a_signature_of_an_untouched_token_is_refused(flags: int) -> None:
    with pytest.raises(VerificationFailed, match="nobody touched"):
        verify(MESSAGE, token_signature(Token(), MESSAGE, flags=flags), BUNDLE_NAMESPACE)


def test_a_tokens_flags_and_counter_are_signed_too() -> None:
    token = Token()
    wire = token.sign_wire(b"data")
    token.public.check_wire(wire, b"data")
    for at in range(len(wire) - 5, len(wire)):
        changed = wire[:at] + bytes([wire[at] ^ 0x08]) + wire[at + 1 :]
        with pytest.raises((WrongSignature, FormatError)):
            token.public.check_wire(changed, b"data")


def test_a_key_in_a_token_differs_from_the_same_key_without() -> None:
    """The key determines the algorithm, so no signature is valid for a key of the other kind."""
    token = Token()
    plain = PublicKey(token.public.raw)
    assert plain != token.public
    assert plain.fingerprint != token.public.fingerprint
    for key, wire in (
        (plain, token.sign_wire(b"data")),
        (token.public, wire_string(ED25519) + wire_string(bytes(64))),
    ):
        with pytest.raises(FormatError, match="by the algorithm"):
            key.check_wire(wire, b"data")
    other = dataclasses.replace(token.public, application="ssh:other")
    with pytest.raises(WrongSignature):
        other.check_wire(token.sign_wire(b"data"), b"data")


def test_a_tokens_key_line_is_read_as_written() -> None:
    key = Token().public
    assert key.kind == TOKEN
    assert PublicKey.from_line(key.line("comment")) == key
    with pytest.raises(FormatError, match="says ssh-ed25519, but holds"):
        PublicKey.from_line(key.line().replace(TOKEN, ED25519, 1))
