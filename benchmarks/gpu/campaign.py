"""Measure the models whose days README shows, each at its fastest known setting, and prove the estimates.

    python benchmarks/gpu/campaign.py OUT [--seconds N] [MODEL...]

Runs on every GPU of this machine at once, one model on each. A model whose bundle is in OUT is left out, so
that a campaign continues on the next machine with the bundles of the last one. A model is started only if it
can end within N seconds; one that takes longer is interrupted and leaves a partial bundle.
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
from dataclasses import dataclass
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

    def manifest(self, micro_batch: int) -> dict[str, object]:
        return {
            "schema": "bench/manifest/v1",
            "name": self.model,
            "models": [{"name": self.model, "micro_batch": micro_batch}],
            "gpus": 1,
            "methods": self.methods,
            "floor": False,
            "trial_minutes": 9,
            "prove": {"steps": self.proof_steps, "minutes": 3},
            "timing": {"target_percent": 0.5, "measure_seconds": 10, "warmup_seconds": 10},
        }


QUESTIONS = (
    Question("mamba-2.8b", [*FREE_LUNCH], 1, 4),
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
    """Run one question on one GPU; return what became of it."""
    micro_batch = question.micro_batch_141 if big else question.micro_batch_80
    if micro_batch is None:
        return "does not fit"
    if until - time.monotonic() < question.needs_seconds:
        return "left for the next machine"
    manifest, folder = out / f"{question.model}.json", out / question.model
    manifest.write_text(json.dumps(question.manifest(micro_batch)))
    command = [sys.executable, "-m", "bench", "run", str(manifest), "--engine", "none", "--out", str(folder)]
    own = {"CUDA_VISIBLE_DEVICES": str(gpu)}
    with (out / f"{question.model}.txt").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | own)
        try:
            code = process.wait(until - time.monotonic())
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            code = process.wait()
    for bundle in folder.glob("*.tar"):
        bundle.rename(out / f"{question.model}{'' if code == 0 else '-partial'}.tar")
    return f"exit code {code}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("models", nargs="*")
    asked = parser.parse_intermixed_args()  # models may follow options
    until, gpus = time.monotonic() + asked.seconds, memory_mib()
    asked.out.mkdir(parents=True, exist_ok=True)
    waiting: queue.SimpleQueue[Question] = queue.SimpleQueue()
    for question in QUESTIONS:
        known = (asked.out / f"{question.model}.tar").exists()
        if not known and (question.model in asked.models or not asked.models):
            waiting.put(question)

    def work(gpu: int) -> None:
        while True:
            try:
                question = waiting.get_nowait()
            except queue.Empty:
                return
            became = ask(question, gpu, min(gpus) > BIG_MIB, asked.out, until)
            print(f"GPU {gpu}  {question.model}  {became}", flush=True)

    workers = [threading.Thread(target=work, args=(gpu,)) for gpu in range(len(gpus))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
