"""Put the answers of a comparison into words: the question, the answer, how sure, what would change it.

In: a Comparison. Out: sentences, the same for the terminal, Markdown and the page. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from bench.records.marks import marked_text
from bench.records.text import count_text, figures, money_text
from bench.report.compare.answers import Change, Choice, MachineAnswer, Question
from bench.report.compare.comparison import Comparison, ModelPart

UNASKED = (
    "which machine trains fastest, and which costs least to rent (--deadline and --budget-usd ask for one)"
)
MOST_NAMED = 3  # models whose machines the first sentence names
BETTER = {"cheapest by the deadline": "cheaper", "fastest in budget": "faster"}
ALIKE = {
    "cheapest by the deadline": "faster and not provably dearer",
    "fastest in budget": "cheaper and not provably slower",
}


def question_text(comparison: Comparison) -> str:
    """Put the user's limits into words that begin with "asked:"."""
    wish, parts = comparison.wish, []
    if wish.budget is not None:
        parts.append(f"the fastest machine that {money_text(wish.budget, comparison.currency)} pays for")
    if wish.deadline_days is not None:
        parts.append(f"the cheapest that is certain to do a run in {days_text(wish.deadline_days, 4)}")
    if not parts:
        return f"asked: {UNASKED}"
    return f"asked: {', and '.join(parts)}; for {count_text(wish.runs, 'run')} of a model"


def answer_sentences(comparison: Comparison) -> tuple[str, str]:
    """Answer in two sentences: for a few models with their machines, for more by counting the models."""
    firsts = [part for part in comparison.parts if part.number == 1]
    if len(firsts) == 1:
        return _sentences(firsts[0], comparison)
    if len(firsts) <= MOST_NAMED:
        each = ((part.model, _sentences(part, comparison)[0].removesuffix(".")) for part in firsts)
        return f"{'; '.join(f'{model}: {said[:1].lower()}{said[1:]}' for model, said in each)}.", _COUNTED
    return _summary(firsts, comparison), _COUNTED


def answer_text(comparison: Comparison) -> str:
    """Return both sentences of the answer on one line."""
    return " ".join(filter(None, answer_sentences(comparison)))


_COUNTED = "The matrix marks each answer; each model's own part says how sure it is and what changes it."


def own_answer(part: ModelPart, comparison: Comparison) -> list[str]:
    """Return the answer to show above the part's tables; nothing if the comparison begins with it."""
    one_model = len({group.model for group in comparison.parts}) == 1
    return [] if one_model and part.number == 1 else [part_answer(part, comparison)]


def part_answer(part: ModelPart, comparison: Comparison) -> str:
    """Say what to rent or buy, for how long and at what cost; then how sure that is and what changes it."""
    return " ".join(filter(None, _sentences(part, comparison)))


def _sentences(part: ModelPart, comparison: Comparison) -> tuple[str, str]:
    if not part.answers:
        return "No machine has a figure.", ""
    first = "; ".join(_what(part.answers, comparison))
    kinds = len({entry.row.machine.label for entry in part.entries})
    clauses = [clause for answer in part.answers for clause in _clauses(answer, kinds, comparison)]
    clauses += [clause for answer in part.answers for clause in _in_other_groups(answer, part, comparison)]
    second = "; ".join(dict.fromkeys(clauses))
    return f"{capital(first)}.", f"{capital(second)}." if second else ""


def _summary(parts: Sequence[ModelPart], comparison: Comparison) -> str:
    """Count the models for which a measured machine answers, only an estimated one does, or none."""
    wish, budget = comparison.wish, money_text(comparison.wish.budget or 0, comparison.currency)
    within = f" within {budget}" if wish.budget is not None else ""
    does: dict[Question, str] = {
        "cheapest by the deadline": f"is certain to meet {days_text(wish.deadline_days or 0, 4)}{within}",
        "fastest in budget": f"is in the budget of {budget}",
        "fastest": "has a figure",
    }
    clauses = []
    for name, words in does.items():
        found = [answer.choice for part in parts for answer in part.answers if answer.question == name]
        if not found:
            continue
        measured = sum(choice is not None and choice.measured for choice in found)
        estimated = sum(choice is not None and not choice.measured for choice in found)
        text = f"for {measured} of {count_text(len(parts), 'model')} a measured machine {words}"
        text += f", for {estimated} an estimated one does or perhaps does" if estimated else ""
        clauses.append(text + (f", for {rest} none" if (rest := len(parts) - measured - estimated) else ""))
    return f"{capital('; '.join(clauses))}." if clauses else "No machine has a figure."


