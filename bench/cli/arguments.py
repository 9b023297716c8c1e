"""Building blocks of the command line: parsers, argument types, and commands that are imported when called.

Every start of `bench` imports this module and the `*_options` modules, so they import nothing slow. Each
command is implemented in another module, which is imported only when the command is called.
"""

from __future__ import annotations

import argparse
import gc
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar, cast

from bench.base import quantities
from bench.base.errors import BadInput, nearest
from bench.base.operating_system import ELSEWHERE, require_linux
from bench.cli.examples import with_examples
from bench.cli.help_formatter import HelpFormatter

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """An ArgumentParser without abbreviated options, whose errors are BadInput, so that --json reports them.

    A `mixed` parser accepts positional arguments between and behind options:
    `bench push m.json --budget 60m gpu1`.
    """

    def __init__(self, prog: str, *, mixed: bool = False, epilog: str | None = None, **options: Any) -> None:
        epilog = with_examples(prog, epilog)
        super().__init__(prog, formatter_class=HelpFormatter, allow_abbrev=False, epilog=epilog, **options)
        self._mixed = mixed

    def error(self, message: str) -> NoReturn:
        """Print the usage on stderr, and raise BadInput in place of argparse's exit."""
        self.print_usage(sys.stderr)
        raise BadInput(message, where=self.prog)

    @property
    def commands(self) -> dict[str, Parser]:
        """The parsers below this one, by name; none below a command."""
        found = (action.choices for action in self._actions if isinstance(action.choices, dict))
        return next(found, {})

    def command(self, name: str) -> Parser:
        """Return the parser of a command below this one; BadInput with the nearest name if there is none."""
        if name not in self.commands:
            advice = f"{nearest(name, self.commands)}; bench help lists every command"
            raise BadInput(f"{name}: no such command", where=self.prog, advice=advice)
        return self.commands[name]

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse the words of a command line; the command that was given an unknown option refuses it."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            refusing = self
            for word in args or ():
                refusing = refusing.commands.get(word, refusing)
            refusing._refuse(unknown)
        return found

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        option = next((word.partition("=")[0] for word in unknown if word.startswith("-")), None)
        if option is None:
            self.error(f"too many arguments: {' '.join(unknown)}")
        known = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        self._not_among(f"{option}: no such option", option, known)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is no choice, with the nearest one."""
        if action.choices is None or value in action.choices:
            return
        if isinstance(action.choices, dict):
            self.command(value)
        name = "/".join(action.option_strings) or action.metavar or action.dest
        self._not_among(f"{name} {value}: not a choice", value, action.choices)

    def _not_among(self, found: str, name: str, known: Iterable[str]) -> NoReturn:
        raise BadInput(
            found, where=self.prog, advice=f"{nearest(name, known)}; {self.prog} --help shows more"
        )

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse as argparse does; a `mixed` parser also takes positional arguments between options."""
        # Without options nothing can be mixed, and parsing both at once formats the usage.
        if not self._mixed or not any(word.startswith("-") for word in args or ()):
            return super().parse_known_args(args, namespace)
        self._mixed = False  # parse_known_intermixed_args() calls this method again
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixed = True


class ShowHelp(NamedTuple):
    """The call of a command line without a command: show the help, and return the exit code of bad input."""

    parser: Parser
    paged: bool = True

    def __call__(self, _: argparse.Namespace) -> int:
        self.parser.print_help()
        return BadInput.exit_code


class Commands:
    """The commands below a parser. Only the command `asked` gets a parser; None: every command does.

    A start of `bench` needs the parser of one command; making all of them would take four times as long.
    """

    def __init__(self, parser: Parser, asked: str | None, *, title: str, metavar: str) -> None:
        self._asked = asked
        # With `prog` given, argparse does not format the usage at every start, which would import shutil.
        self._parsers = parser.add_subparsers(
            title=title, metavar=metavar, prog=parser.prog, parser_class=cast(type[Parser], self._parser)
        )

    def _parser(self, prog: str, **options: Any) -> Parser | _NotAsked:
        is_asked = self._asked in (None, prog.rpartition(" ")[2])
        return Parser(prog, **options) if is_asked else _NotAsked(options["description"])

    def add_parser(self, name: str, *, help: str, description: str, **options: Any) -> Parser:
        """Add a command; one that is not `asked` gets a stand-in that ignores its options."""
        return self._parsers.add_parser(name, help=help, description=description, **options)


