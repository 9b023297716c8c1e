"""The `bench` command: parse the arguments, call the command, turn errors into exit codes.

A command's module is imported only when the command is called (see `bench.cli.arguments.Command`).
"""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise

from bench import __version__
from bench.base.errors import DEFECT, BenchError, EnvironmentCannot, Incomplete
from bench.cli import stdio
from bench.cli.arguments import Commands, Parser, ShowHelp, add_command, add_json
from bench.cli.image_options import add_image
from bench.cli.measure_options import add_measuring
from bench.cli.operator_options import add_keys, add_operator
from bench.cli.push_options import add_push, add_rent
from bench.cli.report_options import add_reports

EXIT_CODES = """exit codes:
  0  done
  1  done, and the verdict is negative
  2  bad input: the manifest, an argument, a file
  3  the environment cannot do it (no torch, no such GPU, no engine, another
     image), or a run has no figure for any model
  4  verification failed
  5  incomplete: interrupted or out of budget; the partial result is kept
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line, by default that of this process, and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        with stdio.wrapped_streams() as stdout:
            return _call(words, stdout)
    except BrokenPipeError:
        # The reader of stdout closed it early: `bench compare ... | head`.
        stdio.leave(sys.stdout)
        return 0


def _call(words: Sequence[str], stdout: stdio.Stdout) -> int:
    try:
        asked = next((word for word in words if not word.startswith("-")), "")
        stdout.paged = True  # --help is printed while words are parsed
        arguments = parser(asked).parse_args(words)
        stdout.paged = arguments.call.paged
        code: int = arguments.call(arguments)
        stdout.flush()
        return code
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        error: BenchError = Incomplete("interrupted")
    except Exception as raised:
        if os.environ.get("BENCH_DEBUG") == "1":
            raise
        error = raised if isinstance(raised, BenchError) else _defect(raised)
    if _is_monitored(words):
        from bench.node_check.judging.finding import NAGIOS
        from bench.report.text.check_line import nagios_unknown

        stdout.write(nagios_unknown(str(error)) + "\n")
        return NAGIOS["not-run"]
    print(error, file=sys.stderr)
    if _wants_json(words) and not stdout.used:
        with suppress(EnvironmentCannot):  # if stdout cannot be written, the first error is still reported
            from bench.base.strict_json import pretty_json  # only an error needs it

            stdout.write(pretty_json(error.to_json()).decode())
            stdout.flush()
    return error.exit_code


def _wants_json(words: Sequence[str]) -> bool:
    """Whether the command line asks for JSON, even if it cannot be parsed."""
    return "--json" in words or "--format=json" in words or ("--format", "json") in pairwise(words)


def _is_monitored(words: Sequence[str]) -> bool:
    """Whether the command line is `bench check --nagios`, even if it cannot be parsed."""
    return list(words[:1]) == ["check"] and "--nagios" in words


def _defect(error: Exception) -> BenchError:
    return EnvironmentCannot(f"{type(error).__name__}: {error}", advice=DEFECT)


@cache
def parser(asked: str | None = None) -> Parser:
    """Return the parser of all commands. The namespace of a parsed command line has the command as `call`.

    If `asked` names a command, the other commands have only names and descriptions.
    """
    bench = Parser(
        prog="bench",
        description="How long would it take to pre-train this model on this machine?",
        epilog=EXIT_CODES,
    )
    bench.add_argument("-V", "--version", action="version", version=f"bench {__version__}")
    bench.set_defaults(call=ShowHelp(bench))
    commands = Commands(bench, asked, title="commands", metavar="COMMAND")
    add_measuring(commands)
    add_reports(commands)
    add_push(commands)
    add_rent(commands)
    add_operator(commands)
    add_keys(commands)
    add_image(commands)
    shown = add_command(commands, "help", "show the help of a command", "help.show_help", paged=True)
    shown.add_argument("words", nargs="*", metavar="COMMAND", help="its name (default: list all commands)")
    explained = add_command(
        commands, "explain", "explain a code, field, method, check or column", "explain.explain", paged=True
    )
    explained.add_argument(
        "words", nargs="*", metavar="WORD", help="what to explain (default: list all words)"
    )
    add_json(explained, "the explanation")
    words = "print a script that completes bench's commands, options and names in a shell"
    script = add_command(commands, "completion", words, "completion.completion")
    script.add_argument("shell", nargs="?", choices=("bash", "zsh", "fish"))
    typed = "print what may follow these words, as the scripts ask"
    script.add_argument("--of", dest="typed", nargs=REMAINDER, metavar="WORD", help=typed)
    return bench
