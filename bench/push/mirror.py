"""Handle a run on a node: mirror its growing files, certify its key, fetch its bundle, clean the node.

The node is not trusted: only files with expected names are copied, sizes are capped, and control characters
in text are replaced.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from bench.base.errors import EnvironmentCannot, VerificationFailed
from bench.base.operating_system import lock
from bench.base.stamps import file_sha256
from bench.bundle.handshake import CertificateRequest, read
from bench.bundle.tar_format import CERTIFICATE, MAX_TOTAL_BYTES
from bench.bundle.verify import Files, Recompute
from bench.node_check.check_results import LEFT_OUT, CheckContents
from bench.node_check.recompute_any import AnyContents, AnyVerdict, recompute
from bench.operator import certify_and_receive
from bench.operator.ledger import Ledger
from bench.operator.ssh_keygen import OperatorKey
from bench.push import run_script
from bench.push.answers import number, short, understood
from bench.push.connection import plain
from bench.push.out_folder import put
from bench.push.push_record import Record, now
from bench.push.remote import ANSWER_SECONDS, Node, demand
from bench.push.send_blobs import Progress, pieces_of
from bench.push.shared_place import empty
from bench.signing.revocation import Revoked

LOG = "log.txt"
_MOST_AT_ONCE = 8 * 2**20  # bytes that one call of `mirror` copies
_FILES_AT_ONCE = 16  # that one call of `mirror` copies from: each takes a process of ssh
_LARGEST_FILE = 512 * 2**20  # bytes; a longer file is mirrored only up to this size
_LARGEST_MIRROR = 2 * 2**30  # bytes of all files of a run together; nothing is mirrored beyond
_MOST_FILES = 10_000  # of a run
_MOST_SHOWN = 1_000  # new lines of a run's log that are shown after one look
_LINE_CHARACTERS = 2_000  # of such a line
_END_BYTES = 2**14  # of a log whose last lines are quoted in an error
_LARGEST_REQUEST = 16 * 2**10  # bytes of a certificate request
_STATE = re.compile(r"(alive|waiting|dead|gone|exit)(?: ([0-9]{1,3}))?")
_FILE = re.compile(
    r"file ([0-9]{1,15}) (log\.txt|slurm\.txt|"
    r"out/[0-9a-z._-]{1,64}/(?:journal\.jsonl|telemetry\.jsonl|logs/[\w.-]{1,100}\.txt))",
    re.ASCII,
)
_REQUEST = re.compile(r"request(?: ([0-9]{1,15} [0-9]{1,15}))?")  # no checksum: the file has just gone
_BUNDLE = re.compile(r"bundle(?: ([0-9]{1,15}))?")
_WHY = re.compile(r"why ([\w(),./: -]{1,100})", re.ASCII)
_ON = re.compile(r"on ([\w,.\[\]-]{1,200})", re.ASCII)
_HASHED = re.compile(r"([0-9a-f]{64}) +\*?-\s+([0-9]{1,15})\s*", re.ASCII)  # sha256sum and wc of the bundle
_CERTIFY_HINTS = ("request ", "  bench certify ")  # log lines for operators who certify by hand; not shown


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a run, read from its node."""

    state: str  # alive, waiting, exit, dead, gone
    code: int | None  # exit code
    files: Mapping[str, int]  # sizes of the files to mirror, by name
    request: str | None  # checksum of an unanswered certificate request; a restarted run makes a new one
    bundle_bytes: int | None
    certified: bool = False
    reason: str | None = None  # why a job of Slurm waits, or how the run was ended from outside
    on: str | None = None  # the nodes of a job of Slurm


def look(node: Node, record: Record) -> Status:
    """Ask a node for the status of a run."""
    out = f"out/{record.run_id}"
    script = (
        f"{run_script.state_script(record.folder, record.run_id, record.engine, record.slurm_job)}; "
        f"for f in {LOG} slurm.txt {out}/journal.jsonl {out}/telemetry.jsonl {out}/logs/*.txt; do "
        '[ -f "$f" ] && [ ! -L "$f" ] && echo "file $(wc -c <"$f") $f"; done; '
        f"[ -f {out}/request.json ] && [ ! -f {out}/{CERTIFICATE} ] && "
        f"echo request $(cksum <{out}/request.json); [ -f {out}/{CERTIFICATE} ] && echo certified; "
        f"[ -f {out}.tar ] && [ ! -L {out}.tar ] && echo bundle $(wc -c <{out}.tar); "
        '[ -s nodelist ] && echo "on $(head -c 200 nodelist)"; exit 0'
    )
    status = read_status(demand(node, script, "asking for the run's state"))
    own = {
        name: size for name, size in status.files.items() if name.startswith((LOG, "slurm.txt", f"{out}/"))
    }
    return replace(status, files=own)


def last_line(node: Node, record: Record) -> str:
    """Return the last line of a run's log on its node."""
    return node.ask(f"tail -n 1 {shlex.quote(record.folder)}/{LOG}").text.strip()


def cancel(node: Node, record: Record) -> None:
    """Ask a run to end. It packs and signs its results first."""
    run_script.cancel(node, record.folder, record.run_id, record.engine, record.slurm_job)


