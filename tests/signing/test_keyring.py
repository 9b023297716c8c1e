"""`bench keys`: files in the places and formats that people know, never overwritten, read by ssh-keygen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import BadInput, EnvironmentCannot
from bench.bundle.handshake import BUNDLE_NAMESPACE, RECEIPT_NAMESPACE
from bench.bundle.pack import write_bundle
from bench.bundle.tar_format import CERTIFICATE, STATEMENT
from bench.bundle.verify import verify_bundle
from bench.cli.main import main
from bench.operator import keyring
from bench.signing.allowed_signers import TrustPolicy
from bench.signing.revocation import Revoked
from bench.signing.ssh_keys import PublicKey
from tests.authority import OPERATOR, RUN_KEY, certificate, certified, contents, received
from tests.bundles import packed
from tests.cli.test_keys import ssh_key
from tests.needs import needs

pytestmark = needs("ssh-keygen")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "config" / "bench"


def public(path: Path, key: object = OPERATOR) -> Path:
    path.write_text(PublicKey.of(key).line("somebody") + "\n")  # type: ignore[arg-type]
    return path


def said(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> tuple[str, str]:
    assert main([str(a) for a in arguments]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


# --- new and show ---------------------------------------------------------------------------------------


def test_a_new_key_is_an_ssh_key_in_its_place(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = said(capsys, "keys", "new", "--no-passphrase")
    key = PublicKey.from_line((home / "id_ed25519.pub").read_text())
    assert key.fingerprint in out
    assert key.line("bench") in out
    assert (home / "id_ed25519").stat().st_mode & 0o777 == 0o600
    assert f'bench-run:* cert-authority,namespaces="{BUNDLE_NAMESPACE}" {key.line()}' in err
    shown = subprocess.run(
        ["ssh-keygen", "-y", "-f", home / "id_ed25519"], capture_output=True, text=True, check=True
    )
    assert PublicKey.from_line(shown.stdout) == key


def test_a_key_is_never_overwritten(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "keys", "new", "--no-passphrase")
    before = (home / "id_ed25519").read_bytes()
    _, err = said(capsys, "keys", "new", "--no-passphrase", code=2)
    assert "exists; nothing is overwritten" in err
    assert (home / "id_ed25519").read_bytes() == before
    public(tmp_path / "half.pub")
    said(capsys, "keys", "new", tmp_path / "half", "--no-passphrase", code=2)


def test_without_a_terminal_no_passphrase_can_be_chosen(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, err = said(capsys, "keys", "new", code=2)
    assert "--no-passphrase" in err
    assert not home.exists()


def test_the_shown_lines_are_all_that_others_need(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = ssh_key(tmp_path / "id")
    _, err = said(capsys, "keys", "show", path)
    lines = [line.strip() for line in err.splitlines() if line.startswith("  ")]
    policy = TrustPolicy.from_text("\n".join(lines), "shown")
    key = PublicKey.from_line((tmp_path / "id.pub").read_text())
    assert policy.accept(key, BUNDLE_NAMESPACE, 0, "bench-run:7f3a2c")
    assert policy.accept(key, RECEIPT_NAMESPACE, 0)


def test_without_a_key_there_is_nothing_to_show(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = said(capsys, "keys", "show", code=2)
    assert "bench keys new makes one" in err


# --- trust ----------------------------------------------------------------------------------------------


def test_trusted_keys_count_without_an_option(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = received(tmp_path / "b.tar")
    file = public(tmp_path / "operator.pub")
    out, _ = said(capsys, "keys", "trust", file, "--as", "lab@example.org")
    assert "2 lines added" in out
    assert home.stat().st_mode & 0o777 == 0o700  # nobody else lists or adds
    lists = home / "allowed_signers"
    lines = lists.read_text().splitlines()
    assert lines[1].startswith(
        f'lab@example.org namespaces="{RECEIPT_NAMESPACE},{BUNDLE_NAMESPACE}" ssh-ed25519'
    )
    out, _ = said(capsys, "keys", "trust", file, "--as", "lab@example.org")
    assert "trusted already" in out
    assert lists.read_text().splitlines() == lines
    statement, signature = tmp_path / "statement", tmp_path / "signature"
    statement.write_bytes(contents(bundle)[STATEMENT])
    signature.write_bytes(contents(bundle)["statement.json.sig"])
    command = ["ssh-keygen", "-Y", "verify", "-n", BUNDLE_NAMESPACE, "-f", lists, "-I", "bench-run:7f3a2c"]
    command += ["-Overify-time=20270115090000Z", "-s", signature]
    subprocess.run(command, input=statement.read_bytes(), capture_output=True, check=True)


def test_a_list_of_the_users_own_is_kept_as_it_is(home: Path, tmp_path: Path) -> None:
    home.mkdir(parents=True)
    (home / "allowed_signers").write_text(f"# mine\nme {PublicKey.of(RUN_KEY).line()}")
    assert main(["keys", "trust", str(public(tmp_path / "operator.pub"))]) == 0
    lines = (home / "allowed_signers").read_text().splitlines()
    assert lines[:2] == ["# mine", f"me {PublicKey.of(RUN_KEY).line()}"]
    assert lines[3].startswith("operator namespaces=")


def test_lines_follow_a_list_that_ends_with_a_newline_without_an_empty_one(
    home: Path, tmp_path: Path
) -> None:
    home.mkdir(parents=True)
    mine = f"me {PublicKey.of(RUN_KEY).line()}\n"
    (home / "allowed_signers").write_text(mine)
    path, added = keyring.trust(public(tmp_path / "operator.pub"), "operator")
    assert path.read_text() == mine + "".join(f"{line}\n" for line in added)


@pytest.mark.parametrize("name", ["", "two words", 'quo"te', "new\nline", "#comment", "ssh-ed25519"])
def test_a_name_that_would_break_the_list_is_refused(home: Path, tmp_path: Path, name: str) -> None:
    file = public(tmp_path / "operator.pub")
    if not name:
        file = file.rename(tmp_path / "two words.pub")  # the name of the key would be used
    assert main(["keys", "trust", str(file), *(["--as", name] if name else [])]) == 2
    assert not (home / "allowed_signers").exists()


def test_a_signer_without_a_name_is_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="'' cannot be the name of a signer"):
        keyring.trust(public(tmp_path / "operator.pub"), "")
    assert not (home / "allowed_signers").exists()


@pytest.mark.parametrize(
    ("text", "mode"),
    [("", 0o644), ("hello", 0o644), ("ssh-rsa AAAA", 0o644), ("-----BEGIN PUBLIC KEY-----\n", 0o644),
     ("-----BEGIN OPENSSH PRIVATE KEY-----\n", 0o600)],
)  # fmt: skip
def test_a_malformed_public_key_is_not_trusted(
    home: Path, tmp_path: Path, text: str, mode: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "key.pub").write_text(text)
    (tmp_path / "key.pub").chmod(mode)
    _, err = said(capsys, "keys", "trust", tmp_path / "key.pub", code=2)
    assert err.startswith(f"{tmp_path}/key.pub: ")
    assert not home.exists()


def test_the_advice_for_a_missing_key_to_trust_is_to_ask_its_owner(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, err = said(capsys, "keys", "trust", tmp_path / "nofile", code=2)
    assert "which its owner can send you" in err
    assert "ssh-keygen" not in err


# --- certify ---------------------------------------------------------------------------------------------


def test_a_malformed_request_is_a_wrong_argument(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is the same as for a run that gets another file as its challenge."""
    for schema, expected in (("challenge", "is a challenge"), ("request", "is not a request of bench")):
        (tmp_path / "c.json").write_text(f'{{"schema": "bench/{schema}/v1"}}')
        _, err = said(capsys, "certify", tmp_path / "c.json", "--valid", "7d", code=2)
        assert f"c.json: {expected}" in err
    assert "request.json of the run's folder" in err


