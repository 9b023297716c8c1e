"""`bench init`: write a first manifest, from five questions on a terminal, or from options.

On a terminal, a question is asked for each option that is missing. Without a terminal, a missing option gets
its default, and an option without a default is an error.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from bench.base.errors import BadInput, Incomplete, one_line
from bench.base.files import write_whole
from bench.base.shipped_data import DATA, MANIFEST_SCHEMA
from bench.base.system_advice import advice_on
from bench.base.terminal import wrapped
from bench.planning import first_manifest as first
from bench.planning.first_manifest import PUBLISHED, FirstAnswers, OwnConfig
from bench.planning.manifest import FIRST_MINUTES, parse_manifest

Value = TypeVar("Value")
URN = '"$id": "urn:bench:schema:manifest:v1"'  # in every version of the schema


@dataclass(frozen=True, slots=True)
class InitArguments:
    """The options of `bench init`; None: asked for on a terminal, elsewhere the default."""

    file: Path
    model: str | None
    precision: str | None
    amount: str | None
    hours: str | None
    rent: str | None
    force: bool


def init(request: InitArguments) -> int:
    """Write the manifest, its schema and perhaps prices; BadInput, without --force, if a file exists."""
    _refuse_existing(request.file, request)
    answers = _answers(request)
    if answers.rent:
        _refuse_existing(_prices_file(request.file), request)
    document = first.as_text(first.first_manifest(request.file.stem.lower(), answers))
    model, where = answers.model, str(request.file)
    if isinstance(model, first.OwnConfig):  # a config.json may have mistakes
        where = f"{model.path}, as an architecture"
    parse_manifest(document, where)
    _write(request.file, document)
    schema = request.file.with_name(first.SCHEMA_FILE)
    if _is_ours(schema):
        _write(schema, (DATA / MANIFEST_SCHEMA).read_bytes())
    if answers.rent:
        prices = first.prices_document(answers.rent, datetime.now(UTC).date().isoformat())
        _write(_prices_file(request.file), first.as_text(prices))
    print(wrapped(_summary(request.file, answers), "  "))
    return 0


def _refuse_existing(file: Path, request: InitArguments) -> None:
    if file.exists() and not request.force:
        raise BadInput("is there already", where=str(file), advice="name another file, or --force")
    existing = next(parent for parent in file.absolute().parents if parent.exists())
    if not existing.is_dir():
        raise BadInput("is no folder", where=str(existing), advice="name the manifest in another folder")


def _prices_file(file: Path) -> Path:
    return file.with_name(f"{file.stem}-prices.json")


def _is_ours(schema: Path) -> bool:
    """Whether the schema's file may be written: it does not exist, or holds a version of the schema."""
    try:
        return URN in schema.read_text(encoding="utf-8")
    except FileNotFoundError:
        return True
    except (OSError, UnicodeDecodeError):
        return False


def _write(file: Path, data: bytes) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, data)
    except OSError as error:
        advice = advice_on(error, file, reading=False)
        raise BadInput(f"cannot be written: {error.strerror}", where=str(file), advice=advice) from None


def _answers(request: InitArguments) -> FirstAnswers:
    model = _answer(
        "--model",
        request.model,
        "Which model? A name (bench plan --list-models), or the path of a config.json",
        "pythia-160m",
        first.chosen_model,
        needed=True,
    )
    own = isinstance(model, OwnConfig)
    precision = _answer(
        "--precision",
        request.precision,
        f"In which precision? {', '.join([*([] if own else [PUBLISHED]), *first.PRECISIONS])}",
        "bf16" if own else PUBLISHED,
        lambda text: first.chosen_precision(text, model),
    )
    in_tokens = first.aim_of(model).unit == "tokens"
    amount = _answer(
        "--train-on",
        request.amount,
        f"On how many {'tokens' if in_tokens else 'samples'}? {'' if own else f'{PUBLISHED}, or '}300B, 20M",
        ("20B tokens" if in_tokens else "100M samples") if own else PUBLISHED,
        lambda text: first.chosen_amount(text, model),
        needed=own,
    )
    hours = _answer(
        "--hours",
        request.hours,
        "How many hours may the measurement take at most? A number, or none",
        f"{FIRST_MINUTES / 60:g}",
        first.chosen_hours,
    )
    rent = _answer(
        "--rent",
        request.rent,
        "What does a GPU cost an hour, in dollars? 2.50 h100; none: quotes that ship with bench",
        first.NONE,
        first.chosen_rent,
    )
    return FirstAnswers(model, precision, amount, hours, rent)


def _answer(
    option: str,
    given: str | None,
    question: str,
    default: str,
    read: Callable[[str], Value],
    *,
    needed: bool = False,
) -> Value:
    """Return the value of an option, or of the answer to its question.

    Without a terminal, the default is taken, or BadInput raised if the option is `needed`.
    """
    if given is not None:
        return _read_option(option, given.strip(), read)
    if not sys.stdin.isatty():
        if needed:
            advice = "give the option, or answer questions on a terminal"
            raise BadInput(f"{option} is missing", where="bench init", advice=advice)
        return read(default)
    while True:
        text = _asked(question, default)
        try:
            return read(text)
        except BadInput as error:
            print(error, file=sys.stderr)


def _read_option(option: str, text: str, read: Callable[[str], Value]) -> Value:
    try:
        return read(text)
    except BadInput as error:
        where = " ".join(filter(None, (option, error.where)))
        raise BadInput(error.message, where=where, advice=error.advice, mistakes=error.mistakes) from None


def _asked(question: str, default: str) -> str:
    """Ask on stderr; an empty line is the default, and the end of the input ends the command."""
    print(f"{wrapped([question], '')}\n[{default}] ", end="", file=sys.stderr, flush=True)
    try:
        line = sys.stdin.readline()
    except UnicodeDecodeError:
        raise BadInput("the answer is not written in the terminal's encoding", where="bench init") from None
    if not line:
        print(file=sys.stderr)
        raise Incomplete("the input ended before the last question; nothing was written", where="bench init")
    return line.strip() or default


def _summary(file: Path, answers: FirstAnswers) -> list[str]:
    shown = one_line(shlex.quote(str(file)))
    lines = [f"{shown} is written; {first.SCHEMA_FILE} beside it lets editors explain its fields."]
    if isinstance(answers.model, OwnConfig):
        lines.append("Its batch and the size of a sample are ours: look at them before you trust the days.")
    rented = ""
    if answers.rent:
        prices = one_line(shlex.quote(str(_prices_file(file))))
        lines.append(f"{prices} has the rent.")
        rented = f" --prices {prices}"
        if answers.hours is not None:
            cost = answers.hours * answers.rent.dollars
            lines.append(f"The measurement costs at most ${cost:,.2f} a GPU.")
    gpu = f" --gpu {answers.rent.typed}" if answers.rent else ""
    return [
        *lines,
        "",
        "next:",
        f"  bench plan {shown}{gpu}",
        *([f"  bench predict {shown}{gpu}{rented}"] if answers.rent else []),
        f"  bench run {shown}",
    ]