def kill(node: Node, record: Record) -> None:
    """End a run that does not end when asked. Its journal stays, so that a new push resumes it."""
    run_script.kill(node, record.folder, record.run_id, record.engine, record.slurm_job)


def read_status(text: str) -> Status:
    """Parse the output of `look`'s script; EnvironmentCannot for words that the script never prints.

    A run without an exit code counts as dead: its node went down while the code was written.
    """
    first_line, *lines = text.splitlines() or ["dead"]
    with understood("the node's answer about its run has a form that bench's script never prints"):
        state, code = _state(first_line.strip() or "dead")
        known = ("file ", "request", "certified", "bundle", "why ", "on ")
        if not all(line.startswith(known) for line in lines):
            raise ValueError("a line that the script never prints")
        bundle = _last(_BUNDLE, lines, "bundle")
        return Status(
            state=state,
            code=code,
            files=_files(lines),
            request=_last(_REQUEST, lines, "request"),
            bundle_bytes=None if bundle is None else number(bundle),
            certified="certified" in lines,
            reason=_last(_WHY, lines, "why"),
            on=_last(_ON, lines, "on"),
        )


def _state(line: str) -> tuple[str, int | None]:
    match = _STATE.fullmatch(line)
    if match is None or (match[1] != "exit" and match[2]):
        raise ValueError("not a state of a run")
    if match[1] == "exit" and match[2]:
        return "exit", int(match[2])
    return "dead" if match[1] == "exit" else match[1], None


def _files(lines: Sequence[str]) -> dict[str, int]:
    """Return the sizes of the files that are mirrored; files with other names are left on the node."""
    matches = [match for line in lines if (match := _FILE.fullmatch(line))]
    return {match[2]: number(match[1]) for match in matches[:_MOST_FILES]}


def _last(pattern: re.Pattern[str], lines: Sequence[str], word: str) -> str | None:
    """Return what follows `word` on the last line that begins with it; ValueError for another form."""
    found = None
    for line in lines:
        if line.startswith(word):
            match = pattern.fullmatch(line.rstrip())
            if match is None:
                raise ValueError(f"not a line about the {word}")
            found = match[1]
    return found


def room_bytes(record: Record) -> int:
    """Return how many bytes may still be mirrored; 0 if the mirror has too many files already."""
    sizes = [path.stat().st_size for path in record.mirror.rglob("*") if path.is_file()]
    return max(0, _LARGEST_MIRROR - sum(sizes)) if len(sizes) < _MOST_FILES else 0


def mirror(node: Node, record: Record, files: Mapping[str, int]) -> list[str]:
    """Copy what was appended to the files since the last call; return the new lines of the run's log.

    A call copies a limited number of files and bytes; the next call goes on. Once the mirror has reached its
    largest size, nothing more is copied.
    """
    lines: list[str] = []
    room, asked = min(_MOST_AT_ONCE, room_bytes(record)), 0
    for name, size in files.items():
        path = _mirrored(record, name)
        have = path.stat().st_size if path.exists() else 0
        if size < have:  # the run started over, or cut off an incomplete last line
            path.unlink()
            have = 0
        count = min(size - have, _LARGEST_FILE - have, room)
        if count <= 0 or asked == _FILES_AT_ONCE:
            continue
        asked += 1
        data = _tail(node, record, name, have, count)
        room -= len(data)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if path.exists() else "wb") as file:
            file.seek(have)  # not to the file's end: another command may be mirroring the same run
            file.write(data)
        if name == LOG:
            lines = _shown(data)
    return lines


def _shown(log: bytes) -> list[str]:
    """Return the newest lines of a piece of a run's log, as the operator sees them."""
    newest = log.decode(errors="replace").splitlines()[-_MOST_SHOWN:]
    lines = [short(plain(line), _LINE_CHARACTERS) for line in newest]
    return [line for line in lines if line.strip() and not line.startswith(_CERTIFY_HINTS)]


