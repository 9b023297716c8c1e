"""`bench rent`: write the file with which SkyPilot or dstack rents a machine for a manifest."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.base.distribution import DISTRIBUTION
from bench.base.errors import BadInput, one_line
from bench.base.files import write_whole
from bench.base.gpu_catalogue import GpuModel, find_gpu_model, near_gpus
from bench.base.paths import using
from bench.base.terminal import print_json
from bench.node_check.check_manifest import (
    AnyManifest,
    CheckManifest,
    data_folders,
    load_any,
    wanted_environment,
    wanted_image,
)
from bench.push.image_store import ImageStore
from bench.push.rent import find_tool
from bench.push.rent.rental import CODE_FILE, MANIFEST_FILE, Rental

_EXTRAS = ("run", "lora")  # as in the images, but without packages that need a compiler


@dataclass(frozen=True, slots=True)
class RentArguments:
    """The options of `bench rent`; `gpus` None: as many as the manifest asks for, else one."""

    tool: str
    manifest: Path
    gpu: str
    gpus: int | None
    minutes: int
    cloud: str | None
    spot: bool
    name: str | None
    out: Path
    as_json: bool


def rent(request: RentArguments) -> int:
    """Write the tool's file, the manifest and bench's code into `out`; rent nothing, and pay nothing."""
    manifest = load_any(request.manifest)
    _refuse_what_is_not_there(manifest)
    rental = Rental(
        name=request.name or f"bench-{manifest.digest.removeprefix('sha256:')[:8]}",
        checks=isinstance(manifest, CheckManifest),
        gpu=_gpu(request.gpu),
        gpus=_count(request.gpus, manifest),
        minutes=request.minutes,
        spot=request.spot,
        cloud=request.cloud,
        requirements=requirements(),
    )
    rental.check()
    tool = find_tool(request.tool)
    path = request.out / tool.file_name
    text, commands = tool.text(rental), tool.commands(rental)
    _, code = ImageStore(print).code()
    with using(request.out):
        request.out.mkdir(parents=True, exist_ok=True)
        write_whole(request.out / MANIFEST_FILE, manifest.data)
        write_whole(request.out / CODE_FILE, code)
        write_whole(path, text.encode())
    if request.as_json:
        document = {"schema": "bench/rent/v1", "file": str(path), "name": rental.name, "commands": commands}
        print_json(document)
    else:
        print(text, end="")
        said = f"written to {path}; the commands at its top are for that folder"
        print(one_line(said), file=sys.stderr)
    return 0


def requirements() -> tuple[str, ...]:
    """Return the packages that a run imports, as this installation of bench requires them."""
    wanted = importlib.metadata.requires(DISTRIBUTION) or ()
    split = (line.partition(";") for line in wanted)
    extras = {f'extra == "{extra}"' for extra in _EXTRAS}
    return tuple(
        re.sub(r"\s", "", package) for package, _, marker in split if not marker or marker.strip() in extras
    )


def _refuse_what_is_not_there(manifest: AnyManifest) -> None:
    """Refuse a manifest with data, an image or an environment that a rented machine does not get."""
    if folders := data_folders(manifest):
        advice = "use made-up data; or rent a machine, copy the data there, and use bench push"
        message = f"the manifest reads {folders[0]}, which a rented machine does not have"
        raise BadInput(message, advice=advice)
    if software := wanted_image(manifest) or wanted_environment(manifest):
        advice = "rent a machine yourself, and use bench push"
        raise BadInput(f"the manifest asks for {software}; a rented machine installs packages", advice=advice)


def _gpu(name: str) -> GpuModel:
    model = find_gpu_model(name)
    if model is None:
        raise BadInput(f"--gpu {name}: unknown GPU", advice=near_gpus(name))
    if not model.runs_bench:
        advice = "bench predict --gpu predicts it; rent an NVIDIA GPU to measure"
        raise BadInput(f"--gpu {name}: bench does not run on {model.name}", advice=advice)
    return model


def _count(given: int | None, manifest: AnyManifest) -> int:
    """Return the number of GPUs to rent: the given one, else that of the manifest."""
    wanted = manifest.gpus
    if given is not None and wanted is not None and given < wanted:
        advice = f"--gpus {wanted} or more, or change the manifest"
        raise BadInput(f"--gpus {given}: the manifest asks for {wanted}", advice=advice)
    return given or wanted or 1
