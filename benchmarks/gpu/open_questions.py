"""Run the open questions of README.md on all GPUs of this machine, the most important first.

    python benchmarks/gpu/open_questions.py OUT [--seconds N] [--list] [QUESTION...]

Started again with the same OUT, it continues where it stopped. A question that fails does not stop the
others; the exit code is 1 if one failed. A question starts only if it can end within N seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schedule import BIG_MIB, RUN, Question, ask, memory_mib

HERE = Path(__file__).parent
SHAPES: dict[str, dict[str, Any]] = json.loads((HERE / "models.json").read_bytes())  # that people bring
USUAL = {"target_percent": 0.7, "measure_seconds": 8, "warmup_seconds": 8}


@dataclass(frozen=True)
class Questions:
    """The open questions of a machine with GPUs of this memory; their answers go to `out`."""

    out: Path
    gpu_count: int
    memory_mib: int

    def all(self) -> list[Question]:
        """Return the questions that this machine can answer, the most important first."""
        questions = list(self.of_speed())
        if self.memory_mib < BIG_MIB:
            questions += self.of_80_gb()
        if self.gpu_count > 1:
            questions += self.of_two_gpus()
        return questions

    def of_speed(self) -> Iterator[Question]:
        for name in ("granite-h-1b", "falcon-h1-1.5b"):
            yield self.change("mixers-in-graphs", name, 16, 300)
            yield self.script(f"peaks-{name}", 150, "peaks.py", name, "16", "--changes", "mixers-in-graphs")
        for name in ("swin-large", "segformer-b5"):
            yield self.change("stages-as-blocks", name, 32, 500)
        prove = {"steps": 3, "minutes": 1}
        yield self.run("mamba2-2.7b", 400, "mamba2-2.7b", 4, ["free-lunch"], prove=prove)
        yield self.settings("pythia-160m-settings", 1, "pythia-160m", "64", "32", "16")

    def of_80_gb(self) -> Iterator[Question]:
        prove = {"steps": 3, "minutes": 3}
        yield self.run("whisper-large-v3", 330, "whisper-large-v3", 8, ["free-lunch"], prove=prove)
        yield self.run("t5-v1.1-xl", 360, "t5-v1.1-xl", 8, ["free-lunch"], prove=prove)
        hour = (*RUN, str(HERE.parents[1] / "manifests/hour.json"), "--budget", "60m", "--resume")
        yield Question("hour", (*hour, "--out", str(self.out / "hour")), 3600)

    def of_two_gpus(self) -> Iterator[Question]:
        yield self.settings("pythia-160m-settings-2gpus", 2, "pythia-160m", "64")

    def run(
        self,
        name: str,
        seconds: float,
        model: str,
        micro_batch: int,
        methods: list[Any],
        **more: object,
    ) -> Question:
        """Write a manifest, of which `more` is a part, and return its run."""
        manifest = {
            "schema": "bench/manifest/v1",
            "name": name,
            "models": [SHAPES.get(model, {"name": model}) | {"micro_batch": micro_batch}],
            "methods": methods,
            "gpus": 1,
            "trial_minutes": 6,
            "timing": USUAL,
        }
        path = self.out / f"{name}.manifest.json"
        path.write_text(json.dumps(manifest | more))
        return Question(name, (*RUN, str(path), "--resume", "--out", str(self.out / name)), seconds)

    def change(self, change: str, model: str, micro_batch: int, seconds: float) -> Question:
        """Return the question of what a change gains in whole passes of a model."""
        name = f"{change}-{model}"
        return self.script(name, seconds, "would_it_pay.py", change, model, str(micro_batch))

    def script(self, name: str, seconds: float, script: str, *arguments: str) -> Question:
        """Return the question that another script of this folder answers."""
        return Question(name, (sys.executable, str(HERE / script), *arguments), seconds)

    def settings(self, name: str, gpus: int, *model_and_micro_batches: str) -> Question:
        """Return the question that brings every setting of a model to an outcome."""
        script = ("bash", str(HERE / "every_setting.sh"), str(self.out / name), str(gpus))
        return Question(name, (*script, *model_and_micro_batches), 1500, gpus)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--list", action="store_true", help="print names, GPUs and seconds, run nothing")
    parser.add_argument("names", nargs="*", metavar="QUESTION")
    asked = parser.parse_intermixed_args()
    memory = memory_mib()
    asked.out.mkdir(parents=True, exist_ok=True)
    known = {each.name: each for each in Questions(asked.out, len(memory), min(memory)).all()}
    if unknown := set(asked.names) - known.keys():
        parser.error(f"no question here is named {', '.join(sorted(unknown))}: see --list")
    questions = [each for name, each in known.items() if name in asked.names or not asked.names]
    if asked.list:
        print(*(f"{each.name}  {each.gpus} GPU  {each.seconds:.0f} s" for each in questions), sep="\n")
        return
    failed = 0
    for answer in ask(questions, len(memory), asked.out, asked.seconds):
        print(answer, flush=True)
        failed += bool(answer.exit_code)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
