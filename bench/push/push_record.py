"""Records of pushed runs: one JSON file per run on the operator's machine, for later commands to find it."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal

from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.files import write_whole
from bench.base.paths import state_path, using
from bench.base.strict_json import DecodeError, from_json, pretty_json, strict_loads, to_json
from bench.node_check.judging import Depth
from bench.push.hosts import Host
from bench.push.slurm_job import JobNode

NOTHING_PUSHED = "nothing was pushed from this machine yet"

State = Literal["begun", "running", "fetched", "incomplete", "failed", "cancelled"]
UNFINISHED = ("begun", "running", "incomplete", "failed")


@dataclass(frozen=True, slots=True)
class PodPlace:
    """The pod of a run in a Kubernetes cluster."""

    context: str | None  # of kubectl; None: bench itself ran in a pod
    server: str  # URL of the API server
    namespace: str
    job: str
    pods: int  # of the job
    pod: str


@dataclass(frozen=True, slots=True)
class PushAsked:
    """The choices by which a later push finds the run of an earlier one: each of them has to be equal."""

    address: str
    port: int | None
    ssh_config: str | None  # two of them may call the login nodes of two clusters by one name
    manifest_sha256: str
    out: str
    nodes: int = 1
    slurm_where: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """A run that was pushed to a node; the fields are those of its JSON file."""

    run_id: str
    push: str  # id shared by the runs that one command started
    host: str
    address: str
    user: str | None
    port: int | None
    identity: str | None
    ssh_config: str | None
    local: bool  # the node is this machine, without SSH
    place: str  # folder on the node, absolute
    engine: str
    image: str | None  # the image's identity
    manifest_sha256: str
    out: str  # folder on this machine, absolute: RUN/ is the mirror, HOST-RUN.tar the bundle
    key: str | None
    ledger: str | None
    valid_seconds: int  # validity of the run's certificate
    keep: bool
    began_at: int
    state: State = "begun"
    slurm_job: str | None = None
    slurm_where: str | None = None  # options that decide where the job runs
    slurm_nodes: str | None = None  # where it ran, once that is known
    job_nodes: tuple[JobNode, ...] = ()  # the same at the job's end, in the order of their numbers
    follows: bool = False  # another host leads the training, and has the bundle
    nodes: int = 1  # number of nodes that train as one
    python: str | None = None
    environment: str | None = None  # the environment's digest
    ssh_arguments: tuple[str, ...] = ()
    pod: PodPlace | None = None  # None: a machine, and no pod of Kubernetes
    level: Depth | None = None  # that a node check was asked for; None: training, or an older record
    on_cpu: bool = False  # whether a node check was asked to rehearse on the CPU
    schema: Literal["bench/push-record/v1"] = "bench/push-record/v1"

    @property
    def folder(self) -> str:
        """The run's folder on its node, absolute."""
        return f"{self.place}/runs/{self.run_id}"

    @property
    def mirror(self) -> Path:
        """The folder on this machine with copies of the run's growing files."""
        return Path(self.out) / self.run_id

    @property
    def bundle(self) -> Path:
        """Path of the fetched bundle; it names the node, which the bundle itself does not."""
        host = f"{self.host}-{self.slurm_nodes}" if self.slurm_nodes else self.host
        host = re.sub(r"[^\w.-]", "_", host)
        return Path(self.out) / f"{host}-{self.run_id}.tar"

    @property
    def asked(self) -> PushAsked:
        """The user's choices when the run was started."""
        return PushAsked(
            self.address,
            self.port,
            self.ssh_config,
            self.manifest_sha256,
            self.out,
            self.nodes,
            self.slurm_where,
        )

    def to_host(self) -> Host:
        """Return the host as the inventory named it when the run was started."""
        identity = Path(self.identity) if self.identity else None
        return Host(self.host, self.address, self.user, self.port, identity, self.python, self.ssh_arguments)


