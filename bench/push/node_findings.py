"""Judge a survey: list everything that is wrong with a node, each with advice. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bench.base.errors import EnvironmentCannot
from bench.base.names import GIB
from bench.base.sizes import bytes_text, size_text
from bench.images.engines.preflight import OUT_BYTES, check_driver, check_free, check_gpus, check_machine
from bench.images.standalone_python import OLDEST_GLIBC
from bench.images.variants import Variant, images, version_numbers
from bench.push.node_survey import NEEDED, QUESTION_SECONDS, NodePython, Survey

SKEW_WARN_SECONDS = 30.0
SKEW_STOP_SECONDS = 240.0  # less than 5 minutes: a certificate becomes valid 5 minutes before it is made
MEMORY_BYTES = 2 * GIB  # less than a run of the smallest model needs: two processes import torch
_BUSY_PERCENT = 10
_BUSY_MIB = 1024  # of a GPU's memory; drivers and displays use a few hundred MiB

Weight = Literal["stop", "warn"]


@dataclass(frozen=True, slots=True)
class Need:
    """Requirements of a run on its node."""

    engine: str
    variant: Variant | None  # of the image or of the environment; None: neither
    on_cpu: bool
    gpus: int | None  # None: any number
    place_bytes: int = OUT_BYTES  # free space for the run's results and for layers being sent
    engine_bytes: int = 0  # free space on the disk of the engine's images
    send_bytes: int = 0  # of the image's layers that the engine lacks; an upper bound
    slurm: bool = False
    brings_python: bool = False  # an environment may get a Python of bench's own
    checks: bool = False  # the run is a node check, which itself reports faulty GPUs: they do not stop it


@dataclass(frozen=True, slots=True)
class PreflightFinding:
    """A problem of a node, which stops the run or is only a warning."""

    level: Weight
    what: str
    advice: str = ""


def _stop(what: str, advice: str = "") -> PreflightFinding:
    return PreflightFinding("stop", what, advice)


def _warn(what: str, advice: str) -> PreflightFinding:
    return PreflightFinding("warn", what, advice)


def stops_first(findings: Sequence[PreflightFinding]) -> list[PreflightFinding]:
    """Return findings with those that stop the run first, else in their order."""
    return sorted(findings, key=lambda finding: finding.level != "stop")


def judge_machine(survey: Survey, need: Need) -> list[PreflightFinding]:
    """Return the findings that do not depend on the engine."""
    return [*_machine(survey, need), *_gpus(survey, need)]


def judge_engine(survey: Survey, need: Need) -> list[PreflightFinding]:
    """Return the findings by which the engine of `need` cannot run bench there."""
    return [*_software(survey, need), *_gpu_access(survey, need)]


def _machine(survey: Survey, need: Need) -> Iterator[PreflightFinding]:
    if not survey.place_writable:
        yield _stop(f"{survey.user} may not write to {survey.place}", "choose another folder: --place DIR")
    if survey.not_own:
        yield _stop(
            f"{survey.not_own[0]} is another user's, or others may write to it: they could change what runs",
            "choose a folder of your own, which bench makes if it is not there: --place DIR",
        )
    for finding in _finding_of(
        lambda: check_free(survey.place_free_bytes, need.place_bytes, "a run", survey.place)
    ):
        yield replace(finding, advice=f"{finding.advice}, or choose a folder on another: --place DIR")
    if survey.available_bytes < MEMORY_BYTES:
        free = bytes_text(survey.available_bytes)
        yield _stop(f"{free} of memory is free, a run needs more than {bytes_text(MEMORY_BYTES)}")
    if abs(survey.skew_seconds) > SKEW_STOP_SECONDS:
        yield _stop(
            f"its clock is {_skew(survey)}: certificates would not be valid on it",
            "set the clock: timedatectl set-ntp true",
        )
    elif abs(survey.skew_seconds) > SKEW_WARN_SECONDS:
        yield _warn(f"its clock is {_skew(survey)}", "timedatectl set-ntp true")
    if survey.missing_programs:
        what = ", ".join(survey.missing_programs)
        yield _stop(f"it lacks {what}", "apt-get install coreutils util-linux tar")
    if not need.slurm and survey.load > max(1.0, 0.5 * survey.cores):
        yield _warn(f"it is busy: load {survey.load:.1f} on {survey.cores} cores", "the run will be slower")


def _skew(survey: Survey) -> str:
    return f"{abs(survey.skew_seconds):.0f} s {'ahead' if survey.skew_seconds > 0 else 'behind'}"


def _software(survey: Survey, need: Need) -> Iterator[PreflightFinding]:
    if need.slurm and survey.slurm is None:
        yield _stop("Slurm is not installed", "push to a login node, or omit --slurm")
    if need.engine == "none":
        yield from _environment(survey)
        return
    if need.engine == "venv":
        if need.variant is not None:
            yield from _installable(survey, need.variant, brings_python=need.brings_python)
        return
    engine = survey.engines[need.engine]
    if engine.facts is None:
        yield _stop(f"{need.engine}: {engine.why}", _how_to_get(need.engine, engine.why, survey.user))
    elif engine.free_bytes is not None and need.engine_bytes:
        where, free = engine.facts.storage or "", engine.free_bytes
        needed, what = need.engine_bytes, "the image"
        if survey.on_one_disk(need.engine):  # which holds the layers as they are sent, too
            needed, what = needed + need.place_bytes, f"the image together with a run in {survey.place}"
        yield from _finding_of(lambda: check_free(free, needed, what, where))


def _environment(survey: Survey) -> Iterator[PreflightFinding]:
    if survey.python_silent:
        yield _stop(
            f"its Python gave no answer in {QUESTION_SECONDS} s",
            "push again when the node is less busy; if it is idle, look at the file system that Python is on",
        )
    elif survey.python is None:
        yield _stop("its Python does not run", "name the Python of an environment on the node: --python")
    elif survey.lacking:
        yield _stop(
            f"its Python lacks {', '.join(survey.lacking)}",
            f"name the Python of an environment on the node that has {', '.join(NEEDED)}: --python",
        )
    elif tuple(map(int, survey.python.split("."))) < (3, 11):
        yield _stop(f"its Python is {survey.python}; the oldest supported is 3.11", "name another: --python")


def python_for(survey: Survey, variant: Variant) -> NodePython | None:
    """Return a Python of the node that the variant's lock has wheels for, the image's version if possible."""
    fitting = [each for each in survey.pythons if each.version in variant.pythons and not each.lacking]
    return min(fitting, key=lambda python: variant.pythons.index(python.version), default=None)


def can_have_python(survey: Survey, variant: Variant) -> bool:
    """Whether the Python that bench brings runs on a node, and the variant's lock has wheels for it."""
    libc = survey.libc or ""
    runs = libc.startswith("glibc ") and _is_at_least(libc.split()[1], OLDEST_GLIBC)
    return runs and images().python in variant.pythons


