"""What pushing costs over running by hand: the same manifest, on this machine, over its own sshd. As root."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.e2e.nodes import ssh_nodes
from tests.e2e.test_push import Operator

ROUNDS = 3


def seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="bench-cost-") as name, ssh_nodes(Path(name) / "n", 1) as nodes:
        one = Operator(Path(name), nodes)
        manifest, host = one.manifest(), nodes.addresses[0]
        quiet = {
            "cwd": name,
            "env": one.environment(),
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
        }
        by_hand = one.command("run", manifest, "--device", "cpu", "--out", "hand")
        one.push(manifest, host, "--no-run", "--keep")
        hand, push, unchanged, empty = [], [], [], []
        for number in range(ROUNDS):  # in turn, so that whatever else goes on here meets both
            hand.append(seconds(lambda: subprocess.run(by_hand, check=True, **quiet)))  # type: ignore[call-overload]
            out = f"results{number}"
            push.append(seconds(lambda out=out: one.push(manifest, host, "--keep", "--new", "--out", out)))
            unchanged.append(seconds(lambda: one.push(manifest, host, "--no-run", "--keep")))
            empty.append(seconds(lambda: subprocess.run([sys.executable, "-c", ""], check=True)))
    found = {
        "by_hand_seconds": hand,
        "push_seconds": push,
        "push_over_by_hand": statistics.median(push) / statistics.median(hand),
        "overhead_seconds": statistics.median(push) - statistics.median(hand),
        "unchanged_seconds": unchanged,
        "unchanged_over_an_empty_python": statistics.median(unchanged) / statistics.median(empty),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
