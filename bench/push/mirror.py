"""A run from here: its files mirrored as they grow, its key certified, its bundle fetched.

What comes is a stranger's: names are those that we ask for, sizes are capped, text is fit for a terminal.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import shlex
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.base.errors import EnvironmentCannot, VerificationFailed
from bench.base.paths import ledger_path
from bench.bundle.handshake import CertificateRequest, read
from bench.bundle.tar_format import CERTIFICATE, MAX_TOTAL_BYTES
from bench.node_check.recompute_any import AnyVerdict, recompute
from bench.operator import certify_and_receive
from bench.operator.ledger import Ledger
from bench.operator.ssh_keygen import OperatorKey
from bench.push import run_script
from bench.push.push_record import Record, now
from bench.push.remote import ANSWER_SECONDS, Node, demand, plain
from bench.signing.revocation import Revoked

LOG = "log.txt"
_MOST_AT_ONCE = 8 * 2**20
_MOST_OF_A_FILE = 512 * 2**20
_MOST_FILES = 10_000
_LARGEST_REQUEST = 16 * 2**10
_FILE = re.compile(
    r"file (\d+) (log\.txt|slurm\.txt|out/[0-9a-f]+/(?:journal\.jsonl|telemetry\.jsonl|logs/[\w.-]+\.txt))"
)
_SEALING = ("request ", "  bench certify ")  # what the runner tells an operator who is not us

_signing = threading.Lock()  # one question for a passphrase or a touch at a time


@dataclass(frozen=True, slots=True)
class Status:
    state: str  # alive, waiting, exit, dead, gone
    code: int | None
    files: Mapping[str, int]
    request: str | None  # a checksum of it, which changes when the run starts again
    bundle_bytes: int | None
    certified: bool = False


def look(node: Node, record: Record) -> Status:
    out = f"out/{record.run_id}"
    script = (
        f"{run_script.state_script(record.folder, record.run_id, record.engine, record.slurm_job)}; "
        f"for f in {LOG} slurm.txt {out}/journal.jsonl {out}/telemetry.jsonl {out}/logs/*.txt; do "
        '[ -f "$f" ] && echo "file $(wc -c <"$f") $f"; done; '
        f"[ -f {out}/request.json ] && [ ! -f {out}/{CERTIFICATE} ] && "
        f"echo request $(cksum <{out}/request.json); [ -f {out}/{CERTIFICATE} ] && echo certified; "
        f"[ -f {out}.tar ] && echo bundle $(wc -c <{out}.tar); exit 0"
    )
    return read_status(demand(node, script, "looking after the run"))


def cancel(node: Node, record: Record) -> None:
    run_script.cancel(node, record.folder, record.run_id, record.engine, record.slurm_job)


def read_status(text: str) -> Status:
    lines = text.splitlines()
    first = lines[0].split() if lines else ["dead"]
    told = {
        line.split()[0]: line.split()[1:]
        for line in lines[1:]
        if line.split()[:1] in (["request"], ["bundle"])
    }
    files = [match for line in lines[1:] if (match := _FILE.fullmatch(line))][:_MOST_FILES]
    code = int(first[1]) if first[0] == "exit" and first[1:] and first[1].isdigit() else None
    return Status(
        "dead" if first[0] == "exit" and code is None else first[0],
        code,
        {match[2]: int(match[1]) for match in files},
        " ".join(told["request"]) if "request" in told else None,
        int(told["bundle"][0]) if told.get("bundle") else None,
        "certified" in lines[1:],
    )


# --- the mirror -----------------------------------------------------------------------------------------


def mirrored(record: Record, name: str) -> Path:
    """Where a file of the run's folder there lies here."""
    own = f"out/{record.run_id}/"
    return record.mirror / (name.removeprefix(own) if name.startswith(own) else name)


def mirror(node: Node, record: Record, files: Mapping[str, int]) -> list[str]:
    """What was written since the last time; the new lines of the run's own log."""
    lines: list[str] = []
    for name, size in files.items():
        path = mirrored(record, name)
        have = path.stat().st_size if path.exists() else 0
        if size < have:  # it began anew, or a torn line was cut off
            path.unlink()
            have = 0
        wanted = min(size - have, _MOST_AT_ONCE, _MOST_OF_A_FILE - have)
        if wanted <= 0:
            continue
        script = (
            f"cd {shlex.quote(record.folder)} && tail -c +{have + 1} {shlex.quote(name)} | head -c {wanted}"
        )
        answer = node.ask(script)
        data = answer.out[:wanted]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if path.exists() else "wb") as file:
            file.seek(have)  # not at its end: somebody else may be watching, too
            file.write(data)
        if name == LOG:
            lines += [plain(line) for line in data.decode(errors="replace").splitlines()]
    return [line for line in lines if line.strip() and not line.startswith(_SEALING)]


def settle_journal(node: Node, record: Record, owner: str) -> bool:
    """Before a run starts again: the node's own journal counts; one without is given what was mirrored.

    True if it was. The journal comes last and whole: by it the next push sees that all is there.
    """
    out = f"{shlex.quote(record.folder)}/out/{record.run_id}"
    if not node.ask(f"test -s {out}/journal.jsonl").code:
        for name in ("journal.jsonl", "telemetry.jsonl"):  # a torn last line of it will be cut off there
            (record.mirror / name).unlink(missing_ok=True)
        return False
    kept = [path for path in _kept(record) if path.is_file()]
    for path in kept:
        _give(node, path, out, str(path.relative_to(record.mirror)))
    if kept and owner:
        demand(node, f"chown -R {owner} {shlex.quote(record.folder)}/out", "giving the journal back")
    return bool(kept)


