"""Hold predicted times against measured ones, and fit the multipliers that predictions use.

    PYTHONPATH=. python benchmarks/prediction.py [--rows] [--write]

Every compiled setting in results/ is predicted from a fit without its model, and the trials of one card from
a fit without that card. The public rows of benchmarks/data/mpt.csv, of other software, are predicted with
multipliers of their own, from fits without their card, and without their large machines. With --write, the
fit of all bundles and its errors become bench/data/prediction.json. Takes some minutes.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import random
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import date
from pathlib import Path

import numpy as np
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.base.gpu_catalogue import gpu_named
from bench.base.strict_json import to_json
from bench.bundle.verdict import RunContents
from bench.bundle.verify import Verdict
from bench.planning.prediction.card_rates import CardRates, rates_of
from bench.planning.prediction.choice import chosen
from bench.planning.prediction.step_time import (
    PASS_BYTES,
    Collectives,
    Fit,
    Multipliers,
    StepPart,
    StepTime,
    Work,
    beside,
    group_of,
    step_time,
    why_unpredicted,
    work_of,
)
from bench.records.busy import LEAST_BUSY_SHARE, waited
from bench.report.read_bundles import check_all
from bench.training.methods import known_methods
from bench.training.models import Counted, Model, Precision, counts_by_formula, family_of
from bench.training.models.counted_operations import counted
from bench.training.models.generic import TransformersFamily
from bench.training.models.model import product_shapes
from bench.training.models.shipped_counts import digest_of, shipped_counts
from bench.training.setting import Setting
from tests.planning.test_memory import named

ROOT = Path(__file__).parents[1]
RESULTS, PUBLIC = ROOT / "results", ROOT / "benchmarks/data/mpt.csv"
TARGET = ROOT / "bench/data/prediction.json"
SLOWED = "slowed-h100"  # a card that could not cool itself
# Of the newest runs, predicted from older ones too.
CAMPAIGN = (
    "nine-h200",
    "nine-4xh200",
    "nine-h100",
    "proof-h100",
    "zoo-h200",
    "certified-h200",
    "transposed-h200",
    "gradients/pythia-160m",
    "side-by-side-h200/pythia-160m-gelu",
)
START = Multipliers(
    products=0.9, products_in_fp32=0.9, attention=0.5, scans=0.003, cycles=1.0, bias_cycles=3.0
)
CYCLES = ("cycles", "bias_cycles")  # multipliers of which a larger one takes longer; others are shares
ROUNDS = 2500
LEAST_CHOICE, CLOSE = 3, 1.03  # settings of a model in a bundle; of the fastest
FARTHEST = 0.6  # a larger error, as a logarithm, counts as this one: a few odd rows decide nothing
# Public cards, and shapes of the public models: width and layers.
CARDS = {
    "a100_40gb": "NVIDIA A100-SXM4-40GB",
    "a100_80gb": "NVIDIA A100-SXM4-80GB",
    "h100_80gb": "NVIDIA H100 80GB HBM3",
}
SHAPES = {
    "125m": (768, 12), "350m": (1024, 24), "760m": (1536, 24), "1b": (2048, 24), "3b": (2560, 32),
    "7b": (4096, 32), "13b": (5120, 40), "30b": (7168, 48), "70b": (8192, 80),
}  # fmt: skip
# Folders and bundles whose runs had today's kernels of their methods. The older FlexAttention took 1.67 times
# as long (steps of vit-l before and after, docs/methods.md); the older depthwise convolutions in fp32, 2.65
# times (results/frontier-h100/depthwise-old-and-new.txt).
TODAYS_KERNELS = (
    "nine-h200/",
    "nine-h200-repeated/",
    "nine-4xh200/",
    "cards-4xh200/",
    "seven-h200/",
    "zoo-h200/",
    "frontier-",
    "transposed-h200/",
    "side-by-side-h200/vit-gelu",
)
OLDER_FLEX, OLDER_DEPTHWISE = 1.67, 2.65
WORDS, KEPT = 50_368, 34  # bytes that a layer keeps for each token and feature, with fused attention
# FlashAttention 2 of that time on Hopper, against its share of the products' rate on Ampere: 335 of 794.5
# against 225 of 271.2 TFLOP/s (Dao, FlashAttention-2, figures 4 and 6).
OLD_ATTENTION = {"h100_80gb": (335 / 794.5) / (225 / 271.2)}


@dataclass(frozen=True, slots=True)
class Row:
    """A measured step, and its work."""

    place: str
    model: str
    group: str
    card: str
    gpus: int
    work: Work
    batch: StepPart
    rates: CardRates
    precision: Precision
    seconds: float
    busy_share: float | None = None  # of the time in which the GPUs ran kernels, if it is known

    def error(self, m: Multipliers) -> float:
        """Return the logarithm of the predicted over the measured time."""
        return math.log(self.time(m).seconds / self.seconds)

    def time(self, m: Multipliers) -> StepTime:
        """Predict the step with these multipliers."""
        return step_time(self.work, self.batch, self.gpus, self.rates, self.precision, m)

    def computing(self, m: Multipliers) -> float:
        """Return the seconds of a pass without exchange."""
        time = self.time(m)
        return time.pass_seconds - time.parts["exchange"]


def own_rows() -> Iterator[Row]:
    """Yield the measured trials of the bundles in results/, except of a card that was too hot."""
    for path in sorted(RESULTS.rglob("*.tar")):
        if SLOWED in str(path):
            continue
        ((_, verdict),) = check_all([path], None)
        if not isinstance(verdict, Verdict) or not isinstance(verdict.contents, RunContents):
            continue
        results, busy_shares = verdict.contents.results, verdict.contents.busy_shares
        gpu = gpu_named(results.node.gpus[0].name) if results.node.gpus else None
        for trial in results.trials:
            if gpu is None or trial.estimate is None or not known_methods().keys() >= {*trial.setting}:
                continue
            model = next(one for one in results.models if one.name == trial.model)
            counts = counts_of(model)
            if why_unpredicted(model, trial.setting):
                continue
            work = work_of(model, trial.setting, trial.gpus, counts)
            if work:
                if not named(path).startswith(TODAYS_KERNELS):
                    work = with_older_kernels(work, trial.setting, model.recipe.precision)
                place = f"{named(path)} {trial.label} {trial.micro_batch}"
                seconds = trial.estimate.step_seconds.value
                group = group_of(model, counts)
                part = StepPart(trial.micro_batch, trial.accumulation)
                yield Row(place, model.name, group, gpu.name, trial.gpus, work, part, rates_of(gpu),
                          model.recipe.precision, seconds, busy_shares.get(trial.id))  # fmt: skip


COUNTS: dict[str, Counted] = {}  # of models that were built, by their digests


def counts_of(model: Model) -> Counted:
    """Return a model's counts for every setting: by formula, as shipped, or by building it in seconds."""
    if known := counts_by_formula(model) or shipped_counts(model):
        return known
    digest = digest_of(model)
    if digest not in COUNTS:
        family = family_of(model)
        assert isinstance(family, TransformersFamily)
        COUNTS[digest] = counted(model, family)
    return COUNTS[digest]


