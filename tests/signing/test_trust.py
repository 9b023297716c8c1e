"""The keys that a .pub file or an allowed_signers file trusts, for which purposes and times."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.base.errors import BadInput, VerificationFailed
from bench.bundle.handshake import BUNDLE_NAMESPACE as NAMESPACE
from bench.signing.allowed_signers import TrustPolicy
from bench.signing.ssh_keys import PublicKey
from tests.authority import Token
from tests.bundles import KEY

PUBLIC = PublicKey.of(KEY)
OTHER = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
NOW = 1_800_000_000.0


def trusting(text: str) -> TrustPolicy:
    return TrustPolicy.from_text(text, "trusted")


def accepted(text: str, principal: str | None = None, key: PublicKey = PUBLIC) -> str:
    return trusting(text).accept(key, NAMESPACE, NOW, principal)


def refused(text: str, why: str, principal: str | None = None) -> None:
    with pytest.raises(VerificationFailed, match=why):
        accepted(text, principal)


ELSE = PublicKey.of(OTHER).line("somebody else")
RSA = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQ== rsa"
BLOB = PUBLIC.line()


@pytest.mark.parametrize(
    ("text", "by"),
    [
        (BLOB, "trusted"),
        (f"{BLOB} with a \"comment that's odd", "trusted"),
        (f"\n# comment\r\n  {ELSE}\n{RSA}\n{BLOB}\r\n", "trusted"),
        (f"me@example.org {BLOB}", "trusted as me@example.org"),
        (f"me@a,me@b\t{BLOB} comment", "trusted as me@a,me@b"),
        (f'"me and you" {BLOB}', "trusted as me and you"),
        (f'*\tnamespaces="git,{NAMESPACE}" {BLOB}', "trusted as *"),
        (f'me namespaces="bench-*" {BLOB}', "trusted as me"),
        (f'me NAMESPACES="bench-bundle@v?" {BLOB}', "trusted as me"),
        (f'me valid-after="20200101",valid-before="29990101Z" {BLOB}', "trusted as me"),
        (f'me valid-before="20200101" {BLOB}\nyou {BLOB}', "trusted as you"),
        (f"you no-touch-required {RSA}\nme {BLOB}", "trusted as me"),
    ],
)
def test_a_key_that_the_file_lists_is_trusted(text: str, by: str) -> None:
    assert accepted(text) == by


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (ELSE, "which is not listed"),
        (f'me namespaces="git" {BLOB}', "is allowed for the namespaces git only"),
        (f'me namespaces="*,!bench-*" {BLOB}', "is allowed for the namespaces"),
        (f'me namespaces="" {BLOB}', "is allowed for the namespaces"),
        (f"me namespaces {BLOB}", "is allowed for the namespaces"),  # no value allows no namespace
        (f'me namespaces="bench.bundle@v1" {BLOB}', "is allowed for the namespaces"),
        (f'me valid-after="29990101" {BLOB}', "is not valid yet"),
        (f'me valid-before="20200101120000Z" {BLOB}', "is no longer valid"),
        (f"me cert-authority {BLOB}\n{ELSE}", "may only certify keys"),
    ],
)
def test_a_key_that_the_file_restricts_is_not_trusted(text: str, why: str) -> None:
    refused(text, why)


NOT_YET, NO_LONGER = "is not valid yet", "is no longer valid"


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ('valid-after="20270115080000Z"', None),  # now
        ('valid-after="20270115080001Z"', NOT_YET),
        ('valid-before="20270115080000Z"', None),
        ('valid-before="20270115075959Z"', NO_LONGER),
        ('valid-after="202701150800z"', None),  # without seconds
        ('valid-after="202701150801z"', NOT_YET),
        ('valid-before="202701150800Z"', None),
        ('valid-before="202701150759Z"', NO_LONGER),
        ('valid-after="20270115Z"', None),  # without a time of the day
        ('valid-after="20270116Z"', NOT_YET),
        ('valid-before="20270116Z"', None),
        ('valid-before="20270115Z"', NO_LONGER),
        ('valid-after="20270115060000"', None),  # without Z, by the clock of this machine
        ('valid-after="20270115060001"', NOT_YET),
        ('valid-before="20270115060000"', None),
        ('valid-before="20270115055959"', NO_LONGER),
    ],
)
def test_a_key_is_valid_from_the_first_second_to_the_last(
    option: str, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is 08:00:00 in UTC on 15 January 2027, and 06:00:00 by the clock of this machine."""
    monkeypatch.setenv("TZ", "XYZ+2")
    time.tzset()
    try:
        if why is None:
            assert accepted(f"me {option} {BLOB}") == "trusted as me"
        else:
            refused(f"me {option} {BLOB}", why)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_of_several_entries_of_a_key_the_first_that_allows_counts_or_the_first_refusal_is_told() -> None:
    early, late = f'early valid-before="20200101" {BLOB}', f'late valid-after="29990101" {BLOB}'
    refused(f"{early}\n{late}", NO_LONGER)
    refused(f"{late}\n{early}", NOT_YET)
    assert accepted(f"{early}\nme {BLOB}\nyou {BLOB}") == "trusted as me"


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("bench-run:7f", True),
        ("bench-run:7", False),
        ("run:7f", False),
        ("bench-run:7f?", False),
        ("bench-run:??", True),
        ("bench-run:7f*", True),
        ("BENCH-RUN:7F", False),
        ("bench.run:7f", False),
        ("a,b,*", True),
        ("*,!*:7f", False),
        ("!*:7f,*", False),
        ("!bench-run:8f", False),  # nothing is allowed by what it leaves out
        ("!bench-run:8f,*", True),
    ],
)
def test_a_list_of_patterns_matches_whole_names_unless_one_that_begins_with_an_exclamation_mark_does(
    pattern: str, matches: bool
) -> None:
    text = f"{pattern} cert-authority {BLOB}"
    if matches:
        assert accepted(text, "bench-run:7f") == f"trusted as {pattern}"
    else:
        refused(text, "is allowed for the principals", "bench-run:7f")


