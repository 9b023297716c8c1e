"""Show the claims of `bench paper`, the utilisation that they imply, and Figures 7, 12 and 13 redrawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial

from bench.base.terminal import Table, Wrapped, plain_columns, table, wrapped
from bench.records.estimate import Interval
from bench.records.text import count_text, money_text
from bench.report.compare.decision import Option
from bench.report.compare.price_file import shipped_prices
from bench.report.compare.prices import Priced
from bench.report.markup import Markup, el, fragment
from bench.report.paper.claims import Claim, claims, paper, paper_code, recomputed
from bench.report.plots.scatter import Point, key, scatter
from bench.report.plots.svg import Box, Plot, text

SIZES = {1: 3.5, 2: 5.0, 4: 7.0, 8: 9.5}  # radius of a mark in pixels, by number of GPUs
FIGURE_7 = "pythia-1b"
dollars = partial(money_text, currency="USD")


def paper_text() -> str:
    """Format all claims for a terminal: the tables of the paper, its text, its survey and its code."""
    notes = wrapped(_notes(), " " * 4)
    return "\n\n".join([_claims_table(), _text_claims_table(), _survey_table(), _code_table(), notes])


def paper_document() -> dict[str, object]:
    """Return the document of `bench paper --json`."""
    return {
        "paper": paper(),
        "claims": tuple(claims()),
        "text_claims_recomputed": tuple(map(recomputed, paper().text_claims)),
        "code_on_h200": paper_code(),
    }


def _claims_table() -> str:
    """Format Table 1, each cell with the share of the chip's peak that its days imply."""
    rows = []
    for row in paper().optimal_days:
        counted = zip(paper().gpu_counts, row.days, strict=True)
        rows.append((row.model, row.gpu, *(_claimed(row.model, row.gpu, *each) for each in counted)))
    heads = ("Table 1, days", "", *(count_text(n, "GPU") for n in paper().gpu_counts))
    steps = (Wrapped("column 1", 4), Wrapped("Table 1, days", 13), "4 GPUs", "2 GPUs")
    return table(Table(plain_columns(heads, range(2, 6)), rows), steps)


def _claimed(model: str, gpu: str, gpus: int, days: object) -> str:
    if not isinstance(days, int):
        return str(days)
    claim = _optimal()[model, gpu, gpus]
    flag = {"yes": " !", "perhaps": " ?", "no": "  "}[claim.exceeds]
    return f"{days:,} ({100 * claim.utilisation:.0f}%){flag}"


@cache
def _optimal() -> Mapping[tuple[str, str, int], Claim]:
    return {(c.model, c.gpu, c.gpus): c for c in claims() if c.method == "optimal"}


def _text_claims_table() -> str:
    """Format the factors of the text beside those that follow from the tables."""
    rows = []
    for claim in paper().text_claims:
        found = [f"{each.factor:.2f}: {each.over}" for each in recomputed(claim)]
        for number, words in enumerate(found or [f"not checkable: no table has {claim.needs}"]):
            rows.append(("" if number else f"{claim.factor:g}", "" if number else claim.says, words))
    heads = ("factor", "the text says", "the tables say")
    steps = (Wrapped("the text says", 34), Wrapped("the tables say", 24), Wrapped("the text says", 10))
    return table(Table(plain_columns(heads, range(1)), rows), steps)


def _survey_table() -> str:
    survey = paper().survey
    asked = f"of {survey.respondents} researchers at {survey.institutions} institutions, {survey.dated}"
    rows = [(f"{share.percent:g}%", share.who) for share in survey.shares]
    return table(Table(plain_columns(("share", asked), range(1)), rows), (Wrapped(asked, 30),))


def _code_table() -> str:
    rows = [
        (
            row.model,
            str(row.gpus),
            row.sharding,
            "yes" if row.free_lunch else "no",
            f"{row.micro_batch_size} x {row.accumulation}",
            f"{row.reference_estimate_days:.4g}",
            f"{row.true_days:.4g}",
            f"{row.true_days / row.reference_estimate_days:.2f}",
        )
        for row in paper_code().rows
    ]
    heads = ("the paper's code", "GPUs", "sharding", "free lunch", "batch", "says, days", "takes", "times")
    steps = (
        "batch",
        Wrapped("the paper's code", 13),
        Wrapped("sharding", 10),
        "free lunch",
        "sharding",
        "times",
    )
    return table(Table(plain_columns(heads, range(1, 8)), rows), steps)


