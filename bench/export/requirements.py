"""requirements.txt of an exported script: the packages whose versions affect its figures, as measured.

Bundles are not trusted, so a version is written only in one of the usual forms, and never an older one than
bench works with. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bench.records.trial import Trial
from bench.training.models import module_families
from bench.training.setting import sharded_by
from bench.training.vendor.transformers_inside import MAMBA_SSM

# Versions that this version of bench measures with, as in pyproject.toml.
MEASURED = {"torch": ">=2.10,<2.14", "transformers": ">=5.17,<5.18", "numpy": ">=2.1,<3"}
# Packages that scripts need but a measurement may lack, with the versions that the scripts were tested with.
TRIED = {"accelerate": ">=1.10,<2", "deepspeed": ">=0.19.8,<0.20", "peft": ">=0.21,<0.22"}
VERSION = re.compile(r"\d{1,6}(\.\d{1,6})*[a-z0-9.]{0,30}(\+[A-Za-z0-9.]{1,60})?", re.ASCII)
NUMBERS = re.compile(r"\d+(\.\d+)*", re.ASCII)


def needed(maker: Any, trial: Trial) -> Iterator[str]:
    """Yield the packages whose versions affect the figures; the bundle lists the rest of the environment."""
    yield from ("torch", "transformers", "numpy", *maker.NEEDS)
    own = module_families().get(trial.model.family)
    if own and own.package:
        yield own.package
    if sharded_by(trial.setting) == "zero" and "deepspeed" not in maker.NEEDS:
        yield "deepspeed"
    if trial.model.recipe.lora:
        yield "peft"
    if trial.setting:  # torch brings triton, and bench's own kernels are written in it
        yield "triton"
    if "kernels" in trial.setting and trial.model.family in MAMBA_SSM:
        yield from ("mamba-ssm", "causal-conv1d")


def requirements(packages: Mapping[str, str], names: Iterable[str]) -> str:
    """Return the text of requirements.txt, without bench, which no package index has."""
    lines = []
    for name in names:
        version = packages.get(name, "")
        known = VERSION.fullmatch(version) is not None
        if known and not _is_too_old(name, version):
            lines.append(_pin(name, version))
        elif known:
            lines.append(f"# Measured with {version}, which is too old:\n{name}{(MEASURED | TRIED)[name]}\n")
        elif name in TRIED:
            lines.append(f"# Not installed when it was measured; tested with:\n{name}{TRIED[name]}\n")
    return "".join(lines)


def _is_too_old(name: str, version: str) -> bool:
    """Whether a version is older than any that bench works with, and may have known vulnerabilities."""
    oldest = (MEASURED | TRIED).get(name, "").removeprefix(">=").partition(",")[0]
    return bool(oldest) and _numbers(version) < _numbers(oldest)


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers with which a version begins, such as 2, 11 and 0 of 2.11.0rc1."""
    found = NUMBERS.match(version)
    return tuple(map(int, found[0].split("."))) if found else ()


def _pin(name: str, version: str) -> str:
    """Return a requirement without build tag (+cu130), which indexes refuse; a comment names the build."""
    public, _, build = version.partition("+")
    source = "PyTorch's own index" if name == "torch" else "its project's releases"
    comment = f"# Measured with {version}. PyPI may have another build; the measured one is from {source}\n"
    return f"{comment if build else ''}{name}=={public}\n"
