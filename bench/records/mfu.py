"""MFU, as training logs state it: the model's own arithmetic, as a share of the vendor's peak. Pure.

Recomputation counts as no arithmetic, so MFU is not HFU. The peak is that of the data sheet: dense, in the
precision of the recipe, of all GPUs that trained. "Of limit" divides by what the machine itself reached.
"""

from __future__ import annotations

from bench.base.gpu_catalogue import gpu_named
from bench.records.run_results import TrialResult
from bench.records.trial import NodeFacts


def mfu_of(trial: TrialResult, node: NodeFacts, precision: str) -> float | None:
    """Return the MFU of a trial; None without an estimate, on a CPU, and for a card the catalogue lacks."""
    cards = [gpu_named(gpu.name) for gpu in node.gpus[: trial.gpus]]
    known = [card for card in cards if card is not None]
    if trial.estimate is None or not known or len(known) < len(cards):
        return None
    peak = trial.gpus * min(card.peak_flops(precision, tf32="tf32" in trial.setting) for card in known)
    return trial.estimate.flops_per_second / peak
