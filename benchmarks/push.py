"""Compare pushing a run over this machine's own sshd with running it by hand. Needs root.

python benchmarks/push.py            the same manifest by hand and pushed, without an engine
python benchmarks/push.py --image    the CPU image pushed to an engine: first push, and push without changes
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.e2e.images import ROOT, build_image
from tests.e2e.nodes import ssh_nodes
from tests.e2e.pushing import Operator, nodes_with_engines

ROUNDS = 3


def seconds(work: Callable[[], object]) -> float:
    """Return how long it takes to do some work."""
    began = time.monotonic()
    work()
    return time.monotonic() - began


def empty() -> object:
    """Start Python and do nothing, for comparison."""
    return subprocess.run([sys.executable, "-c", ""], check=True)


def a_run(one: Operator) -> dict[str, Any]:
    """Measure a push of a run to one node, and return its times by name."""
    manifest, host = one.manifest(), one.nodes.addresses[0]
    quiet = {
        "cwd": one.folder,
        "env": one.environment(),
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    by_hand = one.command("run", manifest, "--device", "cpu", "--out", "hand")
    one.push(manifest, host, "--no-run", "--keep")
    hand, push, unchanged, python = [], [], [], []
    for number in range(ROUNDS):  # alternate, so that other work on this machine affects both
        hand.append(seconds(lambda: subprocess.run(by_hand, check=True, **quiet)))  # type: ignore[call-overload]
        out = f"results{number}"
        push.append(seconds(lambda out=out: one.push(manifest, host, "--keep", "--new", "--out", out)))
        unchanged.append(seconds(lambda: one.push(manifest, host, "--no-run", "--keep")))
        python.append(seconds(empty))
    return {
        "by_hand_seconds": hand,
        "push_seconds": push,
        "push_over_by_hand": statistics.median(push) / statistics.median(hand),
        "overhead_seconds": statistics.median(push) - statistics.median(hand),
        "unchanged_seconds": unchanged,
        "unchanged_over_an_empty_python": statistics.median(unchanged) / statistics.median(python),
    }


def an_image() -> dict[str, Any]:
    """Measure the push of an image to a node with an engine, and return its times by name."""
    with nodes_with_engines() as one:
        build_image(one.folder / "wheels", one.folder / "one.tar", ROOT)
        words = (
            one.manifest(),
            one.nodes.addresses[0],
            "--image",
            one.folder / "one.tar",
            "--no-run",
            "--keep",
        )
        first = seconds(lambda: one.push(*words))
        unchanged, python = [], []
        for _ in range(ROUNDS):
            unchanged.append(seconds(lambda: one.push(*words)))
            python.append(seconds(empty))
    return {
        "image_first_seconds": first,
        "image_unchanged_seconds": unchanged,
        "image_unchanged_over_an_empty_python": statistics.median(unchanged) / statistics.median(python),
    }


def main() -> None:
    """Print the times of a push as JSON; with --image, of pushing an image."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--image", action="store_true", help="push the CPU image to an engine")
    if parser.parse_args().image:
        found = an_image()
    else:
        with (
            tempfile.TemporaryDirectory(prefix="bench-cost-") as name,
            ssh_nodes(Path(name) / "n", 1) as nodes,
        ):
            found = a_run(Operator(Path(name), nodes, python=sys.executable))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