def _is_at_least(version: str, oldest: str) -> bool:
    return version_numbers(version) >= version_numbers(oldest)


def _installable(survey: Survey, variant: Variant, *, brings_python: bool) -> Iterator[PreflightFinding]:
    """Yield findings by which a variant's locked wheels cannot be installed or used on a node."""
    if survey.libc and not survey.libc.startswith("glibc "):
        yield _stop(
            f"its C library is {survey.libc}, and the locked wheels need glibc",
            "use a node with Debian, Ubuntu, RHEL or a relative of them, not Alpine",
        )
    elif survey.libc and not _is_at_least(survey.libc.split()[1], variant.glibc):
        yield _stop(
            f"it has {survey.libc}; the locked wheels of {variant.name} need {variant.glibc} or newer",
            "use a node with Debian 10, Ubuntu 20.04, RHEL 8 or newer, or a container engine there",
        )
    if survey.noexec:
        yield _stop(
            f"{survey.place} is on a file system mounted noexec, and no library can be loaded from it",
            "choose a folder on another file system: --place DIR",
        )
    if python_for(survey, variant) is not None or (brings_python and can_have_python(survey, variant)):
        return
    wanted = " or ".join(variant.pythons)
    brought = f"; the Python that bench brings needs glibc {OLDEST_GLIBC}" if brings_python else ""
    what = f"it has {pythons_text(survey)}; the locked wheels of {variant.name} are for Python {wanted}"
    yield _stop(
        what + brought,
        f"apt-get install python{variant.pythons[0]} on the node; or name its path: --python FILE",
    )


