"""Stand-ins for compiled kernels, wheels with a small extension module, and for images without them."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sysconfig
from pathlib import Path

from bench.base.kernel_list import MODULES
from bench.images.kernel_layer import site_of
from bench.images.variants import images
from tests.environment.made_wheels import make_wheel
from tests.images.made_up_images import make_image

VERSIONS = {
    "mamba-ssm": "2.3.2.post1",
    "causal-conv1d": "1.7.0",
    "flash-attn": "2.8.3.post2",
    "deepspeed": "0.19.8",
}
TAGS = "cp311-cp311-linux_x86_64"
SITE = site_of(images().python)
TORCH = {"name": "torch", "version": "2.11.0+cu130", "purl": "pkg:pypi/torch@2.11.0%2Bcu130"}
LABELS = {
    "bench.variant": "cuda13",
    "bench.lock": "sha256:" + "1" * 64,
    "bench.without": "causal-conv1d deepspeed flash-attn mamba-ssm",
}
_SOURCE = """
#include <Python.h>
{fat}
static struct PyModuleDef made = {{PyModuleDef_HEAD_INIT, "{module}", "stands in", -1, NULL}};
PyMODINIT_FUNC PyInit_{module}(void) {{ return PyModule_Create(&made); }}
"""


def fat_binary(*codes: str) -> bytes:
    """Return a fat binary as nvcc writes it, with eight bytes for each code, as in "9.0a" or "ptx 9.0"."""
    entries = b""
    for code in codes:
        match = re.fullmatch(r"(ptx )?(\d+)\.(\d)([af]?)", code)
        assert match
        kind, capability = 1 if match[1] else 2, 10 * int(match[2]) + int(match[3])
        flags = 0x11 | {"a": 0x100000, "f": 0x200000, "": 0}[match[4]]
        entries += struct.pack("<HHIQ12xI8xQ16x", kind, 0x101, 64, 8, capability, flags) + bytes(8)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


def compile_library(folder: Path, module: str, fat: bytes) -> Path:
    """Compile an extension module for this Python that has `fat` where nvcc puts fat binaries."""
    array = f"static const unsigned char fat[] = {{{','.join(map(str, fat))}}};" if fat else ""
    source = folder / f"{module}.c"
    section = '__attribute__((section(".nv_fatbin"), used, aligned(8))) ' if fat else ""
    source.write_text(_SOURCE.format(module=module, fat=section + array))
    library = folder / f"{module}{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = f"-I{sysconfig.get_path('include')}"
    subprocess.run(["gcc", "-shared", "-fPIC", include, "-o", library, source], check=True)
    return library


def compiled_wheel(folder: Path, project: str, *codes: str) -> Path:
    """Make a wheel of a kernel of bench's locks, with an extension module that has code for GPUs."""
    folder.mkdir(parents=True, exist_ok=True)
    module = MODULES[project][-1]
    library = compile_library(folder, module, fat_binary(*codes) if codes else b"")
    files = {
        f"{MODULES[project][0]}/__init__.py": f"import {module}\n".encode(),
        library.name: library.read_bytes(),
    }
    return make_wheel(folder, project, VERSIONS[project], TAGS, files)


def make_plain(folder: Path, name: str = "plain.tar", torch: dict[str, str] = TORCH, **labels: str) -> Path:
    """Make an image of cuda13 that is whole without kernels."""
    sbom = json.dumps({"components": [torch]}).encode()
    files: list[dict[str, bytes | None]] = [
        {"usr": None, f"{SITE}/torch/__init__.py": b"version = 1\n"},
        {"usr/share/bench/sbom.cdx.json": sbom},
    ]
    return make_image(folder, files, name, LABELS | labels)
