"""Find what the manual says about a word: definitions first, sections of the documents after them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.base.errors import BadInput, near
from bench.manual.entries import FIELD, KINDS, SECTION, ManualEntry, plain_name
from bench.manual.markdown import links

ONE_NAME = (FIELD, "column")  # kinds whose further names are shorter ones of the first


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of a word: its definitions, and the documents that say more."""

    word: str
    entries: tuple[ManualEntry, ...]
    see_also: tuple[str, ...]


def explanation(word: str, known: Sequence[ManualEntry]) -> Explanation:
    """Return the explanation of a word; BadInput with the nearest name if there is none."""
    found = _named(word, known) or _of_kind(word, known)
    if not found:
        raise BadInput(f'"{word}" is not in the manual', where="bench explain", advice=_advice(word, known))
    shown = [entry for entry in found if not entry.is_record]
    shown = shown or found
    printed = {entry.address for entry in shown if entry.kind == SECTION}
    also = dict.fromkeys([*(entry.address for entry in found if entry not in shown), *_linked(shown)])
    return Explanation(word, tuple(shown), tuple(address for address in also if address not in printed))


def names_of(kind: str, known: Iterable[ManualEntry]) -> list[str]:
    """Return the names of a kind, each once, in the order of the manual."""
    most = 1 if kind in ONE_NAME else None
    return list(dict.fromkeys(name for entry in known if entry.kind == kind for name in entry.names[:most]))


def kind_of(word: str) -> str | None:
    """Return the kind that a word names, in the singular or the plural."""
    plain = plain_name(word)
    return next((kind for kind in KINDS if plain in (kind, f"{kind}s")), None)


def _named(word: str, known: Sequence[ManualEntry]) -> list[ManualEntry]:
    plain = plain_name(word)
    path = ".".join(part for part in word.strip("/").split("/") if not part.isdecimal())
    return [
        entry
        for entry in known
        if plain in map(plain_name, entry.names) or (entry.kind == FIELD and path in entry.names)
    ]


def _of_kind(word: str, known: Sequence[ManualEntry]) -> list[ManualEntry]:
    """Return the entries of a word that begins with a kind, as in: exit code 3, column memory."""
    plain = plain_name(word)
    for kind in KINDS:
        if plain.startswith(f"{kind} "):
            return [entry for entry in _named(plain.removeprefix(f"{kind} "), known) if entry.kind == kind]
    return []


def _linked(shown: Sequence[ManualEntry]) -> Iterable[str]:
    """Yield the pages that the facts of definitions link to, as addresses below docs/."""
    for entry in shown:
        if entry.kind == SECTION:
            continue
        page = entry.address.partition("#")[0]
        folder = page.rpartition("/")[0]
        for target in (target for _, fact in entry.facts for target in links(fact)):
            if target.startswith("#"):
                yield page + target
            elif "://" not in target:
                yield _joined(folder, target)


def _joined(folder: str, target: str) -> str:
    parts = folder.split("/")
    while target.startswith("../"):
        target, parts = target.removeprefix("../"), parts[:-1]
    return "/".join([*parts, target])


def _advice(word: str, known: Iterable[ManualEntry]) -> str:
    by_plain = {plain_name(name): name for entry in known for name in entry.names}
    if close := near(plain_name(word), by_plain):
        return f'nearest: "{by_plain[close[0]]}"'
    return f"kinds: {', '.join(KINDS)}; bench explain lists their names"
