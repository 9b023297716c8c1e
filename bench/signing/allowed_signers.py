"""Read the trusted keys: a public key, or an allowed_signers file as in ssh-keygen(1).

`TrustPolicy.accept` raises Untrusted unless a key may sign or certify in a namespace at a given time.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from bench.base.errors import BadInput, Untrusted
from bench.base.files import read_bounded
from bench.base.frozen import dataclass
from bench.base.kinds_of_file import KEYS, kind_of, require_kind
from bench.signing.ssh_keys import ED25519, TOKEN, FormatError, PublicKey

MAX_BYTES = 2**20

# Patterns are kept as text and compiled at first use: compiling at import would slow every verification.
_KEY_TYPE = r"(ssh|ecdsa|sk-ssh|sk-ecdsa|webauthn-sk-ecdsa)-[A-Za-z0-9@.-]+"
_WORD = r'(?:\s*((?:"(?:[^"\\]|\\.)*"|[^\s"])+)(?=\s|$))?'
_WORDS = f"{_WORD}{_WORD}{_WORD}{_WORD}"  # principals, options, type and key; any comment may follow
_OPTION = r'([A-Za-z-]+)(?:="((?:[^"\\]|\\.)*)")?(?:,|$)'
_OPTIONS = frozenset({"cert-authority", "namespaces", "valid-after", "valid-before"})
_TIME = r"([0-9]{4})([0-9]{2})([0-9]{2})(?:([0-9]{2})([0-9]{2})([0-9]{2})?)?([Zz]?)"


@dataclass(frozen=True, slots=True)
class AllowedSigner:
    """One key of an allowed_signers file with its restrictions; a .pub file's key has no restrictions."""

    key: PublicKey
    principals: str
    authority: bool | None = None  # True: only certifies keys; False: only signs; None: both
    namespaces: str | None = None  # patterns; None allows all
    valid_after: float | None = None
    valid_before: float | None = None

    def refusal(self, namespace: str, at: float, principal: str | None) -> str | None:
        """Return why the key is not trusted for a namespace, time and principal; None if it is trusted."""
        if self.authority is not None and self.authority != (principal is not None):
            return "may only certify keys" if self.authority else "is not a certificate authority"
        if self.namespaces is not None and not _matches(namespace, self.namespaces):
            return f"is allowed for the namespaces {self.namespaces} only, not {namespace}"
        if principal is not None and self.principals and not _matches(principal, self.principals):
            return f"is allowed for the principals {self.principals} only, not {principal}"
        if self.valid_after is not None and at < self.valid_after:
            return "is not valid yet"
        if self.valid_before is not None and at > self.valid_before:
            return "is no longer valid"
        return None


def _matches(text: str, patterns: str) -> bool:
    """Match ssh's pattern lists, with * and ?; a matching pattern that begins with ! overrides the others."""
    allowed = False
    for pattern in patterns.split(","):
        glob = re.escape(pattern.removeprefix("!")).replace(r"\*", ".*").replace(r"\?", ".")
        if re.fullmatch(glob, text, re.DOTALL):
            if pattern.startswith("!"):
                return False
            allowed = True
    return allowed


@dataclass(frozen=True, slots=True)
class TrustPolicy:
    """The trusted keys of the user, as one file lists them."""

    source: str
    signers: tuple[AllowedSigner, ...]

    @classmethod
    def from_file(cls, path: Path) -> TrustPolicy:
        """Read a .pub file or an allowed_signers file; BadInput if it is neither."""
        too_large = f"larger than {MAX_BYTES} bytes: not a list of keys"
        data = read_bounded(path, MAX_BYTES, what="the trusted keys", too_large=too_large, wanted=KEYS)
        require_kind(KEYS, kind_of(data), str(path))
        try:
            text = data.decode()
        except UnicodeDecodeError:
            message = "the trusted keys cannot be read: not a text file"
            raise BadInput(
                message, where=str(path), advice="give a list as bench keys trust writes it"
            ) from None
        return cls.from_text(text, str(path))

    @classmethod
    def from_text(cls, text: str, source: str) -> TrustPolicy:
        """Parse the text of either form; `source` names it in errors. BadInput if it lists no key."""
        if "PRIVATE KEY-----" in text:
            raise BadInput("is a private key", where=source, advice="give the public key, the .pub file")
        if text.startswith("-----BEGIN PUBLIC KEY-----"):
            advice = "give the .pub file that ssh-keygen made"
            raise BadInput("is a public key in PEM, not OpenSSH's form", where=source, advice=advice)
        signers = []
        for number, line in enumerate(text.split("\n"), start=1):
            try:
                signer = _parse_signer(line.strip())
            except FormatError as error:
                raise BadInput(str(error), where=f"{source}: line {number}") from None
            if signer:
                signers.append(signer)
        if not signers:
            advice = "give a .pub file, or an allowed_signers file as in ssh-keygen(1)"
            raise BadInput("lists no Ed25519 key", where=source, advice=advice)
        return cls(source, tuple(signers))

    def accept(self, key: PublicKey, namespace: str, at: float, principal: str | None = None) -> str:
        """Return the trust list, and the name in it, under which a key is trusted; Untrusted if it is not.

        With a principal, the key must be allowed to certify keys for that principal, otherwise to sign.
        """
        refusals = []
        for signer in self.signers:
            if signer.key == key:
                refusal = signer.refusal(namespace, at, principal)
                if refusal is None:
                    return f"{self.source} as {signer.principals}" if signer.principals else self.source
                refusals.append(refusal)
        why = refusals[0] if refusals else "is not listed"
        raise Untrusted(self.source, "certified" if principal else "signed", key.fingerprint, why)


def _parse_signer(line: str) -> AllowedSigner | None:
    """Parse one line of allowed_signers; None for comments and for RSA and other unsupported keys."""
    if not line or line.startswith("#"):
        return None
    found = re.match(_WORDS, line)
    assert found, "no word has to be there"
    words = found.groups("")
    at = next((i for i in range(3) if re.fullmatch(_KEY_TYPE, words[i])), None)
    if at is None:
        raise FormatError("is neither a public key nor a line of allowed_signers")
    principals, options = (*words[:at], "", "")[:2]
    kind, blob = words[at : at + 2]
    if kind not in (ED25519, TOKEN):
        return None
    given = _parse_options(options)
    return AllowedSigner(
        PublicKey.from_line(f"{kind} {blob}"),
        principals.strip('"'),
        "cert-authority" in given if at else None,
        given.get("namespaces"),
        _parse_time(given.get("valid-after")),
        _parse_time(given.get("valid-before")),
    )


def _parse_options(text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    while text:
        match = re.match(_OPTION, text)
        name = match[1].lower() if match else ""
        # An unknown option may be a restriction, so the line is refused.
        if not match or name not in _OPTIONS or name in options:
            raise FormatError(f"has an option that bench does not understand: {text!r:.80}")
        options[name] = match[2] or ""
        text = text[match.end() :]
    return options


def _parse_time(text: str | None) -> float | None:
    """Parse YYYYMMDD[HHMM[SS]], a local time unless a Z follows, to unix seconds."""
    if text is None:
        return None
    from datetime import UTC, datetime  # rarely needed, and slow to import

    if match := re.fullmatch(_TIME, text):
        year, month, day, hour, minute, second = (int(n or 0) for n in match.groups()[:6])
        with suppress(ValueError, OverflowError):  # such as month 13 or year 0
            zone = UTC if match[7] else None
            return datetime(year, month, day, hour, minute, second, tzinfo=zone).timestamp()
    raise FormatError(f"has a time that is not YYYYMMDD[HHMM[SS]][Z]: {text!r:.40}")
