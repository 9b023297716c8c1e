"""SSH keys and signatures that ssh-keygen understands; only one form is accepted."""

from __future__ import annotations

import hashlib
import subprocess
from base64 import b64encode
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from bench.base.errors import VerificationFailed
from bench.bundle.handshake import BUNDLE_NAMESPACE as NAMESPACE
from bench.signing.ssh_keys import FormatError, PublicKey, wire_string
from bench.signing.sshsig import sign as sign_for
from bench.signing.sshsig import verify as verify_for
from tests.bundles import KEY
from tests.needs import needs

MESSAGE = b'{"statement":1}'


def sign(message: bytes, key: Ed25519PrivateKey, namespace: str = NAMESPACE) -> bytes:
    return sign_for(message, key, namespace)


def verify(message: bytes, signature: bytes) -> PublicKey:
    found = verify_for(message, signature, NAMESPACE)
    assert found.certificate is None
    return found.key


SIGNED = sign(MESSAGE, KEY)
PRIME = 2**255 - 19


def armored(blob: bytes) -> bytes:
    """Put a blob in ssh-keygen's armor, to build signatures that no tool would make."""
    text = b64encode(blob).decode()
    lines = [text[i : i + 70] for i in range(0, len(text), 70)]
    return "\n".join(["-----BEGIN SSH SIGNATURE-----", *lines, "-----END SSH SIGNATURE-----", ""]).encode()


def blob(**changes: bytes) -> bytes:
    """Encode the parts of a signature, with some of them replaced."""
    key = PublicKey.of(KEY).blob
    parts = {
        "magic": b"SSHSIG",
        "version": b"\0\0\0\1",
        "key": wire_string(key),
        "namespace": wire_string(NAMESPACE.encode()),
        "reserved": wire_string(b""),
        "hash": wire_string(b"sha512"),
        "signature": wire_string(wire_string(b"ssh-ed25519") + wire_string(bytes(64))),
        "rest": b"",
    }
    return b"".join((parts | changes).values())


def refused(signature: bytes, why: str, message: bytes = MESSAGE) -> None:
    with pytest.raises(VerificationFailed, match=why):
        verify(message, signature)


# --- signatures -----------------------------------------------------------------------------------------


def test_a_signature_names_the_key_that_made_it() -> None:
    assert verify(MESSAGE, SIGNED) == PublicKey.of(KEY)
    assert sign(MESSAGE, KEY) == SIGNED


def test_a_signature_fits_one_message_and_one_namespace() -> None:
    refused(SIGNED, "does not fit the signed bytes", MESSAGE + b" ")
    refused(sign(MESSAGE, KEY, "file"), "namespace file, not bench-bundle@v1")


@pytest.mark.parametrize("flip", [0x01, 0x20, 0x80])
def test_no_byte_of_a_signature_can_be_changed(flip: int) -> None:
    for at in range(len(SIGNED)):
        changed = bytearray(SIGNED)
        changed[at] ^= flip
        refused(bytes(changed), "the signature")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (b"", "is not an SSH signature"),
        (SIGNED[:-1], "is not an SSH signature"),
        (b"\n" + SIGNED, "is not an SSH signature"),
        (SIGNED + b"\n", "is not an SSH signature"),
        (SIGNED + SIGNED, "is not base64"),
        (SIGNED.replace(b"\n", b"\r\n"), "is not an SSH signature"),
        (SIGNED.replace(b"=\n-", b"\n-"), "is not base64|not armored"),
        (b"\n".join((SIGNED[:30], SIGNED[30:])), "not armored"),
        (SIGNED.replace(b"U1NI", b"U1 NI", 1), "is not base64"),
        (armored(blob(magic=b"SSHSIX")), "version 1"),
        (armored(blob(version=b"\0\0\0\2")), "version 1"),
        (armored(blob(reserved=wire_string(b"x"))), "reserved"),
        (armored(blob(hash=wire_string(b"sha256"))), "hash by sha256, not sha512"),
        (armored(blob(namespace=wire_string(b""))), "namespace"),
        (armored(blob(namespace=wire_string(b"\x1b[2J\n"))), r"namespace \\x1b\[2J\\n, not"),
        (armored(blob(rest=b"\0")), "1 bytes too many"),
        (
            armored(blob(signature=wire_string(wire_string(b"ssh-rsa") + wire_string(b"1")))),
            "algorithm ssh-rsa",
        ),
        (
            armored(blob(signature=wire_string(wire_string(b"ssh-ed25519") + wire_string(b"1")))),
            "does not fit",
        ),
        (armored(blob(signature=b"\xff\xff\xff\xff")), "ends too early"),
        (armored(blob(key=wire_string(wire_string(b"ssh-ed25519") + wire_string(b"")))), "not 32 bytes"),
        (armored(blob()[:20]), "ends too early"),
        (armored(b""), "ends too early"),
    ],
)
def test_a_signature_in_another_form_is_refused(changed: bytes, why: str) -> None:
    refused(changed, why)


