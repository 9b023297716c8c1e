"""Compare sending the CPU image with letting the node assemble it, over a slow uplink. Needs root and tc.

python benchmarks/assembled_push.py IMAGE WHEELS [SEND|INDEX|ALL ...]

IMAGE is an archive of `bench image build`, WHEELS a folder below which its wheels are. The lines are
those of slow_lines.py. Each way starts with an empty engine and an empty cache of the operator.

SEND sends all layers, INDEX lets the node download wheels, ALL also Debian packages.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.base.stamps import file_sha256
from bench.images.archive import extract, facts_of
from bench.images.package_list import LIST, read_list
from bench.packages.apt_sources import read_mirrors
from bench.packages.download import WantedFile, fetch_all
from bench.packages.package_index import PackageFile, PackageIndex
from bench.packages.pip_settings import read_settings
from benchmarks.line_costs import counted_processes, start
from benchmarks.slow_lines import namespace, node, served
from tests.e2e.pushing import WithImage
from tests.e2e.services import docker_engine


def publish(image: Path, wheels: Path, folder: Path) -> None:
    """Lay out an index of the image's wheels, and a mirror of its Debian packages from apt's mirrors."""
    files = read_list(extract(image, facts_of(image), LIST))
    by_digest = {file_sha256(path): path for path in wheels.rglob("*.whl")}
    debs = [file for file in files if not file.is_wheel]
    (folder / "packages").mkdir(parents=True)
    index = PackageIndex(read_settings(os.environ, Path.home()), read_mirrors())
    _, nowhere = fetch_all([WantedFile.of(file, index) for file in debs], index, folder / "packages")
    print(f"{len(debs) - len(nowhere)} of {len(debs)} Debian packages are on apt's mirrors", file=sys.stderr)
    for file in files:
        _publish(file, by_digest.get(file.sha256) or folder / "packages" / file.sha256, folder)


def _publish(file: PackageFile, source: Path, folder: Path) -> None:
    if not source.exists():
        return
    path = folder / ("simple" if file.is_wheel else "debian/pool/main")
    path = path / file.project / file.name if file.is_wheel else path / file.name
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, path)
    if file.is_wheel:
        link = f'<a href="{file.name.replace("+", "%2B")}#sha256={file.sha256}">{file.name}</a>'
        (path.parent / "index.html").write_text(link)


def measured(operator: WithImage, image: Path, port: int, group: Path, *words: str) -> dict[str, Any]:
    """Push a run to the empty node; return the costs until the image was loaded and a trial measured."""
    for name in ("results", "cache", "state"):
        shutil.rmtree(operator.folder / name, ignore_errors=True)
    options = [operator.manifest(), f"127.0.0.1:{port}", "--image", image, "--engine", "docker", "--device"]
    options += ["cpu", "--ssh-config", operator.nodes.ssh_config, *words]
    meter, costs = start(group), dict[str, Any]()
    push = subprocess.Popen(
        operator.command("push", *options),
        cwd=operator.folder,
        env=operator.environment(),
        text=True,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    assert push.stderr is not None
    for line in push.stderr:
        now = meter.costs()
        print(f"{now.wall_seconds:6.0f} s {now.cpu_seconds:5.0f} s of CPU  {line}", end="", file=sys.stderr)
        if "sent, verified" in line:
            costs["image_loaded"] = now.document()
        if "first_trial" not in costs and operator.mirrored():
            costs["first_trial"] = now.document()
    assert push.wait() == 0
    print(json.dumps(costs), file=sys.stderr)
    return costs


def main() -> None:
    """Push an assembled image over slow lines and print the costs of each chosen way as JSON."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("image", type=Path, metavar="IMAGE", help="an archive of bench image build")
    parser.add_argument("wheels", type=Path, metavar="WHEELS", help="a folder below which its wheels are")
    parser.add_argument("ways", nargs="*", metavar="WAY", help="SEND, INDEX or ALL; default: all three")
    given = parser.parse_args()
    image: Path = given.image
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-assembled-")))
        publish(image, given.wheels, folder / "web")
        group = stack.enter_context(counted_processes())
        stack.enter_context(namespace())
        url = stack.enter_context(served(folder / "web"))
        (folder / "docker").mkdir()
        engine = stack.enter_context(docker_engine(folder / "docker"))
        nodes, port = stack.enter_context(node(folder / "node", {"DOCKER_HOST": engine}))
        operator = WithImage(folder, nodes, docker=(engine,))
        index = ("--index", f"{url}/simple")
        ways = {
            "SEND": ("--no-assemble",),
            "INDEX": (*index, "--mirror", f"{url}/nothing"),
            "ALL": (*index, "--mirror", f"{url}/debian"),
        }
        found = {
            name: measured(operator, image.absolute(), port, group, *ways[name])
            for name in given.ways or ways
        }
    print(json.dumps({"cores": os.cpu_count(), **found}, indent=1))


if __name__ == "__main__":
    main()
