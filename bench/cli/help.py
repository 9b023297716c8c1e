"""`bench help`: show the help of a command, as --help behind it does."""

from __future__ import annotations

from dataclasses import dataclass

from bench.cli.main import parser


@dataclass(frozen=True, slots=True)
class HelpArguments:
    """The options of `bench help`; no words: show the list of commands."""

    words: tuple[str, ...]  # the command's name


def show_help(request: HelpArguments) -> int:
    """Print what --help behind these words prints; BadInput with the nearest name for an unknown one."""
    shown = parser()
    for word in request.words:
        shown = shown.command(word)
    shown.print_help()
    return 0
