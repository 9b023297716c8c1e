"""Odd values in the structure of documents, and summaries that follow from samples, for `tests.fuzz`."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

from bench.base.strict_json import from_json
from bench.records.fastest import fastest_with_confidence
from bench.records.run_results import LabelledTrial, Results, reduce_trial, trial_results
from bench.records.trial import Measurement, Trial

ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    0.0,
    -1.5,
    1e300,
    1e-300,
    2**53,
    "",
    "x",
    [],
    {},
    [[]],
    {"kind": "measured"},
    -0.0,
    1e17,
    2**63,
    -(2**53),
)
TEXTS = (
    "\x1b[2J\x1b]0;x\x07",
    "two\nlines",
    "\u202ereversed",
    "=1+1",
    "<x-stranger>",
    '"><x-stranger>',
    "](http://evil) | x",
    "\x00",
    "../../etc/passwd",
    "naive",
    "NVIDIA H200",
    "9" * 4000,
    "x" * 100_000,
    "\u00a0\u2028",
    "{}",
)


def odd_text(dice: random.Random) -> str:
    return dice.choice(TEXTS)


def odd_value(dice: random.Random, old: Any = None) -> Any:
    """Return an odd value; often one of the old one's type, since others are refused at once."""
    if dice.random() < 0.6:
        if isinstance(old, str):
            return dice.choice((odd_text(dice), old + odd_text(dice)))
        if isinstance(old, (int, float)) and not isinstance(old, bool):
            kept = [odd for odd in ODD if type(odd) is type(old)]
            return dice.choice((*kept, 2 * old, -old, old / 3 if isinstance(old, float) else old + 1))
    return odd_text(dice) if dice.random() < 0.4 else dice.choice(ODD)


def twist(value: Any, dice: random.Random) -> Any:
    """Put an odd value at a random place of a JSON value."""
    if dice.random() < 0.15 or not isinstance(value, (dict, list)) or not value:
        return odd_value(dice, value)
    if isinstance(value, dict):
        key = dice.choice(sorted(value))
        if dice.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        return value | {key: twist(value[key], dice)}
    at = dice.randrange(len(value))
    if dice.random() < 0.1:
        return value[:at] + value[at + 1 :]
    return [*value[:at], twist(value[at], dice), *value[at + 1 :]]


def follow(files: dict[str, bytes]) -> None:
    """Compute the summaries in results.json again, so that they follow from the samples."""
    results = from_json(Results, json.loads(files["results.json"]))
    lines = [json.loads(line) for line in files["samples.jsonl"].splitlines()]
    measured = {line["trial"]: from_json(Measurement, line["measurement"]) for line in lines}
    labelled = []
    for entry in results.trials:
        model = next(model for model in results.models if model.name == entry.model)
        trial = Trial(
            model, entry.setting, entry.micro_batch, entry.gpus, results.seed, results.timing,
            results.memory_cap_bytes, entry.data,
        )  # fmt: skip
        end = entry.failure or reduce_trial(trial, measured[entry.id], results.ceilings)
        labelled.append(LabelledTrial(trial, entry.label, end))
    proofs = {entry.id: entry.proof for entry in results.trials if entry.proof}
    trials = trial_results(labelled, proofs)
    winners = [fastest_with_confidence(w.model, trials, w.undecided) for w in results.winners]
    files["results.json"] = replace(results, trials=trials, winners=tuple(winners)).to_bytes()