def test_base64_with_loose_bits_at_its_end_is_refused() -> None:
    """The same bytes can be encoded with different last characters; only one encoding is accepted."""
    text = SIGNED.decode()
    end = text.index("\n-----END")
    last = text[end - 2 : end] if text[end - 1] == "=" else ""
    assert last, "choose a namespace whose signature ends in padding, or this test shows nothing"
    other = chr(ord(last[0]) + 1)
    refused((text[: end - 2] + other + "=" + text[end:]).encode(), "non-canonical form")


@given(st.binary(max_size=300))
def test_nothing_random_is_a_signature(data: bytes) -> None:
    for signature in (data, armored(data), armored(blob()[: len(data)] + data)):
        refused(signature, "the signature")


# --- keys -----------------------------------------------------------------------------------------------


Point = tuple[int, int]
D = -121665 * pow(121666, -1, PRIME) % PRIME
ORDER = 2**252 + 27742317777372353535851937790883648493  # a point of the large subgroup


def add(p: Point, q: Point) -> Point:
    """Add two points of the Edwards curve, by the plain formula."""
    (x1, y1), (x2, y2) = p, q
    k = D * x1 * x2 * y1 * y2
    x, y = (x1 * y2 + x2 * y1) * pow(1 + k, -1, PRIME), (y1 * y2 + x1 * x2) * pow(1 - k, -1, PRIME)
    return x % PRIME, y % PRIME


def times(n: int, p: Point) -> Point:
    result = (0, 1)
    for bit in f"{n:b}":
        result = add(result, result)
        result = add(result, p) if bit == "1" else result
    return result


