"""`bench paper`: what the paper claims, what that implies, and its Figures 7, 12 and 13 drawn again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tabulate import tabulate

from bench.base.strict_json import pretty_json, to_json
from bench.records.estimate import Interval
from bench.records.text import money_text
from bench.report.compare.decision import Option
from bench.report.compare.price_file import shipped_prices
from bench.report.compare.prices import Priced
from bench.report.paper.claims import Claim, claims, paper, paper_code
from bench.report.plots.scatter import Point, key, scatter
from bench.report.plots.svg import Box, Plot, el, text

SIZES = {1: 3.5, 2: 5.0, 4: 7.0, 8: 9.5}  # of a mark, by the number of GPUs
FIGURE_7 = "pythia-1b"
dollars = partial(money_text, currency="USD")


def show(folder: Path | None, *, png: bool, as_json: bool) -> int:
    if as_json:
        document = {"paper": paper(), "claims": tuple(claims()), "code_on_h200": paper_code()}
        sys.stdout.write(pretty_json(to_json(document)).decode())
    else:
        print("\n\n".join([_claims_table(), _code_table(), "\n".join(_notes())]))
    if folder is not None:
        from bench.report.plots.plot_files import write_plots

        written = write_plots(folder, figures_of_the_paper(), png=png)
        print(f"figures  {', '.join(path.name for path in written)} in {folder}", file=sys.stderr)
    return 0


# Tables


def _claims_table() -> str:
    """Table 1, each cell with the share of the chip's peak that it implies."""
    rows = []
    for row in paper().optimal_days:
        cells = [
            _claimed(row.model, row.gpu, gpus, days)
            for gpus, days in zip(paper().gpu_counts, row.days, strict=True)
        ]
        rows.append((row.model, row.gpu, *cells))
    heads = ("Table 1, days", "", *(f"{n} GPU{'s' * (n > 1)}" for n in paper().gpu_counts))
    return tabulate(rows, heads, disable_numparse=True, colalign=("left", "left", *["right"] * 4))


def _claimed(model: str, gpu: str, gpus: int, days: object) -> str:
    if not isinstance(days, int):
        return str(days)
    one = _optimal()[model, gpu, gpus]
    flag = {"yes": " !", "perhaps": " ?", "no": "  "}[one.exceeds]
    return f"{days:,} ({100 * one.utilisation:.0f}%){flag}"


def _optimal() -> dict[tuple[str, str, int], Claim]:
    return {(c.model, c.gpu, c.gpus): c for c in claims() if c.method == "optimal"}


def _code_table() -> str:
    rows = [
        (
            row.model, row.gpus, row.sharding, "yes" if row.free_lunch else "no",
            f"{row.micro_batch_size} x {row.accumulation}", f"{row.reference_estimate_days:.4g}",
            f"{row.true_days:.4g}", f"{row.true_days / row.reference_estimate_days:.2f}",
        )
        for row in paper_code().rows
    ]  # fmt: skip
    heads = ("the paper's code", "GPUs", "sharding", "free lunch", "batch", "says, days", "takes", "times")
    return tabulate(rows, heads, disable_numparse=True, colalign=("left", *["right"] * 7))


def _notes() -> Iterator[str]:
    yield f"claims of {paper().source}"
    yield "in brackets: the model's arithmetic over the vendor's dense peak. !  more than the chip can do"
    yield "?  more, unless the paper's rounding of the days made it so"
    yield f"the code: {paper_code().source}, on {paper_code().gpu}, {paper_code().dated}"
    for words in paper().contradictions:
        yield f"at odds with itself: {words}"


# Figures


def figures_of_the_paper() -> Iterator[Plot]:
    """From Table 1 and the shipped prices alone."""
    yield _figure_7()
    yield _every_model("figure-12", "hardware cost", lambda option: option.upfront)
    life = shipped_prices().life_days
    yield _every_model("figure-13", "cost of one experiment", lambda option: option.run_cost(life))


def option_of(claim: Claim) -> Option:
    priced = shipped_prices().to_buy(paper().gpus[claim.gpu], claim.gpus)
    assert isinstance(priced, Priced)
    return Option(f"{claim.gpus}x {claim.gpu}", "buy", Interval(claim.days, 0.0), priced.amount, 0.0)


def _points(model: str, cost: Callable[[Option], float]) -> list[Point]:
    found = []
    for claim in _optimal().values():
        if claim.model == model:
            option = option_of(claim)
            words = f"{option.label}: {claim.days} days, {dollars(cost(option))}"
            found.append(
                Point(cost(option), claim.days, claim.gpu, option.label, words, size=SIZES[claim.gpus])
            )
    return found


GPUS = ("H100", "A100", "A6000", "RTX 3090")


def _figure_7() -> Plot:
    """Overall cost above, cost of an experiment below, cut as the paper cuts them."""
    life = shipped_prices().life_days
    above = scatter(
        _points(FIGURE_7, lambda o: o.upfront), Box(64, 46, 470, 300), "hardware cost, USD", "days",
        x_range=(0, 265_000), y_range=(0, 80), series=GPUS, x_text=_thousands,
    )  # fmt: skip
    below = scatter(
        _points(FIGURE_7, lambda o: o.run_cost(life)), Box(64, 396, 470, 650),
        "cost of one experiment, USD", "days",
        x_range=(300, 850), y_range=(0, 85), series=GPUS, x_text=dollars,
    )  # fmt: skip
    body = above + below + key(GPUS, 500, 60, "nothing beats these") + _size_key(500, 170)
    return Plot(
        "figure-7", "Figure 7: hardware cost and training time of Pythia-1B", _told(FIGURE_7), 640, 700, body
    )


def _thousands(amount: float) -> str:
    return f"${amount / 1000:g}k"


def _size_key(x: float, y: float) -> str:
    parts = []
    for i, (gpus, size) in enumerate(SIZES.items()):
        parts.append(el("circle", cx=x, cy=y + 24 * i, r=size, class_="s6 mark"))
        parts.append(text(x + 16, y + 4 + 24 * i, f"{gpus} GPU{'s' * (gpus > 1)}"))
    return "".join(parts)


def _every_model(name: str, cost_words: str, cost: Callable[[Option], float]) -> Plot:
    """All models, days on a log scale."""
    models = list(paper().training_flops)
    columns, width, height = 3, 320, 300
    parts = []
    for i, model in enumerate(models):
        left, top = (i % columns) * width, (i // columns) * height
        box = Box(left + 58, top + 50, left + width - 26, top + height - 50)
        parts.append(text(box.left, top + 24, model, class_="title"))
        picture = scatter(
            _points(model, cost), box, f"{cost_words}, USD", "days",
            log_y=True, series=GPUS, x_text=_few, labelled=False, zero=True,
        )  # fmt: skip
        parts.append(picture)
    right = columns * width
    parts.append(key(GPUS, right + 20, 60, "nothing beats these") + _size_key(right + 20, 170))
    rows = -(-len(models) // columns)
    title = f"{name.replace('-', ' ').capitalize()}: {cost_words} and training time of all models"
    return Plot(name, title, "; ".join(map(_told, models)), right + 160, rows * height, "".join(parts))


def _few(amount: float) -> str:
    return _thousands(amount) if amount >= 1000 else f"${amount:g}"


def _told(model: str) -> str:
    found = [c for c in _optimal().values() if c.model == model]
    return f"{model}: " + ", ".join(f"{c.gpus}x {c.gpu} {c.days} days" for c in found)
