#!/usr/bin/env python3
"""Verify a bundle without bench: Python's standard library, and the programs ssh-keygen and openssl.

    python3 verify.py BUNDLE                        nothing changed since somebody signed it
    python3 verify.py BUNDLE ALLOWED_SIGNERS        and one of these people answers for it
    python3 verify.py BUNDLE ALLOWED_SIGNERS KRL    and nothing of it is revoked there

ALLOWED_SIGNERS holds the two lines that `bench keys show` prints. Exit codes: 0 verified, 1 refused, 2 usage.

The rules are those of docs/bundle.md: the container, both signatures, the run's certificate, the receipt, and
the sha256 of every file. ssh-keygen and openssl verify signatures; this file verifies what was signed. Each
header and each document has one form: it is made again from what was read and compared byte by byte, so that
nothing can hide in it. Nothing is recomputed from the samples: `bench verify` does that.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

STATEMENT, ENVELOPE = "statement.json", "statement.dsse.json"
CERTIFICATE, RECEIPT = "run-cert.pub", "receipt.json"
KIB, MIB = 2**10, 2**20
# Files of a bundle, with the most bytes of each. The statement lists all but those about its signature.
SMALL = dict.fromkeys((f"{STATEMENT}.sig", CERTIFICATE, RECEIPT, f"{RECEIPT}.sig"), 4 * KIB)
SIGNING = {STATEMENT: 4 * MIB, ENVELOPE: 6 * MIB, **SMALL}
NEEDED = {"manifest.json": 4 * MIB, "results.json": 8 * MIB, "samples.jsonl": 64 * MIB}
OPTIONAL = dict.fromkeys(("telemetry.jsonl", "env.json", "sbom.cdx.json"), 64 * MIB)
LOG, LOG_BYTES = re.compile(r"logs/[a-z0-9][a-z0-9._-]*\.txt"), 64 * MIB
MOST_BYTES, MOST_FILES = 1024 * MIB, 10_000
BY_LINE = ("samples.jsonl", "telemetry.jsonl")
MOST_LINES, MOST_LINE_BYTES = 100_000, 8 * MIB
MOST_DEPTH = 64  # of a document
YEAR_10000 = 253_402_300_800  # unix time of its beginning; no time in a bundle is later

Files = dict[str, bytes]  # the bytes of each file of a bundle, by name


class Trust(NamedTuple):
    """The trusted signers, the revocation list, and the time to judge by; None: now."""

    signers: str
    krl: str | None
    at: int | None


class Refused(Exception):
    """The bundle is not what it claims to be; the message says why."""


def need(condition: object, why: str) -> None:
    if not condition:
        raise Refused(why)


# --- the container: a tar with one form ---------------------------------------------------------------------


def header(name: str, size: int) -> bytes:
    """Return the one header that a file may have: mode 0644, no owner, no time, a regular file."""
    head = name.encode().ljust(100, b"\0") + b"%07o\0%07o\0%07o\0%011o\0%011o\0" % (0o644, 0, 0, size, 0)
    tail = b"0" + bytes(100) + b"ustar\x0000" + bytes(247)
    return head + b"%06o\0 " % (sum(head) + sum(b" " * 8) + sum(tail)) + tail


def most_bytes(name: str) -> int:
    """Return the size that a file of this name may have; -1 if a bundle has no such file."""
    sizes = {**SIGNING, **NEEDED, **OPTIONAL}
    return LOG_BYTES if LOG.fullmatch(name) and len(name) <= 100 else sizes.get(name, -1)


def read_bundle(path: str) -> Files:
    """Return the files of a bundle; refuse a container with another byte than they need."""
    need(Path(path).is_file(), "is no regular file")
    files: Files = {}
    last, left = "", MOST_BYTES
    with Path(path).open("rb") as container:
        while (block := container.read(512)) != bytes(512):
            name = block[:100].rstrip(b"\0").decode("ascii", "replace")
            octal = block[124:135]
            size = int(octal, 8) if re.fullmatch(rb"[0-7]{11}", octal) else 0
            need(block == header(name, size), "is no plain tar of regular files as bench writes it")
            need(size <= min(most_bytes(name), left), f"{name!r} is not a file of a bundle, or is too large")
            need(name > last, f"{name} stands twice, or in another place than in the order of names")
            data = container.read(size + -size % 512)
            need(len(data) == size + -size % 512, "ends too early")
            need(not any(data[size:]), "holds something between the files")
            files[name], last, left = data[:size], name, left - size
            need(len(files) <= MOST_FILES, "holds too many files")
        need(container.read(513) == bytes(512), "holds something after the files")
    return files


# --- documents: canonical JSON of a shape -------------------------------------------------------------------

SHA256, RUN_ID = re.compile(r"[0-9a-f]{64}"), re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
UTC = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
PREDICATE_URN = "urn:uuid:96ed7b46-ed52-4e43-99b8-c7ff1d48d57f#"
FIRST, SECOND = "bench/run/v1", "bench/run/v2"
RUN = {
    "run_id": RUN_ID,
    "manifest_sha256": SHA256,
    "node": dict,
    "started_at": UTC,
    "ended_at": UTC,
    "complete": bool,
}
STATEMENT_SHAPE = {
    "_type": "https://in-toto.io/Statement/v1",
    "subject": [{"name": re.compile(r"[a-z0-9._/-]{1,100}"), "digest": {"sha256": SHA256}}],
    "predicateType": (PREDICATE_URN + FIRST, PREDICATE_URN + SECOND),
    "predicate": (
        {**RUN, "schema": FIRST, "level": "self"},
        {**RUN, "schema": SECOND, "level": "self", "nonce": None},
        {**RUN, "schema": SECOND, "level": "operator", "nonce": SHA256},
    ),
}
RECEIPT_SHAPE = {
    "schema": "bench/receipt/v1",
    "run_id": RUN_ID,
    "nonce": SHA256,
    "statement_sha256": SHA256,
    "certificate_sha256": SHA256,
    "challenged_at": int,
    "received_at": int,
    "ledger": {"number": int, "sha256": SHA256},
}
PAYLOAD_TYPE = "application/vnd.in-toto+json"
SIGNED_BY = [{"keyid": str, "sig": str}]
ENVELOPE_SHAPE = {"payload": str, "payloadType": PAYLOAD_TYPE, "signatures": SIGNED_BY}


def fits(value: Any, shape: Any) -> bool:
    """Whether a JSON value has a shape.

    A shape is an object with exactly these fields, a list of one shape, a choice of shapes, the pattern of a
    text, a type, or else a value.
    """
    if isinstance(shape, dict):
        same = isinstance(value, dict) and value.keys() == shape.keys()
        return same and all(fits(value[name], part) for name, part in shape.items())
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(item, shape[0]) for item in value)
    if isinstance(shape, tuple):
        return any(fits(value, one) for one in shape)
    if isinstance(shape, re.Pattern):
        return isinstance(value, str) and shape.fullmatch(value) is not None
    return type(value) is shape if isinstance(shape, type) else value == shape


def bounded(digits: str) -> int:
    """Return a whole number that every reader of JSON reads alike."""
    if abs(int(digits)) > 2**53:
        raise ValueError("too large")
    return int(digits)


def depth(value: Any) -> int:
    """Return how many objects and lists are inside of each other, and one for the innermost value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(depth, inner), default=0)


