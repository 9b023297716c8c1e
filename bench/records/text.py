"""Numbers and outcomes as text: one spelling in tables, progress and HTML. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.base.errors import one_line
from bench.records.estimate import Interval
from bench.records.floor import Floor
from bench.records.gradients import GradientCheck
from bench.records.products import InputPrecision, ProductKind, Products, in_other_precisions, shares_of
from bench.records.run_results import TrialResult
from bench.records.trial import (
    Crashed,
    Environment,
    Failure,
    Image,
    NodeFacts,
    OutOfMemory,
    TimedOut,
    Unsupported,
)
from bench.training.models import Model
from bench.training.setting import Setting

# A note on recipes in fp8 on a CPU, which are for tests, and to try a manifest out.
FP8_ON_CPU = (
    "a CPU has no units for fp8: it computes the same numbers slowly, and its times say nothing of a GPU"
)


def figures(value: float, digits: int = 3) -> str:
    """Format with `digits` significant figures and thousands separators, without exponent: 12,300, 0.0123."""
    if value == 0:
        return "0"
    text = f"{value:.{digits}g}"
    if "e" not in text:
        number = float(text)
        return f"{number:,.0f}" if abs(number) >= 10 ** (digits - 1) else text
    if abs(value) >= 1:
        return f"{float(text):,.0f}"
    return f"{float(text):.{digits - 1 - _magnitude(value)}f}".rstrip("0")


def interval_text(interval: Interval) -> str:
    """Format as 1.234 ±0.012, with the digits that the half-width makes meaningful."""
    if interval.half_width <= 0:
        return f"{figures(interval.value, 4)} ±0"
    places = max(0, 2 - _magnitude(interval.half_width) - 1)
    return f"{interval.value:,.{places}f} ±{interval.half_width:.{places}f}"


def _magnitude(value: float) -> int:
    return int(f"{value:e}".partition("e")[2])


def money_text(amount: float, currency: str) -> str:
    """Format as $127,500, $14.84 or EUR 640: cents below a hundred, two significant figures below a cent."""
    if amount >= 99.995:
        number = f"{amount:,.0f}"
    else:
        number = f"{amount:.2f}" if amount >= 0.01 or amount == 0 else figures(amount, 2)
    return currency_sign(currency) + number


def currency_sign(currency: str) -> str:
    """Return the text in front of an amount: "$" for USD, else the currency's code with a blank."""
    return "$" if currency == "USD" else f"{currency} "


def short_count(number: float) -> str:
    """Format a large number as people say it: 450M, 2.78B; whole below a million."""
    for scale, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= scale:
            return f"{figures(number / scale)}{letter}"
    return f"{number:,.0f}" if number >= 100 else figures(number)


def count_text(number: int, word: str) -> str:
    """Format a count with its noun: 1 trial, 2,000 trials, 2 passes."""
    ending = "" if number == 1 else "es" if word.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{number:,} {word}{ending}"


def first_of(names: Sequence[str], most: int) -> str:
    """Join the first `most` names, and say how many there are beyond them: a, b and 3 more."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def batch_text(micro_batch: int, accumulation: int, devices: int) -> str:
    """Format a step's batch as a product: micro-batch, accumulation, devices."""
    return f"{micro_batch} x {accumulation}" + (f" x {devices}" if devices > 1 else "")


def seconds_text(seconds: float) -> str:
    """Format a duration in its largest fitting unit: 45 s, 12 min, 3.5 h."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def failure_word(failure: Failure) -> str:
    """Say in two words how a trial failed."""
    match failure:
        case OutOfMemory(where="host"):
            return "out of host memory"
        case OutOfMemory():
            return "out of memory"
        case Unsupported():
            return "unsupported"
        case TimedOut():
            return "timed out"
        case Crashed():
            return "crashed"


def failure_text(failure: Failure) -> str:
    """Say in one line why a trial failed."""
    return one_line(_failure_text(failure))


def _failure_text(failure: Failure) -> str:
    match failure:
        case OutOfMemory():
            return f"out of {failure.where} memory: {failure.detail}"
        case Unsupported():
            return f"unsupported: {failure.reason}"
        case TimedOut():
            text = f"timed out after {seconds_text(failure.limit_seconds)} in {failure.phase}"
            return f"{text}; a larger trial_minutes gives it more time" if failure.trained else text
        case Crashed():
            return f"crashed: {failure.reason}"


def proof_line(result: TrialResult) -> str:
    """Format an estimate beside its proof: 24.56 s a step predicted, 24.61 in 8 real ones, -0.2%."""
    head = f"{result.model:<16} {result.label:<28} proof"
    if result.unproven is not None:
        return f"{head}: {failure_text(result.unproven)}"
    assert result.proof is not None
    assert result.estimate is not None
    predicted, real = result.estimate.step_seconds.value, result.proof.step_seconds
    return (
        f"{head}: {figures(predicted, 4)} s a step predicted, {figures(real, 4)} in {result.proof.steps} "
        f"real ones, {error_text(result)}"
    )


def floor_line(result: TrialResult) -> str:
    """Format the line that progress prints for a floor: 446 ms a pass (products 412 ms), 87% of a step."""
    head = f"{result.model:<16} {result.label:<28}"
    if result.floor is None:
        return f"{head} no floor: {result.no_floor}"
    return f"{head} floor: {floor_text(result.floor)}, {share_text(result.share_of_floor)} of a step"


def floor_text(floor: Floor) -> str:
    """Format a floor: 446 ms a pass (products 412 ms, attention 34.1 ms)."""
    parts = ", ".join(f"{kind} {figures(1000 * seconds)} ms" for kind, seconds in floor.parts.items())
    return f"{figures(1000 * floor.pass_seconds)} ms a pass ({parts})"


def multiplied_text(products: Sequence[Products], no_products: str | None) -> str | None:
    """Format what a pass multiplies: products in bf16 79%, attention in bf16 20%; or why that is unknown.

    None in bundles that record neither.
    """
    if products:
        return _parts_text(shares_of(products))
    return f"unknown, {one_line(no_products)}" if no_products else None


def other_precision_text(products: Sequence[Products], model: Model, setting: Setting) -> str | None:
    """Say what multiplies in another precision than the recipe's; None if that changes no figure."""
    found = in_other_precisions(products, model, setting)
    if not found:
        return None
    usual = model.recipe.precision
    return (
        f"the recipe is in {usual}, and of the operations of a pass are {_parts_text(found)}: "
        f'"of limit" compares these with products in {usual}'
    )