def pythons_text(survey: Survey) -> str:
    """Return the versions of a node's Pythons, in a list."""
    return ", ".join(dict.fromkeys(python.text for python in survey.pythons)) or "no Python 3"


def _how_to_get(engine: str, why: str, user: str) -> str:
    """Return advice for an engine that does not answer, by the reason that its survey gives."""
    if "permission denied" in why.lower():
        return f"usermod -aG {engine} {user} on the node, or log in as another user: USER@HOST"
    if "rootless" in why:
        return "--engine podman, which needs no root either"
    if why == "not installed":
        package = {"docker": "docker.io"}.get(engine, engine)
        return f"apt-get install {package} on the node, or measure there without a container: --engine venv"
    return f"start the engine on the node: systemctl start {engine}"


def _gpus(survey: Survey, need: Need) -> Iterator[PreflightFinding]:
    count = len(survey.gpus)
    stop_unless_check: Weight = "warn" if need.checks else "stop"
    if need.gpus is not None and count < need.gpus and not need.slurm:
        advice = "to rehearse on its CPU, with one process per GPU asked for: --device cpu"
        what = f"it has {count} GPUs, the manifest asks for {need.gpus}"
        yield PreflightFinding(stop_unless_check, what, "" if need.checks else advice)
    if need.variant is not None and not need.slurm:
        yield from _finding_of(lambda: check_machine(survey.host))
    if need.on_cpu:
        return
    if need.variant is not None and not need.slurm:
        variant = need.variant
        yield from _finding_of(lambda: check_driver(survey.host, variant))
    if survey.gpu_trouble and survey.host.driver and not need.slurm:
        yield PreflightFinding(
            "warn" if survey.gpus else stop_unless_check,
            f"nvidia-smi: {survey.gpu_trouble}",
            "examine it with a node check: bench push manifests/node-check.json HOST",
        )
    for gpu in survey.gpus:
        if gpu.uncorrected_errors:
            yield _warn(
                f"GPU {gpu.index} had {gpu.uncorrected_errors} uncorrected memory errors",
                "nvidia-smi -q -d ECC",
            )
        if gpu.busy_percent > _BUSY_PERCENT or gpu.used_mib > _BUSY_MIB:
            yield PreflightFinding(
                stop_unless_check,
                f"GPU {gpu.index} is in use: {gpu.busy_percent}% busy, {gpu.used_mib:,} MiB taken",
                "; ".join(survey.gpu_users)[:300] or "nvidia-smi shows the users, with sufficient rights",
            )


def _gpu_access(survey: Survey, need: Need) -> Iterator[PreflightFinding]:
    """Yield why the engine cannot give the node's GPUs to a container."""
    facts = survey.engines[need.engine].facts if need.engine in survey.engines else None
    needs_gpus = need.variant is not None and need.variant.driver is not None
    if facts is not None and needs_gpus and not need.on_cpu and not need.slurm:
        yield from _finding_of(lambda: check_gpus(survey.host, facts))


def _finding_of(check: Callable[[], None]) -> Iterator[PreflightFinding]:
    """Yield the error of a check in images.engines.preflight as a finding that stops the run."""
    try:
        check()
    except EnvironmentCannot as error:
        what = f"{error.where}: {error.message}" if error.where else error.message
        yield _stop(what, error.advice or "")


def machine_text(survey: Survey) -> str:
    """Return the GPUs or cores, driver and operating system of a node, on one line."""
    gpus = survey.gpus
    what = f"{len(gpus)}x {gpus[0].name}" if gpus else f"{survey.cores} cores, no GPU"
    driver = f"   driver {survey.host.driver}" if survey.host.driver else ""
    return f"{what}{driver}   {survey.os}"


def resources_text(survey: Survey, engine: str, python: str | None = None) -> str:
    """Return the free disk and memory, engine or Python, and clock of a node, on one line."""
    facts = survey.engines[engine].facts if engine in survey.engines else None
    cdi = " + CDI" if facts and facts.gpus == "cdi" else ""
    parts = [
        f"disk {size_text(survey.place_free_bytes)} free",
        f"{facts.name} {facts.version}{cdi}" if facts else f"Python {python or survey.python}",
        f"memory {size_text(survey.available_bytes)} free",
        f"clock {survey.skew_seconds:+.0f} s",
    ]
    return " · ".join(parts)
