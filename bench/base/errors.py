"""The errors that users see, each with an exit code, the place of the mistake, and advice. Pure.

BenchError
├── BadInput            2  the manifest, an argument or a file of the user's is wrong
├── EnvironmentCannot   3  this machine lacks what the work needs
├── VerificationFailed  4  a bundle is not what it claims to be
│   └── Untrusted          intact, but no trusted key vouches for its signer
└── Incomplete          5  interrupted or out of budget; what was measured is kept

Exit code 1 is not an error: the work was done, and its verdict is negative.
"""

from __future__ import annotations

import copyreg
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, Self

# The advice for an exception that no command expects.
DEFECT = "a defect of bench: BENCH_DEBUG=1 shows the traceback; please report it"


def printable(text: str) -> str:
    """Escape everything in an untrusted text that a terminal would interpret: controls, reversed writing."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    """Escape an untrusted text like `printable`, line breaks and tabs too, so that it stays on one line."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def in_json(value: object, most: int = 60) -> str:
    """Show a value of an input as JSON on one line, cut to `most` characters.

    An infinity, which a reader of configurations keeps as an object, is shown as it was written.
    """
    text = json.dumps(value, ensure_ascii=False)
    for infinity in ("Infinity", "-Infinity"):  # see strict_json.tagged_infinity
        text = text.replace(f'{{"__float__": "{infinity}"}}', infinity)
    return cut(text, most)


def cut(text: str, most: int) -> str:
    """Cut a text to `most` characters; a text that was cut ends with an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def raised(error: BaseException) -> str:
    """Return an exception's type and message on one line: `KeyError: 'width'`. A long message is cut."""
    return cut(" ".join(f"{type(error).__name__}: {error}".split()), MOST_RAISED)


class BenchError(Exception):
    """Base of all errors that a user may see; `advice` says what to do next."""

    exit_code: ClassVar[int] = 3

    def __init__(self, message: str, *, where: str | None = None, advice: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.advice = advice

    def __str__(self) -> str:
        """Format the error for a terminal; a name with line breaks stays on its line."""
        first = f"{one_line(self.where)}: {self.message}" if self.where else self.message
        return printable(f"{first}\n  {shortened(self.advice)}" if self.advice else first)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the constructor, so that subclasses with other constructors can be pickled too."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    def to_json(self) -> dict[str, object]:
        """Return the document that `--json` prints on stdout in place of a result."""
        error = {"message": self.message, "where": self.where, "advice": self.advice}
        return {"schema": "bench/error/v1", "exit_code": self.exit_code, "error": error}


class Mistake(NamedTuple):
    """One mistake in an input: its path, what was found there, and what is allowed."""

    path: str
    found: str
    allowed: str


def nearest(name: str, known: Iterable[str], look: str = "") -> str:
    """Suggest the known name that was probably meant; else list all of them, and say where to look."""
    every = list(known)
    if close := near(name, every):
        return f'nearest: "{close[0]}"'
    return "; ".join(filter(None, (f"{ALLOWED}{', '.join(sorted(every))}", look)))


def near(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names that differ by few letters or begin with `name`, the nearest first."""
    typed = name.lower()
    if len(typed) > MOST_LETTERS:  # too long for a name, and counting its edits could take hours
        return []
    found = []
    for name in known:
        spelled = name.lower()
        longer = len(spelled) - len(typed)
        most_edits = min(max(1, len(typed) // LETTERS_PER_EDIT), len(spelled) - 1)
        if len(typed) >= LEAST_BEGINNING and spelled.startswith(typed):
            found.append((False, longer, name))
        elif abs(longer) <= most_edits and (edits := edits_between(typed, spelled)) <= most_edits:
            found.append((True, edits, name))
    return [name for *_, name in sorted(found, key=lambda each: each[:2])]


def edits_between(one: str, other: str) -> int:
    """Count the edits between two texts: letters inserted, removed, replaced or swapped with a neighbour."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        earlier, before, row = before, row, [i]
        for j, wanted in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                cost = min(cost, earlier[j - 2] + 1)
            row.append(cost)
    return row[-1]


IF_UNTRUSTED = "once you have compared this fingerprint with the signer's own: bench keys trust FILE.pub"
ALLOWED = "allowed: "
LETTERS_PER_EDIT = 3  # a typed name may have one mistake for each three of its letters
MOST_RAISED = 300  # characters of an exception that code of other projects raised
MOST_LETTERS = 100  # longer texts are not compared with known names
LEAST_BEGINNING = 3  # letters: a typed beginning of this length counts as near to the whole name
_LIST = re.compile(rf"(?<={ALLOWED})[^;\n]+")
MOST_LISTED = 12  # names of a list that people read; documents have all


def shortened(text: str) -> str:
    """Cut the lists of allowed names in a text that people read."""
    return _LIST.sub(lambda found: _cut(found[0].split(", ")), text)


def listed(names: Iterable[str]) -> str:
    """Join names in alphabetical order for a message; a long list is cut, and says how many there are."""
    return _cut(sorted(names))


def _cut(names: Sequence[str]) -> str:
    more = f", ... ({len(names)} in all)" if len(names) > MOST_LISTED else ""
    return ", ".join(names[:MOST_LISTED]) + more


class BadInput(BenchError):
    """The manifest, an argument or a file of the user is wrong; all mistakes are listed at once."""

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
        """Make one error of all mistakes in an input; its message counts them."""
        count = f"{len(mistakes)} mistake{'s' * (len(mistakes) > 1)}"
        return cls(count, where=where, advice=advice, mistakes=tuple(mistakes))

    def to_json(self) -> dict[str, object]:
        """Return the document of `BenchError.to_json`, with every mistake and its path."""
        return super().to_json() | {"mistakes": [mistake._asdict() for mistake in self.mistakes]}

    def __str__(self) -> str:
        if not self.mistakes:
            return super().__str__()
        paths = [one_line(m.path) for m in self.mistakes]
        width = max(map(len, paths))
        rows = [
            f"  {path:<{width}}  {one_line(f'{m.found}; {shortened(m.allowed)}')}"
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
        """Format the error on one line: a line break in an untrusted name could forge a second verdict."""
        first = f"{self.where}: {self.message}" if self.where else self.message
        return one_line(first) + (f"\n  {one_line(self.advice)}" if self.advice else "")


class Untrusted(VerificationFailed):
    """No trusted key vouches for the bundle. `doubt` is the message without the key's fingerprint."""

    def __init__(self, source: str, did: str, fingerprint: str, why: str) -> None:
        message = f"not trusted: {did} by the key {fingerprint}, which {why} (trusted keys: {source})"
        super().__init__(message, advice=IF_UNTRUSTED)
        self.doubt = f"not trusted: the key that {did} it {why} (trusted keys: {source})"


class Incomplete(BenchError):
    """The run ended before its plan did; what was measured is kept."""

    exit_code = 5
