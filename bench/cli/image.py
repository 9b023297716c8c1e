"""`bench image build`, `kernels`, `add`, `id`, `sbom`, `save` and `load`."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.base.errors import BadInput, one_line
from bench.base.paths import cache_path, making_folders
from bench.base.shipped_data import locks_folder
from bench.base.sizes import size_text
from bench.base.strict_json import harmless_json, to_json
from bench.base.terminal import print_json
from bench.images.archive import ImageFacts, facts_of, pack_layers, write_archive
from bench.images.build_image import BuildInputs
from bench.images.build_image import build as build_image
from bench.images.build_kernels import build_kernels, compiled_wheels, wheels_of
from bench.images.engines import Engine, find_engine, preflight
from bench.images.kernel_layer import (
    LABEL,
    KernelLayer,
    add_kernels,
    below_kernels,
    is_layer,
    pack_kernels,
    read_layer,
    sbom_of,
)
from bench.images.locks import read_pins
from bench.images.variants import find_variant
from bench.packages.apt_sources import source_url

UNPACKED = 2.2  # disk space that an engine needs to load an archive (copy and layers), per archive size


@dataclass(frozen=True, slots=True, kw_only=True)
class InputArguments:
    """The options of `build` and `kernels`; `source` None: the working folder, or the wheel's locks."""

    variant: str
    source: Path | None
    cache: Path | None
    mirror: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildArguments(InputArguments):
    """The options of `bench image build`; `load` is the engine to load the image into."""

    out: Path | None
    tag: str | None
    load: str | None
    as_json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelArguments(InputArguments):
    """The options of `bench image kernels`; `wheels` None: compile those in `only`, or all if it is empty."""

    arch: str
    only: tuple[str, ...]
    jobs: int
    wheels: Path | None  # folder of wheels that are compiled already
    out: Path | None


@dataclass(frozen=True, slots=True)
class AddArguments:
    """The options of `bench image add`: an image, a kernel layer, and the file to write."""

    image: Path
    layer: Path
    out: Path
    tag: str | None
    as_json: bool


@dataclass(frozen=True, slots=True)
class ImageArguments:
    """The options of commands about one image; `engine` has it if it is no file."""

    image: str  # a file, or a name in the engine
    engine: str
    as_json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveArguments(ImageArguments):
    """The options of `bench image save`; `out` is the file to write."""

    out: Path


def build(request: BuildArguments) -> int:
    """Build an image file, and load it into an engine if --load names one."""
    inputs = _build_inputs(request)
    tag = request.tag or f"bench:{inputs.variant.name}"
    path = request.out or Path(f"out/images/bench-{inputs.variant.name}.tar")
    facts = build_image(inputs, path, tag, progress())
    if request.load:
        load_into(find_engine(request.load), path)
        print(f"loaded into {request.load} as {tag}", file=sys.stderr)
    show(facts, str(path), as_json=request.as_json)
    return 0


def _build_inputs(request: InputArguments) -> BuildInputs:
    cache = request.cache or cache_path("images")
    return BuildInputs(
        (request.source or locks_folder()).resolve(),
        find_variant(request.variant),
        cache.resolve(),
        tuple(map(_mirror_url, request.mirror)),
    )


def _mirror_url(source: str) -> str:
    """Return the URL of a mirror that --mirror names; BadInput if it names none."""
    url = source_url(source)
    if not url.startswith(("http://", "https://", "file:")):
        advice = "a URL such as http://HOST/debian, or a line of apt's list of sources"
        raise BadInput("does not name a mirror of Debian", where=f"--mirror {source}", advice=advice)
    return url