def end_of(path: Path) -> bytes:
    """Return the last bytes of a mirrored file, which may be as long as its node likes."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _END_BYTES))
        return file.read(_END_BYTES)


def _mirrored(record: Record, name: str) -> Path:
    """Return the path of a file of the node on this machine."""
    return record.mirror / name.removeprefix(f"out/{record.run_id}/")


def _tail(node: Node, record: Record, name: str, have: int, count: int) -> bytes:
    tail = f"tail -c +{have + 1} {shlex.quote(name)} | head -c {count}"
    return node.ask(f"cd {shlex.quote(record.folder)} && {tail}", most_bytes=count).out[:count]


def restore_journal(node: Node, record: Record, owner: str) -> bool:
    """Prepare the journal of a run that starts again; return whether the mirrored journal was uploaded.

    A journal on the node takes precedence, and is mirrored from its beginning. A node without a journal gets
    the mirrored files, the journal last and whole: its presence tells the next push that all files arrived.
    """
    out = f"out/{record.run_id}"
    if not node.ask(f"test -s {shlex.quote(record.folder)}/{out}/journal.jsonl").code:
        for name in ("journal.jsonl", "telemetry.jsonl"):  # the run may cut off an incomplete last line
            (record.mirror / name).unlink(missing_ok=True)
        return False
    logs = sorted((record.mirror / "logs").glob("*.txt"))
    candidates = [*logs, record.mirror / "telemetry.jsonl", record.mirror / "journal.jsonl"]
    paths = [path for path in candidates if path.is_file()]
    for path in paths:
        name = path.relative_to(record.mirror).as_posix()
        written = node.ask(put(record.folder, f"{out}/{name}", path.stat().st_size), pieces_of(path))
        if written.code:
            raise EnvironmentCannot(f"the journal cannot be restored: {written.reason}")
    if paths and owner:  # -h: also of a link, never of the file that it names
        demand(node, f"chown -hR {owner} {shlex.quote(record.folder)}/out", "restoring the journal")
    return bool(paths)


def certify(node: Node, record: Record, key: OperatorKey) -> int:
    """Answer the run's certificate request; return the time until which its key may sign."""
    out = f"{shlex.quote(record.folder)}/out/{record.run_id}"
    data = node.ask(f"head -c {_LARGEST_REQUEST} {out}/request.json", most_bytes=_LARGEST_REQUEST).out
    if read(CertificateRequest, data).run_id != record.run_id:
        raise VerificationFailed("the node asks for a certificate of another run", where=record.host)
    ledger = Ledger(record.ledger)
    certificate = certify_and_receive.certify(ledger, key, data, now(), record.valid_seconds)
    line = f"{certificate.line()}\n".encode()
    put_there = put(record.folder, f"out/{record.run_id}/{CERTIFICATE}", len(line))
    done = node.ask(f"umask 022; {put_there}", [line])
    if done.code:
        raise EnvironmentCannot(f"the certificate cannot be written: {done.reason}", where=record.host)
    return certificate.valid_before


def fetch(
    node: Node, record: Record, key: OperatorKey, revoked: tuple[Revoked, ...], progress: Progress
) -> AnyVerdict:
    """Download a run's bundle, verify it, consume its nonce and countersign it; return the verdict."""
    part = record.bundle.with_suffix(".part")
    with (record.mirror / ".fetching").open("wb") as fetching:
        with suppress(OSError):  # two commands must not fetch at once; some file systems have no locks
            lock(fetching, wait=True)
        try:
            _download(node, record, part, progress)
            ledger = Ledger(record.ledger)
            verdict = certify_and_receive.receive(
                ledger, key, part, part, now(), as_asked(record), revoked, run_id=record.run_id
            )
        except VerificationFailed:  # the next attempt fetches another bundle: nothing of this one is of use
            part.unlink(missing_ok=True)
            raise
        part.replace(record.bundle)
    return verdict


def as_asked(record: Record) -> Recompute[AnyContents]:
    """Return the function that recomputes a bundle's contents, and refuses another node check than asked.

    A node could otherwise pass without load, without its GPUs, or without what it fails. A check of the
    network between nodes is as valid without GPUs.
    """

    def recompute_as_asked(files: Files) -> AnyContents:
        contents = recompute(files)
        if isinstance(contents, CheckContents) and record.level is not None:
            results, device = contents.results, "cpu" if record.on_cpu else "cuda"
            if record.level == "nodes":
                device = results.device
            answer, asked = (results.level, results.device), (record.level, device)
            if answer != asked:
                given, wanted = (f"at level {level} on {where}" for level, where in (answer, asked))
                raise VerificationFailed(f"is of a check {given}, and the push asked for one {wanted}")
            if left_out := next((f for f in results.findings if f.check == LEFT_OUT), None):
                raise VerificationFailed(f"is not a whole check: {left_out.found}")
        return contents

    return recompute_as_asked


def _download(node: Node, record: Record, part: Path, progress: Progress) -> None:
    """Download a bundle to `part`, continuing an earlier attempt; its hash must be the one on the node."""
    source = f"{shlex.quote(record.folder)}/out/{record.run_id}.tar"
    text = demand(node, f"sha256sum <{source}; wc -c <{source}", "hashing the bundle", ANSWER_SECONDS * 4)
    with understood(
        "the node's answer about its bundle has a form that bench's script never prints", where=record.host
    ):
        digest, size = _digest_and_size(text)
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
        if file_sha256(part) == digest:
            return
        part.unlink()
    raise EnvironmentCannot(
        "the bundle changed while it was fetched", where=record.host, advice="bench fetch"
    )


def _digest_and_size(text: str) -> tuple[str, int]:
    match = _HASHED.fullmatch(text)
    if match is None:
        raise ValueError("not the output of sha256sum and wc")
    return match[1], number(match[2])


def clean(node: Node, record: Record) -> None:
    """Delete a run's folder; after the last run of its place also the images, layers and code of bench."""
    script = f"rm -rf {shlex.quote(record.folder)}"
    if not record.keep:
        script += f"; {empty(record.place, record.run_id, record.engine)}"
    demand(node, f"{script}; exit 0", "cleaning up", ANSWER_SECONDS * 5)
