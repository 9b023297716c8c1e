"""Compile wheels that no index has, in the Dockerfile's builder stage, and lock them; find compiled wheels.

docker/kernels.py keeps every compiled object in the cache, so that an interrupted build continues, and
objects that were compiled on a larger machine can be copied into the cache.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.base.errors import BadInput, EnvironmentCannot, nearest
from bench.base.stamps import file_sha256
from bench.images.build_image import BuildInputs, Say, buildah, check_prerequisites, context
from bench.images.fetch import accepted_files, source
from bench.images.locks import BUILDER, read_built, read_pins, write_pins
from bench.images.variants import Variant
from bench.packages.package_index import normal

NEEDS_NO_NVCC = ("deepspeed",)  # wheels without CUDA code


def build_kernels(inputs: BuildInputs, only: Sequence[str], arch: str, jobs: int, say: Say) -> Iterator[str]:
    """Compile the variant's wheels, or only those in `only`; lock them and yield the lock's new lines."""
    variant = inputs.variant
    if not variant.kernels:
        raise BadInput(f"the variant {variant.name} has no wheels to compile")
    if unknown := sorted(set(only) - set(variant.kernels)):
        raise BadInput(
            f'"{unknown[0]}" is not a wheel to compile', advice=nearest(unknown[0], variant.kernels)
        )
    check_prerequisites(inputs)
    names = only or variant.kernels
    locked, builder = read_pins(inputs.lock), read_pins(inputs.root / BUILDER)
    ready = {name: pin for name, pin in locked.items() if name not in variant.kernels}
    objects, output = inputs.cache / f"objects-{variant.name}", inputs.cache / f"made-{variant.name}"
    objects.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    nvcc = not set(names) <= set(NEEDS_NO_NVCC)
    tools = [pin for name, pin in builder.items() if name not in ready]
    tools = [pin for pin in tools if nvcc or not pin.name.startswith("nvidia-")]
    with context(inputs, [*ready.values(), *tools], say) as folder:
        (folder / "sources").mkdir()
        for name in names:
            shutil.copy(source(locked[name], inputs.cache / "sources"), folder / "sources")
        write_pins(folder / "pins.txt", ready.values())
        write_pins(folder / "builder.txt", tools)
        long = f" for {arch}: takes hours, except for objects in the cache"
        say(f"compiling {', '.join(names)}{long if nvcc else ': no GPU kernels among them'}")
        arguments = {"ARCH": arch, "JOBS": str(jobs)}
        volumes = (f"{objects}:/objects:rw", f"{output}:/made:rw")
        buildah(folder, inputs, None, target="builder", arguments=arguments, volumes=volumes)
    yield from _lock(inputs, output, {name: locked[name].version for name in names})


def _lock(inputs: BuildInputs, output: Path, versions_to_build: Mapping[str, str]) -> Iterator[str]:
    """Move new wheels into the cache, write their lock, yield its new lines; refuse if a wheel is missing."""
    lines = {name: pin.line for name, pin in read_built(inputs.root, inputs.variant).items()}
    new = []
    # Each variant has its own folder: a wheel's name does not depend on the variant it was compiled for.
    keep = inputs.cache / "wheels" / inputs.variant.name
    keep.mkdir(parents=True, exist_ok=True)
    wheels = {normal(wheel.name.split("-")[0]): wheel for wheel in sorted(output.glob("*.whl"))}
    versions = {name: wheel.name.split("-")[1] for name, wheel in wheels.items()}
    if lacking := sorted(versions_to_build.items() - versions.items()):
        advice = "a defect of bench: please report it"
        raise EnvironmentCannot("docker/kernels.py made no wheel of {} {}".format(*lacking[0]), advice=advice)
    for name, wheel in wheels.items():
        new.append(f"{name}=={versions[name]} --hash=sha256:{file_sha256(wheel)}")
        lines[name] = new[-1]
        shutil.move(wheel, keep / wheel.name)
    head = f"# Made by `bench image kernels {inputs.variant.name}`: the very wheels that the image has.\n"
    (inputs.root / inputs.variant.built_lock).write_text(
        head + "".join(f"{line}\n" for _, line in sorted(lines.items())), encoding="utf-8", newline="\n"
    )
    yield from new


def compiled_wheels(inputs: BuildInputs) -> Mapping[str, Path]:
    """Return the locked wheels of the variant's kernels in the cache, by name."""
    pins = read_built(inputs.root, inputs.variant)
    return accepted_files(inputs.cache / "wheels" / inputs.variant.name, pins)


def wheels_of(folder: Path, variant: Variant) -> Mapping[str, Path]:
    """Return the wheels of a variant's kernels in a folder; BadInput if there are none, or two of a name."""
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.whl")):
        name = normal(path.name.split("-")[0])
        if name not in variant.kernels:
            continue
        if name in found:
            message = f"has both {found[name].name} and {path.name}"
            raise BadInput(message, where=str(folder), advice="leave only one of them in the folder")
        found[name] = path
    if not found:
        kernels = ", ".join(variant.kernels) or "none"
        advice = "bench image kernels compiles them"
        raise BadInput(
            f"has no wheel of {variant.name}'s kernels ({kernels})", where=str(folder), advice=advice
        )
    return found
