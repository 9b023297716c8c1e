"""Bundles of a certified run with one mistake each, by a writer that shares no code with bench.

Forger.cases yields them: certificates, receipts, envelopes, statements, signatures, files and headers of the
tar. Some of the bundles are right (RIGHT), so that a verifier that refuses everything is noticed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Files = dict[str, bytes]
URN = "urn:uuid:96ed7b46-ed52-4e43-99b8-c7ff1d48d57f#"
GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493  # of Ed25519
OPERATOR, RUN_KEY, OTHER, STRANGER = (
    Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2, 3, 4)
)
RUN, NONCE, OTHER_NONCE = "victim-run", "ab" * 32, "cd" * 32
DAY = 86400
RIGHT = {
    "right",
    "no receipt",
    "receipt challenged just before",  # only the samples show that the run took longer
    "statement node with another key",
    "statement node of another GPU",  # only the results show it
    "statement v2 with envelope by the operator",
    "statement v1 without envelope by the operator",
    "with a log of two dots",
    "with telemetry of 100,000 lines",
}
PAYLOAD: Files = {
    "manifest.json": b'{"schema":"bench/manifest/v1"}',
    "results.json": b'{"trials":["0123456789abcdef"]}',
    "samples.jsonl": b'{"trial":"0123456789abcdef","seconds":[0.5,0.25]}\n',
    "logs/0123456789abcdef.txt": b"",
}
PREDICATE: dict[str, Any] = {
    "run_id": RUN,
    "manifest_sha256": hashlib.sha256(PAYLOAD["manifest.json"]).hexdigest(),
    "node": {"gpus": ["GPU-1"], "driver": "580", "cpu": "some CPU", "image": None},
    "started_at": "2026-11-03T10:00:00Z",
    "ended_at": "2026-11-03T10:55:12Z",
    "complete": True,
    "level": "operator",
    "nonce": NONCE,
    "schema": "bench/run/v2",
}


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def ssh_string(data: bytes | str) -> bytes:
    raw = data.encode() if isinstance(data, str) else data
    return struct.pack(">I", len(raw)) + raw


def key_blob(key: Ed25519PrivateKey) -> bytes:
    return ssh_string("ssh-ed25519") + ssh_string(key.public_key().public_bytes_raw())


def fingerprint(key: Ed25519PrivateKey) -> str:
    return "SHA256:" + b64(hashlib.sha256(key_blob(key)).digest()).rstrip("=")


def allowed_signers() -> str:
    key = f"ssh-ed25519 {b64(key_blob(OPERATOR))}"
    authority = f'bench-run:* cert-authority,namespaces="bench-bundle@v1" {key}'
    return f'{authority}\nop namespaces="bench-receipt@v1,bench-bundle@v1" {key}\n'


def header(name: str, size: int) -> bytes:
    head = name.encode().ljust(100, b"\0") + b"%07o\0%07o\0%07o\0%011o\0%011o\0" % (0o644, 0, 0, size, 0)
    tail = b"0" + bytes(100) + b"ustar\x0000" + bytes(247)
    return head + b"%06o\0 " % (sum(head) + 256 + sum(tail)) + tail


def tar(files: Mapping[str, bytes], order: Sequence[str] | None = None) -> bytes:
    members = ((name, files[name]) for name in order or sorted(files))
    return b"".join(header(n, len(d)) + d + bytes(-len(d) % 512) for n, d in members) + bytes(1024)


def patched(data: bytes, at: int, value: bytes) -> bytes:
    """Change the header of results.json at an offset, and correct its checksum."""
    begin = data.index(b"results.json".ljust(100, b"\0"))
    block = bytearray(data[begin : begin + 512])
    block[at : at + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return data[:begin] + bytes(block) + data[begin + 512 :]


def sshsig(
    message: bytes,
    key: Ed25519PrivateKey,
    namespace: str,
    signer: bytes | None = None,
    *,
    hashed: str = "sha512",
    columns: int = 70,
    signature: bytes | None = None,
) -> bytes:
    digest = hashlib.new(hashed, message).digest()
    fields = ssh_string(namespace) + ssh_string(b"") + ssh_string(hashed)
    signed = b"SSHSIG" + fields + ssh_string(digest)
    by_key = ssh_string("ssh-ed25519") + ssh_string(signature or key.sign(signed))
    blob = b"SSHSIG" + struct.pack(">I", 1) + ssh_string(signer or key_blob(key)) + fields
    text = b64(blob + ssh_string(by_key))
    lines = "\n".join(text[i : i + columns] for i in range(0, len(text), columns))
    return f"-----BEGIN SSH SIGNATURE-----\n{lines}\n-----END SSH SIGNATURE-----\n".encode()


def unreduced(signature: bytes) -> bytes:
    """Return the signature that some verifiers accept as well: with the group's order added to its number."""
    number = int.from_bytes(signature[32:], "little") + GROUP_ORDER
    return signature[:32] + number.to_bytes(32, "little")


