"""`bench image ...` and the commands with `--engine`: from arguments to what people and programs read."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.machine_share import memory_bytes, parts
from bench.base.names import IMAGE_VARIABLE
from bench.base.paths import making_folders
from bench.base.sbom import PLACE
from bench.base.strict_json import pretty_json, to_json
from bench.images.archive import (
    Blob,
    ImageFacts,
    compress,
    copy_layers,
    extract,
    opened,
    read_facts,
    write_archive,
)
from bench.images.build_image import BuildInputs
from bench.images.build_image import build as build_image
from bench.images.build_kernels import build_kernels
from bench.images.container import CHALLENGE, MANIFEST, NOBODY, OUT, RDMA, Container, handed_on, limits
from bench.images.engines import Engine, find_engine, here
from bench.images.engines.preflight import (
    OUT_BYTES,
    HostFacts,
    check_driver,
    check_gpus,
    check_identity,
    check_job,
    check_machine,
    check_room,
    read_host,
    visible_gpus,
)
from bench.images.variants import Variant, find_variant, images, variant_for
from bench.node_check.any_manifest import load_any, wanted_image

UNPACKED = 2.2  # an archive's layers on the disk of an engine, of its size: unpacked, and the copy it reads


def recipe(
    variant: str, source: Path, cache: Path | None, mirror: Sequence[str], without: Sequence[str] = ()
) -> BuildInputs:
    place = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bench/images"
    return BuildInputs(
        source.resolve(), find_variant(variant), place.resolve(), tuple(mirror), tuple(without)
    )


def build(recipe: BuildInputs, out: Path | None, tag: str | None, load: str | None, as_json: bool) -> int:
    tag = tag or f"bench:{recipe.variant.name}"
    path = out or Path(f"out/images/bench-{recipe.variant.name}.tar")
    facts = build_image(recipe, path, tag, _say())
    if load:
        _load(find_engine(load), path)
        print(f"loaded into {load} as {tag}", file=sys.stderr)
    _show(facts, str(path), as_json)
    return 0


def kernels(recipe: BuildInputs, only: Sequence[str], arch: str, jobs: int) -> int:
    """Compiles the wheels that no index has, and writes their lock."""
    for line in build_kernels(recipe, only, arch, jobs, _say()):
        print(line)
    return 0


def identity(image: str, engine: str, as_json: bool) -> int:
    _show(_facts(image, engine), image, as_json)
    return 0


def sbom(image: str, engine: str) -> int:
    with _as_archive(image, engine) as path, opened(path) as file:
        sys.stdout.buffer.write(extract(path, read_facts(file, image), str(PLACE).lstrip("/")))
    return 0


def save(image: str, out: Path, engine: str, as_json: bool) -> int:
    """The image as one file to carry, its layers compressed; the same bytes for the same image."""
    say = _say()
    out.parent.mkdir(parents=True, exist_ok=True)
    with (
        _as_archive(image, engine) as path,
        tempfile.TemporaryDirectory(prefix="save-", dir=out.parent) as work,
    ):
        with opened(path) as file:
            facts = read_facts(file, image)
        plain = copy_layers(path, facts, Path(work), say)
        packed = [layer.with_suffix(".gz") for layer in plain]
        say("compressing")
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # zlib lets go of the interpreter
            digests = list(pool.map(compress, plain, packed))
        blobs = [
            Blob(p, layer.diff_id, d, compressed=True)
            for p, layer, d in zip(packed, facts.layers, digests, strict=True)
        ]
        tag = (facts.tags or (f"bench:{facts.labels.get('bench.variant', 'image')}",))[0]
        write_archive(out, facts.config_bytes, blobs, tag)
    with opened(out) as file:
        _show(read_facts(file, str(out)), str(out), as_json)
    return 0


def run_in_image(
    verb: Literal["run", "check"],
    manifest: Path,
    out: Path,
    engine_name: str,
    image: str | None,
    arguments: Sequence[str],
    *,
    on_cpu: bool,
    network: bool,
    challenge: Path | None = None,
    identity: str | None = None,
) -> int:
    """The same command in the image: checks all that can be checked first, then runs, hardened.

    `identity`, or what the manifest names, is the only image that may run it.
    """
    engine = find_engine(engine_name)
    wanted = identity or wanted_image(load_any(manifest))
    facts, host = engine.facts(), read_host(here)
    if engine.name != "none":
        check_machine(host)
        check_job(facts, os.environ, lambda: parts(visible_gpus(here)))
    image = image or _default_image(host, on_cpu)
    found = engine.inspect(image)
    check_identity(found.identity if found else None, wanted, image)
    gpus = host.driver is not None and not on_cpu
    if found:
        variant = _variant_of(found.labels, image)
        gpus = gpus and variant.driver is not None
    if gpus:
        check_driver(host, variant)
        check_gpus(host, facts)
    with making_folders(out):
        out.mkdir(parents=True, exist_ok=True)
    check_room(out, OUT_BYTES, "a run's results")
    asked = ("--challenge", CHALLENGE) if challenge else ()
    own = {name: os.environ[name] for name in handed_on(network) if name in os.environ}
    container = Container(
        image=found.runnable if found else image,
        command=(verb, MANIFEST, "--out", OUT, *arguments, *asked),
        manifest=manifest.resolve(),
        out=out.resolve(),
        user=_user(out),
        memory_bytes=limits(memory_bytes()),
        gpus=gpus,
        network=network,
        rdma=network and RDMA.is_dir(),
        environment=own | ({IMAGE_VARIABLE: json.dumps(to_json(found.identity))} if found else {}),
        challenge=challenge.resolve() if challenge else None,
    )
    if found and challenge:  # now: the request is there to be fetched while it runs
        print(f"{OUT} is {out} here", file=sys.stderr)
    code = engine.run(container)
    if found:
        print(f"{OUT} is {out} here", file=sys.stderr)
    return code


def load(archive: Path, engine: str) -> int:
    """Into an engine's store, after its bytes were found to be what its configuration says."""
    with opened(archive) as file:
        found = read_facts(file, str(archive))
    _load(find_engine(engine), archive)
    _show(found, str(archive), as_json=False)
    return 0