def read_json(data: bytes, shape: Any, what: str, end: bytes = b"") -> Any:
    """Parse a document; refuse one of another shape, or with another byte than its values need."""
    try:
        value = json.loads(data, parse_int=bounded)
        again = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + end
        json.dumps(value, ensure_ascii=False).encode()  # fails for half of a surrogate pair
        nested = depth(value)
    except (ValueError, RecursionError):
        raise Refused(f"{what} is no JSON") from None
    need(nested <= MOST_DEPTH, f"{what} is nested too deeply")
    need(again == data, f"{what} is not in its canonical form")
    need(fits(value, shape), f"{what} has other fields or values than bench writes")
    return value


# --- keys, certificates and signatures of SSH ---------------------------------------------------------------

ED25519, TOKEN = b"ssh-ed25519", b"sk-ssh-ed25519@openssh.com"
CERTIFIED = b"ssh-ed25519-cert-v01@openssh.com"
BUNDLE_NAMESPACE, RECEIPT_NAMESPACE = "bench-bundle@v1", "bench-receipt@v1"
PRIME = 2**255 - 19
ORDER_8 = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
WEAK = {0, 1, PRIME - 1, ORDER_8, PRIME - ORDER_8}  # y of the "keys" whose signatures fit many messages
GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493


class Wire:
    """A reader of SSH's wire format."""

    def __init__(self, data: bytes) -> None:
        self.left = bytes(data)

    def take(self, count: int) -> bytes:
        need(count <= len(self.left), "a key or signature ends too early")
        taken, self.left = self.left[:count], self.left[count:]
        return taken

    def number(self, size: int = 4) -> int:
        return int.from_bytes(self.take(size), "big")

    def string(self) -> bytes:
        return self.take(self.number())

    def end(self) -> None:
        need(not self.left, "a key or signature has bytes too many")


