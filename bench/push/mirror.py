"""Handle a run on a node: mirror its growing files, certify its key, fetch its bundle, clean the node.

The node is not trusted: only files with expected names are copied, sizes are capped, and control characters
in text are replaced.
"""

from __future__ import annotations

import fcntl
import re
import shlex
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from bench.base.errors import EnvironmentCannot, VerificationFailed
from bench.base.names import ENGINES_WITH_STORE
from bench.bundle.handshake import CertificateRequest, read
from bench.bundle.tar_format import CERTIFICATE, MAX_TOTAL_BYTES
from bench.images.fetch import digest as file_digest
from bench.node_check.recompute_any import AnyVerdict, recompute
from bench.operator import certify_and_receive
from bench.operator.ledger import Ledger
from bench.operator.ssh_keygen import OperatorKey
from bench.push import run_script
from bench.push.push_record import Record, now
from bench.push.remote import ANSWER_SECONDS, Node, demand, plain
from bench.push.ship import Progress, pieces_of
from bench.signing.revocation import Revoked

LOG = "log.txt"
_MOST_AT_ONCE = 8 * 2**20  # bytes of one file that one call of `mirror` copies
_LARGEST_FILE = 512 * 2**20  # bytes; a longer file is mirrored only up to this size
_MOST_FILES = 10_000
_LARGEST_REQUEST = 16 * 2**10  # bytes of a certificate request
_FILE = re.compile(
    r"file (\d+) (log\.txt|slurm\.txt|out/[0-9a-f]+/(?:journal\.jsonl|telemetry\.jsonl|logs/[\w.-]+\.txt))"
)
_CERTIFY_HINTS = ("request ", "  bench certify ")  # log lines for operators who certify by hand; not shown

_signing = threading.Lock()  # so that ssh-keygen asks for one passphrase or touch of a token at a time


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a run, read from its node."""

    state: str  # alive, waiting, exit, dead, gone
    code: int | None  # exit code
    files: Mapping[str, int]  # sizes of the files to mirror, by name
    request: str | None  # checksum of an unanswered certificate request; a restarted run makes a new one
    bundle_bytes: int | None
    certified: bool = False


def look(node: Node, record: Record) -> Status:
    """Ask a node for the status of a run."""
    out = f"out/{record.run_id}"
    script = (
        f"{run_script.state_script(record.folder, record.run_id, record.engine, record.slurm_job)}; "
        f"for f in {LOG} slurm.txt {out}/journal.jsonl {out}/telemetry.jsonl {out}/logs/*.txt; do "
        '[ -f "$f" ] && echo "file $(wc -c <"$f") $f"; done; '
        f"[ -f {out}/request.json ] && [ ! -f {out}/{CERTIFICATE} ] && "
        f"echo request $(cksum <{out}/request.json); [ -f {out}/{CERTIFICATE} ] && echo certified; "
        f"[ -f {out}.tar ] && echo bundle $(wc -c <{out}.tar); exit 0"
    )
    return read_status(demand(node, script, "asking for the run's state"))


def cancel(node: Node, record: Record) -> None:
    """Ask a run to end. It packs and signs its results first."""
    run_script.cancel(node, record.folder, record.run_id, record.engine, record.slurm_job)


def read_status(text: str) -> Status:
    """Parse the output of `look`'s script. A run without a readable state counts as dead."""
    first_line, *lines = text.splitlines() or ["dead"]
    state, *words = first_line.split() or ["dead"]
    code = int(words[0]) if state == "exit" and words and words[0].isdigit() else None
    fields = {line.split()[0]: line.split()[1:] for line in lines if line.startswith(("request ", "bundle "))}
    files = [match for line in lines if (match := _FILE.fullmatch(line))][:_MOST_FILES]
    return Status(
        state="dead" if state == "exit" and code is None else state,
        code=code,
        files={match[2]: int(match[1]) for match in files},
        request=" ".join(fields["request"]) if "request" in fields else None,
        bundle_bytes=int(fields["bundle"][0]) if fields.get("bundle") else None,
        certified="certified" in lines,
    )


# --- the mirror -----------------------------------------------------------------------------------------


def mirror(node: Node, record: Record, files: Mapping[str, int]) -> list[str]:
    """Copy what was appended to the files since the last call; return the new lines of the run's log."""
    lines: list[str] = []
    for name, size in files.items():
        path = record.mirror / name.removeprefix(f"out/{record.run_id}/")
        have = path.stat().st_size if path.exists() else 0
        if size < have:  # the run started over, or cut off an incomplete last line
            path.unlink()
            have = 0
        count = min(size - have, _MOST_AT_ONCE, _LARGEST_FILE - have)
        if count <= 0:
            continue
        tail = f"tail -c +{have + 1} {shlex.quote(name)} | head -c {count}"
        data = node.ask(f"cd {shlex.quote(record.folder)} && {tail}").out[:count]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if path.exists() else "wb") as file:
            file.seek(have)  # not to the file's end: another command may be mirroring the same run
            file.write(data)
        if name == LOG:
            lines += [plain(line) for line in data.decode(errors="replace").splitlines()]
    return [line for line in lines if line.strip() and not line.startswith(_CERTIFY_HINTS)]