def login_of(host: Host) -> dict[str, Any]:
    """Return the fields of a record that say how to log in on a host, by their names."""
    return {
        "user": host.user,
        "identity": str(host.identity) if host.identity else None,
        "ssh_arguments": host.ssh_arguments,
        "python": host.python,
    }


class Records:
    """The folder of all records on this machine."""

    def __init__(self, folder: Path | None = None) -> None:
        folder = folder or state_path("runs")
        if folder is None:
            advice = "set HOME to a folder that you can write to"
            raise EnvironmentCannot("there is no home directory to record runs in", advice=advice)
        self.folder = folder

    def save(self, record: Record) -> Record:
        """Write a record's file, which is replaced as a whole, and return the record."""
        with self._writing():
            write_whole(self.folder / f"{record.run_id}.json", pretty_json(to_json(record)))
        return record

    def refuse_read_only(self) -> None:
        """Raise EnvironmentCannot if no run can be recorded here: its push would fail after minutes."""
        with self._writing(), TemporaryFile(dir=self.folder):
            pass

    @contextmanager
    def _writing(self) -> Iterator[None]:
        advice = "set XDG_STATE_HOME to a folder of yours that can be written, and keeps its files"
        with using(self.folder, "runs cannot be recorded", advice):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            yield

    def move(self, record: Record, state: State, **changes: Any) -> Record:
        """Save a record in another state, with other changes; return the changed record."""
        return self.save(dataclasses.replace(record, state=state, **changes))

    def all(self) -> list[Record]:
        """Return all records, the newest first."""
        return sorted(self._read(), key=lambda record: record.began_at, reverse=True)

    def _read(self) -> Iterator[Record]:
        for path in self.folder.glob("[0-9a-f]*.json"):
            try:
                yield from_json(Record, strict_loads(path.read_bytes(), undecoded=True))
            except (DecodeError, OSError) as error:
                raise BadInput(f"is damaged: {error}", where=str(path), advice="delete it") from None

    def find(self, names: Sequence[str]) -> list[Record]:
        """Return the runs that ids (or their beginnings) or hosts name; without names, the newest push."""
        records = self.all()
        if not records:
            raise BadInput(NOTHING_PUSHED, advice="bench push MANIFEST HOST")
        chosen: dict[str, Record] = {}
        for name in names or [records[0].push]:
            matches = [r for r in records if r.run_id.startswith(name) or r.push.startswith(name)]
            matches = matches or [r for r in records if r.host == name][:1]
            if not matches:
                raise BadInput(f'no run is called "{name}"', advice="bench status lists them")
            if len({r.push for r in matches}) > 1 and len({r.run_id for r in matches}) > 1:
                advice = "give more characters of its id"
                raise BadInput(f'"{name}" may be {matches[0].run_id} or {matches[1].run_id}', advice=advice)
            chosen |= {record.run_id: record for record in matches}
        return list(chosen.values())

    def unfinished(self, asked: PushAsked, engine: str, *, follows: bool = False) -> Record | None:
        """Return the newest such run whose complete bundle was not fetched yet, or None."""
        found = (r for r in self._of(asked) if (r.engine, r.follows) == (engine, follows))
        return next((r for r in found if r.state in UNFINISHED), None)

    def fetched(self, asked: PushAsked) -> Record | None:
        """Return the newest such run whose bundle was fetched and still exists, or None."""
        return next((r for r in self._of(asked) if r.state == "fetched" and r.bundle.exists()), None)

    def _of(self, asked: PushAsked) -> list[Record]:
        return [record for record in self.all() if record.asked == asked]

    def forget(self, record: Record) -> None:
        """Delete a record's file, if it is there: no later command finds the run."""
        (self.folder / f"{record.run_id}.json").unlink(missing_ok=True)


def now() -> int:
    """Return the unix time in whole seconds, as records and certificates state times."""
    return int(time.time())
