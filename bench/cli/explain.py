"""`bench explain`: print what the manual says about a word, in the terminal's width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.base.errors import BadInput
from bench.base.strict_json import field_values
from bench.base.terminal import print_json, wrapped
from bench.base.terminal_width import columns
from bench.cli.main import parser
from bench.cli.stdio import show
from bench.manual.entries import KINDS, SECTION, ManualEntry, entries, has_documents
from bench.manual.lookup import Explanation, explanation, kind_of, names_of
from bench.manual.markdown import inline, plain

LEAST_FACT = 24  # columns for a fact beside its head; with fewer columns, head and fact share one paragraph


@dataclass(frozen=True, slots=True)
class ExplainArguments:
    """The options of `bench explain`; `words` are those of one name, such as "exit code 3"."""

    words: tuple[str, ...]
    as_json: bool


def explain(request: ExplainArguments) -> int:
    """Print the explanation, and the names of a kind that the word stands for; BadInput for neither."""
    word = " ".join(request.words)
    kinds = KINDS if not word else [kind] if (kind := kind_of(word)) else []
    found = _explained(word, needed=not kinds) if word else None
    if request.as_json:
        print_json(_document(word, kinds, found))
        return 0
    texts = [_names(kind) for kind in kinds]
    if found is not None:
        texts.append("\n".join(_lines(found)))
    show("\n\n".join(texts))
    return 0


def _explained(word: str, *, needed: bool) -> Explanation | None:
    try:
        return explanation(word, entries())
    except BadInput as error:
        if not needed:
            return None
        if word in parser("").commands:
            error.advice = f"it is a command: bench help {word}"
        elif not has_documents():
            error.advice = "this installation of bench has no documents; a wheel and a checkout have them"
        raise


def _names(kind: str) -> str:
    """List the names of a kind; for sections, which have too many headings, list their pages."""
    names = names_of(kind, entries())
    if kind == SECTION:
        pages = dict.fromkeys(entry.address.partition("#")[0] for entry in entries() if entry.kind == kind)
        return wrapped([f"{kind}: any heading of {', '.join(pages)}"], "    ")
    return wrapped([f"{kind}: {', '.join(names)}"], "    ")


def _lines(found: Explanation) -> Iterator[str]:
    for i, entry in enumerate(found.entries):
        if i:
            yield ""
        yield from _entry(entry)
    if found.see_also:
        yield ""
        yield wrapped([f"see also  {', '.join(found.see_also)}"], " " * 10)


def _entry(entry: ManualEntry) -> Iterator[str]:
    room = columns()
    title = f"{inline(entry.names[0])} ({entry.kind}, {entry.address})"
    yield wrapped([title], "    ")
    yield "=" * min(len(title), room or len(title))
    heads = [head for head, _ in entry.facts if head]
    indent = max(map(len, map(inline, heads)), default=0) + 2
    for head, fact in entry.facts:
        yield from _fact(inline(head), fact, indent if head else 0, room)
    if entry.text:
        yield plain(entry.text, room)


def _fact(head: str, fact: str, indent: int, room: int | None) -> Iterator[str]:
    text = plain(fact, None)
    if not head:
        yield wrapped([text], "")
    elif room is not None and room - indent < LEAST_FACT:
        yield wrapped([f"{head}: {text}"], "  ")
    else:
        yield wrapped([head.ljust(indent) + text], " " * indent)


def _document(word: str, kinds: Sequence[str], found: Explanation | None) -> dict[str, Any]:
    return {
        "schema": "bench/explanation/v1",
        "word": word,
        "entries": [_entry_document(entry) for entry in (found.entries if found else ())],
        "see_also": found.see_also if found else (),
        "names": {kind: names_of(kind, entries()) for kind in kinds},
    }


def _entry_document(entry: ManualEntry) -> dict[str, Any]:
    facts = [{"head": head, "text": text} for head, text in entry.facts]
    return field_values(entry) | {"facts": facts}
