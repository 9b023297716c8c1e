"""Measure the models whose days README shows, each at its fastest known setting, and prove the estimates.

    python benchmarks/gpu/campaign.py OUT [--seconds N] [--on-every-gpu MODEL] [MODEL...]

Runs on every GPU of this machine at once, one model on each. A model whose bundle is in OUT is left out, so
that a campaign continues on the next machine with the bundles of the last one. A model is started only if it
can end within N seconds; one that takes longer is interrupted and leaves a partial bundle.

A model of `--on-every-gpu`, which can be given several times, is measured on each other GPU as well, without
a proof: by how much do cards of one kind differ? These bundles are named MODEL-gpu2 and so on.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path

from schedule import BIG_MIB, RUN, Answer, Question, ask, memory_mib

NEOX = ["tf32", "kernels", "rotary", "gelu", "norms", "half-weights", "fused-optimizer", "compile-blocks"]
ROBERTA = [
    "tf32", "kernels", "gelu", "masked-head", "half-weights", "fused-optimizer", "compile-blocks",
    "padded-head",
]  # fmt: skip
FREE_LUNCH = ["free-lunch"]


@dataclass(frozen=True)
class Measurement:
    """One model at the fastest micro-batch known for a card of 80 GB and for one of 141 GB."""

    model: str
    methods: list[object]
    micro_batch_80: int | None  # None: does not fit
    micro_batch_141: int
    proof_steps: int = 3
    seconds: float = 290.0  # a trial, and three minutes of real training

    gradient_check: bool = True
    name: str = ""  # of its files; default: the model's
    gpu: int | None = None  # on which it is measured; default: any

    def manifest(self, micro_batch: int) -> dict[str, object]:
        proof = {"prove": {"steps": self.proof_steps, "minutes": 3}} if self.proof_steps else {}
        return proof | {
            "schema": "bench/manifest/v1",
            "name": self.model,
            "models": [{"name": self.model, "micro_batch": micro_batch}],
            "gpus": 1,
            "methods": self.methods,
            "floor": False,
            "gradient_check": self.gradient_check,
            "trial_minutes": 9,
            "timing": {"target_percent": 0.5, "measure_seconds": 10, "warmup_seconds": 10},
        }

    def on_gpu(self, gpu: int) -> Measurement:
        """Return this measurement without its proof, for a GPU that another GPU's proof is compared with."""
        name = f"{self.model}-gpu{gpu}"
        return replace(self, proof_steps=0, seconds=120.0, gradient_check=False, name=name, gpu=gpu)

    def question(self, big: bool, out: Path) -> Question | None:
        """Write the manifest to OUT/NAME.manifest.json, and return its run; None if it does not fit."""
        micro_batch = self.micro_batch_141 if big else self.micro_batch_80
        if micro_batch is None:
            return None
        name = self.name or self.model
        manifest = out / f"{name}.manifest.json"
        manifest.write_text(json.dumps(self.manifest(micro_batch)))
        command = (*RUN, str(manifest), "--engine", "none", "--out", str(out / name))
        return Question(name, command, self.seconds, gpu=self.gpu)


MEASUREMENTS = (
    # The gradient check of mamba-2.8b takes minutes.
    Measurement("mamba-2.8b", [*FREE_LUNCH], 1, 4, seconds=380.0, gradient_check=False),
    Measurement("pythia-6.9b", [[*NEOX, "cuda-graphs"]], None, 1, proof_steps=2, seconds=480.0),
    Measurement("pythia-2.8b", [[*NEOX, "cuda-graphs"]], 4, 16, seconds=300.0),
    Measurement("pythia-1b", [[*NEOX, "cuda-graphs"]], 16, 32),
    Measurement("pythia-410m", [[*NEOX, "cuda-graphs"]], 32, 64),
    Measurement("pythia-160m", [[*NEOX, "cuda-graphs"]], 64, 128),
    Measurement("roberta-large", [[*ROBERTA, "cuda-graphs"]], 128, 128),
    Measurement("vit-l", [*FREE_LUNCH], 128, 256),
    Measurement("convnext-xl", [*FREE_LUNCH], 128, 256),
)


def wanted(models: list[str], on_every_gpu: list[str], gpu_count: int) -> list[Measurement]:
    """Return the measurements of `models`, all if none is named, and those of models on every GPU."""
    asked = [each for each in MEASUREMENTS if each.model in models or not models]
    proofs, others = list[Measurement](), list[Measurement]()
    for each in asked:
        if each.model not in on_every_gpu:
            proofs.append(each)
            continue
        proving = on_every_gpu.index(each.model) % gpu_count
        proofs.append(replace(each, gpu=proving))
        others += [each.on_gpu(gpu) for gpu in range(gpu_count) if gpu != proving]
    return [*proofs, *others]


def keep_bundle(answer: Answer, out: Path) -> None:
    """Move the bundle of an answer to OUT/NAME.tar, that of an interrupted run to OUT/NAME-partial.tar."""
    name = answer.question.name
    for bundle in (out / name).glob("*.tar"):
        bundle.rename(out / f"{name}{'' if answer.exit_code == 0 else '-partial'}.tar")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--on-every-gpu", action="append", default=[], metavar="MODEL")
    parser.add_argument("models", nargs="*")
    asked = parser.parse_intermixed_args()  # models may follow options
    gpus, out = memory_mib(), asked.out
    out.mkdir(parents=True, exist_ok=True)
    measurements = wanted(asked.models, asked.on_every_gpu, len(gpus))
    todo = [each for each in measurements if not (out / f"{each.name or each.model}.tar").exists()]
    possible = [each.question(min(gpus) > BIG_MIB, out) for each in todo]
    for answer in ask([each for each in possible if each], len(gpus), out, asked.seconds):
        keep_bundle(answer, out)
        print(answer, flush=True)


if __name__ == "__main__":
    main()