def _parts_text(shares: Mapping[tuple[ProductKind, InputPrecision], float]) -> str:
    return ", ".join(f"{kind} in {precision} {_percent(part)}" for (kind, precision), part in shares.items())


def gradients_line(result: TrialResult) -> str:
    """Format the line that progress prints for a gradient check."""
    head = f"{result.model:<16} {result.label:<28}"
    if result.gradient_check is None:
        return f"{head} gradients not checked: {result.no_gradient_check}"
    if result.gradient_check.agrees:
        return f"{head} gradients agree: {gradients_text(result.gradient_check)}"
    return f"{head} WRONG GRADIENTS, never ranked: {gradients_text(result.gradient_check)}"


def gradients_text(check: GradientCheck) -> str:
    """Format the largest difference and that of all: 3% in embed.weight, 0.4% in all."""
    whole, worst = check.whole_difference, check.worst_difference
    in_all = "" if whole is None else f", {_percent(whole)} in all"
    return f"{'infinite or no number' if worst is None else _percent(worst)} in {check.worst}{in_all}"


def _percent(share: float) -> str:
    return f"{figures(100 * share, 2)}%"


def share_text(share: float | None) -> str:
    """Format a share as a whole percentage; "-" without one."""
    return "-" if share is None else f"{100 * share:.0f}%"


def error_text(result: TrialResult) -> str:
    """Format the estimate's error as a percentage of the proof; "" if either is missing."""
    if result.proof is None or result.estimate is None:
        return ""
    return f"{100 * (result.estimate.step_seconds.value / result.proof.step_seconds - 1):+.1f}%"


def outcome_line(result: TrialResult, unit: str) -> str:
    """Format the line that progress prints when a trial has ended."""
    head = f"{result.model:<16} {result.label:<28} micro-batch {result.micro_batch:<4}"
    if result.failure is not None:
        return f"{head} {failure_text(result.failure)}"
    if result.estimate is None:
        return f"{head} too few samples for an interval"
    e = result.estimate
    rate = f"{figures(e.units_per_second)} {unit}/s"
    doubt = "" if e.plausible else "   IMPLAUSIBLE: more arithmetic than this machine reached, never ranked"
    return f"{head} {interval_text(e.step_seconds)} s/step   {rate}   {interval_text(e.days)} days{doubt}"


def software_line(node: NodeFacts) -> tuple[str, str]:
    """Return the kind of a run's software, an image or an environment, and the digest that names it."""
    if node.environment is not None:
        return "environment", _environment_text(node.environment)
    return "image", _image_text(node.image)


def _environment_text(environment: Environment) -> str:
    left_out = f", without {', '.join(environment.without)}" if environment.without else ""
    return f"{environment.variant} {environment.digest}, Python {environment.python}{left_out}; no container"


def software_digest(node: NodeFacts) -> tuple[str, str]:
    """Return "image" or "environment", and its digest or, without one, its variant and lock, on one line."""
    if node.environment is not None:
        return "environment", node.environment.digest
    if node.image is None:
        return "image", "none"
    return "image", node.image.config or f"{node.image.variant}, wheels {node.image.lock}"


def _image_text(image: Image | None) -> str:
    """Format the image's variant and identity, from which the environment can be reproduced."""
    if image is None:
        return "none: the environment cannot be rebuilt from the bundle"
    if image.config is None:
        return f"{image.variant}, of unknown identity (bench run --engine records it): not reproducible"
    return f"{image.variant} {image.config}"