@pytest.mark.parametrize(
    ("text", "by"),
    [
        (BLOB, "trusted"),
        (f"bench-run:* cert-authority {BLOB}", "trusted as bench-run:*"),
        (f'a,bench-run:7? cert-authority,namespaces="{NAMESPACE}" {BLOB}', "trusted as a,bench-run:7?"),
        (f"me {BLOB}\n* cert-authority {BLOB}", "trusted as *"),
    ],
)
def test_an_authority_that_the_file_lists_may_certify(text: str, by: str) -> None:
    assert accepted(text, "bench-run:7f") == by


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (ELSE, "certified by the key SHA256:.*, which is not listed"),
        (f"* {BLOB}", "is not a certificate authority"),
        (f"bench-run:8? cert-authority {BLOB}", "for the principals bench-run:8. only, not bench-run:7f"),
        (f"*,!bench-run:7f cert-authority {BLOB}", "for the principals"),
        (f'* cert-authority,namespaces="git" {BLOB}', "for the namespaces git only"),
        (f'* cert-authority,valid-before="20200101" {BLOB}', "is no longer valid"),
    ],
)
def test_an_authority_that_the_file_restricts_may_not(text: str, why: str) -> None:
    refused(text, why, "bench-run:7f")


def test_a_key_in_a_token_is_a_key() -> None:
    key = Token().public
    assert accepted(key.line("me"), key=key) == "trusted"
    assert (
        accepted(f"bench-run:* cert-authority {key.line()}", "bench-run:7f", key) == "trusted as bench-run:*"
    )
    refused(key.line(), "which is not listed")  # the same file does not trust another key


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "lists no Ed25519 key"),
        (f"# {BLOB}", "lists no Ed25519 key"),
        (RSA, "lists no Ed25519 key"),
        ("hello", "line 1: is neither a public key nor"),
        (f"{ELSE}\nme and you {BLOB} x", "line 2: is neither"),
        (f'me "unclosed {BLOB}', "line 1: is neither"),
        ("ssh-ed25519 AAAA", "line 1: ends too early"),
        ("ssh-ed25519 ????", "line 1: is not base64"),
        (f"me no-touch-required {BLOB}", "does not understand: 'no-touch-required'"),
        (f"me namespaces=git {BLOB}", "does not understand: 'namespaces=git'"),
        (f'me namespaces="a",namespaces="b" {BLOB}', "does not understand"),
        (f'me valid-before="tomorrow" {BLOB}', "has a time that is not"),
        (f'me valid-before="20201301" {BLOB}', "has a time that is not"),
        (f"me valid-before {BLOB}", "has a time that is not"),  # no value is not a time without end
        ("-----BEGIN OPENSSH PRIVATE KEY-----", "is a private key"),
        ("-----BEGIN PUBLIC KEY-----", "is a public key in PEM, not OpenSSH's form"),
    ],
)
def test_a_file_that_lists_no_key_is_bad_input(text: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        trusting(text)


def test_a_trust_file_may_have_a_mebibyte(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{BLOB}\n".ljust(2**20, "\n"))
    assert len(TrustPolicy.from_file(path).signers) == 1


def test_a_trust_file_that_cannot_be_read_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "large").write_bytes(b"#" * (2**20 + 1))
    for name, why in {
        "absent": "No such file",
        ".": "Is a directory",
        "binary": "text",
        "large": "larger",
    }.items():
        with pytest.raises(BadInput, match=why):
            TrustPolicy.from_file(tmp_path / name)
