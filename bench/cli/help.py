"""`bench help`: show the help of a command, as --help behind it does."""

from __future__ import annotations

from dataclasses import dataclass

from bench.cli.main import parser


@dataclass(frozen=True, slots=True)
class HelpArguments:
    words: tuple[str, ...]  # the command's name


def show_help(request: HelpArguments) -> int:
    shown = parser()
    for word in request.words:
        shown = shown.command(word)
    shown.print_help()
    return 0
