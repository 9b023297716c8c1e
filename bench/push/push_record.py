"""What was begun where: a file a run, on the operator's machine, so that a later command finds it again."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.files import write_whole
from bench.base.paths import state_path
from bench.base.strict_json import DecodeError, from_json, pretty_json, strict_loads, to_json
from bench.push.hosts import Host

State = Literal["begun", "running", "fetched", "incomplete", "failed", "cancelled"]
UNFINISHED = ("begun", "running", "incomplete", "failed")


@dataclass(frozen=True, slots=True)
class Record:
    run_id: str
    push: str  # those that were begun by one command
    host: str
    address: str
    user: str | None
    port: int | None
    identity: str | None
    ssh_config: str | None
    local: bool  # this machine, without SSH
    place: str  # there, absolute
    engine: str
    image: str | None  # its identity
    manifest_sha256: str
    out: str  # here, absolute: RUN/ is the mirror, HOST-RUN.tar the bundle
    key: str | None
    ledger: str | None
    valid_seconds: int  # of a certificate
    keep: bool
    began_at: int
    state: State = "begun"
    slurm_job: str | None = None
    follows: bool = False  # a node that trains with another, which has the bundle
    nodes: int = 1  # that train as one
    python: str | None = None
    schema: Literal["bench/push-record/v1"] = "bench/push-record/v1"

    @property
    def folder(self) -> str:
        return f"{self.place}/runs/{self.run_id}"

    @property
    def mirror(self) -> Path:
        return Path(self.out) / self.run_id

    @property
    def bundle(self) -> Path:
        """By its name one knows the node, which a bundle itself does not tell."""
        host = re.sub(r"[^\w.-]", "_", self.host)
        return Path(self.out) / f"{host}-{self.run_id}.tar"

    def to_host(self) -> Host:
        identity = Path(self.identity) if self.identity else None
        return Host(self.host, self.address, self.user, self.port, identity, self.python)


class Records:
    """All that was ever pushed from here and not forgotten."""

    def __init__(self, folder: Path | None = None) -> None:
        found = folder or state_path("runs")
        if found is None:
            raise EnvironmentCannot("there is no home directory to note runs in")
        self.folder = found

    def save(self, record: Record) -> Record:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(self.folder / f"{record.run_id}.json", pretty_json(to_json(record)))
        except OSError as error:
            raise EnvironmentCannot(
                f"the run cannot be noted: {error.strerror}", where=str(self.folder)
            ) from None
        return record

    def move(self, record: Record, state: State, **changes: str | None) -> Record:
        return self.save(dataclasses.replace(record, state=state, **changes))  # type: ignore[arg-type]

    def all(self) -> list[Record]:
        """The newest first."""
        return sorted(self._read(), key=lambda record: record.began_at, reverse=True)

    def _read(self) -> Iterator[Record]:
        for path in self.folder.glob("[0-9a-f]*.json"):
            try:
                yield from_json(Record, strict_loads(path.read_bytes()))
            except (DecodeError, OSError) as error:
                raise BadInput(f"is damaged: {error}", where=str(path), advice="delete it") from None

    def find(self, names: Sequence[str]) -> list[Record]:
        """By a run's id, a push's, the beginning of either, or a host; without a name, the newest push."""
        every = self.all()
        if not every:
            raise BadInput("nothing was pushed from here yet", advice="bench push MANIFEST HOST")
        found: dict[str, Record] = {}
        for name in names or [every[0].push]:
            fitting = [r for r in every if r.run_id.startswith(name) or r.push.startswith(name)]
            if not fitting:
                fitting = [r for r in every if r.host == name][:1]
            if not fitting:
                raise BadInput(f'no run is called "{name}"', advice="bench status lists them")
            if len({r.push for r in fitting}) > 1 and len({r.run_id for r in fitting}) > 1:
                raise BadInput(
                    f'"{name}" may be {fitting[0].run_id} or {fitting[1].run_id}', advice="say more of it"
                )
            found |= {record.run_id: record for record in fitting}
        return list(found.values())

    def unfinished(
        self,
        host: Host,
        manifest_sha256: str,
        engine: str,
        out: Path,
        nodes: int = 1,
        *,
        follows: bool = False,
    ) -> Record | None:
        """A run of this manifest that was begun there, so, and whose bundle is not here yet, whole."""
        where = (host.address, host.port, manifest_sha256, engine, str(out.resolve()), nodes, follows)
        for r in self.all():
            there = (r.address, r.port, r.manifest_sha256, r.engine, r.out, r.nodes, r.follows)
            if where == there and r.state in UNFINISHED:
                return r
        return None

    def fetched(self, host: Host, manifest_sha256: str, out: Path, nodes: int = 1) -> Record | None:
        """A run of this manifest that was done there, and whose bundle is still here."""
        asked = (host.address, host.port, manifest_sha256, str(out.resolve()), "fetched", nodes)
        for record in self.all():
            found = (
                record.address,
                record.port,
                record.manifest_sha256,
                record.out,
                record.state,
                record.nodes,
            )
            if found == asked and record.bundle.exists():
                return record
        return None

    def forget(self, record: Record) -> None:
        (self.folder / f"{record.run_id}.json").unlink(missing_ok=True)


def now() -> int:
    return int(time.time())
