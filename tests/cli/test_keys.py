"""The user's key is created once and never overwritten; every wrong key is refused with advice."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.base.errors import BadInput, BenchError, EnvironmentCannot
from bench.bundle.handshake import BUNDLE_NAMESPACE
from bench.signing import key_file
from bench.signing.key_file import load_or_make_key, opens_without_asking, public_half
from bench.signing.ssh_keys import PublicKey, to_base64, wire_string
from bench.signing.sshsig import sign, verify
from tests.authority import Token
from tests.bundles import KEY
from tests.needs import needs


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "bench"


def ssh_key(path: Path, kind: str = "ed25519", passphrase: str = "", *more: str) -> Path:
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", str(path), *more]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refused(path: Path, why: str, advice: str, kind: type[BenchError] = BadInput) -> None:
    with pytest.raises(kind, match=why) as caught:
        load_or_make_key(path)
    assert caught.value.where == str(path)
    assert advice in str(caught.value.advice)


def private_file(
    path: Path, public: PublicKey, cipher: str = "none", keys: int = 1, version: bytes = b"v1"
) -> Path:
    """Write the open part of an OpenSSH private key, which names its cipher and its public half."""
    names = wire_string(cipher) + wire_string("none") + wire_string("")
    body = b"openssh-key-" + version + b"\0" + names + keys.to_bytes(4, "big") + wire_string(public.blob)
    begin, end = (f"-----{word} OPENSSH PRIVATE KEY-----" for word in ("BEGIN", "END"))
    path.write_text(f"{begin}\n{to_base64(body)}\n{end}\n", encoding="ascii")
    path.chmod(0o600)
    return path


def test_a_key_opens_without_asking_if_it_exists_without_a_passphrase_and_outside_a_token(
    home: Path, tmp_path: Path
) -> None:
    plain = PublicKey.of(KEY)
    assert not opens_without_asking(tmp_path / "absent")
    assert opens_without_asking(private_file(tmp_path / "plain", plain))
    assert not opens_without_asking(private_file(tmp_path / "locked", plain, "aes256-ctr"))
    assert not opens_without_asking(private_file(tmp_path / "token", Token().public))
    assert not opens_without_asking()
    load_or_make_key()
    assert opens_without_asking()


def test_a_file_with_two_keys_and_the_key_of_a_token_cannot_sign(tmp_path: Path) -> None:
    two = private_file(tmp_path / "two", PublicKey.of(KEY), keys=2)
    refused(two, "does not hold exactly one key", "Ed25519")
    token = private_file(tmp_path / "token", Token().public)
    refused(token, "is the key of a token, which can certify", "ssh-keygen -t ed25519")
    assert public_half(token) == Token().public  # whose certificates are trusted all the same


def test_a_private_key_of_another_version_is_refused(tmp_path: Path) -> None:
    later = private_file(tmp_path / "id", PublicKey.of(KEY), version=b"v2")
    refused(later, "is not an OpenSSH private key of version 1", "ssh-keygen -t ed25519")


def test_a_key_that_is_no_base64_is_damaged(tmp_path: Path) -> None:
    path = private_file(tmp_path / "id", PublicKey.of(KEY))
    path.write_text(path.read_text(encoding="ascii").replace("AAAA", "????"), encoding="ascii")
    refused(path, "is a damaged OpenSSH private key", "ssh-keygen -t ed25519")


def test_without_a_home_directory_bench_has_no_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_file, "config_path", lambda name: None)
    with pytest.raises(EnvironmentCannot, match="there is no home directory for a signing key") as caught:
        load_or_make_key()
    assert "--key FILE" in str(caught.value.advice)


# --- the key that bench makes ---------------------------------------------------------------------------


def test_the_first_use_makes_a_key_and_the_next_finds_it(home: Path) -> None:
    first, second = load_or_make_key(), load_or_make_key()
    assert (first.made, second.made) == (True, False)
    assert first.path == home / "id_ed25519"
    assert first.public == second.public
    signed = verify(b"x", sign(b"x", second.private, BUNDLE_NAMESPACE), BUNDLE_NAMESPACE)
    assert signed.key == first.public


def test_the_key_is_for_its_owner_alone(home: Path) -> None:
    before = os.umask(0)
    try:
        load_or_make_key()
    finally:
        os.umask(before)
    assert (mode(home), mode(home / "id_ed25519"), mode(home / "id_ed25519.pub")) == (0o700, 0o600, 0o644)
    assert sorted(p.name for p in home.iterdir()) == ["id_ed25519", "id_ed25519.pub"]


@needs("ssh-keygen")
def test_ssh_keygen_reads_the_key(home: Path) -> None:
    key = load_or_make_key()
    shown = subprocess.run(["ssh-keygen", "-y", "-f", key.path], capture_output=True, text=True, check=True)
    assert PublicKey.from_line(shown.stdout) == key.public
    assert PublicKey.from_line((home / "id_ed25519.pub").read_text()) == key.public


def test_nothing_is_overwritten(home: Path) -> None:
    load_or_make_key()
    (home / "id_ed25519").write_text("mine")
    (home / "id_ed25519.pub").write_text("mine too")
    refused(home / "id_ed25519", "is not an OpenSSH private key", "ssh-keygen")
    with pytest.raises(BadInput, match="is not an OpenSSH private key"):
        load_or_make_key()
    assert (home / "id_ed25519").read_text() == "mine"
    assert (home / "id_ed25519.pub").read_text() == "mine too"


def test_a_key_that_exists_is_neither_made_nor_written_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_or_make_key()
    before = home.stat().st_mtime_ns
    monkeypatch.setattr(key_file, "_make", lambda path: pytest.fail("made"))
    assert not load_or_make_key().made
    assert home.stat().st_mtime_ns == before


def test_a_file_that_another_process_published_first_is_kept(home: Path) -> None:
    home.mkdir(parents=True)
    assert key_file._publish(home / "id", b"first", 0o600)
    assert not key_file._publish(home / "id", b"second", 0o600)
    assert (home / "id").read_bytes() == b"first"


def test_the_folders_of_the_users_first_file_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "not" / "yet" / "there"))
    assert load_or_make_key().path == tmp_path / "not" / "yet" / "there" / "bench" / "id_ed25519"


def test_a_lost_public_key_is_written_again(home: Path) -> None:
    key = load_or_make_key()
    (home / "id_ed25519.pub").unlink()
    load_or_make_key()
    assert PublicKey.from_line((home / "id_ed25519.pub").read_text()) == key.public


def test_concurrent_first_uses_make_one_key(home: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: load_or_make_key(), range(16)))
    assert len({key.public for key in found}) == 1
    assert sum(key.made for key in found) == 1
    assert sorted(p.name for p in home.iterdir()) == ["id_ed25519", "id_ed25519.pub"]


def test_without_xdg_the_key_lies_below_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative/path"):
        monkeypatch.setenv("XDG_CONFIG_HOME", value)
        assert key_file.default_key_path() == tmp_path / ".config" / "bench" / "id_ed25519"


def test_a_folder_where_no_key_can_be_stored_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    with pytest.raises(EnvironmentCannot, match="cannot be stored: ") as caught:
        load_or_make_key()
    assert "--key" in str(caught.value)


# --- the user's own key ---------------------------------------------------------------------------------


@needs("ssh-keygen")
def test_an_ssh_key_signs(tmp_path: Path) -> None:
    key = load_or_make_key(ssh_key(tmp_path / "id"))
    assert not key.made
    assert key.public == PublicKey.from_line((tmp_path / "id.pub").read_text())


@needs("ssh-keygen")
@pytest.mark.parametrize(("kind", "name"), [("rsa", "ssh-rsa"), ("ecdsa", "ecdsa-sha2-nistp256")])
def test_a_key_of_another_type_is_refused_before_asking_its_passphrase(
    tmp_path: Path, kind: str, name: str
) -> None:
    path = ssh_key(tmp_path / "id", kind, "secret")
    refused(path, f"is of type {name}, not ssh-ed25519", "ssh-keygen -t ed25519")


@needs("ssh-keygen")
def test_a_key_in_pem_is_refused_with_advice(tmp_path: Path) -> None:
    refused(
        ssh_key(tmp_path / "id", "rsa", "", "-m", "PEM"),
        "is not an OpenSSH private key",
        "ssh-keygen -t ed25519",
    )


@needs("ssh-keygen")
def test_a_public_key_as_private_key_is_refused_with_advice(tmp_path: Path) -> None:
    path = ssh_key(tmp_path / "id")
    refused(tmp_path / "id.pub", "is a public key", f"the private key, {path}")
    (tmp_path / "id.txt").write_bytes((tmp_path / "id.pub").read_bytes())
    refused(tmp_path / "id.txt", "is a public key", "the private key, the file without .pub")


def test_a_public_key_in_pem_is_no_key_that_bench_reads(tmp_path: Path) -> None:
    pem = tmp_path / "id.pub"
    pem.write_text(
        "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA\n-----END PUBLIC KEY-----\n", encoding="ascii"
    )
    with pytest.raises(BadInput, match="is a public key in PEM, not OpenSSH's form") as caught:
        public_half(pem)
    assert "the .pub file that ssh-keygen made" in str(caught.value.advice)


def test_the_comment_of_a_public_key_may_be_in_any_language(tmp_path: Path) -> None:
    named = tmp_path / "id.pub"
    named.write_text(f"{PublicKey.of(KEY).line()} Jürgen\n", encoding="utf-8")
    assert public_half(named) == PublicKey.of(KEY)


@pytest.mark.parametrize("allowed", [0o600, 0o400, 0o700])
def test_a_private_key_for_its_owner_alone_is_read(home: Path, allowed: int) -> None:
    path = load_or_make_key().path
    path.chmod(allowed)
    assert load_or_make_key(path).path == path


@pytest.mark.parametrize("loose", [0o601, 0o602, 0o604, 0o610, 0o620, 0o640])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, home: Path, loose: int) -> None:
    path = load_or_make_key().path
    path.chmod(loose)
    refused(path, f"its mode {loose:04o} lets others read", f"chmod 600 {path}")


def test_the_mode_of_a_key_that_belongs_to_somebody_else_is_theirs_to_choose(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = load_or_make_key().path
    path.chmod(0o640)
    monkeypatch.setattr(key_file, "user_and_group", lambda: (os.getuid() + 1, 0))
    assert load_or_make_key(path).path == path
    monkeypatch.setattr(key_file, "user_and_group", lambda: None)  # an operating system without owners
    assert load_or_make_key(path).path == path


def test_a_path_without_a_key_is_refused_with_advice(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "absent", "cannot be opened: No such file", "ssh-keygen")
    refused(tmp_path, "is not a regular file", "ssh-keygen")
    refused(tmp_path / "pipe", "is not a regular file", "ssh-keygen")


def test_a_damaged_key_is_refused_with_advice(home: Path, tmp_path: Path) -> None:
    whole = load_or_make_key().path.read_bytes()
    path = tmp_path / "damaged"
    path.touch(mode=0o600)
    for at in range(len(whole)):
        for damaged in (whole[:at], whole[:at] + b"!" + whole[at + 1 :], whole[:at] + b"A" + whole[at + 1 :]):
            path.write_bytes(damaged)
            try:
                load_or_make_key(path)
            except BadInput as error:
                assert error.where == str(path)


def test_a_key_whose_private_half_is_damaged_is_refused_as_damaged(home: Path, tmp_path: Path) -> None:
    lines = load_or_make_key().path.read_bytes().splitlines(keepends=True)
    path = tmp_path / "damaged"
    path.touch(mode=0o600)
    path.write_bytes(b"".join([*lines[:-3], b"A" * (len(lines[-3]) - 1) + b"\n", *lines[-2:]]))
    refused(path, "is a damaged private key", "ssh-keygen")


def test_a_key_may_have_64_kib(home: Path, tmp_path: Path) -> None:
    whole = load_or_make_key()
    path = tmp_path / "padded"
    path.touch(mode=0o600)
    path.write_bytes(whole.path.read_bytes().ljust(65_536, b"\n"))
    assert load_or_make_key(path).public == whole.public
    path.write_bytes(whole.path.read_bytes().ljust(65_537, b"\n"))
    refused(path, "is not an OpenSSH private key", "ssh-keygen")


def test_a_huge_file_is_refused_as_a_key(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    path.touch(mode=0o600)
    with path.open("wb") as file:
        file.write(b"-----BEGIN OPENSSH PRIVATE KEY-----\n")
        file.truncate(2**40)
    refused(path, "is not an OpenSSH private key", "ssh-keygen")


# --- passphrases ----------------------------------------------------------------------------------------


class Terminal:
    def isatty(self) -> bool:
        return True


@needs("ssh-keygen")
def test_without_a_terminal_a_passphrase_cannot_be_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ssh_key(tmp_path / "id", "ed25519", "secret")
    for stdin in (None, open(os.devnull)):  # noqa: PTH123, SIM115
        monkeypatch.setattr(sys, "stdin", stdin)
        refused(path, "no terminal to ask for it", "use a terminal")


@needs("ssh-keygen")
def test_on_a_terminal_the_passphrase_is_requested_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ssh_key(tmp_path / "id", "ed25519", "secret", "-a", "1")
    answers = iter(["wrong", "", "secret"])
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(key_file, "getpass", lambda prompt: next(answers))
    assert load_or_make_key(path).public == PublicKey.from_line((tmp_path / "id.pub").read_text())


@needs("ssh-keygen")
def test_the_third_wrong_passphrase_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = ssh_key(tmp_path / "id", "ed25519", "secret", "-a", "1")
    asked: list[str] = []
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(key_file, "getpass", lambda prompt: asked.append(prompt) or "wrong")  # type: ignore[func-returns-value]
    refused(path, "was not unlocked", "")
    assert asked == [f"Passphrase for {path}: "] * 3
    assert capsys.readouterr().err == "the passphrase is wrong\n" * 3


@needs("ssh-keygen")
def test_the_library_that_opens_passphrases_may_be_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    def cannot(data: bytes, password: bytes) -> None:
        raise UnsupportedAlgorithm("Need bcrypt module")

    path = ssh_key(tmp_path / "id", "ed25519", "secret", "-a", "1")
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(key_file, "getpass", lambda prompt: "secret")
    monkeypatch.setattr(serialization, "load_ssh_private_key", cannot)
    refused(path, "cannot be opened: Need bcrypt", "pip install bcrypt", EnvironmentCannot)
