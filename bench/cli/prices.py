"""`bench prices`: show quotes, say which are old, and read the price lists of others."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from bench.base.errors import BadInput, one_line
from bench.base.files import read_bounded, write_whole
from bench.base.gpu_catalogue import find_gpu_model, gpu_models, near_gpus
from bench.base.names import RentKind
from bench.base.strict_json import pretty_json, to_json
from bench.base.terminal import Table, Wrapped, plain_columns, print_json, table, wrapped
from bench.base.terminal_width import columns
from bench.cli.stdio import show
from bench.records.text import count_text, figures
from bench.report.compare.price_file import load_prices, parse_prices
from bench.report.compare.price_lists import rents_in
from bench.report.compare.prices import GpuPrice, MachinePrice, PriceBook, Rent, SystemPrice

IMPORT = "import"  # as the first word: the second is a file
WIDTH = 79  # columns of a table where no terminal has another width
RENT_STEPS = (Wrapped("provider", 20), Wrapped("to rent", 16), "day")
BUY_STEPS = (Wrapped("source", 28), Wrapped("to buy", 16), "day")
LARGEST_LIST_BYTES = 64 << 20
Dated = GpuPrice | SystemPrice | MachinePrice | Rent


@dataclass(frozen=True, slots=True)
class PricesArguments:
    """The options of `bench prices`; `provider`, `date` and `out` are for importing a list."""

    words: tuple[str, ...]  # GPUs; or "import" and a file
    prices: Path | None = None
    kind: RentKind | None = None
    stale_days: float | None = None
    provider: str | None = None
    date: str | None = None
    out: Path | None = None
    as_json: bool = False


def prices(request: PricesArguments) -> int:
    """Print quotes, or import a list; return 1 if --stale found old quotes."""
    if request.words[:1] == (IMPORT,):
        return _import(request)
    if request.provider or request.date or request.out:
        advice = "leave them out, or bench prices import FILE"
        raise BadInput("--provider, --date and --out belong to bench prices import FILE", advice=advice)
    book = load_prices(request.prices)
    wanted = _wanted(request.words)
    old_before = None if request.stale_days is None else _days_ago(request.stale_days)
    chosen = _chosen(book, wanted, request.kind, old_before)
    if request.as_json:
        print_json(to_json(chosen))
    else:
        show("\n\n".join(_text(chosen, wanted, old_before)))
    return int(old_before is not None and bool(_quotes(chosen)))


def _wanted(words: Sequence[str]) -> frozenset[str]:
    """Return the driver's names of the GPUs that these words name."""
    found = {word: find_gpu_model(word) for word in words}
    for word, gpu in found.items():
        if gpu is None:
            raise BadInput(f"{word}: unknown GPU", advice=near_gpus(word))
    return frozenset(gpu.name for gpu in found.values() if gpu)


def _chosen(
    book: PriceBook, wanted: frozenset[str], kind: RentKind | None, old_before: str | None
) -> PriceBook:
    """Return the quotes of these GPUs, of this kind, and from before the day `old_before`; None: any."""

    def of(quote: Dated) -> bool:
        named = not wanted or bool(wanted & {*getattr(quote, "gpu", ())})
        is_kind = kind is None or (isinstance(quote, Rent) and quote.kind == kind)
        return named and is_kind and (old_before is None or quote.date < old_before)

    return PriceBook(
        book.currency,
        life_years=book.life_years,
        gpus=tuple(filter(of, book.gpus)),
        systems=tuple(filter(of, book.systems)),
        machines=tuple(filter(of, book.machines)),
        rents=tuple(sorted(filter(of, book.rents), key=lambda rent: rent.place)),
        exchange=book.exchange,
    )


def _quotes(book: PriceBook) -> tuple[Dated, ...]:
    return (*book.rents, *book.gpus, *book.systems, *book.machines)


def _text(book: PriceBook, wanted: frozenset[str], old_before: str | None) -> Iterator[str]:
    if not _quotes(book):
        yield "no such quotes" if old_before is None else f"no quote is from before {old_before}"
    if book.rents:
        heads = plain_columns(("to rent", f"{book.currency}/hour", "a GPU", "provider", "day"), (1, 2))
        yield table(Table(heads, [*map(_rent_row, book.rents)]), RENT_STEPS, _width())
    if bought := [*_bought(book)]:
        heads = plain_columns(("to buy", book.currency, "day", "source"), [1])
        yield table(Table(heads, bought), BUY_STEPS, _width())
    if old_before is None and not wanted:
        rented = {name for rent in book.rents for name in rent.gpu}
        without = [_short(gpu.name) for gpu in gpu_models() if gpu.name not in rented]
        yield wrapped([f"no rent is known for {', '.join(without)}"], "", WIDTH)


def _width() -> int:
    return columns() or WIDTH


def _rent_row(rent: Rent) -> tuple[str, ...]:
    """Return a rent's machine, its price an hour and for each GPU, who asks it, and its day."""
    name, each = "/".join(map(_short, rent.gpu)), f"{rent.price / (rent.gpus or 1):,.2f}"
    if rent.currency:
        each = f"{each} {rent.currency}"
    provider = one_line(rent.provider or rent.source)
    kind = "" if rent.kind == "on-demand" else f" ({rent.kind})"
    if rent.gpus is None:
        return name, "", each, f"{provider}{kind}", rent.date
    return f"{rent.gpus}x {name}", f"{rent.price:,.2f}", each, f"{provider}{kind}", rent.date


def _bought(book: PriceBook) -> Iterator[tuple[str, str, str, str]]:
    for gpu in book.gpus:
        yield "/".join(map(_short, gpu.gpu)), figures(gpu.price, 6), gpu.date, one_line(gpu.source)
    for system in book.systems:
        what = f"machine for {count_text(system.gpus, 'GPU')}"
        yield what, figures(system.price, 6), system.date, one_line(system.source)
    for machine in book.machines:
        what = f"{machine.gpus}x {'/'.join(map(_short, machine.gpu))}"
        yield what, figures(machine.price, 6), machine.date, one_line(machine.source)


def _short(name: str) -> str:
    short = name.removeprefix("NVIDIA ").removeprefix("GeForce ").removeprefix("AMD ")
    return one_line(short)


def _days_ago(count: float) -> str:
    today = datetime.now(UTC).date().toordinal()
    return date.fromordinal(max(1, today - int(count))).isoformat()


def _import(request: PricesArguments) -> int:
    if len(request.words) != 2:
        message = f"bench prices import takes one file, not {len(request.words) - 1}"
        raise BadInput(message, advice="bench prices import FILE -o index.json")
    path = Path(request.words[1])
    too_large = "larger than 64 MiB: not a price list"
    data = read_bounded(path, LARGEST_LIST_BYTES, what="the price list", too_large=too_large)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        advice = "give a price list as CSV in UTF-8"
        raise BadInput("is not a text", where=str(path), advice=advice) from None
    imported = rents_in(text, str(path), provider=request.provider, date=request.date)
    for remark in imported.remarks:
        print(one_line(f"{path}: {remark}"), file=sys.stderr)
    if not imported.rents:
        advice = "the lines above say why each row is left out"
        raise BadInput("has no rent of a GPU that bench knows", where=str(path), advice=advice)
    document = to_json(PriceBook("USD", rents=imported.rents))
    parse_prices(document, str(path))  # dates and amounts
    if request.out is None:
        print_json(document)
        return 0
    write_whole(request.out, pretty_json(document))
    print(f"{request.out}: {count_text(len(imported.rents), 'rent')}", file=sys.stderr)
    return 0
