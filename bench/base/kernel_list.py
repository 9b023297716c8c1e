"""The compiled kernels of an image's kernel layer, as its file kernels.json lists them. Pure.

A kernel is a wheel that no package index has, because it has to be compiled: docs/images.md, "Kernels".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from bench.base.strict_json import canonical_json, from_json, pretty_json, strict_loads

KERNEL_LIST = "usr/share/bench/kernels.json"  # path in an image
# The modules by which models and methods recognise an installed kernel, by the name of its wheel.
MODULES: Mapping[str, tuple[str, ...]] = {
    "flash-attn": ("flash_attn", "flash_attn_2_cuda"),
    "mamba-ssm": ("mamba_ssm", "selective_scan_cuda"),
    "causal-conv1d": ("causal_conv1d", "causal_conv1d_cuda"),
    "deepspeed": ("deepspeed",),
}
_CODE = re.compile(r"(?P<ptx>ptx )?(?P<major>[0-9]{1,2})\.(?P<minor>[0-9])(?P<only>[af]?)")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")


@dataclass(frozen=True, slots=True)
class CompiledWheel:
    """A wheel of compiled kernels."""

    name: str
    version: str
    file: str  # name of the wheel's file
    sha256: str  # of that file
    code: tuple[str, ...]  # for which GPUs, as in "8.0", "9.0a" or "ptx 9.0"; empty: no code for GPUs

    def runs_on(self, capability: str) -> bool:
        """Whether its code runs on a GPU of this compute capability."""
        return not self.code or any(code_runs_on(code, capability) for code in self.code)


@dataclass(frozen=True, slots=True)
class KernelList:
    """The contents of kernels.json."""

    variant: str
    python: str  # version that the wheels were compiled for, as major.minor
    torch: str  # version that the wheels were compiled for
    wheels: tuple[CompiledWheel, ...]
    schema: Literal["bench/kernels/v1"]


def read_kernels(data: bytes) -> KernelList:
    """Parse kernels.json; ValueError if it is malformed, or lists a wheel or GPU code unknown to bench."""
    kernels = from_json(KernelList, strict_loads(data))
    for wheel in kernels.wheels:
        if wheel.name not in MODULES:
            raise ValueError(
                f"it lists the wheel {wheel.name!r:.60}, and the kernels are {', '.join(MODULES)}"
            )
        if not all(_CODE.fullmatch(code) for code in wheel.code):
            raise ValueError(f"{wheel.name} lists code for a kind of GPU that bench does not know")
    texts = [kernels.variant, kernels.python, kernels.torch]
    texts += [text for wheel in kernels.wheels for text in (wheel.version, wheel.file, wheel.sha256)]
    if not all(map(_WORD.fullmatch, texts)):
        raise ValueError("a variant, version, file or digest has characters that are not allowed there")
    return kernels


def code_runs_on(code: str, capability: str) -> bool:
    """Whether code runs on a GPU, by NVIDIA's rules of compatibility.

    Machine code, such as "8.0" or "12.0f", runs on GPUs of the same major and at least the same minor
    version; "9.0a" runs on exactly 9.0. The driver compiles PTX for every GPU of at least its capability.
    """
    match = _CODE.fullmatch(code)
    if match is None:
        return False
    of_code = (int(match["major"]), int(match["minor"]))
    major, _, minor = capability.partition(".")
    of_gpu = (int(major), int(minor))
    if match["only"] == "a":
        return of_gpu == of_code
    if match["ptx"] and not match["only"]:
        return of_gpu >= of_code
    return of_gpu[0] == of_code[0] and of_gpu[1] >= of_code[1]


def modules_of(wheels: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the Python modules that these kernel wheels install."""
    return tuple(module for wheel in wheels for module in MODULES.get(wheel, ()))


def sbom_with(sbom: bytes, kernels: KernelList) -> bytes:
    """Return the SBOM of an image (CycloneDX) with the wheels of its kernel layer."""
    document: dict[str, Any] = strict_loads(sbom)
    components = [*document["components"], *map(_component, kernels.wheels)]
    return pretty_json({**document, "components": components})


def _component(wheel: CompiledWheel) -> dict[str, Any]:
    purl = f"pkg:pypi/{quote(wheel.name)}@{quote(wheel.version, safe='')}"
    hashes = [{"alg": "SHA-256", "content": wheel.sha256}]
    named = {"type": "library", "name": wheel.name, "version": wheel.version, "purl": purl, "bom-ref": purl}
    return named | {"hashes": hashes}


def label_of(kernels: KernelList) -> str:
    """Return the label that names kernels in an image's configuration: JSON, with code by wheel."""
    return canonical_json({wheel.name: list(wheel.code) for wheel in kernels.wheels}).decode()
