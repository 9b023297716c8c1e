"""Run `bench run` and `bench check` in a container: `--engine` and `--image` of these commands."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from bench.base.errors import EnvironmentCannot
from bench.base.machine_share import memory_bytes, parts
from bench.base.names import IMAGE_VARIABLE
from bench.base.operating_system import give_to, user_and_group
from bench.base.paths import making_folders
from bench.base.strict_json import to_json
from bench.cli.measuring import MeasureArguments
from bench.cli.meeting import MeetingArguments, meeting_secret
from bench.images.container import (
    CHALLENGE,
    MANIFEST,
    MEET_SECRET,
    NOBODY,
    OUT,
    RDMA,
    Container,
    handed_on,
    limits,
)
from bench.images.engines import Engine, Inspected, find_engine, here, preflight
from bench.images.engines.output import settings_of_terminal
from bench.images.variants import Variant, find_variant, images, variant_for
from bench.node_check.check_manifest import data_folders, load_any, wanted_image


def measure_in_image(
    verb: Literal["run", "check"], manifest: Path, request: MeetingArguments, options: list[str]
) -> int:
    """Run `bench VERB` in a container, which gets a network and the secret if it is one of several nodes."""
    if request.nodes <= 1:
        return run_in_image(verb, manifest, request, options, challenge=request.challenge)
    options += [f"--nodes={request.nodes}", f"--node={request.node}", f"--meet={request.meet}"]
    options += ["--meet-in-public"] if request.meet_in_public else []
    with _readable_in_container(meeting_secret(request.meet_secret, os.environ)) as secret:
        return run_in_image(verb, manifest, request, options, challenge=request.challenge, meet_secret=secret)


@contextmanager
def _readable_in_container(secret: bytes) -> Iterator[Path]:
    """Yield a file with the secret that a container's user can read, in a folder that is closed to others."""
    with tempfile.TemporaryDirectory(prefix="bench-meet-") as folder:
        path = Path(folder) / "secret"
        path.write_bytes(secret)
        path.chmod(0o444)
        yield path


def run_in_image(
    verb: Literal["run", "check"],
    manifest: Path,
    request: MeasureArguments,
    arguments: Sequence[str],
    *,
    challenge: Path | None = None,
    identity: str | None = None,
    meet_secret: Path | None = None,
) -> int:
    """Run `bench VERB` in a hardened container and return its exit code, after checks of machine and image.

    `arguments` are the options of the command in the container. If `identity` is given, or the manifest names
    an image, no other image is accepted. With `meet_secret`, the container has the machine's network.
    """
    network = meet_secret is not None
    engine, out, loaded = find_engine(request.engine), request.out, load_any(manifest)
    image, held, gpus = _checked_image(engine, request, identity, wanted_image(loaded))
    with making_folders(out):
        out.mkdir(parents=True, exist_ok=True)
    preflight.check_room(out, preflight.OUT_BYTES, "a run's results")
    files = {"--challenge": challenge and CHALLENGE, "--meet-secret": meet_secret and MEET_SECRET}
    file_options = [word for option, path in files.items() if path for word in (option, path)]
    container = Container(
        image=held.runnable if held else image,
        command=(verb, MANIFEST, "--out", OUT, *arguments, *file_options),
        manifest=manifest,
        data=data_folders(loaded),
        out=out.resolve(),
        user=_user(out),
        memory_bytes=limits(memory_bytes()),
        gpus=gpus,
        network=network,
        rdma=network and Path(RDMA).is_dir(),
        environment=_environment(held, network=network),
        challenge=challenge.resolve() if challenge else None,
        meet_secret=meet_secret,
    )
    where = f"{OUT} in the container is {out} on this machine"
    if held and challenge:  # printed before the run: the operator certifies its request during the run
        print(where, file=sys.stderr)
    with _with_its_code(manifest, loaded.data) as whole:
        code = engine.run(replace(container, manifest=whole.resolve()))
    if held:
        print(where, file=sys.stderr)
    return code


def _environment(held: Inspected | None, *, network: bool) -> dict[str, str]:
    """Return the variables that are handed on to a container, and those that describe its image."""
    handed = {name: os.environ[name] for name in handed_on(network=network) if name in os.environ}
    if held is not None:
        handed |= {**settings_of_terminal(), IMAGE_VARIABLE: json.dumps(to_json(held.identity))}
    return handed


def _checked_image(
    engine: Engine, request: MeasureArguments, identity: str | None, wanted: str | None
) -> tuple[str, Inspected | None, bool]:
    """Return the image's name, the image in the engine, and whether the container gets GPUs.

    The image is None for the engine "none", with which the command runs without a container.
    EnvironmentCannot if machine, driver or engine cannot run it, or if it is not the image that is asked for.
    """
    facts, host = engine.facts(), preflight.read_host(here)
    if engine.name != "none":
        preflight.check_machine(host)
        preflight.check_job(facts, os.environ, lambda: parts(preflight.visible_gpus(here)))
    image = request.image or identity or _default_image(host, on_cpu=request.on_cpu)
    held = engine.inspect(image)
    preflight.check_identity(held.identity if held else None, identity or wanted, image)
    gpus = host.driver is not None and not request.on_cpu
    if held:
        variant = _variant_of(held.labels, image)
        gpus = gpus and variant.driver is not None
    if gpus:
        preflight.check_driver(host, variant)
        preflight.check_gpus(host, facts)
    return image, held, gpus


def _default_image(host: preflight.HostFacts, *, on_cpu: bool) -> str:
    """Return the tag, as `bench image build` sets it, of the variant that fits this machine."""
    chosen = variant_for(None if on_cpu else host.driver)
    if chosen is None:  # the driver is too old for all variants: check_driver reports that for the oldest
        chosen = [variant for variant in images().variants if variant.driver][-1]
        preflight.check_driver(host, chosen)
    return f"bench:{chosen.name}"


def _variant_of(labels: Mapping[str, str], image: str) -> Variant:
    name = labels.get("bench.variant", "")
    if name not in images().by_name:
        raise EnvironmentCannot("is not an image of bench", where=image, advice="bench image build makes one")
    return find_variant(name)


def _user(out: Path) -> tuple[int, int]:
    """Return the uid and gid in the container: the user's own, or for root those of `nobody`.

    The folder `out` is given to `nobody` if needed.
    """
    own = user_and_group()
    if own is not None and own[0] != 0:
        return own
    if out.stat().st_uid != NOBODY:
        give_to(out, NOBODY)
    return NOBODY, NOBODY


@contextmanager
def _with_its_code(manifest: Path, data: bytes) -> Iterator[Path]:
    """Yield a file with the manifest's data, which includes the code of its own modules.

    The container sees no other file of the manifest. A model's name, which stands for a manifest, is no file.
    """
    if manifest.exists() and data == manifest.read_bytes():
        yield manifest
        return
    with tempfile.TemporaryDirectory(prefix="bench-manifest-") as folder:
        whole = Path(folder) / manifest.name
        whole.write_bytes(data)
        yield whole