def string(data: bytes) -> bytes:
    """Return a string of SSH's wire format: its length, and its bytes."""
    return len(data).to_bytes(4, "big") + data


def from_base64(text: str, what: str) -> bytes:
    """Decode base64; refuse a text that encoding the result would not give again."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        raise Refused(f"{what} is not base64") from None
    need(base64.b64encode(data).decode() == text, f"{what} is not base64 in its canonical form")
    return data


def check_point(raw: bytes) -> None:
    """Refuse bytes that are no Ed25519 key, or one whose signatures fit many messages."""
    y = int.from_bytes(raw, "little") % 2**255
    need(len(raw) == 32 and y < PRIME and y not in WEAK, "a key is no Ed25519 key, or a weak one")


def check_signature_form(signature: bytes) -> None:
    """Refuse an Ed25519 signature whose second half is not the least number that fits.

    ssh-keygen also accepts that number plus the order of the group, so anybody could change a signature.
    """
    wire = Wire(signature)
    wire.string()  # the algorithm
    raw = wire.string()
    least = len(raw) == 64 and int.from_bytes(raw[32:], "little") < GROUP_ORDER
    need(least, "a signature is not in the one form that Ed25519 has for it")


def check_key(blob: bytes) -> bool:
    """Refuse a public key that is not Ed25519, of a token or not; return whether a token has it."""
    wire = Wire(blob)
    kind = wire.string()
    need(kind in (ED25519, TOKEN), "a key is of another type than Ed25519")
    check_point(wire.string())
    if kind == TOKEN:
        wire.string()
    wire.end()
    return kind == TOKEN


def fingerprint(blob: bytes) -> str:
    """Return a key's fingerprint as ssh-keygen -l shows it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def signer_of(armored: bytes, namespace: str, what: str) -> bytes:
    """Return the key or certificate that a signature holds. The signature itself is not verified here."""
    lines = armored.decode("ascii", "replace").split("\n")
    wire = Wire(from_base64("".join(lines[1:-2]), what))
    need(wire.take(6) == b"SSHSIG" and wire.number() == 1, f"{what} is no SSH signature")
    blob, signed_for, reserved, hashed, signature = (wire.string() for _ in range(5))
    wire.end()
    check_signature_form(signature)
    need(signed_for == namespace.encode(), f"{what} was made for another purpose than {namespace}")
    need(not reserved and hashed == b"sha512", f"{what} is not as bench writes it")
    text = "".join(lines[1:-2])
    columns = [text[i : i + 70] for i in range(0, len(text), 70)]
    armor = ["-----BEGIN SSH SIGNATURE-----", *columns, "-----END SSH SIGNATURE-----", ""]
    need(lines == armor, f"{what} is not armored as by ssh-keygen")
    return blob


class RunCertificate:
    """The certificate of a run's key, for this run and this challenge and nothing else."""

    def __init__(self, blob: bytes, run_id: str, nonce: str) -> None:
        wire = Wire(blob)
        kind, _, raw = wire.string(), wire.string(), wire.string()  # the second has random bytes
        _, role = wire.number(8), wire.number()  # the first is a serial number
        key_id, principals = wire.string(), wire.string()
        self.after, self.before = wire.number(8), wire.number(8)
        options, extensions, reserved, self.authority, signature = (wire.string() for _ in range(5))
        wire.end()
        check_signature_form(signature)
        need(kind == CERTIFIED and role == 1, "the certificate is not for a user's Ed25519 key")
        check_point(raw)
        check_key(self.authority)
        namespace = string(b"bench-namespace@v1") + string(string(BUNDLE_NAMESPACE.encode()))
        only = (
            key_id == f"bench run {run_id}".encode()
            and principals == string(f"bench-run:{run_id}".encode())
            and options == namespace + string(b"bench-nonce@v1") + string(string(nonce.encode()))
            and not extensions
            and not reserved
        )
        need(only, "the certificate is not for this run and this challenge alone")
        need(self.after < self.before < YEAR_10000, "the certificate is never valid, or valid forever")
        self.blob, self.key = blob, string(ED25519) + string(raw)


# --- programs that verify signatures ------------------------------------------------------------------------