def armored(blob: bytes) -> bytes:
    text = b64(blob)
    lines = "\n".join(text[i : i + 70] for i in range(0, len(text), 70))
    return f"-----BEGIN SSH SIGNATURE-----\n{lines}\n-----END SSH SIGNATURE-----\n".encode()


def unreduced_sshsig(signature: bytes) -> bytes:
    """Return an armored signature whose last 64 bytes, the signature proper, are written in another form."""
    blob = base64.b64decode("".join(signature.decode().splitlines()[1:-1]))
    return armored(blob[:-64] + unreduced(blob[-64:]))


def sealed(payload: bytes, key: Ed25519PrivateKey, kind: str = "application/vnd.in-toto+json") -> bytes:
    signed = b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)
    signatures = [{"keyid": fingerprint(key), "sig": b64(key.sign(signed))}]
    return canonical({"payload": b64(payload), "payloadType": kind, "signatures": signatures})


def certificate(
    after: int,
    before: int,
    *,
    key: Ed25519PrivateKey = RUN_KEY,
    authority: Ed25519PrivateKey = OPERATOR,
    run: str = RUN,
    nonce: str = NONCE,
    principals: Sequence[str] | None = None,
    options: Mapping[str, str] | None = None,
    extensions: bytes = b"",
    serial: int = 7,
    role: int = 1,
    reserved: bytes = b"",
) -> bytes:
    chosen = (
        {"bench-namespace@v1": "bench-bundle@v1", "bench-nonce@v1": nonce} if options is None else options
    )
    pairs = b"".join(ssh_string(name) + ssh_string(ssh_string(value)) for name, value in chosen.items())
    names = b"".join(map(ssh_string, [f"bench-run:{run}"] if principals is None else principals))
    body = ssh_string("ssh-ed25519-cert-v01@openssh.com") + ssh_string(bytes(32))
    body += ssh_string(key.public_key().public_bytes_raw()) + struct.pack(">QI", serial, role)
    body += ssh_string(f"bench run {run}") + ssh_string(names) + struct.pack(">QQ", after, before)
    body += (
        ssh_string(pairs) + ssh_string(extensions) + ssh_string(reserved) + ssh_string(key_blob(authority))
    )
    return body + ssh_string(ssh_string("ssh-ed25519") + ssh_string(authority.sign(body)))


def certificate_line(blob: bytes) -> bytes:
    return f"ssh-ed25519-cert-v01@openssh.com {b64(blob)}\n".encode()


def statement_of(payload: Files, predicate: Mapping[str, Any], **changes: Any) -> bytes:
    subjects = [
        {"name": n, "digest": {"sha256": hashlib.sha256(d).hexdigest()}} for n, d in sorted(payload.items())
    ]
    document = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": URN + predicate["schema"],
        "predicate": predicate,
    }
    return canonical(document | changes)


