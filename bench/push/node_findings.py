"""What is wrong with a node, judged purely from what it says of itself: all of it, each with what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from bench.base.errors import EnvironmentCannot
from bench.base.names import GIB
from bench.images.engines.preflight import OUT_BYTES, check_driver, check_free, check_gpus, check_machine
from bench.images.variants import Variant
from bench.push.node_survey import NEEDED, Survey
from bench.records.text import bytes_text

SKEW_SECONDS = 30.0  # a certificate is from five minutes ago, so this much is only worth a word
SKEW_LIMIT_SECONDS = 240.0
MEMORY_BYTES = 2 * GIB  # a run with the smallest model: torch twice
_BUSY_PERCENT = 10
_BUSY_MIB = 1024  # of a GPU's memory; drivers and displays hold some hundred

Weight = Literal["stop", "warn"]


@dataclass(frozen=True, slots=True)
class Need:
    """What a run asks of a node."""

    engine: str
    variant: Variant | None  # None: no image
    on_cpu: bool
    gpus: int | None  # None: as many as there are, or none
    place_bytes: int = OUT_BYTES  # where the run goes, and the blobs that are on their way
    engine_bytes: int = 0  # where the engine keeps images
    slurm: bool = False
    checks: bool = False  # what is wrong with GPUs is the check's to say, in a bundle that can be shown


@dataclass(frozen=True, slots=True)
class PreflightFinding:
    level: Weight
    what: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.what}\n  {self.advice}" if self.advice else self.what


def judge(found: Survey, need: Need) -> list[PreflightFinding]:
    """What stops a run comes first."""
    every = [*_machine(found, need), *_software(found, need), *_gpus(found, need)]
    return sorted(every, key=lambda finding: finding.level != "stop")


def _machine(found: Survey, need: Need) -> Iterator[PreflightFinding]:
    if not found.place_writable:
        yield PreflightFinding(
            "stop", f"{found.user} may not write to {found.place}", "--place is another folder there"
        )
    yield from _of(lambda: check_free(found.place_free_bytes, need.place_bytes, "a run", found.place))
    if found.available_bytes < MEMORY_BYTES:
        free = bytes_text(found.available_bytes)
        yield PreflightFinding(
            "stop", f"{free} of memory is free, a run takes {bytes_text(MEMORY_BYTES)} and more"
        )
    if abs(found.skew_seconds) > SKEW_LIMIT_SECONDS:
        yield PreflightFinding(
            "stop",
            f"its clock is {_skew(found)}: certificates would not be valid there",
            "set it: timedatectl set-ntp true",
        )
    elif abs(found.skew_seconds) > SKEW_SECONDS:
        yield PreflightFinding("warn", f"its clock is {_skew(found)}", "timedatectl set-ntp true")
    if found.missing_programs:
        what = ", ".join(found.missing_programs)
        yield PreflightFinding("stop", f"it lacks {what}", "apt-get install coreutils util-linux tar")
    if not need.slurm and found.load > max(1.0, 0.5 * found.cores):
        yield PreflightFinding(
            "warn", f"it is busy: load {found.load:.1f} on {found.cores} cores", "figures will be worse"
        )


def _skew(found: Survey) -> str:
    return f"{abs(found.skew_seconds):.0f} s {'ahead' if found.skew_seconds > 0 else 'behind'}"


def _software(found: Survey, need: Need) -> Iterator[PreflightFinding]:
    if need.slurm and found.slurm is None:
        yield PreflightFinding("stop", "there is no Slurm", "push to a login node, or leave --slurm out")
    if need.engine == "none":
        yield from _environment(found)
        return
    engine = found.engines[need.engine]
    if engine.facts is None:
        yield PreflightFinding(
            "stop", f"{need.engine}: {engine.why}", _how_to_get(need.engine, engine.why, found.user)
        )
    elif engine.free_bytes is not None and need.engine_bytes:
        where, free, wanted = engine.facts.storage or "", engine.free_bytes, need.engine_bytes
        yield from _of(lambda: check_free(free, wanted, "the image", where))


def _environment(found: Survey) -> Iterator[PreflightFinding]:
    if found.python is None:
        yield PreflightFinding(
            "stop", "that Python does not run", "--python is the one of an environment there"
        )
    elif found.lacking:
        yield PreflightFinding(
            "stop",
            f"its Python lacks {', '.join(found.lacking)}",
            f"--python is the one of an environment there with {', '.join(NEEDED)}",
        )
    elif tuple(map(int, found.python.split("."))) < (3, 11):
        yield PreflightFinding(
            "stop", f"its Python is {found.python}; 3.11 is the oldest that will do", "--python"
        )


def _how_to_get(engine: str, why: str, user: str) -> str:
    if "permission denied" in why.lower():
        return f"usermod -aG {engine} {user} there, or another user: USER@HOST"
    if "rootless" in why:
        return "--engine podman, which needs no root either"
    if why.startswith("there is no"):
        package = {"docker": "docker.io"}.get(engine, engine)
        return f"apt-get install {package} there, or --engine none with an environment of Python's"
    return f"start it there: systemctl start {engine}"


def _gpus(found: Survey, need: Need) -> Iterator[PreflightFinding]:
    count = len(found.gpus)
    grave: Weight = "warn" if need.checks else "stop"
    if need.gpus is not None and count < need.gpus and not need.slurm:
        advice = "--device cpu trains in as many processes on its CPU, to try things out"
        what = f"it has {count} GPUs, the manifest asks for {need.gpus}"
        yield PreflightFinding(grave, what, "" if need.checks else advice)
    if need.variant is not None and not need.slurm:
        yield from _of(lambda: check_machine(found.host))
    if need.on_cpu:
        return
    if need.variant is not None and not need.slurm:
        variant, facts = need.variant, found.engines[need.engine].facts
        yield from _of(lambda: check_driver(found.host, variant))
        if facts is not None and variant.driver is not None:
            yield from _of(lambda: check_gpus(found.host, facts))
    if found.gpu_trouble and found.host.driver and not need.slurm:
        yield PreflightFinding(
            "warn" if found.gpus else grave, f"nvidia-smi: {found.gpu_trouble}",
            "a node check looks closer: bench push with manifests/node-check.json",
        )  # fmt: skip
    for gpu in found.gpus:
        if gpu.uncorrected_errors:
            yield PreflightFinding(
                "warn",
                f"GPU {gpu.index} had {gpu.uncorrected_errors} uncorrected memory errors",
                "nvidia-smi -q -d ECC",
            )
        if gpu.busy_percent > _BUSY_PERCENT or gpu.used_mib > _BUSY_MIB:
            yield PreflightFinding(
                grave,
                f"GPU {gpu.index} is in use: {gpu.busy_percent}% busy, {gpu.used_mib:,} MiB taken",
                "; ".join(found.gpu_users)[:300] or "nvidia-smi shows by whom, where you may see it",
            )


def _of(check: Callable[[], None]) -> Iterator[PreflightFinding]:
    """A check of this machine's, of a node."""
    try:
        check()
    except EnvironmentCannot as error:
        what = f"{error.where}: {error.message}" if error.where else error.message
        yield PreflightFinding("stop", what, error.advice or "")