# The first sentence: what, how long, at what cost


def _what(answers: Sequence[MachineAnswer], comparison: Comparison) -> Iterator[str]:
    """Yield a clause for each answer; it begins with the question if answers differ or none was asked."""
    choices = {answer.choice for answer in answers}
    if len(choices) == 1 and len(answers) > 1 and answers[0].choice is not None:
        both = " and ".join(answer.question for answer in answers)
        yield f"{_recommended(answers[0], answers[0].choice, comparison)}: the {both}"
        return
    for answer in answers:
        if answer.choice is None:
            yield _none(answer, comparison)
        elif len(answers) > 1 or answer.question == "fastest":
            yield f"{answer.question}: {_recommended(answer, answer.choice, comparison)}"
        else:
            yield _recommended(answer, answer.choice, comparison)


def _recommended(answer: MachineAnswer, choice: Choice, comparison: Comparison) -> str:
    asked = answer.question in BETTER
    verb = f"{choice.kind or 'use'} " if asked else ""
    lead = "" if choice.measured else "by estimate, "
    perhaps = "perhaps " if asked and not choice.measured and answer.certain == "perhaps" else ""
    return f"{lead}{perhaps}{verb}{choice.machine}, {_figures(choice, comparison)}"


def _none(answer: MachineAnswer, comparison: Comparison) -> str:
    wish = comparison.wish
    budget = money_text(wish.budget or 0, comparison.currency)
    if answer.question == "fastest in budget":
        unpriced = answer.nearest is not None and answer.nearest.kind is None and not answer.changes
        nothing = "no machine has a price" if unpriced else f"nothing is in the budget of {budget}"
    else:
        within = f" within {budget}" if wish.budget is not None else ""
        nothing = f"nothing is certain to meet {days_text(wish.deadline_days or 0, 4)}{within}"
    if (nearest := answer.nearest) is None:
        return nothing
    figure = marked_text(_figures(nearest, comparison), nearest.doubts)
    return f"{nothing}: the fastest is {nearest.machine}, {figure}"


def _figures(choice: Choice, comparison: Comparison) -> str:
    """Format days and costs in full: 7.74 days (7.34 to 8.13), $667 a run."""
    currency, runs = comparison.currency, comparison.wish.runs
    parts = [days_text(choice.days)]
    if choice.low_days is None or choice.high_days is None:
        parts[0] += " (no interval)"
    else:
        parts[0] += f" ({figures(choice.low_days)} to {figures(choice.high_days)})"
    if choice.kind == "buy":
        parts.append(f"{money_text(choice.upfront, currency)} to buy")
    cost = "at an unknown cost" if choice.run_cost is None else _a_run(choice.run_cost, comparison)
    parts.append(cost)
    if choice.kind == "rent" and runs > 1 and choice.spend is not None:
        parts.append(f"{money_text(choice.spend, currency)} for {runs:,} runs")
    return ", ".join(parts)


def _a_run(cost: float, comparison: Comparison) -> str:
    return f"{money_text(cost, comparison.currency)} a run"


def _briefly(choice: Choice, comparison: Comparison) -> str:
    """Name a machine with its days and costs in short: rent 1x H200 (7.74 days, $667 a run)."""
    costs = "" if choice.run_cost is None else f", {_a_run(choice.run_cost, comparison)}"
    lead = f"{choice.kind} " if choice.kind else ""
    doubts = f", {', '.join(choice.doubts)}" if choice.doubts else ""
    return f"{lead}{choice.machine} ({days_text(choice.days)}{costs}{doubts})"