def kernels(request: KernelArguments) -> int:
    """Make a layer of the wheels that no package index has. Without --wheels, compile and lock them first."""
    inputs = _build_inputs(request)
    if request.wheels is None:
        for line in build_kernels(inputs, request.only, request.arch, request.jobs, progress()):
            print(line)
    wheels = compiled_wheels(inputs) if request.wheels is None else wheels_of(request.wheels, inputs.variant)
    out = request.out or Path(f"out/images/bench-{inputs.variant.name}-kernels.tar")
    with making_folders(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
    _show_layer(pack_kernels(wheels, inputs.variant, read_pins(inputs.lock), out))
    return 0


def add(request: AddArguments) -> int:
    """Write an image with a kernel layer on top."""
    facts, layer = facts_of(request.image), read_layer(request.layer)
    tag = request.tag or f"bench:{layer.kernels.variant}-kernels"
    with making_folders(request.out.parent):
        request.out.parent.mkdir(parents=True, exist_ok=True)
    add_kernels(request.image, facts, layer, request.out, tag)
    show(facts_of(request.out), str(request.out), as_json=request.as_json)
    return 0


def identity(request: ImageArguments) -> int:
    """Print the identity of an image, or the digest of a kernel layer."""
    if is_layer(Path(request.image)):
        _show_layer(read_layer(Path(request.image)), as_json=request.as_json)
        return 0
    with as_archive(request.image, request.engine) as (_, facts):
        show(facts, request.image, as_json=request.as_json)
    return 0


def sbom(request: ImageArguments) -> int:
    """Print the image's list of packages, CycloneDX, in which no character can control a terminal."""
    with as_archive(request.image, request.engine) as (path, facts):
        sys.stdout.buffer.write(harmless_json(sbom_of(path, facts)))
    return 0


def save(request: SaveArguments) -> int:
    """Write the image as one file with compressed layers; one image always gives the same bytes."""
    say, out = progress(), request.out
    out.parent.mkdir(parents=True, exist_ok=True)
    with (
        as_archive(request.image, request.engine) as (path, facts),
        tempfile.TemporaryDirectory(prefix="save-", dir=out.parent) as work,
    ):
        say("compressing")
        blobs = pack_layers(path, facts, Path(work), recompress=True, say=say)
        tag = (facts.tags or (tag_of(facts),))[0]
        write_archive(out, facts.config_bytes, blobs, tag)
    show(facts_of(out), str(out), as_json=request.as_json)
    return 0


def load(request: ImageArguments) -> int:
    """Load an image file into an engine, after comparing its bytes with the digests in its configuration."""
    archive = Path(request.image)
    facts = facts_of(archive)
    load_into(find_engine(request.engine), archive)
    show(facts, str(archive), as_json=False)
    return 0


def tag_of(facts: ImageFacts) -> str:
    """Return the name in engines that `bench image build` gives to an image of this variant."""
    return f"bench:{facts.labels.get('bench.variant', 'image')}"


def load_into(engine: Engine, archive: Path) -> None:
    """Load an archive into an engine, after checking that the engine's disk has room."""
    storage = engine.facts().storage
    if storage and Path(storage).exists():
        preflight.check_room(
            Path(storage), int(UNPACKED * archive.stat().st_size), f"the image {archive.name}"
        )
    engine.load(archive)


@contextmanager
def as_archive(image: str, engine: str) -> Iterator[tuple[Path, ImageFacts]]:
    """Yield an image as a file, the given one or one saved from the engine temporarily, with its facts."""
    if Path(image).exists():
        yield Path(image), facts_of(Path(image), image)
        return
    if image.endswith(".tar"):
        advice = "bench image build makes one; a name without .tar is an image in the engine"
        raise BadInput("no such file", where=image, advice=advice)
    with tempfile.TemporaryDirectory(prefix="bench-image-") as folder:
        saved = Path(folder) / "saved.tar"
        find_engine(engine).save(image, saved)
        yield saved, facts_of(saved, image)


def show(facts: ImageFacts, name: str, *, as_json: bool) -> None:
    """Print an image's identity, and its layers on stderr; or all of it as JSON."""
    if as_json:
        document = to_json(facts.identity) | {"labels": dict(facts.labels), "layers": to_json(facts.layers)}
        below = below_kernels(facts)
        document |= {"without_kernels": below.identity.config} if below else {}
        print_json(document)
        return
    print(facts.identity.config)
    stages = facts.config.stages
    for number, layer in enumerate(facts.layers):
        stage = one_line(stages[number]) if len(stages) == len(facts.layers) else ""
        print(f"  {layer.diff_id}  {stage:<10} {size_text(layer.size):>10}", file=sys.stderr)
    size = sum(layer.size for layer in facts.layers)
    if below := below_kernels(facts):
        print(f"  kernels {one_line(facts.labels[LABEL])} on {below.identity.config}", file=sys.stderr)
    packed = "compressed" if all(layer.compressed for layer in facts.layers) else "not compressed"
    variant, lock = (one_line(facts.labels.get(f"bench.{label}", "?")) for label in ("variant", "lock"))
    print(f"{name}   {size_text(size)} {packed}   variant {variant}   lock {lock[:19]}", file=sys.stderr)


def _show_layer(layer: KernelLayer, *, as_json: bool = False) -> None:
    kernels = layer.kernels
    if as_json:
        document = to_json(kernels) | {"digest": layer.digest}
        print_json(document)
        return
    print(layer.digest)
    for wheel in kernels.wheels:
        code = f"code for {', '.join(wheel.code)}" if wheel.code else "no code for GPUs"
        print(f"  {wheel.name} {wheel.version}: {code}", file=sys.stderr)
    size = size_text(layer.path.stat().st_size)
    needs = f"variant {kernels.variant}, Python {kernels.python}, torch {kernels.torch}"
    print(f"{layer.path}   {size}   kernel layer for {needs}", file=sys.stderr)


def progress() -> Callable[[str], None]:
    """Return a function that prints a line with the seconds since this call."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {text}", file=sys.stderr, flush=True)

    return say
