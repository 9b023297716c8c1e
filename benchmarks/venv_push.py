"""Measure a push to a node without a container engine, over a slow uplink. Needs root and tc.

python benchmarks/venv_push.py [INDEX|SEND ...]

The lines are those of slow_lines.py. INDEX: the index has every wheel of the CPU's lock. SEND: it lacks
torch, as PyPI does. Each way begins with an empty node, and pushes a second time to the node that is full.

Prints seconds from the start of `bench push` to the installed environment and to the first measured trial,
the bytes on the operator's line until then, and both times as ratios to an empty Python of this machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.images.fetch import wheels
from bench.images.locks import read_pins
from benchmarks.slow_lines import line_bytes, namespace, node, served
from tests.e2e.pushing import ROOT, Operator
from tests.environment.made_wheels import make_index

CACHE = Path.home() / ".cache/bench/images/wheels"


@dataclass(frozen=True)
class Pushed:
    """When a push had the environment on the node, and its first trial measured."""

    installed_seconds: float
    first_trial_seconds: float
    line_megabytes: float
    said: tuple[str, ...]


def pushed(operator: Operator, port: int, index: str) -> Pushed:
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
    before, began, seconds, said = line_bytes(), time.monotonic(), {}, []
    process = subprocess.Popen(
        operator.command(*words), cwd=operator.folder, env=operator.environment(), text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    carried = 0
    for line in process.stderr:
        said.append(line.rstrip())
        if line.startswith("run ") and "installed" not in seconds:
            seconds["installed"], carried = time.monotonic() - began, line_bytes() - before
        if " s/step " in line and "first" not in seconds:
            seconds["first"] = time.monotonic() - began
    if process.wait() or len(seconds) < 2:
        raise SystemExit("\n".join(said))
    sentences = tuple(line for line in said if "wheels" in line)
    return Pushed(
        round(seconds["installed"], 1), round(seconds["first"], 1), round(carried / 1e6, 1), sentences
    )


def one_way(way: str, folder: Path) -> dict[str, Any]:
    """Push twice to an empty node."""
    found = wheels(read_pins(ROOT / "docker/cpu.lock").values(), CACHE, "3.11")
    lacking = ("torch",) if way == "SEND" else ()
    index = make_index(folder / "index", *(path for name, path in found.items() if name not in lacking))
    cache = folder / "cache/bench/images"
    cache.mkdir(parents=True)
    (cache / "wheels").symlink_to(CACHE)  # the operator has the wheels, as after `bench image build`
    with served(index) as url, node(folder / "node", {}) as (nodes, port):
        operator = Operator(folder, nodes)
        first, second = (pushed(operator, port, f"{url}/simple") for _ in range(2))
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", ""], check=True)
        python = time.monotonic() - began
    return {
        "first": vars(first),
        "second": vars(second),
        "first_over_an_empty_python": round(first.first_trial_seconds / python),
        "second_over_an_empty_python": round(second.installed_seconds / python),
    }


def main() -> None:
    ways = sys.argv[1:] or ["INDEX", "SEND"]
    with ExitStack() as stack:
        stack.enter_context(namespace())
        found = {}
        for way in ways:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-venv-")))
            found[way] = one_way(way, folder)
    print(json.dumps({"cores": os.cpu_count(), "load": os.getloadavg()[0], **found}, indent=1))


if __name__ == "__main__":
    main()