# The second sentence: how sure, and what would change it


def _clauses(answer: MachineAnswer, kinds: int, comparison: Comparison) -> Iterator[str]:
    """Yield clauses about one answer; `kinds` of machine were measured."""
    choice, name = answer.choice, answer.question
    if choice is not None and not choice.measured:
        yield "nobody measured it, so measure it before you pay"
        if answer.nearest is not None and not answer.changes:
            yield f"the fastest that was measured is {_briefly(answer.nearest, comparison)}"
    elif choice is not None:
        yield _sureness(answer, kinds, comparison)
        if choice.doubts:
            yield f"its figure is {', '.join(choice.doubts)}"
    if answer.alike is not None and name in ALIKE:
        yield f"{ALIKE[name]}: {_briefly(answer.alike, comparison)}"
    if answer.estimate is not None:
        yield f"perhaps {BETTER[name]}, by estimate: {_briefly(answer.estimate, comparison)}"
    for change in answer.changes:
        yield _changed(change, comparison)


def _in_other_groups(answer: MachineAnswer, part: ModelPart, comparison: Comparison) -> Iterator[str]:
    """Yield the best answer to the same question of another group of equal recipe, if it is better."""
    better = [
        (_rank(other.choice, answer.question), group.number, other.choice)
        for group in comparison.parts
        if (group.model, group.recipe) == (part.model, part.recipe) and group.number != part.number
        for other in group.answers
        if other.question == answer.question and other.choice is not None and other.choice.measured
    ]
    own = answer.choice if answer.choice is not None and answer.choice.measured else None
    if better:
        rank, number, choice = min(better, key=lambda found: found[:2])
        if own is None or rank < _rank(own, answer.question):
            yield f"under other conditions (group {number}), {_briefly(choice, comparison)}"


def _rank(choice: Choice, question: Question) -> tuple[float, float]:
    """Order choices by the quantity of the question: by days, or by costs and then by days."""
    if question in ("fastest", "fastest in budget"):
        return choice.days, 0.0
    return math.inf if choice.spend is None else choice.spend, choice.days


def _sureness(answer: MachineAnswer, kinds: int, comparison: Comparison) -> str:
    match answer.question:
        case "cheapest by the deadline":
            return "at least 95 of 100 machines of its kind meet the deadline"
        case "fastest in budget" if answer.certain == "yes":
            return "at least 95 of 100 machines of its kind stay in the budget"
        case "fastest in budget":
            return "with another machine of its kind it may cost more than the budget"
        case "fastest" if answer.alike is not None:
            return f"not provably slower is {_briefly(answer.alike, comparison)}"
        case "fastest" if kinds == 1:
            return "no other kind of machine was measured"
        case "fastest":
            return "no other kind that was measured is as fast, at 95%"
        case _:
            return "rents are those quoted below, and change"


def _changed(change: Change, comparison: Comparison) -> str:
    deadline = change.limit == "deadline"
    if change.side == "from":
        value = _rounded_up(change.value)
        limit = days_text(value) if deadline else money_text(math.ceil(change.value), comparison.currency)
        lead = f"from a {change.limit} of {limit} on"
    else:
        limit = days_text(change.value) if deadline else money_text(change.value, comparison.currency)
        lead = f"with a {change.limit} under {limit}"
    return f"{lead}, {_briefly(change.choice, comparison) if change.choice else 'no measured machine does'}"


def days_text(days: float, digits: int = 3) -> str:
    """Format days with their noun, as 1 day or 7.74 days."""
    text = figures(days, digits)
    return f"{text} day" if text == "1" else f"{text} days"


def _rounded_up(value: float) -> float:
    """Round up to three digits: a limit that is rounded down when it is shown would not suffice."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return math.ceil(value / unit) * unit


def capital(text: str) -> str:
    """Return a text with its first letter in upper case; the others stay as they are."""
    return text[:1].upper() + text[1:]