class Programs:
    """ssh-keygen, openssl and cosign, run on copies of files in a temporary folder."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.said: list[str] = []  # what they said, to be printed once everything is verified

    def write(self, name: str, data: bytes) -> str:
        (self.folder / name).write_bytes(data)
        return str(self.folder / name)

    def run(self, why: str, words: str, *more: str, data: bytes = b"") -> str:
        """Run a command of several words on `data`; return its output, or refuse the bundle if it fails."""
        command, environment = [*words.split(), *more], {**os.environ, "TZ": "UTC", "LC_ALL": "C"}
        need(shutil.which(command[0]), f"cannot be verified: {command[0]} is not installed")
        done = subprocess.run(command, input=data, capture_output=True, env=environment, check=False)
        output = (done.stdout + done.stderr).decode("utf-8", "replace").strip()
        need(done.returncode == 0, f"{why}: {output}")
        self.said.append(output)
        return output

    def check_signature(self, files: Files, name: str, namespace: str) -> bytes:
        """Verify a signature, whose signer may be anybody; return the key or certificate that it holds."""
        why = f"the signature of {name}"
        need(name in files and f"{name}.sig" in files, f"{name} or its signature is missing")
        signer = signer_of(files[f"{name}.sig"], namespace, why)
        signature = self.write(f"{name}.sig", files[f"{name}.sig"])
        command = "ssh-keygen -Y check-novalidate -n"
        self.run(why, command, namespace, "-s", signature, data=files[name])
        return signer

    def check_signer(
        self, files: Files, name: str, namespace: str, trust: Trust, principal: str | None
    ) -> None:
        """Verify that the list has the signer of a file: as `principal`, or under any name."""
        why, signature = f"{name} is by nobody in {trust.signers}", str(self.folder / f"{name}.sig")
        common = ["-f", trust.signers, "-s", signature]
        if trust.at is not None:
            common += ["-O", f"verify-time={time.strftime('%Y%m%d%H%M%S', time.gmtime(trust.at))}"]
        if principal is None:
            found = self.run(why, "ssh-keygen -Y find-principals", *common)
            principal = found.split("\n")[0].split(",")[0]
        common += ["-r", trust.krl] if trust.krl else []
        command = "ssh-keygen -Y verify -n"
        self.run(why, command, namespace, "-I", principal, *common, data=files[name])

    def check_envelope(self, files: Files, key: bytes, predicate_type: str) -> None:
        """Verify the envelope of in-toto: the same statement, signed by the same key and nobody else."""
        what, statement = "the envelope", files[STATEMENT]
        envelope = read_json(files[ENVELOPE], ENVELOPE_SHAPE, what)
        need(from_base64(envelope["payload"], what) == statement, "the envelope holds another statement")
        keys = [one["keyid"] for one in envelope["signatures"]]
        need(keys == [fingerprint(key)], "the envelope is not signed by the key of the statement alone")
        der = base64.b64encode(bytes.fromhex("302a300506032b6570032100") + key[-32:]).decode()
        public = self.write("key", f"-----BEGIN PUBLIC KEY-----\n{der}\n-----END PUBLIC KEY-----\n".encode())
        kind = PAYLOAD_TYPE.encode()
        signed = self.write("signed", b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(statement), statement))
        signature = self.write("signature", from_base64(envelope["signatures"][0]["sig"], what))
        command = "openssl pkeyutl -verify -rawin -pubin -inkey"
        self.run("the envelope's signature", command, public, "-in", signed, "-sigfile", signature)
        if shutil.which("cosign"):
            results, sealed = self.write("file", files["results.json"]), self.write("sealed", files[ENVELOPE])
            command = "cosign verify-blob-attestation --insecure-ignore-tlog --offline --key"
            of = ("--signature", sealed, "--type", predicate_type, results)
            self.run("cosign", command, public, *of)


# --- the parts belong together ------------------------------------------------------------------------------


def check_files(files: Files, statement: Any) -> int:
    """Refuse files that were added, left out or changed since the statement was signed."""
    signed = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    in_order = [one["name"] for one in statement["subject"]] == sorted(signed)
    need(in_order, "the statement lists a file twice, or not in the order of names")
    payload = files.keys() - SIGNING.keys()
    need(signed.keys() <= payload, "a signed file is missing")
    need(signed.keys() >= NEEDED.keys(), "a file that every bundle has is missing")
    for name in sorted(payload):
        same = hashlib.sha256(files[name]).hexdigest() == signed.get(name)
        need(same, f"{name} is not the file that was signed")
    for name in BY_LINE:
        lines = files.get(name, b"").split(b"\n")
        few = len(lines) - 1 <= MOST_LINES and max(map(len, lines)) <= MOST_LINE_BYTES
        need(few, f"{name} has too many lines, or one that is too long")
    same = statement["predicate"]["manifest_sha256"] == signed["manifest.json"]
    need(same, "the statement is for another manifest")
    return len(signed)


def check_certificate(files: Files, signer: bytes, run: Any) -> RunCertificate | None:
    """Return the certificate of the run's key; None if the run has none, and claims none."""
    nonce = run.get("nonce")
    if Wire(signer).string() != CERTIFIED:
        need(CERTIFICATE not in files, "run-cert.pub is not the certificate of the signature")
        need(nonce is None, "the statement says level operator, and has no certificate")
        need(not check_key(signer), "the signature is by a token, which signs certificates and no bundles")
        return None
    line = CERTIFIED + b" " + base64.b64encode(signer) + b"\n"
    need(files.get(CERTIFICATE) == line, "run-cert.pub is not the certificate of the signature")
    need(nonce is not None, "the statement says level self, and has a certificate")
    return RunCertificate(signer, run["run_id"], nonce)


