"""Ask questions of the GPUs of one machine side by side: each question has its GPUs alone.

A question is a command that writes its bundles to a folder. Questions start in their order as soon as GPUs
are free. One that would take longer than what is left of the machine's time is not started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

BIG_MIB = 100_000  # between cards of 80 GB and of 141 GB
RUN = (sys.executable, "-m", "bench", "run")
POLL_SECONDS = 0.2
END_SECONDS = 20.0  # that an interrupted run has to write its partial bundle
NOT_STARTED = "left for the next machine"


@dataclass(frozen=True)
class Question:
    """A command that needs some GPUs, any or `gpu` alone, for at most about `seconds`.

    Its standard output goes to NAME.txt, and its errors to NAME.err.
    """

    name: str
    command: tuple[str, ...]
    seconds: float
    gpus: int = 1
    gpu: int | None = None

    def choose(self, free: Iterable[int]) -> tuple[int, ...] | None:
        """Return the GPUs to run on, or None if it must wait."""
        possible = [each for each in sorted(free) if self.gpu in (None, each)]
        return tuple(possible[: self.gpus]) if len(possible) >= self.gpus else None


@dataclass(frozen=True)
class Answer:
    """The end of a question. Its exit code is None if it was not started."""

    question: Question
    exit_code: int | None
    seconds: float = 0.0
    gpus: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.exit_code is None:
            return f"{self.question.name}  {NOT_STARTED}"
        where = ",".join(map(str, self.gpus))
        return f"{self.question.name}  exit code {self.exit_code} after {self.seconds:.0f} s  GPU {where}"


@dataclass(frozen=True)
class _Running:
    question: Question
    process: subprocess.Popen[bytes]
    gpus: tuple[int, ...]
    since: float

    def answer(self) -> Answer:
        return Answer(self.question, self.process.wait(), time.monotonic() - self.since, self.gpus)

    def interrupt(self) -> None:
        """Send to the command and its children what Ctrl-C sends, unless the command has ended."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)


def memory_mib() -> list[int]:
    """Return the memory of each GPU of this machine."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [int(line) for line in done.stdout.split()]


def ask(questions: Sequence[Question], gpu_count: int, out: Path, seconds: float) -> Iterator[Answer]:
    """Yield each answer as it arrives; interrupt what still runs shortly before `seconds` are over.

    A question answered with exit code 0 leaves NAME.done in `out`, and is left out when asked again.
    """
    until = time.monotonic() + seconds - END_SECONDS
    out.mkdir(parents=True, exist_ok=True)
    waiting = [each for each in questions if not (out / f"{each.name}.done").exists()]
    free, running = set(range(gpu_count)), list[_Running]()
    try:
        while waiting or running:
            left = until - time.monotonic()
            for each in [each for each in waiting if each.seconds > left or each.gpus > gpu_count]:
                waiting.remove(each)
                yield Answer(each, None)
            for each in list(waiting):
                if (gpus := each.choose(free)) is not None:
                    waiting.remove(each)
                    running.append(_start(each, gpus, out))
                    free -= set(gpus)
            time.sleep(POLL_SECONDS)
            if left < 0:
                for one in running:
                    one.interrupt()
            for one in [one for one in running if left < 0 or one.process.poll() is not None]:
                running.remove(one)
                free |= set(one.gpus)
                answer = one.answer()
                if answer.exit_code == 0:
                    (out / f"{one.question.name}.done").touch()
                yield answer
    finally:
        for one in running:
            one.interrupt()


def _start(question: Question, gpus: tuple[int, ...], out: Path) -> _Running:
    printed = out / f"{question.name}.txt"
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}
    with printed.open("wb") as answer, (out / f"{question.name}.err").open("wb") as log:
        process = subprocess.Popen(
            question.command,
            stdin=subprocess.DEVNULL,
            stdout=answer,
            stderr=log,
            env=os.environ | visible,
            start_new_session=True,
        )
    return _Running(question, process, gpus, time.monotonic())
