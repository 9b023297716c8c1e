"""Measure a push to a node without a container engine, over a slow uplink. Needs root and tc.

python benchmarks/venv_push.py [INDEX|SEND ...]

The lines are those of slow_lines.py. INDEX: the index has every wheel of the CPU's lock. SEND: it lacks
torch, as PyPI does. Each way begins with an empty node, and pushes a second time to the node that is full.

Prints what was spent (line_costs.py) from the start of `bench push` to the installed environment and to the
first measured trial.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.base.paths import cache_path
from bench.images.fetch import wheels
from bench.images.locks import read_pins
from benchmarks.line_costs import Costs, counted_processes, start
from benchmarks.slow_lines import namespace, node, served
from tests.e2e.pushing import ROOT, Operator
from tests.environment.made_wheels import make_index

CACHE = (cache_path("images") / "wheels").resolve()


@dataclass(frozen=True)
class Pushed:
    """The costs of a push until the environment was on the node, and until its first trial was measured."""

    installed: Costs
    first_trial: Costs
    said: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Return the costs until the installation and until the first trial, by name."""
        return {
            "installed": self.installed.document(),
            "first_trial": self.first_trial.document(),
            "said": self.said,
        }


def pushed(operator: Operator, port: int, index: str, group: Path) -> Pushed:
    """Push a run, watch its output for the two moments, and wait for its end."""
    words = [
        "push",
        operator.manifest(),
        f"127.0.0.1:{port}",
        "--engine",
        "venv",
        "--device",
        "cpu",
        "--keep",
    ]
    words += ["--new", "--index", index, "--ssh-config", operator.nodes.ssh_config]
    meter, costs, said = start(group), dict[str, Costs](), []
    process = subprocess.Popen(
        operator.command(*words), cwd=operator.folder, env=operator.environment(), text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        said.append(line.rstrip())
        if line.startswith("run ") and "installed" not in costs:
            costs["installed"] = meter.costs()
        if " s/step " in line and "first" not in costs:
            costs["first"] = meter.costs()
    if process.wait() or len(costs) < 2:
        raise SystemExit("\n".join(said))
    sentences = tuple(line for line in said if "wheels" in line or line.startswith("preflight"))
    return Pushed(costs["installed"], costs["first"], sentences)


def one_way(way: str, folder: Path, group: Path) -> dict[str, Any]:
    """Push twice to an empty node."""
    found = wheels(read_pins(ROOT / "docker/cpu.lock").values(), CACHE, "3.11")
    lacking = ("torch",) if way == "SEND" else ()
    index = make_index(folder / "index", *(path for name, path in found.items() if name not in lacking))
    cache = folder / "cache/bench/images"
    cache.mkdir(parents=True)
    (cache / "wheels").symlink_to(CACHE)  # the operator has the wheels, as after `bench image build`
    with served(index) as url, node(folder / "node", {}) as (nodes, port):
        operator = Operator(folder, nodes)
        first, second = (pushed(operator, port, f"{url}/simple", group) for _ in range(2))
    return {"first": first.document(), "second": second.document()}


def main() -> None:
    """Push without an image over slow lines and print the costs of each way as JSON."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("ways", nargs="*", metavar="WAY", help="INDEX or SEND; default: both")
    ways = parser.parse_args().ways or ["INDEX", "SEND"]
    with ExitStack() as stack:
        group = stack.enter_context(counted_processes())
        stack.enter_context(namespace())
        found = {}
        for way in ways:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-venv-")))
            found[way] = one_way(way, folder, group)
    print(json.dumps({"cores": os.cpu_count(), **found}, indent=1))


if __name__ == "__main__":
    main()