def with_older_kernels(work: Work, setting: Setting, precision: Precision) -> Work:
    """Return the work of a setting as the kernels did it that were replaced after the run."""
    if "flex-attention" in setting:
        work = replace(work, attention_in_fp32=work.attention_in_fp32 / OLDER_FLEX)
    if "depthwise" in setting and precision == "fp32":
        work = replace(work, depthwise_cycles=work.depthwise_cycles * OLDER_DEPTHWISE)
    return work


def public_rows() -> Iterator[Row]:
    """Yield the rows of the public table but those in fp8; their work is computed here, by formulas."""
    for row in csv.DictReader(PUBLIC.open()):
        if row["precision"] == "amp_fp8":
            continue
        (width, layers), length = SHAPES[row["model"]], int(row["sequence_length"])
        gpus, part = int(row["gpus"]), StepPart(int(row["micro_batch"]), int(row["accumulation"]))
        again = row["activation_checkpointing"] == "True"
        body, head = 24 * layers * width * width * length, 2 * WORDS * width * length
        share, parameters = (gpus - 1) / gpus, int(row["parameters"])
        whole = row["sharding"] == "SHARD_GRAD_OP"
        sizes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
        products = [(*size, length) for size in layers * sizes + [(width, WORDS)]]
        kept = (4 / 3 if again else 1) * KEPT * layers * width * length + 6 * WORDS * length
        work = Work(
            products=(4 if again else 3) * body + 3 * head,
            attention=(4.5 if again else 3.5) * 2 * length * width * layers * length / old(row["gpu"]),
            attention_in_fp32=1,
            query_elements=(4 / 3 if again else 1) * layers * length * width,
            biased_scores=0,
            convolutions=0,
            dense_convolutions=0,
            depthwise_cycles=0,
            scans=0,
            chunked_scan_cycles=0,
            logit_bytes=0,  # LLM Foundry keeps them in fp32, beside the rest
            kept_bytes=kept,
            kept_elements=kept / 2,
            weight_bytes=PASS_BYTES * parameters,
            exchanged_each_pass=Collectives(
                (2 if whole else 3) * (layers + 1), share * parameters * (4 if whole else 6)
            ),
            exchanged_each_step=Collectives(0, 0.0),
            updated=parameters / gpus,
            passes=4 / 3 if again else 1,
            product_shapes=product_shapes(products),
        )
        gpu = gpu_named(CARDS[row["gpu"]])
        assert gpu is not None
        yield Row(f"{row['model']} {length} {gpus}x {row['gpu']}", row["model"], "dense", row["gpu"], gpus,
                  work, part, rates_of(gpu), "bf16",
                  int(row["global_batch_tokens"]) / float(row["tokens_per_s"]))  # fmt: skip


