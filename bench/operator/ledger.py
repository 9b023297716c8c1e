"""The operator's ledger: challenges, certificates and receipts in an append-only file of hash-chained lines.

`with ledger:` locks the file and reads it. Only decisions and appended lines belong inside such a block:
another command waits meanwhile, so nobody verifies a bundle or asks for a passphrase there.

A nonce is consumed by its first `received` line. A line is valid once its newline is on the disk; an
incomplete last line, which a crash leaves, is cut off. A line without the hash of the line before is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.files import AppendOnlyLines
from bench.base.paths import ledger_path
from bench.base.stamps import sha256
from bench.base.strict_json import DecodeError, canonical_json, from_json, strict_loads, to_json
from bench.bundle.handshake import LedgerEntry

_START = "0" * 64
Event = Literal["challenged", "certified", "received"]


@dataclass(frozen=True, slots=True)
class Line:
    """One event of the ledger. `facts` holds details, such as the digest of the manifest or statement."""

    number: int
    previous: str
    at: int
    event: Event
    run_id: str
    nonce: str
    facts: Mapping[str, Any]

    def to_bytes(self) -> bytes:
        """Serialise as a line without its newline; the next line holds the sha256 of these bytes."""
        return canonical_json(to_json(self))

    @property
    def entry(self) -> LedgerEntry:
        """Return what a bundle says of this line: its number and checksum."""
        return LedgerEntry(self.number, sha256(self.to_bytes()))


class Ledger:
    """A ledger. At the beginning of a `with` block it is locked, and its `lines` are read."""

    def __init__(self, path: Path | str | None) -> None:
        """Use the ledger at `path`; None or "" means the user's own ledger. Nothing is opened yet."""
        self.path = ledger_path(Path(path) if path else None)
        self.lines: list[Line] = []
        self._file: AppendOnlyLines | None = None

    def __enter__(self) -> Self:
        """Wait for the lock, and read the file."""
        assert self._file is None, "the ledger is open already"
        self._file = self._opened()
        try:
            self.lines = list(self._read(self._file.read()))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._file is not None, "the ledger is not open"
        self._file.close()
        self._file = None

    def _opened(self) -> AppendOnlyLines:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            return AppendOnlyLines(self.path, wait=True, mode=0o600)
        except OSError as error:
            message = f"the ledger cannot be opened for writing: {error.strerror}"
            advice = "name another file with --ledger"
            raise EnvironmentCannot(message, where=str(self.path), advice=advice) from None

    def _read(self, written: Iterable[bytes]) -> Iterator[Line]:
        previous = _START
        for number, raw in enumerate(written, start=1):
            try:
                line = from_json(Line, strict_loads(raw))
            except DecodeError as error:
                raise self._damaged(number, str(error)) from None
            if (line.number, line.previous) != (number, previous) or line.to_bytes() != raw:
                raise self._damaged(number, "it does not follow from the line before it")
            previous = line.entry.sha256
            yield line

    def _damaged(self, number: int, why: str) -> BadInput:
        advice = "a ledger is never edited: restore it from a copy, or begin another one with --ledger"
        return BadInput(f"line {number} is damaged: {why}", where=str(self.path), advice=advice)

    def append(self, event: Event, at: int, run_id: str, nonce: str, facts: Mapping[str, Any]) -> Line:
        """Write a line at the end of the ledger, which must be locked, and return the line."""
        assert self._file is not None, "the ledger is not open"
        previous = self.lines[-1].entry.sha256 if self.lines else _START
        line = Line(len(self.lines) + 1, previous, at, event, run_id, nonce, facts)
        self._file.append(line.to_bytes())
        self.lines.append(line)
        return line

    def find(self, event: Event, *, nonce: str | None = None, run_id: str | None = None) -> Line | None:
        """Return the first line of an event, with the nonce and run if given; None if no line matches."""
        for line in self.lines:
            if line.event == event and nonce in (None, line.nonce) and run_id in (None, line.run_id):
                return line
        return None