class Forger:
    """A writer of bundles as of one moment, in unix seconds."""

    def __init__(self, now: int) -> None:
        self.now = now

    def certificate(self, **changes: Any) -> bytes:
        times = {"after": self.now - 30 * DAY, "before": self.now + 7200}
        return certificate(**(times | changes))

    def signed(
        self,
        statement: bytes,
        payload: Files = PAYLOAD,
        key: Ed25519PrivateKey = RUN_KEY,
        cert: bytes | None = None,
    ) -> Files:
        """Return the files of a bundle with this statement, without a receipt."""
        files = payload | {
            "statement.json": statement,
            "statement.json.sig": sshsig(statement, key, "bench-bundle@v1", cert),
            "statement.dsse.json": sealed(statement, key),
        }
        return files | ({"run-cert.pub": certificate_line(cert)} if cert else {})

    def received(self, files: Files, cert: bytes, by: Ed25519PrivateKey = OPERATOR, **changes: Any) -> Files:
        """Add a receipt to the files of a bundle."""
        receipt = {
            "schema": "bench/receipt/v1",
            "run_id": json.loads(files["statement.json"])["predicate"]["run_id"],
            "nonce": NONCE,
            "statement_sha256": hashlib.sha256(files["statement.json"]).hexdigest(),
            "certificate_sha256": hashlib.sha256(cert).hexdigest(),
            "challenged_at": self.now - 20 * DAY,
            "received_at": self.now - 100,
            "ledger": {"number": 1, "sha256": "0" * 64},
        }
        data = canonical(receipt | changes) + b"\n"
        return files | {"receipt.json": data, "receipt.json.sig": sshsig(data, by, "bench-receipt@v1")}

    def bundle(
        self,
        payload: Files = PAYLOAD,
        key: Ed25519PrivateKey = RUN_KEY,
        cert: bytes | None = None,
        by: Ed25519PrivateKey = OPERATOR,
        receipt: Mapping[str, Any] | None = None,
        **predicate: Any,
    ) -> Files:
        """Return the files of a certified and received bundle, with changes of its predicate and receipt."""
        blob = cert or self.certificate()
        signed = self.signed(statement_of(payload, PREDICATE | predicate), payload, key, blob)
        return self.received(signed, blob, by, **(receipt or {}))

    def by_a_weak_key(self) -> bytes:
        """Return a bundle signed by nobody: under a key of low order, one signature fits every statement."""
        neutral = bytes([1]) + bytes(31)
        files = self.signed(statement_of(PAYLOAD, PREDICATE | {"level": "self", "nonce": None}))
        weak = ssh_string("ssh-ed25519") + ssh_string(neutral)
        signature = neutral + bytes(32)  # R is the neutral element, S is zero
        files["statement.json.sig"] = sshsig(b"", RUN_KEY, "bench-bundle@v1", weak, signature=signature)
        envelope = json.loads(files["statement.dsse.json"])
        keyid = "SHA256:" + b64(hashlib.sha256(weak).digest()).rstrip("=")
        envelope["signatures"] = [{"keyid": keyid, "sig": b64(signature)}]
        return tar(files | {"statement.dsse.json": canonical(envelope)})

    # --- the cases ------------------------------------------------------------------------------------------

    def cases(self) -> Iterator[tuple[str, bytes]]:
        """Yield a name and a whole bundle for each mistake."""
        kinds = (self._certificates, self._receipts, self._envelopes)
        for kind in (*kinds, self._statements, self._signatures, self._files):
            for name, files in kind():
                yield name, tar(files)
        yield from self._containers()

    def _certificates(self) -> Iterator[tuple[str, Files]]:
        now, make = self.now, self.certificate
        yield "right", self.bundle()
        right = statement_of(PAYLOAD, PREDICATE)
        yield "no receipt", self.signed(right, cert=make())
        yield "no receipt, expired", self.signed(right, cert=make(before=now - 10))
        namespace = {"bench-namespace@v1": "bench-bundle@v1"}
        for name, cert in {
            "received after expiry": make(before=now - 200),
            "received before it was valid": make(after=now - 50),
            "extension": make(extensions=ssh_string("permit-pty") + ssh_string(b"")),
            "another option": make(options=namespace | {"bench-nonce@v1": NONCE, "force-command": "x"}),
            "order of options": make(options={"bench-nonce@v1": NONCE} | namespace),
            "no nonce": make(options=namespace),
            "another nonce": make(nonce=OTHER_NONCE),
            "another run": make(run="other"),
            "another run for our name": make(run="other", principals=[f"bench-run:{RUN}"]),
            "two names": make(principals=[f"bench-run:{RUN}", "root"]),
            "no name": make(principals=[]),
            "of a host": make(role=2),
            "reserved field": make(reserved=b"x"),
            "by a stranger": make(authority=STRANGER),
            "flipped": make()[:-1] + bytes([make()[-1] ^ 1]),
            "forever": make(before=2**64 - 1),
            "until the year 10000": make(before=253_402_300_800),
            "never": make(after=now, before=now - 5),
            "with a rest": make() + b"x",
        }.items():
            yield f"certificate {name}", self.bundle(cert=cert)
        yield "certificate and receipt by a stranger", self.bundle(cert=make(authority=STRANGER), by=STRANGER)
        yield "signed by another key than certified", self.bundle(key=OTHER)
        without = self.bundle()
        del without["run-cert.pub"]
        yield "certificate file removed", without
        comment = certificate_line(make())[:-1] + b" comment\n"
        yield "certificate file with a comment", self.bundle() | {"run-cert.pub": comment}
        yield (
            "certificate file of another serial",
            self.bundle() | {"run-cert.pub": certificate_line(make(serial=8))},
        )
        # The node is certified for another run, and signs a statement that mentions that run too.
        other = make(run="yyyyyyyyyyyy", nonce=NONCE)
        confused = {"nonce": "ff" * 32, "zz": {"nonce": NONCE, "run_id": "yyyyyyyyyyyy"}}
        yield (
            "certified for a run that an added field names",
            self.signed(statement_of(PAYLOAD, PREDICATE | confused), cert=other),
        )
        in_node = {"nonce": "ff" * 32, "node": PREDICATE["node"] | {"nonce": NONCE, "run_id": "yyyyyyyyyyyy"}}
        yield (
            "certified for a run that the node's facts name",
            self.signed(statement_of(PAYLOAD, PREDICATE | in_node), cert=other),
        )

    def _receipts(self) -> Iterator[tuple[str, Files]]:
        now = self.now
        for name, changes in {
            "other run": {"run_id": "x"},
            "other nonce": {"nonce": OTHER_NONCE},
            "other statement": {"statement_sha256": "0" * 64},
            "other certificate": {"certificate_sha256": "0" * 64},
            "received before challenged": {"challenged_at": now},
            "negative time": {"challenged_at": -5},
            "times with a fraction": {"received_at": float(now - 100)},
            "truth for a time": {"challenged_at": False},
            "another field": {"x": 1},
            "another schema": {"schema": "bench/receipt/v2"},
            "challenged just before": {"challenged_at": now - 101},
            "ledger without a number": {"ledger": {"sha256": "0" * 64}},
            "ledger past 2**53": {"ledger": {"number": 2**53 + 1, "sha256": "0" * 64}},
        }.items():
            yield f"receipt {name}", self.bundle(receipt=changes)
        far = self.certificate(before=2**40 - 1)
        yield "receipt huge time", self.bundle(cert=far, receipt={"received_at": 2**52})
        yield "receipt by a stranger", self.bundle(by=STRANGER)
        yield "receipt by the run's key", self.bundle(by=RUN_KEY)
        files = self.bundle()
        data = files["receipt.json"]
        own = certificate(now - 9, now + 9, key=OPERATOR)
        for name, signature in {
            "for the bundle's namespace": sshsig(data, OPERATOR, "bench-bundle@v1"),
            "with a certificate": sshsig(data, OPERATOR, "bench-receipt@v1", own),
            "of other bytes": sshsig(data + b"x", OPERATOR, "bench-receipt@v1"),
        }.items():
            yield f"receipt signed {name}", files | {"receipt.json.sig": signature}
        for left_out in ("receipt.json", "receipt.json.sig"):
            yield f"without {left_out}", {name: d for name, d in files.items() if name != left_out}
        for name, spaced in {
            "no line end": data[:-1],
            "a space": data[:-1] + b" \n",
            "two": data + b"\n",
        }.items():
            signature = sshsig(spaced, OPERATOR, "bench-receipt@v1")
            yield f"receipt {name}", files | {"receipt.json": spaced, "receipt.json.sig": signature}

    def _envelopes(self) -> Iterator[tuple[str, Files]]:
        files = self.bundle()
        statement, name = files["statement.json"], "statement.dsse.json"
        yield "envelope of another statement", files | {name: sealed(statement + b" ", RUN_KEY)}
        yield "envelope by another key", files | {name: sealed(statement, OTHER)}
        yield "envelope of another type", files | {name: sealed(statement, RUN_KEY, "text/plain")}
        right = json.loads(files[name])
        (by,) = right["signatures"]
        for what, changes in {
            "two signatures": {"signatures": [by, by]},
            "no signature": {"signatures": []},
            "another field": {"x": 1},
            "another key id": {"signatures": [by | {"keyid": fingerprint(OTHER)}]},
            "another signature": {"signatures": [by | {"sig": b64(bytes(64))}]},
            "a line end in base64": {"payload": right["payload"] + "\n"},
            "padding in base64": {"payload": right["payload"] + "===="},
        }.items():
            yield f"envelope with {what}", files | {name: canonical(right | changes)}
        yield "envelope with spaces", files | {name: json.dumps(right, sort_keys=True).encode()}
        yield "no envelope", {n: data for n, data in files.items() if n != name}

    def _statements(self) -> Iterator[tuple[str, Files]]:
        for name, changes in {
            "level self with nonce": {"level": "self"},
            "level self with certificate": {"level": "self", "nonce": None},
            "level reproduced": {"level": "reproduced"},
            "level gpu-attested": {"level": "gpu-attested"},
            "level in capitals": {"level": "Operator"},
            "another field": {"extra": 1},
            "a later schema": {"schema": "bench/run/v3"},
            "start in other digits": {"started_at": PREDICATE["started_at"].replace("2", "\u0662")},
            "start with a line end": {"started_at": PREDICATE["started_at"] + "\n"},
            "node with another key": {"node": PREDICATE["node"] | {"x": 1}},
            "node of another GPU": {"node": PREDICATE["node"] | {"gpus": ["GPU-9"]}},
            "node a list": {"node": []},
            "complete a number": {"complete": 1},
            "another manifest": {"manifest_sha256": "0" * 64},
        }.items():
            yield f"statement {name}", self.bundle(**changes)
        upper = "AB" * 32
        yield (
            "statement nonce in capitals",
            self.bundle(cert=self.certificate(nonce=upper), receipt={"nonce": upper}, nonce=upper),
        )
        for run in (f"{RUN}\n", "Run", "", "a" * 65):
            yield f"statement run id {run[:9]!r}", self.bundle(cert=self.certificate(run=run), run_id=run)
        own = PREDICATE | {"level": "self", "nonce": None}
        first = {key: value for key, value in own.items() if key != "nonce"} | {"schema": "bench/run/v1"}
        for name, predicate, key in (("v2", own, OPERATOR), ("v2", own, STRANGER), ("v1", first, OPERATOR)):
            files = self.signed(statement_of(PAYLOAD, predicate), key=key)
            by = "the operator" if key is OPERATOR else "a stranger"
            yield f"statement {name} with envelope by {by}", files
            del files["statement.dsse.json"]
            yield f"statement {name} without envelope by {by}", files
        cert = self.certificate()
        of_first = self.signed(statement_of(PAYLOAD, first), cert=cert)
        yield "statement v1 with certificate", self.received(of_first, cert)
        subjects = json.loads(statement_of(PAYLOAD, PREDICATE))["subject"]
        for name, of_document in {
            "another type": {"_type": "https://in-toto.io/Statement/v0.1"},
            "another predicate type": {"predicateType": URN + "bench/run/v1"},
            "subjects in another order": {"subject": subjects[::-1]},
            "a subject twice": {"subject": [subjects[0], *subjects]},
            "no subjects": {"subject": []},
            "a subject with another digest too": {
                "subject": [one | {"digest": one["digest"] | {"sha1": "0"}} for one in subjects]
            },
        }.items():
            signed = self.signed(statement_of(PAYLOAD, PREDICATE, **of_document), cert=cert)
            yield f"statement with {name}", self.received(signed, cert)
        right = statement_of(PAYLOAD, PREDICATE)
        for name, data in {
            "a line end": right + b"\n",
            "a byte order mark": b"\xef\xbb\xbf" + right,
            "a field twice": right.replace(b'"complete":true', b'"complete":false,"complete":true'),
            "an escape": right.replace(b'"complete"', b'"\\u0063omplete"'),
            "an infinite number": right.replace(b'"driver":"580"', b'"driver":1e999'),
            "a number past 2**53": right.replace(b'"driver":"580"', b'"driver":9007199254740993'),
            "a deep list": right.replace(b'"driver":"580"', b'"driver":' + b"[" * 90 + b"]" * 90),
            "a very deep list": right.replace(b'"driver":"580"', b'"driver":' + b"[" * 9999 + b"]" * 9999),
        }.items():
            signed = self.signed(data, cert=cert)
            document = {"statement_sha256": hashlib.sha256(data).hexdigest()}
            receipt = json.loads(self.bundle()["receipt.json"]) | document
            receipt["certificate_sha256"] = hashlib.sha256(cert).hexdigest()
            added = canonical(receipt) + b"\n"
            signature = sshsig(added, OPERATOR, "bench-receipt@v1")
            yield f"statement with {name}", signed | {"receipt.json": added, "receipt.json.sig": signature}

    def _signatures(self) -> Iterator[tuple[str, Files]]:
        files = self.bundle()
        cert, statement = self.certificate(), files["statement.json"]
        for name, signature in {
            "for receipts": sshsig(statement, RUN_KEY, "bench-receipt@v1", cert),
            "of a sha256": sshsig(statement, RUN_KEY, "bench-bundle@v1", cert, hashed="sha256"),
            "in other columns": sshsig(statement, RUN_KEY, "bench-bundle@v1", cert, columns=64),
            "of other bytes": sshsig(statement + b"x", RUN_KEY, "bench-bundle@v1", cert),
            "in other line ends": files["statement.json.sig"].replace(b"\n", b"\r\n"),
            "after a text": b"text\n" + files["statement.json.sig"],
            "before a text": files["statement.json.sig"] + b"text\n",
            "of more than 4 KiB": files["statement.json.sig"] + b"\n" * 4096,
            "of nothing": b"",
        }.items():
            yield f"signature {name}", files | {"statement.json.sig": signature}
        for name in ("statement.json.sig", "receipt.json.sig"):
            yield f"{name} in another form", files | {name: unreduced_sshsig(files[name])}
        other_form = cert[:-64] + unreduced(cert[-64:])
        yield "signature of the certificate in another form", self.bundle(cert=other_form)

    def _files(self) -> Iterator[tuple[str, Files]]:
        for name in (
            "x.json",
            "logs/a/b.txt",
            "logs",
            "logs/a.txt/b",
            "LOG",
            "logs/.txt",
            "samples.jsonl.txt",
        ):
            yield f"with a file {name}", self.bundle(PAYLOAD | {name: b"{}"})
        yield "with a log of two dots", self.bundle(PAYLOAD | {"logs/a..txt": b""})
        for name, lines in {"100,000 lines": b"\n" * 100_000, "100,001 lines": b"\n" * 100_001}.items():
            yield f"with telemetry of {name}", self.bundle(PAYLOAD | {"telemetry.jsonl": lines})
        long = b" " * (8 * 2**20 + 2**16)
        yield "with telemetry of a line that is too long", self.bundle(PAYLOAD | {"telemetry.jsonl": long})
        files = self.bundle()
        yield "with a file that is not signed", files | {"env.json": b"{}"}
        yield "with a changed file", files | {"results.json": b"{}"}
        for name in PAYLOAD:
            yield f"without the signed {name}", {n: data for n, data in files.items() if n != name}
        for name in ("results.json", "samples.jsonl"):
            yield f"never with {name}", self.bundle({n: data for n, data in PAYLOAD.items() if n != name})

    def _containers(self) -> Iterator[tuple[str, bytes]]:
        files = self.bundle()
        good = tar(files)
        yield "a byte after the end", good + b"\0"
        yield "a block after the end", good + bytes(512)
        yield "one block of zeros", good[:-512]
        yield "no end", good[:-1024]
        yield "cut in a file", good[:1000]
        yield "empty", b""
        yield "another bundle after it", good + good
        yield "members in another order", tar(files, sorted(files, reverse=True))
        yield "a member twice", tar(files, sorted([*files, "results.json"]))
        at = good.index(b"results.json".ljust(100, b"\0")) + 512 + len(files["results.json"])
        yield "padding that is not zero", good[:at] + b"x" + good[at + 1 :]
        for name, offset, value in (
            ("type S", 156, b"S"), ("type x", 156, b"x"), ("type L", 156, b"L"), ("type 7", 156, b"7"),
            ("type 2", 156, b"2"), ("type NUL", 156, b"\0"), ("mode", 100, b"0000777"),
            ("uid", 108, b"0000001"),
            ("mtime", 136, b"00000000001"), ("uname", 265, b"root"), ("prefix", 345, b"x"),
            ("devmajor", 329, b"0000000\0"), ("GNU's magic", 257, b"ustar  \0"),
            ("size in base 256", 124, b"\x80" + bytes(10) + b"\x05"), ("size of 10 GB", 124, b"112400000000"),
            ("size of spaces", 124, b"     "), ("negative size", 124, b"-0000000001"),
            ("link", 157, b"/etc/passwd"), ("name with a rest", 13, b"x"), ("upper-case name", 0, b"R"),
        ):  # fmt: skip
            yield f"header with another {name}", patched(good, offset, value)
