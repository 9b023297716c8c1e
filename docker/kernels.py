#!/usr/bin/env python3
"""Compile the CUDA kernels of flash-attn, mamba-ssm and causal-conv1d file by file, and link their wheels.

    kernels.py compile --sources DIR --objects DIR [--only flash_attn] [--arch 9.0] [--jobs N]
    kernels.py wheel   --sources DIR --objects DIR --out DIR [--arch 9.0]

The setup.py of these packages starts over when it is interrupted, and flash-attn takes hours on many cores.
This script keeps each finished object file in a folder whose name identifies its sources, compiler and
options. An interrupted `compile` continues where it stopped, on this machine or another, and its objects can
be copied. The objects contain no Python: `wheel` compiles the one file of each package that does, in the
image's builder stage, for the image's Python.

`compile` needs nvcc on the PATH and the headers of the torch in the lock. It needs neither a GPU nor a
network. The folder of --sources contains the source archives that requirements.lock names; packages without
an archive are skipped.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from importlib import metadata, util
from pathlib import Path

ARCHIVE = ".tar.gz"


@dataclass(frozen=True)
class Package:
    """A package with CUDA kernels, and how its extension module is compiled."""

    name: str
    extension: str  # the extension module that contains the kernels
    sources: str  # pattern of its .cu files
    binding: str  # the one file that includes Python
    includes: tuple[str, ...]
    version: str = ""  # version of the archive in --sources

    @property
    def stem(self) -> str:
        """Name and version, as in the names of its archive and its wheel."""
        return f"{self.name}-{self.version}"

    @property
    def archive(self) -> str:
        """File name of its source archive."""
        return f"{self.stem}{ARCHIVE}"


PACKAGES = (
    Package(
        "flash_attn",
        "flash_attn_2_cuda",
        "csrc/flash_attn/src/*.cu",
        "csrc/flash_attn/flash_api.cpp",
        ("csrc/flash_attn", "csrc/flash_attn/src", "csrc/cutlass/include"),
    ),
    Package(
        "mamba_ssm",
        "selective_scan_cuda",
        "csrc/selective_scan/*.cu",
        "csrc/selective_scan/selective_scan.cpp",
        ("csrc/selective_scan",),
    ),
    Package(
        "causal_conv1d",
        "causal_conv1d_cuda",
        "csrc/*.cu",
        "csrc/causal_conv1d.cpp",
        ("csrc",),
    ),
)

# DeepSpeed's optimizer for the CPU is pure C++. Its own build compiles for the processor of the build
# machine; these flags select instructions that every server of the last ten years supports.
DEEPSPEED = "deepspeed"
CPU_ADAM = ("csrc/adam/cpu_adam.cpp", "csrc/adam/cpu_adam_impl.cpp")
CPU_FLAGS = ("-O3", "-std=c++17", "-fPIC", "-fopenmp", "-march=x86-64-v3", "-D__AVX256__", "-Icsrc/includes")

# The flags of the packages' own setup.py, without -lineinfo and the verbose output of ptxas.
FLAGS = (
    "-O3",
    "-std=c++17",
    "-D_GLIBCXX_USE_CXX11_ABI=1",
    "--expt-relaxed-constexpr",
    "--expt-extended-lambda",
    "--use_fast_math",
    "--threads=1",
    "-Xcompiler=-fPIC",
)
SLOWEST_FIRST = ("bwd", "fwd_split", "fwd")


def main() -> int:
    """Parse the command line; compile or link the packages whose archives are there; return an exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for name, call in (("compile", compile_objects), ("wheel", make_wheels)):
        command = commands.add_parser(name)
        command.add_argument("--sources", type=Path, required=True)
        command.add_argument("--objects", type=Path, required=True)
        command.add_argument("--only", choices=[p.name for p in PACKAGES], help="compile only this package")
        command.add_argument("--arch", default="9.0", help="compute capabilities: 8.0;9.0 (default: 9.0)")
        command.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
        if call is make_wheels:
            command.add_argument("--out", type=Path, required=True)
        command.set_defaults(call=call)
    arguments = parser.parse_args()
    arguments.objects.mkdir(parents=True, exist_ok=True)
    chosen = [p for p in PACKAGES if arguments.only in (None, p.name)]
    available = [replace(p, version=v) for p in chosen if (v := _version(p.name, arguments.sources))]
    return int(arguments.call(arguments, available))