def _notes() -> Iterator[str]:
    yield f"claims of {paper().source}"
    yield "in brackets: the model's arithmetic over the vendor's dense peak. !  more than the chip can do"
    yield "?  more, unless the paper's rounding of the days made it so"
    yield f"the code: {paper_code().source}, on {paper_code().gpu}, {paper_code().dated}"
    for contradiction in paper().contradictions:
        yield f"at odds with itself: {contradiction}"


def figures_of_the_paper() -> Iterator[Plot]:
    """Yield Figures 7, 12 and 13, drawn from Table 1 and the shipped prices."""
    yield _figure_7()
    yield _every_model("figure-12", "hardware cost", lambda option: option.upfront)
    life = shipped_prices().life_days
    yield _every_model("figure-13", "cost of one experiment", lambda option: option.run_cost(life))


def option_of(claim: Claim) -> Option:
    """Return the machine of a claim at the shipped price, for a figure."""
    priced = shipped_prices().to_buy(paper().gpus[claim.gpu], claim.gpus)
    assert isinstance(priced, Priced)
    return Option(f"{claim.gpus}x {claim.gpu}", "buy", Interval(claim.days, 0.0), priced.amount, 0.0)


def _points(model: str, cost: Callable[[Option], float]) -> list[Point]:
    points = []
    for claim in _optimal().values():
        if claim.model == model:
            option = option_of(claim)
            words, size = f"{option.label}: {claim.days} days, {dollars(cost(option))}", SIZES[claim.gpus]
            points.append(Point(cost(option), claim.days, claim.gpu, option.label, words, size=size))
    return points


GPUS = ("H100", "A100", "A6000", "RTX 3090")


def _figure_7() -> Plot:
    """Draw hardware cost above, cost of an experiment below, with the axes' ranges of the paper."""
    life, above, below = shipped_prices().life_days, Box(64, 46, 470, 300), Box(64, 396, 470, 650)
    bought, runs = _points(FIGURE_7, lambda o: o.upfront), _points(FIGURE_7, lambda o: o.run_cost(life))
    draw = partial(scatter, series=GPUS)
    drawings = (
        draw(bought, above, "hardware cost, USD", x_range=(0, 265_000), y_range=(0, 80), x_text=_thousands),
        draw(runs, below, "cost of one experiment, USD", x_range=(300, 850), y_range=(0, 85), x_text=dollars),
    )
    title = "Figure 7: hardware cost and training time of Pythia-1B"
    body = fragment(*drawings, key(GPUS, 500, 60, "nothing beats these"), _size_key(500))
    return Plot("figure-7", title, _description(FIGURE_7), 640, 700, body, ())


def _thousands(amount: float) -> str:
    return f"${amount / 1000:g}k"


def _size_key(x: float) -> Markup:
    """Draw the legend of the marks' sizes, below that of their colours."""
    parts = []
    for i, (gpus, size) in enumerate(SIZES.items()):
        at = 170 + 24 * i
        parts.append(el("circle", cx=x, cy=at, r=size, class_="s6 mark"))
        parts.append(text(x + 16, at + 4, count_text(gpus, "GPU")))
    return fragment(*parts)


def _every_model(name: str, cost_words: str, cost: Callable[[Option], float]) -> Plot:
    """Draw a grid of all models, days on a log scale."""
    models = list(paper().training_flops)
    columns, width, height = 3, 320, 300
    parts = []
    for i, model in enumerate(models):
        left, top = (i % columns) * width, (i // columns) * height
        box = Box(left + 58, top + 50, left + width - 26, top + height - 50)
        parts.append(text(box.left, top + 24, model, class_="title"))
        drawing = scatter(
            _points(model, cost),
            box,
            f"{cost_words}, USD",
            log_y=True,
            series=GPUS,
            x_text=_short_dollars,
            labelled=False,
            zero=True,
        )
        parts.append(drawing)
    right = columns * width
    parts += [key(GPUS, right + 20, 60, "nothing beats these"), _size_key(right + 20)]
    rows = -(-len(models) // columns)
    title = f"{name.replace('-', ' ').capitalize()}: {cost_words} and training time of all models"
    description = "; ".join(map(_description, models))
    return Plot(name, title, description, right + 160, rows * height, fragment(*parts), ())


def _short_dollars(amount: float) -> str:
    return _thousands(amount) if amount >= 1000 else f"${amount:g}"


def _description(model: str) -> str:
    claimed = [claim for claim in _optimal().values() if claim.model == model]
    return f"{model}: " + ", ".join(f"{c.gpus}x {c.gpu} {c.days} days" for c in claimed)