class _NotAsked:
    """A stand-in for the parser of a command that is not called: it ignores every option."""

    commands: Mapping[str, Parser] = MappingProxyType({})

    def __init__(self, description: str = "") -> None:
        self.description = description

    def __getattr__(self, name: str) -> Callable[..., _NotAsked]:
        return lambda *_arguments, **_options: self


class Options(Protocol):
    """A parser or a group of its options."""

    @property
    def add_argument(self) -> Callable[..., argparse.Action]:
        """The method of argparse that declares an option."""


class Command(NamedTuple):
    """A parser's command: a function of bench.cli.MODULE, which is imported when the command is called.

    The function takes one argument, `request`, a frozen dataclass or a named tuple of that module. Its fields
    are filled from the parsed arguments of the same names, with tuples for lists. A test calls `load` for
    every command, and compares the fields with the parser's arguments.
    """

    module: str
    function: str
    measures: bool = False  # it measures this machine; on other systems than Linux its module is not imported
    paged: bool = False  # its output may be long, and goes through a pager

    def load(self) -> tuple[Callable[[Any], int], Callable[..., Any]]:
        """Import the module; return the function and the class of its request."""
        gc.disable()  # imports leave little garbage, and searching for it takes a tenth of their time
        module = import_module(f"bench.cli.{self.module}")
        gc.enable()
        function = getattr(module, self.function)
        return function, getattr(module, function.__annotations__["request"])

    def __call__(self, arguments: argparse.Namespace) -> int:
        if self.measures:
            require_linux("measuring", ELSEWHERE)
        function, request = self.load()
        values = {name: value for name, value in vars(arguments).items() if name != "call"}
        return function(request(**{n: tuple(v) if isinstance(v, list) else v for n, v in values.items()}))


def add_command(
    commands: Commands,
    name: str,
    summary: str,
    command: str,
    *,
    measures: bool = False,
    paged: bool = False,
    **options: Any,
) -> Parser:
    """Add and return a parser that calls `command`, MODULE.FUNCTION; `options` are those of `Parser`.

    `summary` is the command's line in the list of commands, and its description.
    """
    sentence = f"{summary[0].upper()}{summary[1:]}."
    parser = commands.add_parser(name, help=summary, description=sentence, **options)
    module, function = command.split(".")
    parser.set_defaults(call=Command(module, function, measures, paged))
    return parser


def add_json(parser: Options, content: str) -> None:
    """Add --json; `content` is what the option prints, in the words of its help."""
    parser.add_argument("--json", dest="as_json", **FLAG, help=f"print {content} as JSON on stdout")


def add_columns(parser: Options) -> None:
    """Add --columns, which becomes a tuple of names; None without the option."""
    words = "columns of the tables, separated by commas, or all (default: those that fit the terminal)"
    parser.add_argument("--columns", type=names, metavar="NAME,...", help=words)


def add_budget(parser: Options) -> None:
    """Add --budget, which becomes `budget_seconds`; None without the option."""
    words = "start no trial after this time: 90s, 60m, 2h"
    parser.add_argument("--budget", dest="budget_seconds", **TIME, help=words)


def names(text: str) -> tuple[str, ...]:
    """Split names at commas."""
    return tuple(filter(None, map(str.strip, text.split(","))))


def command(text: str) -> list[str]:
    """Split a command into words as a shell does; no shell is started."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    if not words:
        raise argparse.ArgumentTypeError("no program is named")
    return words


def _argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return an argparse type that converts a text by `parse`, and shows the sentence of its NotAQuantity."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except quantities.NotAQuantity as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


positive = _argument(quantities.positive)
overhead = _argument(quantities.overhead)
count = _argument(quantities.count)
percent = _argument(quantities.percent)
days = _argument(quantities.days)
deadline = _argument(quantities.deadline)
duration = _argument(quantities.duration)


# Arguments of add_argument that many options share.
# What a manifest is, in the help of the commands that read one.
MODELS = "the models to measure: a file, or the name of a model"
MODELS_OR_CHECK = f"{MODELS}; or a node check"
FILE: dict[str, Any] = {"type": Path, "metavar": "FILE"}
DIR: dict[str, Any] = {"type": Path, "metavar": "DIR"}
TIME: dict[str, Any] = {"type": duration, "metavar": "TIME"}
FLAG: dict[str, Any] = {"action": "store_true"}
REPEATABLE: dict[str, Any] = {"action": "append", "default": []}
DEVICE: dict[str, Any] = {"choices": ("auto", "cpu"), "default": "auto"}