def _version(name: str, sources: Path) -> str | None:
    """Return the version in the name of a package's only source archive; None if there is no archive."""
    found = sorted(sources.glob(f"{name}-[0-9]*{ARCHIVE}"))
    if len(found) > 1:
        raise SystemExit(f"{sources} contains {' and '.join(path.name for path in found)}: which one?")
    return found[0].name.removeprefix(f"{name}-").removesuffix(ARCHIVE) if found else None


def compile_objects(arguments: argparse.Namespace, packages: list[Package]) -> int:
    """Compile the files that have no object yet, the slowest first; return 1 if any of them fails."""
    todo = [job for p in packages for job in _jobs(p, arguments)]
    left = sorted((job for job in todo if not job.target.exists()), key=lambda job: job.weight)
    print(f"{len(todo)} files, {len(todo) - len(left)} done before", flush=True)
    began, failed = time.monotonic(), 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        waiting = {pool.submit(job.run): job for job in left}
        for number, done in enumerate(as_completed(waiting), 1):
            seconds, fault = done.result()
            failed += fault is not None
            what = f"FAILED\n{fault}" if fault else f"{seconds:.0f} s"
            print(
                f"{time.monotonic() - began:6.0f} s  {number}/{len(left)}  {waiting[done].target.name}",
                what,
            )
            sys.stdout.flush()
    return 1 if failed else 0


def make_wheels(arguments: argparse.Namespace, packages: list[Package]) -> int:
    """Compile missing objects, then write one wheel per package; the same objects give the same bytes."""
    if compile_objects(arguments, packages):
        return 1
    arguments.out.mkdir(parents=True, exist_ok=True)
    for package in packages:
        library = _link(package, arguments)
        wheel = _wheel(package, _unpacked(package, arguments), library, arguments.out)
        print(f"{hashlib.sha256(wheel.read_bytes()).hexdigest()}  {wheel.name}", flush=True)
    if version := _version(DEEPSPEED, arguments.sources):
        _deepspeed(arguments, f"{DEEPSPEED}-{version}")
    return 0


# --- compiling -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One file to compile: where, to what, and with which flags of nvcc."""

    folder: Path
    source: str
    target: Path
    flags: tuple[str, ...]

    @property
    def weight(self) -> tuple[int, int]:
        """Sort key that puts the slowest files first, so that none of them starts last."""
        kind = next((i for i, word in enumerate(SLOWEST_FIRST) if word in self.source), len(SLOWEST_FIRST))
        size = re.search(r"hdim(\d+)", self.source)
        return kind, -int(size[1]) if size else -64

    def run(self) -> tuple[float, str | None]:
        """Compile the file; return the seconds, and nvcc's output if it failed, else None."""
        began = time.monotonic()
        unfinished = self.target.with_suffix(f".{os.getpid()}.part")
        # A relative path keeps the build folder out of the texts of assertions.
        command = ["nvcc", *self.flags, "-c", self.source, "-o", str(unfinished)]
        done = subprocess.run(command, check=False, cwd=self.folder, capture_output=True, text=True)
        if done.returncode:
            unfinished.unlink(missing_ok=True)
            return time.monotonic() - began, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        unfinished.rename(self.target)
        return time.monotonic() - began, None


def _jobs(package: Package, arguments: argparse.Namespace) -> Iterator[Job]:
    folder = _unpacked(package, arguments)
    flags = (*FLAGS, *_architectures(arguments.arch), *_includes(package))
    place = _objects(package, arguments)
    for source in sorted(folder.glob(package.sources)):
        yield Job(folder, str(source.relative_to(folder)), place / f"{source.stem}.o", flags)