def _give(node: Node, path: Path, out: str, name: str) -> None:
    # On a line that breaks, what reads there sees an end like any other: only the size tells.
    part, size = f"{out}/.given", path.stat().st_size
    script = f"mkdir -p {out}/logs && head -c {size} >{part} && [ $(wc -c <{part}) = {size} ] && "
    answer = node.ask(f"{script}mv {part} {out}/{shlex.quote(name)}", _pieces(path))
    if answer.code:
        raise EnvironmentCannot(f"the journal cannot be given back: {answer.reason}")


def _kept(record: Record) -> list[Path]:
    logs = sorted((record.mirror / "logs").glob("*.txt"))
    return [*logs, record.mirror / "telemetry.jsonl", record.mirror / "journal.jsonl"]


def _pieces(path: Path) -> Iterable[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(2**17):
            yield chunk


# --- the certificate ------------------------------------------------------------------------------------


def certify(node: Node, record: Record, key: OperatorKey) -> int:
    """Answers the run's request; until when it may sign. The private key stays where it is."""
    out = f"{shlex.quote(record.folder)}/out/{record.run_id}"
    data = node.ask(f"head -c {_LARGEST_REQUEST} {out}/request.json").out
    if read(CertificateRequest, data).run_id != record.run_id:
        raise VerificationFailed("the node asks for a certificate of another run", where=record.host)
    with _signing, Ledger(ledger_path(Path(record.ledger) if record.ledger else None)) as ledger:
        certificate = certify_and_receive.certify(ledger, key, data, now(), record.valid_seconds)
    line = f"{certificate.line()}\n".encode()
    done = node.ask(
        f"cd {out} && umask 022 && cat >.{CERTIFICATE}.part && mv .{CERTIFICATE}.part {CERTIFICATE}", [line]
    )
    if done.code:
        raise EnvironmentCannot(f"the certificate cannot be left there: {done.reason}", where=record.host)
    return certificate.valid_before


# --- the bundle -----------------------------------------------------------------------------------------


def fetch(
    node: Node,
    record: Record,
    key: OperatorKey,
    revoked: tuple[Revoked, ...],
    got: Callable[[int, int], object],
) -> AnyVerdict:
    """The bundle, the same bytes as there; verified, its nonce consumed, countersigned."""
    part = record.bundle.with_suffix(".part")
    with (record.mirror / ".fetching").open("wb") as turn:
        with suppress(OSError):  # some file systems know no locks; then nobody else had better be watching
            fcntl.flock(turn, fcntl.LOCK_EX)
        _bring(node, record, part, got)
        with _signing, Ledger(ledger_path(Path(record.ledger) if record.ledger else None)) as ledger:
            verdict = certify_and_receive.receive(ledger, key, part, part, now(), recompute, revoked)
        part.replace(record.bundle)
    return verdict


def _bring(node: Node, record: Record, part: Path, got: Callable[[int, int], object]) -> None:
    """What has arrived of it before is gone on from."""
    there = f"{shlex.quote(record.folder)}/out/{record.run_id}.tar"
    digest, size = _digest_there(node, there)
    if size > MAX_TOTAL_BYTES * 2:
        raise VerificationFailed(
            f"the bundle there has {size:,} bytes: no run leaves so much", where=record.host
        )
    for _ in range(2):
        have = part.stat().st_size if part.exists() else 0
        with part.open("ab") as file:

            def take(data: bytes, file: object = file) -> None:
                file.write(data)  # type: ignore[attr-defined]
                if file.tell() > size:  # type: ignore[attr-defined]
                    raise VerificationFailed("the bundle there does not end", where=record.host)
                got(file.tell(), size)  # type: ignore[attr-defined]

            node.read(f"tail -c +{have + 1} {there} | head -c {max(0, size - have)}", take)
        with part.open("rb") as whole:
            if hashlib.file_digest(whole, "sha256").hexdigest() == digest:
                return
        part.unlink()
    raise EnvironmentCannot(
        "the bundle changed while it was fetched", where=record.host, advice="bench fetch"
    )


def _digest_there(node: Node, there: str) -> tuple[str, int]:
    text = demand(node, f"sha256sum <{there}; wc -c <{there}", "reading the bundle there", ANSWER_SECONDS * 4)
    digest, _, size = text.split()[:3]
    return digest, int(size)


# --- afterwards -----------------------------------------------------------------------------------------


def clean(node: Node, record: Record) -> None:
    """The run's folder; and where no other run is left, all that we brought. Nothing of anybody else's."""
    place, folder = shlex.quote(record.place), shlex.quote(record.folder)
    script = f"rm -rf {folder}"
    if not record.keep:
        script += f'; if [ -z "$(ls -A {place}/runs 2>/dev/null)" ]; then {_clean_all(record, place)}; fi'
    demand(node, f"{script}; exit 0", "cleaning up", ANSWER_SECONDS * 5)


def _clean_all(record: Record, place: str) -> str:
    away = ""
    if record.engine in ("docker", "podman"):
        names = f"{record.engine} image ls --format '{{{{.Repository}}}}:{{{{.Tag}}}}' bench-push"
        away = f'for tag in $({names}); do {record.engine} image rm "$tag" >/dev/null 2>&1; done; '
    # By name, each a digest: a place that somebody works in, too, may have images and code of its own.
    ours = (
        "for f in blobs/* images/* code/*; do n=${f##*/}; n=${n%.part}; n=${n%.new}; n=${n%.sif}; "
        'case $n in *[!0-9a-f]*) ;; *) case ${#n} in 16|64) rm -rf "$f";; esac;; esac; done; rm -rf .load; '
        "for d in runs blobs images code; do rmdir $d 2>/dev/null; done"
    )
    return f"{away}cd {place} && {{ {ours}; cd / && rmdir {place} 2>/dev/null; }}"