def check_receipt(files: Files, signer: bytes, run: Any, certificate: RunCertificate | None) -> int:
    """Return the time at which the operator received the bundle, by the operator's clock."""
    if certificate is None:
        raise Refused("a receipt for a run that nobody certified")
    by = f"the receipt is signed by {fingerprint(signer)}, not by {fingerprint(certificate.authority)}"
    need(signer == certificate.authority, by)
    receipt = read_json(files[RECEIPT], RECEIPT_SHAPE, "the receipt", end=b"\n")
    need(receipt["run_id"] == run["run_id"], "the receipt is for another run")
    need(receipt["nonce"] == run["nonce"], "the receipt is for another challenge")
    of_statement = hashlib.sha256(files[STATEMENT]).hexdigest()
    need(receipt["statement_sha256"] == of_statement, "the receipt is for another statement")
    of_certificate = hashlib.sha256(certificate.blob).hexdigest()
    need(receipt["certificate_sha256"] == of_certificate, "the receipt is for another certificate")
    at: int = receipt["received_at"]
    need(0 <= receipt["challenged_at"] <= at, "the receipt contradicts itself")
    in_time = certificate.after <= at < certificate.before
    need(in_time, "it was received when the certificate was not valid yet, or had expired")
    need(at < YEAR_10000, "the receipt is from a time after the year 9999")
    return at


def verify(path: str, signers: str | None, krl: str | None, folder: str) -> None:
    """Verify a bundle, and print who signed it; `folder` is for copies of its files."""
    files, programs = read_bundle(path), Programs(folder)
    signer = programs.check_signature(files, STATEMENT, BUNDLE_NAMESPACE)
    statement = read_json(files[STATEMENT], STATEMENT_SHAPE, "the statement")
    run = statement["predicate"]
    need(statement["predicateType"] == PREDICATE_URN + run["schema"], "the statement has two schemas")
    certificate = check_certificate(files, signer, run)
    received = None
    if RECEIPT in files or f"{RECEIPT}.sig" in files:
        by = programs.check_signature(files, RECEIPT, RECEIPT_NAMESPACE)
        received = check_receipt(files, by, run, certificate)
    need((ENVELOPE in files) == (run["schema"] == SECOND), "statement.dsse.json is missing, or one too many")
    count = check_files(files, statement)
    if ENVELOPE in files:
        programs.check_envelope(files, certificate.key if certificate else signer, statement["predicateType"])
    if signers is not None:
        principal = f"bench-run:{run['run_id']}" if certificate else None
        trust = Trust(signers, krl, received)
        programs.check_signer(files, STATEMENT, BUNDLE_NAMESPACE, trust, principal)
        if received is not None:
            programs.check_signer(files, RECEIPT, RECEIPT_NAMESPACE, trust, None)
    print("\n".join(programs.said))
    print(f"run {run['run_id']}: {count} files are as signed")


def main(arguments: list[str]) -> int:
    if not 1 <= len(arguments) <= 3:
        print("usage: verify.py BUNDLE [ALLOWED_SIGNERS [KRL]]", file=sys.stderr)
        return 2
    path = arguments[0]
    signers, krl = (*arguments[1:], None, None)[:2]
    try:
        with tempfile.TemporaryDirectory() as folder:
            verify(path, signers, krl, folder)
    except (Refused, OSError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