def restore_journal(node: Node, record: Record, owner: str) -> bool:
    """Prepare the journal of a run that starts again; return whether the mirrored journal was uploaded.

    A journal on the node takes precedence, and is mirrored from its beginning. A node without a journal gets
    the mirrored files, the journal last and whole: its presence tells the next push that all files arrived.
    """
    out = f"{shlex.quote(record.folder)}/out/{record.run_id}"
    if not node.ask(f"test -s {out}/journal.jsonl").code:
        for name in ("journal.jsonl", "telemetry.jsonl"):  # the run may cut off an incomplete last line
            (record.mirror / name).unlink(missing_ok=True)
        return False
    logs = sorted((record.mirror / "logs").glob("*.txt"))
    candidates = [*logs, record.mirror / "telemetry.jsonl", record.mirror / "journal.jsonl"]
    paths = [path for path in candidates if path.is_file()]
    for path in paths:
        _upload(node, path, out, str(path.relative_to(record.mirror)))
    if paths and owner:
        demand(node, f"chown -R {owner} {shlex.quote(record.folder)}/out", "restoring the journal")
    return bool(paths)


def _upload(node: Node, path: Path, out: str, name: str) -> None:
    # If the connection breaks, `head` sees a normal end of file: only the size shows that data is missing.
    part, size = f"{out}/.given", path.stat().st_size
    script = f"mkdir -p {out}/logs && head -c {size} >{part} && [ $(wc -c <{part}) = {size} ] && "
    answer = node.ask(f"{script}mv {part} {out}/{shlex.quote(name)}", pieces_of(path))
    if answer.code:
        raise EnvironmentCannot(f"the journal cannot be restored: {answer.reason}")


# --- the certificate ------------------------------------------------------------------------------------


def certify(node: Node, record: Record, key: OperatorKey) -> int:
    """Answer the run's certificate request; return the time until which its key may sign."""
    out = f"{shlex.quote(record.folder)}/out/{record.run_id}"
    data = node.ask(f"head -c {_LARGEST_REQUEST} {out}/request.json").out
    if read(CertificateRequest, data).run_id != record.run_id:
        raise VerificationFailed("the node asks for a certificate of another run", where=record.host)
    with _signing, Ledger(record.ledger) as ledger:
        certificate = certify_and_receive.certify(ledger, key, data, now(), record.valid_seconds)
    line = f"{certificate.line()}\n".encode()
    done = node.ask(
        f"cd {out} && umask 022 && cat >.{CERTIFICATE}.part && mv .{CERTIFICATE}.part {CERTIFICATE}", [line]
    )
    if done.code:
        raise EnvironmentCannot(f"the certificate cannot be written: {done.reason}", where=record.host)
    return certificate.valid_before


# --- the bundle -----------------------------------------------------------------------------------------


def fetch(
    node: Node, record: Record, key: OperatorKey, revoked: tuple[Revoked, ...], progress: Progress
) -> AnyVerdict:
    """Download a run's bundle, verify it, consume its nonce and countersign it; return the verdict."""
    part = record.bundle.with_suffix(".part")
    with (record.mirror / ".fetching").open("wb") as lock:
        with suppress(OSError):  # two commands must not fetch at once; some file systems have no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        _download(node, record, part, progress)
        with _signing, Ledger(record.ledger) as ledger:
            verdict = certify_and_receive.receive(ledger, key, part, part, now(), recompute, revoked)
        part.replace(record.bundle)
    return verdict


def _download(node: Node, record: Record, part: Path, progress: Progress) -> None:
    """Download a bundle to `part`, continuing an earlier attempt; its hash must be the one on the node."""
    source = f"{shlex.quote(record.folder)}/out/{record.run_id}.tar"
    text = demand(node, f"sha256sum <{source}; wc -c <{source}", "hashing the bundle", ANSWER_SECONDS * 4)
    digest, _, size_word = text.split()[:3]
    size = int(size_word)
    if size > MAX_TOTAL_BYTES * 2:
        raise VerificationFailed(
            f"the node's bundle has {size:,} bytes, more than any run writes", where=record.host
        )
    for _ in range(2):
        have = part.stat().st_size if part.exists() else 0
        with part.open("ab") as file:

            def take(data: bytes, file: BinaryIO = file) -> None:
                file.write(data)
                if file.tell() > size:
                    raise VerificationFailed("the node sends more than the bundle's size", where=record.host)
                progress(file.tell(), size)

            node.read(f"tail -c +{have + 1} {source} | head -c {max(0, size - have)}", take)
        if file_digest(part) == digest:
            return
        part.unlink()
    raise EnvironmentCannot(
        "the bundle changed while it was fetched", where=record.host, advice="bench fetch"
    )


# --- afterwards -----------------------------------------------------------------------------------------


def clean(node: Node, record: Record) -> None:
    """Delete a run's folder; after the node's last run also the images, layers and code of bench."""
    place, folder = shlex.quote(record.place), shlex.quote(record.folder)
    script = f"rm -rf {folder}"
    if not record.keep:
        script += f'; if [ -z "$(ls -A {place}/runs 2>/dev/null)" ]; then {_clean_all(record, place)}; fi'
    demand(node, f"{script}; exit 0", "cleaning up", ANSWER_SECONDS * 5)


def _clean_all(record: Record, place: str) -> str:
    """Return shell commands that delete only what bench brought to the node."""
    remove_images = ""
    if record.engine in ENGINES_WITH_STORE:
        names = f"{record.engine} image ls --format '{{{{.Repository}}}}:{{{{.Tag}}}}' bench-push"
        remove_images = f'for tag in $({names}); do {record.engine} image rm "$tag" >/dev/null 2>&1; done; '
    # Only files named by a digest are deleted: the user may keep other files in the place.
    ours = (
        "for f in blobs/* images/* code/*; do n=${f##*/}; n=${n%.part}; n=${n%.new}; n=${n%.sif}; "
        'case $n in *[!0-9a-f]*) ;; *) case ${#n} in 16|64) rm -rf "$f";; esac;; esac; done; rm -rf .load; '
        "for d in runs blobs images code; do rmdir $d 2>/dev/null; done"
    )
    return f"{remove_images}cd {place} && {{ {ours}; cd / && rmdir {place} 2>/dev/null; }}"
