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
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

BIG_MIB = 100_000  # between cards of 80 GB and of 141 GB
NEOX = ["tf32", "kernels", "rotary", "gelu", "norms", "half-weights", "fused-optimizer", "compile-blocks"]
ROBERTA = ["tf32", "kernels", "gelu", "masked-head", "half-weights", "fused-optimizer", "compile-blocks"]
FREE_LUNCH = ["free-lunch"]


@dataclass(frozen=True)
class Question:
    """One model at the fastest micro-batch known for a card of 80 GB and for one of 141 GB."""

    model: str
    methods: list[object]
    micro_batch_80: int | None  # None: does not fit
    micro_batch_141: int
    proof_steps: int = 3
    needs_seconds: float = 290.0  # a trial, and three minutes of real training

    gradient_check: bool = True
    name: str = ""  # of its files; default: the model's

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

    def on_gpu(self, gpu: int) -> Question:
        """Return this question without its proof, for a GPU that another GPU's proof is compared with."""
        name = f"{self.model}-gpu{gpu}"
        return replace(self, proof_steps=0, needs_seconds=120.0, gradient_check=False, name=name)


QUESTIONS = (
    Question("mamba-2.8b", [*FREE_LUNCH], 1, 4, gradient_check=False),  # its check takes minutes
    Question("pythia-6.9b", [[*NEOX, "cuda-graphs"]], None, 1, proof_steps=2, needs_seconds=430.0),
    Question("pythia-2.8b", [[*NEOX, "cuda-graphs"]], 4, 16),
    Question("pythia-1b", [[*NEOX, "cuda-graphs"]], 16, 32),
    Question("pythia-410m", [[*NEOX, "cuda-graphs"]], 32, 64),
    Question("pythia-160m", [[*NEOX, "cuda-graphs"]], 64, 128),
    Question("roberta-large", [[*ROBERTA, "cuda-graphs"]], 128, 128),
    Question("vit-l", [*FREE_LUNCH], 128, 256),
    Question("convnext-xl", [*FREE_LUNCH], 128, 256),
)


def memory_mib() -> list[int]:
    """Return the memory of each GPU of this machine."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [int(line) for line in done.stdout.split()]


def ask(question: Question, gpu: int, big: bool, out: Path, until: float) -> str:
    """Run one question on one GPU; return its outcome."""
    micro_batch = question.micro_batch_141 if big else question.micro_batch_80
    if micro_batch is None:
        return "does not fit"
    if until - time.monotonic() < question.needs_seconds:
        return "left for the next machine"
    name = question.name or question.model
    manifest, folder = out / f"{name}.json", out / name
    manifest.write_text(json.dumps(question.manifest(micro_batch)))
    command = [sys.executable, "-m", "bench", "run", str(manifest), "--engine", "none", "--out", str(folder)]
    own = {"CUDA_VISIBLE_DEVICES": str(gpu)}
    with (out / f"{name}.txt").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | own)
        try:
            code = process.wait(until - time.monotonic())
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            code = process.wait()
    for bundle in folder.glob("*.tar"):
        bundle.rename(out / f"{name}{'' if code == 0 else '-partial'}.tar")
    return f"exit code {code}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--on-every-gpu", action="append", default=[], metavar="MODEL")
    parser.add_argument("models", nargs="*")
    asked = parser.parse_intermixed_args()  # models may follow options
    until, gpus = time.monotonic() + asked.seconds, memory_mib()
    asked.out.mkdir(parents=True, exist_ok=True)
    waiting: queue.SimpleQueue[Question] = queue.SimpleQueue()
    for question in QUESTIONS:
        known = (asked.out / f"{question.model}.tar").exists()
        if not known and (question.model in asked.models or not asked.models):
            waiting.put(question)

    def answer(question: Question, gpu: int) -> None:
        became = ask(question, gpu, min(gpus) > BIG_MIB, asked.out, until)
        print(f"GPU {gpu}  {question.name or question.model}  {became}", flush=True)

    def work(gpu: int) -> None:
        here = set()
        with suppress(queue.Empty):
            while True:
                question = waiting.get_nowait()
                here.add(question.model)
                answer(question, gpu)
        for question in QUESTIONS:
            if question.model in asked.on_every_gpu and question.model not in here:
                answer(question.on_gpu(gpu), gpu)

    workers = [threading.Thread(target=work, args=(gpu,)) for gpu in range(len(gpus))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