def point_at(y: int) -> Point:
    square = (y * y - 1) * pow(D * y * y + 1, -1, PRIME) % PRIME
    root = pow(square, (PRIME + 3) // 8, PRIME)
    x = next(r for r in (root, root * pow(2, (PRIME - 1) // 4, PRIME) % PRIME) if r * r % PRIME == square)
    return x, y


def small_order_encodings() -> set[bytes]:
    """Compute every encoding of every point whose order divides 8."""
    generator = times(ORDER, point_at(3))  # the small-order part of a point
    assert times(4, generator) != (0, 1)
    assert times(8, generator) == (0, 1)
    ys = {times(n, generator)[1] for n in range(8)}
    values = {value for y in ys for value in (y, y + PRIME) if value < 2**255}
    return {(value | top << 255).to_bytes(32, "little") for value in values for top in (0, 1)}


def test_keys_of_low_order_are_refused_in_every_encoding() -> None:
    encodings = small_order_encodings()
    assert len(encodings) == 14
    for raw in encodings:
        canonical = int.from_bytes(raw, "little") % 2**255 < PRIME
        with pytest.raises(FormatError, match="of low order" if canonical else "in a non-canonical encoding"):
            PublicKey(raw)


def test_a_signature_under_a_low_order_key_is_refused() -> None:
    """With the neutral point as key, R = point and S = 0 would sign every message."""
    neutral = (1).to_bytes(32, "little")
    key = wire_string(wire_string(b"ssh-ed25519") + wire_string(neutral))
    signature = wire_string(wire_string(b"ssh-ed25519") + wire_string(neutral + bytes(32)))
    refused(armored(blob(key=key, signature=signature)), "low order")


def test_a_signature_with_a_large_s_is_refused() -> None:
    """S and S + L satisfy the same equation; only the smaller one is accepted."""
    strings = (NAMESPACE.encode(), b"", b"sha512", hashlib.sha512(MESSAGE).digest())
    small = KEY.sign(b"SSHSIG" + b"".join(map(wire_string, strings)))
    large = small[:32] + (int.from_bytes(small[32:], "little") + ORDER).to_bytes(32, "little")
    small_armored, large_armored = (
        armored(blob(signature=wire_string(wire_string(b"ssh-ed25519") + wire_string(raw))))
        for raw in (small, large)
    )
    assert small_armored == SIGNED
    refused(large_armored, "does not fit")


@given(st.binary(min_size=32, max_size=32))
def test_a_public_key_line_is_read_as_written(seed: bytes) -> None:
    key = PublicKey.of(Ed25519PrivateKey.from_private_bytes(seed))
    assert PublicKey.from_line(key.line()) == PublicKey.from_line(key.line("a comment")) == key


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "not an ssh-ed25519 public key"),
        ("ssh-rsa AAAA", "not an ssh-ed25519 public key"),
        ("ssh-ed25519", "ends too early"),
        ("ssh-ed25519 AAA", "not base64"),
        ("ssh-ed25519 \u00e4\u00e4\u00e4\u00e4", "not base64"),
        ("ssh-ed25519 " + b64encode(wire_string(b"ssh-rsa")).decode(), "of type ssh-rsa"),
        ("ssh-ed25519 " + b64encode(PublicKey.of(KEY).blob + b"\0").decode(), "too many"),
    ],
)
def test_a_malformed_public_key_line_is_refused(line: str, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        PublicKey.from_line(line)


# --- with ssh-keygen ------------------------------------------------------------------------------------


def keygen(*arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["ssh-keygen", *arguments], input=stdin, capture_output=True, check=True)


@needs("ssh-keygen")
def test_ssh_keygen_shows_the_same_fingerprint(tmp_path: Path) -> None:
    key = PublicKey.of(KEY)
    (tmp_path / "key.pub").write_text(key.line("someone"))
    shown = keygen("-l", "-f", tmp_path / "key.pub").stdout.decode().split()
    assert shown[1] == key.fingerprint


@needs("ssh-keygen")
def test_a_signature_by_ssh_keygen_is_accepted(tmp_path: Path) -> None:
    keygen("-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key")
    signature = keygen("-Y", "sign", "-n", NAMESPACE, "-f", tmp_path / "key", stdin=MESSAGE).stdout
    assert verify(MESSAGE, signature) == PublicKey.from_line((tmp_path / "key.pub").read_text())
    file = keygen("-Y", "sign", "-n", "file", "-f", tmp_path / "key", stdin=MESSAGE).stdout
    refused(file, "namespace file")
    weaker = keygen(
        "-Y", "sign", "-O", "hashalg=sha256", "-n", NAMESPACE, "-f", tmp_path / "key", stdin=MESSAGE
    )
    refused(weaker.stdout, "hash by sha256")


@needs("ssh-keygen")
@pytest.mark.parametrize(("kind", "name"), [("rsa", "ssh-rsa"), ("ecdsa", "ecdsa-sha2-nistp256")])
def test_a_signature_by_another_algorithm_is_refused(tmp_path: Path, kind: str, name: str) -> None:
    keygen("-q", "-t", kind, "-N", "", "-f", tmp_path / "key", *(["-b", "2048"] if kind == "rsa" else []))
    signature = keygen("-Y", "sign", "-n", NAMESPACE, "-f", tmp_path / "key", stdin=MESSAGE).stdout
    refused(signature, f"is of type {name}, not ssh-ed25519")
