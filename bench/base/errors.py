"""Every way to fail, with its exit code and what to do about it.

BenchError
├── BadInput            2  the manifest, an argument or a file of the user's is wrong
├── EnvironmentCannot   3  this machine lacks what the work needs
├── VerificationFailed  4  a bundle is not what it claims to be
│   └── Untrusted          it may be, and is signed by nobody trusted
└── Incomplete          5  interrupted or out of budget; what was measured is kept

Exit code 1 is no error: the work was done and the verdict is no.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, Self


def printable(text: str) -> str:
    """Texts of strangers, without what a terminal would obey: escapes, other controls, reversed writing."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    """The same where a line has its meaning, whatever the text holds."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def in_json(value: object, most: int = 60) -> str:
    """A value of an input as its author wrote it, in one line."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else text[: most - 1] + "…"


class BenchError(Exception):
    """Base of all errors that a user may see; `advice` says what to do next."""

    exit_code: ClassVar[int] = 3

    def __init__(self, message: str, *, where: str | None = None, advice: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.advice = advice

    def __str__(self) -> str:
        first = f"{self.where}: {self.message}" if self.where else self.message
        return printable(f"{first}\n  {self.advice}" if self.advice else first)

    def to_json(self) -> dict[str, object]:
        """What `--json` has on stdout instead of what was asked for."""
        error = {"message": self.message, "where": self.where, "advice": self.advice}
        return {"schema": "bench/error/v1", "exit_code": self.exit_code, "error": error}


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing wrong at one place of an input."""

    path: str
    found: str
    allowed: str


def nearest(name: str, known: Iterable[str]) -> str:
    """What was probably meant, or else what there is; upper case does not matter."""
    names = {n.lower(): n for n in known}
    close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    return f'nearest: "{names[close[0]]}"' if close else f"allowed: {listed(names.values())}"


def listed(names: Iterable[str], most: int = 12) -> str:
    every = sorted(names)
    return ", ".join(every[:most]) + (", ..." if len(every) > most else "")


class BadInput(BenchError):
    """An input of the user's is wrong; all mistakes are named at once."""

    exit_code = 2

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        advice: str | None = None,
        mistakes: tuple[Mistake, ...] = (),
    ) -> None:
        super().__init__(message, where=where, advice=advice)
        self.mistakes = mistakes

    @classmethod
    def of(cls, mistakes: Sequence[Mistake], where: str | None, advice: str | None = None) -> Self:
        count = f"{len(mistakes)} mistake{'s' * (len(mistakes) > 1)}"
        return cls(count, where=where, advice=advice, mistakes=tuple(mistakes))

    def to_json(self) -> dict[str, object]:
        return super().to_json() | {"mistakes": [asdict(mistake) for mistake in self.mistakes]}

    def __str__(self) -> str:
        if not self.mistakes:
            return super().__str__()
        paths = [one_line(m.path) for m in self.mistakes]
        width = max(map(len, paths))
        rows = [
            f"  {path:<{width}}  {one_line(f'{m.found}; {m.allowed}')}"
            for path, m in zip(paths, self.mistakes, strict=True)
        ]
        return "\n".join([super().__str__(), *rows])


class EnvironmentCannot(BenchError):
    """This machine lacks what the work needs."""

    exit_code = 3


class VerificationFailed(BenchError):
    """A bundle is not what it claims to be."""

    exit_code = 4

    def __str__(self) -> str:
        """In one line whatever a stranger's names hold: a second one would look like another verdict."""
        first = f"{self.where}: {self.message}" if self.where else self.message
        return one_line(first) + (f"\n  {one_line(self.advice)}" if self.advice else "")


class Untrusted(VerificationFailed):
    """Nobody trusted vouches for it; `doubt` says so to who has the key's fingerprint before them."""

    def __init__(self, source: str, did: str, fingerprint: str, why: str) -> None:
        super().__init__(f"not trusted by {source}: {did} by {fingerprint}, which {why}")
        self.doubt = f"not trusted by {source}: the key that {did} it {why}"


class Incomplete(BenchError):
    """The run ended before its plan did; what was measured is kept."""

    exit_code = 5