def old(gpu: str) -> float:
    """Return the factor for a card whose attention kernels were slower when it was measured."""
    return OLD_ATTENTION.get(gpu, 1.0)


def parts_by_multiplier(rows: Sequence[Row]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the seconds that each multiplier of 1 adds to the computing of each row, and the others.

    A multiplier that no row has a part of is left out: the fit leaves it where its search begins.
    """
    names = [field.name for field in fields(Multipliers)]
    ones, never = Multipliers(**dict.fromkeys(names, 1.0)), Multipliers(**{n: none_of(n) for n in names})
    fixed = np.array([row.computing(never) for row in rows])
    taken = {
        name: np.array([row.computing(replace(never, **{name: getattr(ones, name)})) for row in rows]) - fixed
        for name in names
    }
    return {name: seconds for name, seconds in taken.items() if np.any(seconds > 0)}, fixed


def none_of(name: str) -> float:
    """Return the multiplier with which a part takes no time."""
    return 0.0 if name in CYCLES else math.inf


def errors_of(rows: Sequence[Row]) -> Callable[[Multipliers], np.ndarray]:
    """Return a function that gives `Row.error` of every row, many thousand times a second.

    Computing is a sum of parts: each is proportional to one multiplier, or to its inverse, or to none.
    """
    taken, fixed = parts_by_multiplier(rows)
    times = [row.time(START) for row in rows]
    sent = np.array([row.work.exchanged_each_pass.seconds(row.gpus, row.rates) for row in rows])
    passes, update = (np.array([getattr(time, name) for time in times]) for name in ("passes", "update"))
    measured = np.array([row.seconds for row in rows])

    def errors(m: Multipliers) -> np.ndarray:
        computing = fixed
        for name, seconds in taken.items():
            multiplier = getattr(m, name)
            computing = computing + seconds * (multiplier if name in CYCLES else 1 / multiplier)
        return np.log((passes * beside(computing, sent) + update) / measured)

    return errors


def fitted(rows: Sequence[Row], start: Multipliers = START) -> Multipliers:
    """Search for the multipliers with the smallest errors, each kind of model counting as much as another."""
    chance, step, best = random.Random(0), 0.5, start
    number = Counter(row.model for row in rows)
    share, errors = np.array([1 / number[row.model] for row in rows]), errors_of(rows)

    def loss(m: Multipliers) -> float:
        return float(share @ np.minimum(np.abs(errors(m)), FARTHEST) ** 1.5)

    least, names = loss(best), [*parts_by_multiplier(rows)[0]]
    for _ in range(ROUNDS):
        changed = {n: getattr(best, n) * math.exp(chance.gauss(0, step)) for n in chance.sample(names, 2)}
        tried = replace(best, **{n: min(v, 1.0) if n == "products" else v for n, v in changed.items()})
        if (found := loss(tried)) < least:
            least, best = found, tried
        step = max(0.02, step * 0.998)
    return best


def left_out(rows: Sequence[Row], kind: Callable[[Row], str]) -> list[tuple[Row, float]]:
    """Return each row's error by a fit of the rows of other kinds."""
    found = []
    whole = fitted(rows)
    for one in sorted({kind(row) for row in rows}):
        m = fitted([row for row in rows if kind(row) != one], whole)
        found += [(row, row.error(m)) for row in rows if kind(row) == one]
    return found


def choices(by_model: Sequence[tuple[Row, float]]) -> str:
    """Say how often the setting that is predicted to be the fastest is near the fastest measured one."""
    groups: dict[tuple[str, str, int], list[tuple[Row, float]]] = {}
    for row, error in by_model:
        groups.setdefault((row.place.split()[0], row.model, row.gpus), []).append((row, error))
    several = [rows for rows in groups.values() if len(rows) >= LEAST_CHOICE]
    near = among = 0
    for rows in several:
        fastest = min(row.seconds for row, _ in rows)
        first, *others = (row.seconds for row in in_order(rows)[:3])
        near += first <= CLOSE * fastest
        among += fastest in (first, *others)
    return (
        f"chosen of at least {LEAST_CHOICE} measured settings: within 3% of the fastest in {near} of "
        f"{len(several)}; the fastest is among the first three in {among}"
    )


def in_order(rows: Sequence[tuple[Row, float]]) -> list[Row]:
    """Order rows as they would be chosen, if those that were chosen before could not be had."""
    left, found = [*rows], list[Row]()
    while left:
        first = chosen(
            left,
            seconds=lambda pair: pair[0].seconds * math.exp(pair[1]),
            sent_bytes=lambda pair: pair[0].work.sent_bytes(pair[0].batch.passes),
        )
        left.remove(first)
        found.append(first[0])
    return found


def covered(by_model: Sequence[tuple[Row, float]]) -> str:
    """Say how many rows are within an interval of nine in ten that comes from other models' errors alone."""
    said = []
    for group in ("dense", "other"):
        rows = [(row, error) for row, error in by_model if row.group == group]
        within = 0
        for model in {row.model for row, _ in rows}:
            limit = ninth_of_ten([error for row, error in rows if row.model != model])
            within += sum(math.expm1(abs(e)) <= limit for row, e in rows if row.model == model)
        said.append(f"{within} of {len(rows)} {group} rows ({within / len(rows):.0%})")
    return f"within the interval that other models' errors give: {', '.join(said)}"


def summary(name: str, errors: Sequence[float]) -> tuple[str, ...]:
    """Return a line of the table from logarithms of predicted by measured times."""
    sizes = [math.expm1(abs(error)) for error in errors]
    rms = math.sqrt(statistics.fmean(error * error for error in errors))
    return (name, str(len(errors)), f"{math.exp(statistics.median(errors)):.3f}",
            f"{statistics.median(sizes):.1%}", f"{ninth_of_ten(errors):.1%}", f"{rms:.1%}")  # fmt: skip


def ninth_of_ten(errors: Sequence[float]) -> float:
    """Return the error within which nine of ten predictions are, as if there was one prediction more."""
    sizes = sorted(math.expm1(abs(error)) for error in errors)
    return sizes[min(len(sizes), math.ceil(0.9 * (len(sizes) + 1))) - 1]


def cards_left_out(own: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """Yield a line of the table for each card: its dense models, by a fit of the other cards."""
    by_card = left_out(own, lambda row: row.card)
    for card in sorted({row.card for row in own}):
        of_card = [error for row, error in by_card if row.card == card and row.group == "dense"]
        yield summary(f"bundles, card left out: {card}, dense", of_card)


def newest_from_older(own: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """Yield a line of the table for each group of the newest campaign's rows, by a fit of all older rows."""
    by_older = fitted([row for row in own if not row.place.startswith(CAMPAIGN)])
    newest = [row for row in own if row.place.startswith(CAMPAIGN)]
    for group in ("dense", "other"):
        errors = [row.error(by_older) for row in newest if row.group == group]
        yield summary(f"newest campaign, from older bundles: {group}", errors)


def left_to_the_host(rows: Sequence[Row], m: Multipliers) -> str:
    """Say how many rows are left out because GPUs waited for their host, and how they would be predicted."""
    shares = sorted(math.exp(row.error(m)) for row in rows)
    models = len({row.model for row in rows})
    count = f"{len(rows)} rows of {models} models, whose GPUs ran kernels in less than"
    errors = (
        f"{shares[0]:.2f} to {shares[-1]:.2f} of the measured time, median {statistics.median(shares):.2f}"
    )
    return f"left out: {count} {LEAST_BUSY_SHARE:.0%} of the time: predicted {errors}"


def main() -> None:
    """Print the errors of fits that did not see what they predict; --write: write the fit of all rows."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--rows", action="store_true", help="print each row of the bundles with its error")
    asked = parser.parse_args()
    every, public = list(own_rows()), list(public_rows())
    own = [row for row in every if not waited(row.busy_share)]
    by_model = left_out(own, lambda row: row.model)
    dense, other = ([error for row, error in by_model if row.group == one] for one in ("dense", "other"))
    lines = [
        summary("bundles, model left out: dense", dense),
        summary("bundles, model left out: other", other),
    ]
    lines += cards_left_out(own)
    hopper, ampere = ([row for row in public if row.card.startswith(card)] for card in ("h100", "a100"))
    small, large = ([row for row in public if (row.gpus >= 64) == big] for big in (False, True))
    to_ampere, to_hopper, to_large = (
        [row.error(m) for row in to]
        for m, to in ((fitted(hopper), ampere), (fitted(ampere), hopper), (fitted(small), large))
    )
    lines += [
        *newest_from_older(own),
        summary("public rows, A100 from H100", to_ampere),
        summary("public rows, H100 from A100", to_hopper),
        summary("public rows, 64 to 512 GPUs from fewer", to_large),
    ]
    headers = ("predicted", "rows", "median ratio", "median error", "90% within", "rms")
    print(tabulate(lines, headers, disable_numparse=True))
    print(choices(by_model))
    print(covered(by_model))
    m = fitted(own)
    print(left_to_the_host([row for row in every if waited(row.busy_share)], m))
    print(json.dumps(asdict(m)), file=sys.stderr)
    if asked.rows:
        for row, error in sorted(by_model, key=lambda pair: pair[1]):
            print(
                f"{math.exp(error):6.3f} {row.group:5} {row.card[7:11]} {row.gpus} {row.model:18} {row.place}"
            )
    if asked.write:
        fit = Fit(
            m,
            {"dense": ninth_of_ten(dense), "other": ninth_of_ten(other)},
            card_error=max(ninth_of_ten(to_ampere), ninth_of_ten(to_hopper)),
            gpus_error=ninth_of_ten(to_large),
            cards=tuple(sorted({row.card for row in own})),
            most_gpus=max(row.gpus for row in own),
            source="benchmarks/prediction.py, from the bundles in results/ and benchmarks/data/mpt.csv",
            dated=date.today().isoformat(),
        )
        TARGET.write_text(json.dumps(to_json(fit), indent=1) + "\n")


if __name__ == "__main__":
    main()
