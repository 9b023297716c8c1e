"""The reference of the command line, from the parser itself."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from html import escape

from bench.cli.arguments import Parser
from bench.cli.examples import EXAMPLES
from bench.cli.main import EXIT_CODES, parser

WIDTH = 78  # letters of a usage line
TITLES = {"positional arguments": "Arguments", "options": "Options"}


def command_pages() -> dict[str, str]:
    """Return the pages by their places: a list of all commands, and one page for each."""
    bench = parser()
    pages = {f"commands/{name}.md": _page(command) for name, command in bench.commands.items()}
    return {"commands/index.md": _index(bench), **pages}


def anchor(program: str, option: str = "") -> str:
    """Return the anchor of a command, or of one of its options: bench-keys-new, bench-compare--html."""
    return program.replace(" ", "-") + option


def _index(bench: Parser) -> str:
    rows = [
        f"| [`bench {name}`]({name}.md) | {summary(command)} |" for name, command in bench.commands.items()
    ]
    lines = ["# Commands", "", "This reference is made from the parser of `bench` itself. Help, completion,"
             " pager and colours are described in [The command line](../command-line.md).", ""]  # fmt: skip
    lines += ["| command | what it does |", "|---|---|", *rows, "", "## Exit codes", "", "```text"]
    lines += [line.removeprefix("  ") for line in EXIT_CODES.splitlines()[1:]]
    return "\n".join([*lines, "```", "", "## bench", "", *_body(bench), ""])


def summary(command: Parser) -> str:
    return escape(command.description or "", quote=False).replace("|", "\\|")


def _page(command: Parser) -> str:
    return "\n".join(_sections(command, 1))


def _sections(command: Parser, level: int) -> Iterator[str]:
    yield f"{'#' * level} {command.prog}"
    yield ""
    yield summary(command)
    yield ""
    yield from _body(command)
    for below in command.commands.values():
        yield from _sections(below, level + 1)


def _body(command: Parser) -> Iterator[str]:
    yield from ["```text", _formatter(command, usage=True).format_help().strip(), "```", ""]
    yield from ["```sh", *EXAMPLES[command.prog], "```", ""]
    for group in command._action_groups:
        shown = [action for action in group._group_actions if _is_shown(action)]
        if shown:
            yield from [f"**{TITLES.get(str(group.title), str(group.title))}**", "", '<dl class="options">']
            for action in shown:
                yield from _entry(command, action)
            yield from ["</dl>", ""]


def _is_shown(action: argparse.Action) -> bool:
    return action.help != argparse.SUPPRESS and not isinstance(action.choices, dict)


def _entry(command: Parser, action: argparse.Action) -> Iterator[str]:
    formatter = _formatter(command)
    ids = [anchor(command.prog, option) for option in action.option_strings if option.startswith("--")]
    name = f' id="{ids[0]}"' if ids else ""
    yield f"<dt{name}><code>{escape(formatter._format_action_invocation(action))}</code></dt>"
    yield f"<dd>{escape(formatter._expand_help(action)) if action.help else ''}</dd>"


def _formatter(command: Parser, *, usage: bool = False) -> argparse.HelpFormatter:
    """Return a formatter of fixed width, so that the terminal in which the site is built changes nothing."""
    made = argparse.RawDescriptionHelpFormatter(command.prog, width=WIDTH)
    if usage:
        made.add_usage(command.usage, command._actions, command._mutually_exclusive_groups)
    return made