def _load(engine: Engine, archive: Path) -> None:
    storage = engine.facts().storage
    if storage and Path(storage).exists():
        check_room(Path(storage), int(UNPACKED * archive.stat().st_size), f"the image {archive.name}")
    engine.load(archive)


def _default_image(host: HostFacts, on_cpu: bool) -> str:
    """The variant that fits this machine, under the tag that `build` gives it."""
    chosen = variant_for(None if on_cpu else host.driver)
    if chosen is None:  # too old for every one of them: say so by the oldest
        chosen = [variant for variant in images().variants if variant.driver][-1]
        check_driver(host, chosen)
    return f"bench:{chosen.name}"


def _variant_of(labels: Mapping[str, str], image: str) -> Variant:
    name = labels.get("bench.variant", "")
    if name not in images().by_name:
        raise EnvironmentCannot("is no image of bench", where=image, advice="bench image build makes one")
    return find_variant(name)


def _user(out: Path) -> tuple[int, int]:
    """Nobody, who gets the folder of the results; where we are not root, we ourselves, whose it is."""
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    if out.stat().st_uid != NOBODY:
        os.chown(out, NOBODY, NOBODY)
    return NOBODY, NOBODY


def _facts(image: str, engine: str) -> ImageFacts:
    with _as_archive(image, engine) as path, opened(path) as file:
        return read_facts(file, image)


@contextmanager
def _as_archive(image: str, engine: str) -> Iterator[Path]:
    """A file as it is; an engine's image saved to a temporary file."""
    if Path(image).exists():
        yield Path(image)
        return
    if image.endswith(".tar"):
        raise BadInput("no such file", where=image)
    with tempfile.TemporaryDirectory(prefix="bench-image-") as folder:
        saved = Path(folder) / "saved.tar"
        find_engine(engine).save(image, saved)
        yield saved


def _show(facts: ImageFacts, name: str, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(pretty_json(_json(facts)).decode())
        return
    print(facts.identity.config)
    made = [entry.get("created_by", "") for entry in facts.config.get("history") or []]
    for number, layer in enumerate(facts.layers):
        stage = made[number] if len(made) == len(facts.layers) else ""
        print(f"  {layer.diff_id}  {stage:<10} {layer.size / 1e6:10,.1f} MB", file=sys.stderr)
    size = sum(layer.size for layer in facts.layers)
    packed = "compressed" if all(layer.compressed for layer in facts.layers) else "not compressed"
    print(f"{name}   {size / 1e9:.3f} GB {packed}   {_labelled(facts)}", file=sys.stderr)


def _labelled(facts: ImageFacts) -> str:
    label = facts.labels.get
    return f"variant {label('bench.variant', '?')}   lock {label('bench.lock', '?')[:19]}"


def _json(facts: ImageFacts) -> Mapping[str, Any]:
    return {
        "config": facts.identity.config,
        "diff_ids": list(facts.identity.diff_ids),
        "labels": dict(facts.labels),
        "layers": [to_json(layer) for layer in facts.layers],
    }


def _say() -> Any:
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {text}", file=sys.stderr, flush=True)

    return say
