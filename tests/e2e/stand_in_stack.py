"""A checkout whose locks name stand-ins, with which `bench image` builds and compiles in seconds.

A stand-in has name and version of the locked package, and of its contents only what a build touches: torch's
headers and libraries, a compiler that writes objects with code for the GPUs it was asked for, the sources of
kernels. Debian's packages, pip, setuptools and bench itself are real. All files are in one folder, where pip
looks for them.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from bench.images.locks import BUILDER, Pin, read_pins
from bench.images.variants import images
from tests.images.stand_in_kernels import fat_binary

REAL = ("pip", "setuptools")  # of every image, or of its build
CUDA = "nvidia/cu13"  # where NVIDIA's wheels put the compiler and its libraries
# A compiler of kernels: an object has a function, and what nvcc writes for each GPU where nvcc puts it.
_NVCC = """#!/usr/bin/python3
import re, struct, subprocess, sys
{fat_binary}
if "--version" in sys.argv:
    sys.exit(print("Cuda compilation tools, release 13.0, V13.0.88"))
codes = [f"{{code[:-1]}}.{{code[-1]}}" for code in re.findall(r"code=sm_(\\d+)", " ".join(sys.argv))]
name = re.sub(r"\\W", "_", sys.argv[sys.argv.index("-c") + 1])
array = ",".join(map(str, fat_binary(*codes)))
section = '__attribute__((section(".nv_fatbin"), used, aligned(8)))'
source = f"{{section}} static const unsigned char fat[] = {{{{{{array}}}}}}; void {{name}}(void) {{{{}}}}"
out = sys.argv[sys.argv.index("-o") + 1]
subprocess.run(["gcc", "-x", "c", "-fPIC", "-c", "-", "-o", out], input=source, text=True, check=True)
"""
_BINDING = """#include <Python.h>
#define MODULE_(name) PyInit_##name
#define MODULE(name) MODULE_(name)
static struct PyModuleDef made = {PyModuleDef_HEAD_INIT, "made", "stands in", -1, NULL};
PyMODINIT_FUNC MODULE(TORCH_EXTENSION_NAME)(void) { return PyModule_Create(&made); }
"""
_SETUP = "from setuptools import setup\nsetup(name='deepspeed', version={version!r}, packages={packages!r})\n"
_PACKAGES = ("deepspeed", "deepspeed.ops", "deepspeed.ops.adam")
_INFO = (
    "version={version!r}\ncompatible_ops={{'cpu_adam': False}}\naccelerator_name='cpu'\n"
    "torch_info={{'version': '0.0', 'cuda_version': '0.0'}}\n"
)
# Files of the kernels' source archives, whose layout docker/kernels.py knows.
_SOURCES: Mapping[str, Mapping[str, str]] = {
    "flash-attn": {
        "csrc/flash_attn/src/flash_fwd_hdim64_bf16_sm80.cu": "",
        "csrc/flash_attn/flash_api.cpp": _BINDING,
        "flash_attn/__init__.py": "import flash_attn_2_cuda\n",
    },
    "mamba-ssm": {
        "csrc/selective_scan/selective_scan_fwd_bf16.cu": "",
        "csrc/selective_scan/selective_scan.cpp": _BINDING,
        "mamba_ssm/__init__.py": "import selective_scan_cuda\n",
    },
    "causal-conv1d": {
        "csrc/causal_conv1d_fwd.cu": "",
        "csrc/causal_conv1d.cpp": _BINDING,
        "causal_conv1d/__init__.py": "import causal_conv1d_cuda\n",
    },
    "deepspeed": {
        "csrc/adam/cpu_adam.cpp": _BINDING,
        "csrc/adam/cpu_adam_impl.cpp": "",
        **{f"{each.replace('.', '/')}/__init__.py": "" for each in _PACKAGES},
    },
}  # fmt: skip


def lock_stand_ins(checkout: Path, real: Path, folder: Path) -> None:
    """Make the stand-ins in `folder`, and let every lock of wheels in the checkout name them.

    `real` is a folder with the wheels of pip and setuptools.
    """
    folder.mkdir()
    for project in REAL:
        (wheel,) = real.glob(f"{project}-*.whl")
        shutil.copy(wheel, folder)
    contents = {
        "torch": _torch(folder),
        "nvidia-cuda-nvcc": {f"{CUDA}/bin/nvcc": _NVCC.format(fat_binary=_FAT).encode()},
        "nvidia-cuda-runtime": {f"{CUDA}/lib/libcudart.so.13": _library(folder, "libcudart.so.13")},
    }
    for lock in (BUILDER, *(variant.lock for variant in images().variants)):
        pins = read_pins(checkout / lock)
        lines = [_pinned(pin, folder, contents.get(pin.name, {})) for pin in pins.values()]
        (checkout / lock).write_text("".join(lines), encoding="utf-8")


_FAT = inspect.getsource(fat_binary)


def _pinned(pin: Pin, folder: Path, contents: Mapping[str, bytes]) -> str:
    """Make the stand-in of a locked package; return its line of the lock."""
    stem = f"{pin.name.replace('-', '_')}-{pin.version}"
    if pin.name in REAL:
        (path,) = folder.glob(f"{pin.name}-*.whl")
    elif pin.name in _SOURCES:
        path = folder / f"{stem}.tar.gz"
        if not path.exists():  # two variants have it, and its bytes depend on the time
            _write_source(path, stem, pin)
    else:
        path = folder / f"{stem}-py3-none-any.whl"
        _write_wheel(path, stem, pin, contents)
    version = path.name.split("-")[1] if pin.name in REAL else pin.version
    return f"{pin.name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def _write_wheel(path: Path, stem: str, pin: Pin, contents: Mapping[str, bytes]) -> None:
    info = f"{stem}.dist-info"
    files = {
        **contents,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {pin.name}\nVersion: {pin.version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"]).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = 0o100755 << 16
            archive.writestr(entry, data)


def _write_source(path: Path, stem: str, pin: Pin) -> None:
    metadata = f"Metadata-Version: 2.1\nName: {pin.name}\nVersion: {pin.version}\n"
    files = {"PKG-INFO": metadata, "LICENSE": "", **_SOURCES[pin.name]}
    if pin.name == "deepspeed":
        files["setup.py"] = _SETUP.format(version=pin.version, packages=[*_PACKAGES])
        files["deepspeed/git_version_info_installed.py"] = _INFO.format(version=pin.version)
    _write_tar(path, {f"{stem}/{name}": text.encode() for name, text in files.items()})


def _write_tar(path: Path, files: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def _torch(folder: Path) -> Mapping[str, bytes]:
    names = (f"lib{name}.so" for name in _LIBRARIES)
    return {
        "torch/__init__.py": b"", "torch/version.py": b"cuda: str = '13.0'\n", "torch/include/torch.h": b"",
        **{f"torch/lib/{name}": _library(folder, name) for name in names},
    }  # fmt: skip


_LIBRARIES: Iterable[str] = ("c10", "c10_cuda", "torch", "torch_cpu", "torch_cuda", "torch_python")


def _library(folder: Path, name: str) -> bytes:
    """Return a shared library with nothing in it."""
    path = folder / name
    subprocess.run(["gcc", "-shared", "-nostdlib", "-x", "c", "/dev/null", "-o", path], check=True)
    data = path.read_bytes()
    path.unlink()
    return data