def _objects(package: Package, arguments: argparse.Namespace) -> Path:
    """Create the folder of compiled objects, named by a digest of everything that they depend on."""
    archive = (arguments.sources / package.archive).read_bytes()
    depends = [
        hashlib.sha256(archive).hexdigest(),
        metadata.version("torch").partition("+")[0],
        _nvcc_release(),
    ]
    key = hashlib.sha256("\n".join([*depends, *FLAGS, arguments.arch]).encode()).hexdigest()[:12]
    place = arguments.objects.resolve() / f"{package.stem}-{key}"
    place.mkdir(exist_ok=True)
    return place


# No extraction filter: Debian 12's Python has none, and the lock's digests identify the archives.
def _unpacked(package: Package, arguments: argparse.Namespace) -> Path:
    path = arguments.sources / package.archive
    folder = arguments.objects.resolve() / "sources" / hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    if not folder.exists():
        part = folder.with_suffix(".part")  # an interrupted extraction would lack files unnoticed
        shutil.rmtree(part, ignore_errors=True)
        with tarfile.open(path) as archive:
            archive.extractall(part)
        part.rename(folder)
    return folder / package.stem


def _nvcc_release() -> str:
    text = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"release ([\d.]+)", text)
    assert release, f"nvcc --version names no release: {text}"
    return release[1]


def _architectures(arch: str) -> Iterator[str]:
    for number in (capability.replace(".", "") for capability in re.split(r"[; ,]+", arch)):
        yield f"-gencode=arch=compute_{number},code=sm_{number}"


def _includes(package: Package) -> Iterator[str]:
    headers = _torch() / "include"
    for place in (headers, headers / "torch/csrc/api/include", *package.includes):
        yield f"-I{place}"


def _torch() -> Path:
    found = util.find_spec("torch")
    assert found and found.submodule_search_locations, "torch is not installed here"
    return Path(found.submodule_search_locations[0])


# --- linking and packing ---------------------------------------------------------------------------------


def _link(package: Package, arguments: argparse.Namespace) -> Path:
    """Link the extension module for the running Python."""
    folder, objects = _unpacked(package, arguments), _objects(package, arguments)
    library = objects / f"{package.extension}{sysconfig.get_config_var('EXT_SUFFIX')}"
    cuda = Path(shutil.which("nvcc") or "").resolve().parent.parent
    python = sysconfig.get_path("include")
    compiled = [str(path) for path in sorted(objects.glob("*.o"))]
    defines = (f"-DTORCH_EXTENSION_NAME={package.extension}", "-DTORCH_API_INCLUDE_EXTENSION_H")
    binding = ["g++", "-O3", "-std=c++17", "-fPIC", "-D_GLIBCXX_USE_CXX11_ABI=1", *defines]
    binding += [*_includes(package), f"-I{cuda}/include", f"-I{python}", "-c", package.binding]
    _run([*binding, "-o", str(objects / "binding")], folder)
    # gcc 13 and later refer to this symbol; torch's own libraries initialise the streams, so an empty one
    # suffices.
    shim = 'extern "C" __attribute__((visibility("hidden"))) void _ZSt21ios_base_library_initv() {}'
    (objects / "shim.cpp").write_text(shim)
    torch = _torch() / "lib"
    libraries = ["-lc10", "-lc10_cuda", "-ltorch_cpu", "-ltorch_cuda", "-ltorch", "-ltorch_python"]
    runtime = next(
        iter(sorted((cuda / "lib").glob("libcudart.so.*")) or sorted(cuda.glob("lib64/libcudart.so.*")))
    )
    link = ["g++", "-shared", "-s", "-Wl,--build-id=none", "-fPIC", "-o", str(library), "shim.cpp"]
    _run([*link, "binding", *compiled, f"-L{torch}", *libraries, str(runtime)], objects)
    return library


