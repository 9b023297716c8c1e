"""`bench completion`: scripts for bash, zsh and fish, and the completions of a command line.

A script contains no names of commands or options. At each press of the tab key it calls
`bench completion --of WORD...`, which reads the parser, so new options need no new script.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.base.errors import BadInput
from bench.base.shipped_data import DATA, MANIFEST_SCHEMA, PUBLISHED, manifest_path, read_data
from bench.cli.arguments import Parser
from bench.cli.completion_scripts import SCRIPTS
from bench.cli.main import parser

FILES = ":files"  # in place of a word: the shell completes the names of files


class CompletionArguments(NamedTuple):
    """The shell whose script is wanted or, for a script, the words that were typed after `bench`.

    No dataclass: importing dataclasses takes a fifth of the time of a completion.
    """

    shell: str | None
    typed: tuple[str, ...] | None


class Completed(NamedTuple):
    """A word that may come next, and what it means; `FILES` asks the shell for names of files."""

    word: str
    help: str = ""


def completion(request: CompletionArguments) -> int:
    """Print a shell's script, or a line for each word that may come next, with a tab before its help."""
    if request.typed is not None:
        typed = request.typed or ("",)
        asked = next((word for word in typed[:-1] if not word.startswith("-")), "")
        for found in completed(parser(asked), typed):
            print(f"{found.word}\t{found.help}" if found.help else found.word)
    elif request.shell is None:
        advice = f"bench completion {' or '.join(SCRIPTS)}"
        raise BadInput("no shell is named", where="bench completion", advice=advice)
    else:
        print(SCRIPTS[request.shell], end="")
    return 0


def completed(root: Parser, typed: Sequence[str]) -> list[Completed]:
    """Return the completions of the last typed word; bash passes "=" as a separate word."""
    *before, last = typed if typed[-1] != "=" else [*typed, ""]
    at, position, pending = root, 0, None
    for word in before:
        if word == "=":
            continue
        if pending is not None and not word.startswith("-"):
            pending = pending if pending.nargs in ("*", "+") else None
        elif word.startswith("-"):
            option, equals, _ = word.partition("=")
            pending = None if equals else _taking_value(at, option)
        elif word in at.commands:
            at, position = at.commands[word], 0
        else:
            position += 1
    option, equals, value = last.partition("=")
    if last.startswith("--") and equals:
        return [Completed(f"{option}={c.word}", c.help) for c in _values(_taking_value(at, option), value)]
    if last.startswith("-"):
        return [*_options(at, last)]
    if pending is not None:
        return _values(pending, last)
    if at.commands:
        names = [name for name in at.commands if name.startswith(last) and position == 0]
        return [Completed(name, _summary(at, name)) for name in names]
    return _values(_positional(at, position), last)


def _taking_value(at: Parser, option: str) -> argparse.Action | None:
    found = (action for action in at._actions if option in action.option_strings)
    return next((action for action in found if action.nargs != 0), None)


def _options(at: Parser, begun: str) -> Iterator[Completed]:
    for action in at._actions:
        for name in action.option_strings:
            if name.startswith(begun) and name.startswith("--"):
                yield Completed(name, _help_of(action))


def _help_of(action: argparse.Action) -> str:
    return " ".join(((action.help or "") % vars(action)).split())


def _summary(at: Parser, name: str) -> str:
    return (at.commands[name].description or "").rstrip(".")


def _positional(at: Parser, position: int) -> argparse.Action | None:
    """Return the positional argument at this position, or the last one if it takes several words."""
    found = [a for a in at._actions if not a.option_strings and not isinstance(a.choices, dict)]
    if position < len(found):
        return found[position]
    return found[-1] if found and found[-1].nargs in ("*", "+") else None


def _values(action: argparse.Action | None, begun: str) -> list[Completed]:
    if action is None:
        return []
    if action.choices is not None:
        words = [Completed(str(choice)) for choice in action.choices]
    elif (name := next(iter(action.option_strings), action.metavar)) in NAMES:
        words = NAMES[str(name)]()
    elif action.type in (Path, manifest_path) or action.metavar in ("FILE", "DIR"):
        return [Completed(FILES)]
    else:
        return []
    before = re.match(r"(.*,)?(\d+x)?", begun)[0]  # type: ignore[index]  # it matches every text
    return [Completed(before + c.word, c.help) for c in words if (before + c.word).startswith(begun)]


def _cards() -> list[Completed]:
    from bench.base.gpu_names import typed_names

    return [Completed(typed, name) for typed, name in typed_names().items()]


def _models() -> list[Completed]:
    # The schema lists every model. Importing the models, or the decoder of `read_data`, would take longer.
    schema = json.loads((DATA / MANIFEST_SCHEMA).read_bytes())
    named, _ = schema["properties"]["models"]["items"]["oneOf"]
    return [Completed(name) for name in named["examples"]]


def _checks() -> list[Completed]:
    from bench.node_check.all_checks import NAMES as CHECKS

    return [Completed(name) for name in CHECKS]


def _rows() -> list[Completed]:
    return [Completed("list", "all rows"), *(Completed(row["name"]) for row in read_data(PUBLISHED)["rows"])]


def _words() -> list[Completed]:
    from bench.manual.entries import SECTION, entries

    named = ((name, one.kind) for one in entries(models=False) if one.kind != SECTION for name in one.names)
    return [Completed(name, kind) for name, kind in dict(named).items() if " " not in name]


def _commands() -> list[Completed]:
    root = parser("")
    return [Completed(name, _summary(root, name)) for name in root.commands]


# Lists that complete a word, by the name of the option or of the positional argument.
NAMES: dict[str, Callable[[], list[Completed]]] = {
    "--gpu": _cards,
    "--estimate": _cards,
    "GPU": _cards,
    "--list-models": _models,
    "--model": _models,
    "--skip": _checks,
    "--published": _rows,
    "COMMAND": _commands,
    "WORD": _words,
}
