"""Read revocation lists of ssh-keygen -k and of plain text; test_attacks.py checks that they are obeyed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.base.errors import BadInput
from bench.signing.revocation import Revoked
from bench.signing.ssh_keys import PublicKey, wire_string
from tests.authority import OPERATOR, RUN_KEY, STRANGER, Token, certificate
from tests.needs import needs

KEY, AUTHORITY, OTHER = PublicKey.of(RUN_KEY), PublicKey.of(OPERATOR), PublicKey.of(STRANGER)


def krl(folder: Path, *lines: str, authority: PublicKey | None = AUTHORITY) -> bytes:
    (folder / "specification").write_text("\n".join(lines) + "\n")
    command = ["ssh-keygen", "-q", "-k", "-f", str(folder / "krl")]
    if authority:
        (folder / "authority.pub").write_text(authority.line() + "\n")
        command += ["-s", str(folder / "authority.pub")]
    subprocess.run([*command, folder / "specification"], check=True, stdin=subprocess.DEVNULL)
    return (folder / "krl").read_bytes()


def listed(data: bytes) -> Revoked:
    return Revoked.from_bytes(data, "list")


@needs("ssh-keygen")
@pytest.mark.parametrize(
    ("lines", "revoked", "kept"),
    [
        (("serial: 7",), {7}, {0, 1, 6, 8, 2**63}),
        (("serial: 5-9", "serial: 100-200"), {5, 9, 100, 150, 200}, {4, 10, 99, 201}),
        (
            ("serial: 1", "serial: 3", "serial: 4", "serial: 60", "serial: 64"),
            {1, 3, 4, 60, 64},
            {2, 5, 61, 65},
        ),
        ((f"serial: {2**64 - 1}",), {2**64 - 1}, {2**64 - 2}),
        (("serial: 1-1000000000",), {1, 10**9}, {10**9 + 1}),
    ],
)
def test_serial_numbers_as_lists_ranges_and_bitmaps(
    tmp_path: Path, lines: tuple[str, ...], revoked: set[int], kept: set[int]
) -> None:
    found = listed(krl(tmp_path, *lines))
    for serial in revoked:
        assert found.refusal(KEY, certificate(serial=serial)), serial
    for serial in kept:
        assert found.refusal(KEY, certificate(serial=serial)) is None, serial


@needs("ssh-keygen")
def test_a_revocation_by_one_authority_does_not_affect_another(tmp_path: Path) -> None:
    found = listed(krl(tmp_path, "serial: 7", "id: bench run 7f3a2c"))
    assert found.refusal(KEY, certificate())
    assert found.refusal(KEY, certificate(authority=STRANGER)) is None


@needs("ssh-keygen")
def test_keys_by_themselves_and_by_their_digests(tmp_path: Path) -> None:
    for line in (
        f"key: {KEY.line()}",
        f"sha1: {KEY.line()}",
        f"sha256: {KEY.line()}",
        f"hash: {KEY.fingerprint}",
    ):
        found = listed(krl(tmp_path, line, authority=None))
        assert found.refusal(KEY, None) == f"the key {KEY.fingerprint} is revoked"
        assert found.refusal(OTHER, None) is None


@needs("ssh-keygen")
def test_a_tokens_key_and_foreign_keys(tmp_path: Path) -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", tmp_path / "rsa"], check=True
    )
    token = Token().public
    found = listed(krl(tmp_path, (tmp_path / "rsa.pub").read_text(), token.line(), authority=None))
    assert found.refusal(token, None)
    assert found.refusal(KEY, None) is None


@needs("ssh-keygen")
def test_an_empty_list_revokes_nothing(tmp_path: Path) -> None:
    (tmp_path / "nothing").touch()
    subprocess.run(["ssh-keygen", "-q", "-k", "-f", tmp_path / "krl", tmp_path / "nothing"], check=True)
    assert Revoked.from_file(tmp_path / "krl").refusal(KEY, certificate()) is None


def of_any_authority(kind: bytes, part: bytes) -> bytes:
    """Return a list with one section about certificates of any authority."""
    inner = wire_string("") + wire_string("") + kind + len(part).to_bytes(4, "big") + part
    return b"SSHKRL\n\0" + b"\0\0\0\1" + bytes(32) + b"\x01" + len(inner).to_bytes(4, "big") + inner


RANGE_0_TO_9 = bytes(8) + (9).to_bytes(8, "big")
BITS_0_TO_7 = bytes(8) + b"\0\0\0\1\xff"


@pytest.mark.parametrize(("kind", "part"), [(b"\x21", RANGE_0_TO_9), (b"\x22", BITS_0_TO_7)])
def test_serial_0_is_no_serial_number_and_nothing_follows_a_range_or_a_bitmap(
    kind: bytes, part: bytes
) -> None:
    found = listed(of_any_authority(kind, part))
    assert [bool(found.refusal(KEY, certificate(serial=serial))) for serial in (0, 1, 7, 10)] == [
        False, True, True, False,
    ]  # fmt: skip
    with pytest.raises(BadInput, match="has 1 bytes too many"):
        listed(of_any_authority(kind, part + b"x"))


def test_a_text_of_public_keys_is_a_list() -> None:
    rsa = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQ== no signer here"
    found = listed(f"# lost\n\n{rsa}\n{KEY.line('node 7')}\n".encode())
    assert found.refusal(KEY, None)
    assert found.refusal(OTHER, None) is None


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is empty"),
        (b"# nothing\n", "is empty"),
        (b"\xff\xfe", "neither a KRL nor a text"),
        (b"hello\n", "neither a KRL nor a text of public keys: a line is not an ssh-ed25519 public key"),
        (b"SSHKRL\n\0", "ends too early"),
        (b"SSHKRL\n\0" + b"\0\0\0\2" + bytes(40), "a format version that bench does not know"),
        (b"SSHKRL\n\0" + b"\0\0\0\1" + bytes(32) + b"\x04\0\0\0\0", "a section of type 4"),
        (
            b"SSHKRL\n\0" + b"\0\0\0\1" + bytes(32) + b"\x01\0\0\0\x0d" + bytes(8) + b"\x39\0\0\0\0",
            "a list of type 57",
        ),
        (b"SSHKRL\n\0" + b"\0\0\0\1" + bytes(32) + b"\x02\xff\xff\xff\xff", "ends too early"),
    ],
)
def test_a_list_that_is_only_partly_understood_is_bad_input(data: bytes, why: str) -> None:
    """A partly understood list may miss the one key that matters."""
    with pytest.raises(BadInput, match=f"the revocation list .*{why}") as caught:
        listed(data)
    assert caught.value.where == "list"


@given(st.binary(max_size=200))
def test_nothing_random_crashes_the_reader(data: bytes) -> None:
    for text in (data, b"SSHKRL\n\0\0\0\0\1" + bytes(32) + data):
        try:
            listed(text)
        except BadInput as error:
            assert error.exit_code == 2


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    for name in ("absent", "."):
        with pytest.raises(BadInput, match="the revocation list cannot be read"):
            Revoked.from_file(tmp_path / name)


def test_a_revocation_list_has_at_most_sixteen_mebibytes(tmp_path: Path) -> None:
    file, line = tmp_path / "list", f"{KEY.line()}\n".encode()
    file.write_bytes(line + b"#" * (16 * 2**20 - len(line)))
    assert Revoked.from_file(file).refusal(KEY, None)
    with file.open("ab") as more:
        more.write(b"#")
    with pytest.raises(BadInput, match="larger than 16777216 bytes: not a revocation list"):
        Revoked.from_file(file)