@pytest.mark.parametrize(
    ("valid", "why"),
    [
        ("8d", "at most seven days"),
        ("604801s", "at most seven days"),
        ("604800s", "c.json: cannot be opened"),
        ("60s", "c.json: cannot be opened"),
        ("59s", "at least a minute"),
    ],
)
def test_a_certificate_is_short_lived(
    home: Path, tmp_path: Path, valid: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert why in said(capsys, "certify", tmp_path / "c.json", "--valid", valid, code=2)[1]


# --- revoke ---------------------------------------------------------------------------------------------

KEY = PublicKey.of(RUN_KEY)


def revokes(home: Path) -> bool:
    return Revoked.from_file(home / "revoked.krl").refusal(KEY, certificate()) is not None


@pytest.mark.parametrize("what", ["key", "authority", "certificate", "bundle", "fingerprint", "run"])
def test_a_revoked_bundle_no_longer_verifies(
    home: Path, tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bundle is refused without --revoked and --trust too, and also by ssh-keygen."""
    bundle = received(tmp_path / "b.tar")
    said(capsys, "keys", "trust", public(tmp_path / "operator.pub"))
    (tmp_path / "run-cert.pub").write_text(certificate().line() + "\n")
    target: list[str | Path] = {
        "key": [public(tmp_path / "run.pub", RUN_KEY)],
        "authority": [tmp_path / "operator.pub"],
        "certificate": [tmp_path / "run-cert.pub"],
        "bundle": [bundle],
        "fingerprint": [KEY.fingerprint],
        "run": ["7f3a2c", "--authority", tmp_path / "operator.pub"],
    }[what]
    out, _ = said(capsys, "keys", "revoke", *target)
    assert "revoked" in out
    assert revokes(home)
    command = ["ssh-keygen", "-Q", "-f", home / "revoked.krl", tmp_path / "run-cert.pub"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "REVOKED" in found.stdout
    _, err = said(capsys, "verify", bundle, code=4)
    verdict, advice = err.splitlines()
    assert "revoked" in verdict
    assert advice.startswith("  do not rely on its figures")


def test_revocations_add_up(home: Path, tmp_path: Path) -> None:
    first, second = public(tmp_path / "a.pub", RUN_KEY), public(tmp_path / "b.pub", OPERATOR)
    assert main(["keys", "revoke", str(first)]) == 0
    assert main(["keys", "revoke", str(second)]) == 0
    found = Revoked.from_file(home / "revoked.krl")
    assert found.refusal(KEY, None)
    assert found.refusal(PublicKey.of(OPERATOR), None)


def test_a_revocation_list_for_others_can_be_written(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = received(tmp_path / "b.tar")
    krl = tmp_path / "lab.krl"
    said(capsys, "keys", "revoke", bundle, "--file", krl)
    assert not (home / "revoked.krl").exists()
    _, err = said(capsys, "verify", bundle, "--revoked", krl, code=4)
    assert str(krl) in err


def test_a_bundle_that_nobody_certified_has_nothing_to_revoke_by_id(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, err = said(capsys, "keys", "revoke", packed(tmp_path / "b.tar"), code=4)
    assert "run-cert.pub: is missing in the bundle" in err


def test_a_bundle_with_another_run_s_certificate_revokes_nothing(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A courier exchanges run-cert.pub: that other run must not be revoked in place of this one."""
    bundle = received(tmp_path / "b.tar")
    other = certificate(key_id="bench run innocent").line().encode() + b"\n"
    write_bundle(bundle, contents(bundle) | {CERTIFICATE: other})
    _, err = said(capsys, "keys", "revoke", bundle, code=4)
    assert "run-cert.pub: is not the certificate of the signature" in err
    assert not (home / "revoked.krl").exists()


def test_a_bundle_with_another_run_s_signatures_revokes_nothing(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, other = received(tmp_path / "b.tar"), certified(tmp_path / "other.tar")
    write_bundle(bundle, contents(other) | {"results.json": b"{}"})
    _, err = said(capsys, "keys", "revoke", bundle, code=4)
    assert "results.json: its sha256 is not the signed one" in err
    assert not (home / "revoked.krl").exists()


@pytest.mark.parametrize(
    ("key_id", "why"),
    [
        ("bench run a#b", "'a#b' is not a run id"),
        ("bench run ", "'' is not a run id"),
        ("a", "its key id 'a' is not that of a run"),
        ("a bench run b", "its key id 'a bench run b' is not that of a run"),
        ("", "its key id '' is not that of a run"),
    ],
)
def test_a_certificate_with_the_key_id_of_no_run_is_not_revoked(
    home: Path, tmp_path: Path, key_id: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cert.pub"
    file.write_text(certificate(key_id=key_id).line() + "\n")
    _, err = said(capsys, "keys", "revoke", file, code=2)
    assert why in err
    assert not (home / "revoked.krl").exists()


def test_a_file_that_begins_as_a_certificate_and_is_none_is_not_revoked(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cert.pub"
    file.write_text("ssh-ed25519-cert-v01@openssh.com AAAA\n")
    _, err = said(capsys, "keys", "revoke", file, code=2)
    assert f"{file}: ends too early" in err


def test_a_file_is_revoked_as_what_it_is_though_an_authority_is_named(tmp_path: Path) -> None:
    key = public(tmp_path / "node.pub", RUN_KEY)
    found = keyring.to_revoke(str(key), public(tmp_path / "operator.pub"))
    assert found.specification == f"key: {PublicKey.of(RUN_KEY).line()}"


def test_what_is_neither_a_file_nor_a_fingerprint_is_a_run_only_beside_its_authority(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is neither a file nor a fingerprint") as caught:
        keyring.to_revoke("7f3a2c", None)
    assert "--authority FILE.pub" in str(caught.value.advice)
    of_run = keyring.to_revoke("7f3a2c", public(tmp_path / "operator.pub"))
    assert of_run.authority == PublicKey.of(OPERATOR)


@pytest.mark.parametrize("target", ["absent", "SHA256:short", "7f3a2c"])
def test_an_argument_that_cannot_be_revoked_is_reported(
    home: Path, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, err = said(capsys, "keys", "revoke", target, code=3 if target.startswith("SHA256") else 2)
    assert "Traceback" not in err
    assert not (home / "revoked.krl").exists()


def test_a_damaged_revocation_list_is_never_extended(home: Path, tmp_path: Path) -> None:
    home.mkdir(parents=True)
    for name in ("revoked.krl", "allowed_signers"):
        (home / name).write_bytes(b"SSHKRL\n\0 damaged" if name == "revoked.krl" else b"damaged\n")
    file = public(tmp_path / "operator.pub")
    before = {p: p.read_bytes() for p in home.iterdir()}
    assert main(["keys", "revoke", str(file)]) == 2
    assert main(["keys", "trust", str(file)]) == 2
    assert {p: p.read_bytes() for p in home.iterdir()} == before


def test_a_list_that_cannot_be_read_fails_every_verification(home: Path, tmp_path: Path) -> None:
    """Ignoring an unreadable revocation list would accept revoked bundles."""
    home.mkdir(parents=True)
    (home / "revoked.krl").write_bytes(b"damaged")
    bundle = certified(tmp_path / "b.tar")
    command = [sys.executable, "-m", "bench", "verify", bundle]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{home}/revoked.krl: the revocation list")


def test_a_list_that_was_damaged_while_it_was_extended_is_reported(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next verification would fail for a damaged list, without naming the cause."""

    def damaging(*_: object, **__: object) -> None:
        (home / "revoked.krl").write_bytes(b"SSHKRL\n\0 cut off")

    monkeypatch.setattr(keyring, "run_ssh_keygen", damaging)
    _, err = said(capsys, "keys", "revoke", public(tmp_path / "a.pub", RUN_KEY), code=2)
    assert err.startswith(f"{home}/revoked.krl: the revocation list")


def test_nothing_is_added_to_a_list_that_cannot_be_read(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir(parents=True)
    (home / "revoked.krl").write_bytes(b"SSHKRL\n\0 damaged")
    monkeypatch.setattr(keyring, "run_ssh_keygen", lambda *_, **__: pytest.fail("it was extended"))
    assert main(["keys", "revoke", str(public(tmp_path / "a.pub", RUN_KEY))]) == 2


def test_a_bundle_exchanged_while_it_is_verified_revokes_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is exchanged between two reads would decide which run is revoked."""
    bundle, other = received(tmp_path / "b.tar"), tmp_path / "other.tar"
    write_bundle(other, contents(bundle) | {CERTIFICATE: f"{certificate(serial=9).line()}\n".encode()})

    def verify_then_exchange(path: Path, *rest: Any) -> Any:
        verdict = verify_bundle(path, *rest)
        other.replace(bundle)
        return verdict

    monkeypatch.setattr(keyring, "verify_bundle", verify_then_exchange)
    _, err = said(capsys, "keys", "revoke", bundle, code=4)
    assert "b.tar: changed while it was verified" in err
    assert not (home / "revoked.krl").exists()


def test_a_key_with_a_comment_in_any_language_is_revoked(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.pub"
    file.write_text(f"{KEY.line('Jürgen')}\n", encoding="utf-8")
    assert main(["keys", "revoke", str(file)]) == 0
    assert revokes(home)


def test_without_a_home_directory_there_are_no_lists(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = public(tmp_path / "a.pub", RUN_KEY)
    monkeypatch.setattr(keyring, "config_path", lambda name: None)
    for command in ("trust", "revoke"):
        _, err = said(capsys, "keys", command, file, code=3)
        assert (
            err
            == "there is no home directory for bench's lists\n  set HOME to a folder that you can write to\n"
        )


@pytest.mark.parametrize(("token", "kind"), [(False, "ed25519"), (True, "ed25519-sk")])
def test_ssh_keygen_is_asked_for_a_key_of_the_wanted_kind_in_the_wanted_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: bool, kind: str
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        public(tmp_path / "id")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(keyring.subprocess, "run", run)
    assert keyring.new(tmp_path / "id", token=token, passphrase=False) == PublicKey.of(OPERATOR)
    assert commands == [["ssh-keygen", "-q", "-t", kind, "-C", "bench", "-f", str(tmp_path / "id"), "-N", ""]]


def test_without_ssh_keygen_no_key_is_made_and_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentCannot, match="ssh-keygen is not installed") as caught:
        keyring.new(tmp_path / "id", token=False, passphrase=False)
    assert caught.value.advice == "install OpenSSH's client programs"


def test_a_key_that_ssh_keygen_does_not_make_is_reported(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "bin" / "ssh-keygen"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    _, err = said(capsys, "keys", "new", "--no-passphrase", code=3)
    assert err.startswith(f"{home}/id_ed25519: ssh-keygen made no key")


@pytest.mark.parametrize("passphrase", [True, False])
def test_ssh_keygen_itself_asks_for_a_passphrase_on_the_terminal(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passphrase: bool
) -> None:
    """A passphrase never passes through bench, and an empty one is given only if none is wanted."""
    key = ssh_key(tmp_path / "made")
    given: list[str] = []

    def make(command: list[str], *, check: bool) -> Any:
        given.extend(command)
        for suffix in ("", ".pub"):
            source = key.with_name(f"made{suffix}")
            (home / f"id_ed25519{suffix}").write_bytes(source.read_bytes())
        (home / "id_ed25519").chmod(0o600)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(keyring.subprocess, "run", make)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    made = keyring.new(None, token=False, passphrase=passphrase)
    assert made == PublicKey.from_line(key.with_suffix(".pub").read_text())
    assert ("-N" in given) == (not passphrase)
    assert home.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("first", ["new", "trust", "revoke"])
def test_the_first_of_the_users_files_makes_a_folder_for_the_user_alone(
    first: str, home: Path, tmp_path: Path
) -> None:
    key = public(tmp_path / "key.pub")
    arguments: dict[str, list[Path | str]] = {
        "new": ["--no-passphrase"],
        "trust": [key, "--as", "me"],
        "revoke": [PublicKey.of(OPERATOR).fingerprint],
    }
    before = os.umask(0)
    try:
        assert main(["keys", first, *map(str, arguments[first])]) == 0
    finally:
        os.umask(before)
    assert home.stat().st_mode & 0o777 == 0o700


def test_a_list_is_not_touched_if_nothing_is_added(home: Path, tmp_path: Path) -> None:
    file = public(tmp_path / "operator.pub")
    assert main(["keys", "trust", str(file)]) == 0
    lists = home / "allowed_signers"
    lists.write_text(lists.read_text().removesuffix("\n"))
    before = lists.read_bytes()
    assert main(["keys", "trust", str(file)]) == 0
    assert lists.read_bytes() == before
