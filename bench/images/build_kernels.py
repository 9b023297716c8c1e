"""`bench image kernels`: the wheels that no index has, compiled in the Dockerfile's builder stage.

What docker/kernels.py has compiled is kept in the cache, file by file: an interrupted build goes on, and
objects that were compiled on a larger machine are taken when they lie there.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.base.errors import BadInput, EnvironmentCannot, nearest
from bench.images.build_image import BuildInputs, Say, buildah, check_place, context
from bench.images.fetch import digest, source
from bench.images.locks import BUILDER, Pin, normal, read_pins

NEEDS_NO_NVCC = ("deepspeed",)  # C++ alone


def build_kernels(recipe: BuildInputs, only: Sequence[str], arch: str, jobs: int, say: Say) -> Iterator[str]:
    """Makes the wheels and their lock, or those named alone; the new lines of the lock."""
    variant = recipe.variant
    if not variant.kernels:
        raise BadInput(f"the variant {variant.name} has nothing that is compiled")
    if unknown := sorted(set(only) - set(variant.kernels)):
        raise BadInput(f'"{unknown[0]}" is not compiled', advice=nearest(unknown[0], variant.kernels))
    check_place(recipe)
    wanted = only or variant.kernels
    locked, builder = read_pins(recipe.lock), read_pins(recipe.root / BUILDER)
    ready = {name: pin for name, pin in locked.items() if name not in variant.kernels}
    objects, made = recipe.cache / f"objects-{variant.name}", recipe.cache / f"made-{variant.name}"
    objects.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    nvcc = not set(wanted) <= set(NEEDS_NO_NVCC)
    beside = _beside(builder, ready, nvcc)
    with context(recipe, [*ready.values(), *beside], say) as folder:
        (folder / "sources").mkdir()
        for name in wanted:
            shutil.copy(source(locked[name], recipe.cache / "sources"), folder / "sources")
        (folder / "pins.txt").write_text("".join(f"{pin.line}\n" for pin in ready.values()))
        (folder / "builder.txt").write_text("".join(f"{pin.line}\n" for pin in beside))
        say(_said(wanted, arch, nvcc))
        arguments = {"ARCH": arch, "JOBS": str(jobs)}
        volumes = (f"{objects}:/objects:rw", f"{made}:/made:rw")
        buildah(folder, recipe, None, target="builder", arguments=arguments, volumes=volumes)
    yield from _lock(recipe, made, {name: locked[name].version for name in wanted})


def _beside(builder: Mapping[str, Pin], ready: Mapping[str, Pin], nvcc: bool) -> list[Pin]:
    """What the builder has beyond the image's own wheels."""
    beside = [pin for name, pin in builder.items() if name not in ready]
    return [pin for pin in beside if nvcc or not pin.name.startswith("nvidia-")]


def _said(wanted: Sequence[str], arch: str, nvcc: bool) -> str:
    if not nvcc:
        return f"compiling {', '.join(wanted)}: no kernel of a GPU is among them"
    return f"compiling {', '.join(wanted)} for {arch}: hours, unless it was done before"


def _lock(recipe: BuildInputs, made: Path, wanted: Mapping[str, str]) -> Iterator[str]:
    """The new wheels, into the cache and into the lock of built ones; all that were wanted, or none."""
    lines = {
        name: pin.line for name, pin in (read_pins(recipe.built) if recipe.built.exists() else {}).items()
    }
    new = []
    # Of its own: another variant's wheel of the same version has the same name.
    keep = recipe.cache / "wheels" / recipe.variant.name
    keep.mkdir(parents=True, exist_ok=True)
    wheels = {normal(wheel.name.split("-")[0]): wheel for wheel in sorted(made.glob("*.whl"))}
    versions = {name: wheel.name.split("-")[1] for name, wheel in wheels.items()}
    if lacking := sorted(wanted.items() - versions.items()):
        raise EnvironmentCannot(
            "docker/kernels.py made no wheel of {} {}".format(*lacking[0]), advice="a defect of bench"
        )
    for name, wheel in wheels.items():
        new.append(f"{name}=={versions[name]} --hash=sha256:{digest(wheel)}")
        lines[name] = new[-1]
        shutil.move(wheel, keep / wheel.name)
    head = f"# Made by `bench image kernels {recipe.variant.name}`: the very wheels that the image has.\n"
    recipe.built.write_text(head + "".join(f"{line}\n" for _, line in sorted(lines.items())))
    yield from new