def _deepspeed(arguments: argparse.Namespace, stem: str) -> None:
    """Build DeepSpeed's wheel with a compiled CPU Adam, so that nothing compiles it at run time."""
    work = arguments.objects.resolve() / "sources"
    shutil.rmtree(work / stem, ignore_errors=True)
    with tarfile.open(arguments.sources / f"{stem}{ARCHIVE}") as archive:
        archive.extractall(work)
    pip = next((Path("/build") / "wheels").glob("pip-*.whl"))
    plain = work / "deepspeed-wheel"
    shutil.rmtree(plain, ignore_errors=True)
    make = ["--no-deps", "--no-build-isolation", "--no-index", "--no-cache-dir", "--wheel-dir", str(plain)]
    os.environ["DS_ACCELERATOR"] = "cpu"  # DeepSpeed would otherwise look for a GPU
    _run([sys.executable, "-B", f"{pip}/pip", "wheel", *make, str(work / stem)], work)
    library = work / f"cpu_adam_op{sysconfig.get_config_var('EXT_SUFFIX')}"
    python, torch = sysconfig.get_path("include"), _torch() / "lib"
    headers = [f"-I{_torch()}/include", f"-I{_torch()}/include/torch/csrc/api/include", f"-I{python}"]
    define = [
        "-D_GLIBCXX_USE_CXX11_ABI=1",
        "-DTORCH_EXTENSION_NAME=cpu_adam_op",
        "-DTORCH_API_INCLUDE_EXTENSION_H",
    ]
    link = ["-shared", "-s", "-Wl,--build-id=none", "-o", str(library), *CPU_ADAM, f"-L{torch}"]
    libraries = ["-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"]
    _run(["g++", *CPU_FLAGS, *define, *headers, *link, *libraries], work / stem)
    with zipfile.ZipFile(next(plain.glob("*.whl"))) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}
    files[f"deepspeed/ops/adam/{library.name}"] = library.read_bytes()
    installed = "deepspeed/git_version_info_installed.py"
    version = metadata.version("torch").partition("+")[0].rpartition(".")[0]
    text = re.sub(r"'cpu_adam': \w+", "'cpu_adam': True", files[installed].decode())
    text = re.sub(r"accelerator_name='\w*'", "accelerator_name='cuda'", text)
    text = re.sub(r"'version': '[\d.]+'", f"'version': '{version}'", text)
    cuda = re.search(r"^cuda\b.*'([\d.]+)'", (_torch() / "version.py").read_text(), re.MULTILINE)
    assert cuda, "torch is built without CUDA"
    files[installed] = re.sub(r"'cuda_version': '[\d.]+'", f"'cuda_version': '{cuda[1]}'", text).encode()
    wheel = _pack(stem, files, arguments.out)
    print(f"{hashlib.sha256(wheel.read_bytes()).hexdigest()}  {wheel.name}", flush=True)


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def _wheel(package: Package, folder: Path, library: Path, out: Path) -> Path:
    stem = package.stem
    sources = (folder / package.name).rglob("*.py")
    files = {str(path.relative_to(folder)): path.read_bytes() for path in sources}
    files[library.name] = library.read_bytes()
    files[f"{stem}.dist-info/METADATA"] = (folder / "PKG-INFO").read_bytes()
    files[f"{stem}.dist-info/licenses/LICENSE"] = (folder / "LICENSE").read_bytes()
    return _pack(stem, files, out)


def _pack(stem: str, files: dict[str, bytes], out: Path) -> Path:
    """Write a wheel with sorted names and no dates, so that the same files give the same bytes."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    info = f"{stem}.dist-info"
    head = "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: false\n"
    files[f"{info}/WHEEL"] = f"{head}Tag: {tag}-{tag}-linux_x86_64\n".encode()
    lines = [_record(name, data) for name, data in sorted(files.items())]
    files[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"]).encode()
    wheel = out / f"{stem}-{tag}-{tag}-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name)  # the default date is 1980, the earliest of the format
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return wheel


def _record(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


if __name__ == "__main__":
    raise SystemExit(main())
