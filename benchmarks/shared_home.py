"""Push to many nodes that share one home directory, from several operators at once; count what comes back.

python benchmarks/shared_home.py [NODES] [OPERATORS]     default: 16 2; needs root, because it starts an sshd

Every operator pushes the same manifest of one tiny model to every node, four at a time, without a container
engine. Each run must come back as a bundle of its own that `bench verify` accepts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.e2e.nodes import Nodes, ssh_nodes
from tests.e2e.pushing import Operator

AT_ONCE = 4


def push_all(operators: Sequence[Operator], nodes: Nodes) -> list[dict[str, object]]:
    """Let all operators push to all nodes at once; return the nodes of all documents."""
    processes = [
        operator.begin(
            operator.manifest("one", models=["tiny-gpt-neox"]),
            *nodes.addresses,
            *("--parallel", str(AT_ONCE), "--place", "~/.bench", "--json", "--anyway"),
        )
        for operator in operators
    ]
    found: list[dict[str, object]] = []
    for process in processes:
        out, err = process.communicate()
        if not out:
            raise SystemExit(err)
        found += json.loads(out)["nodes"]
    return found


def main() -> int:
    """Push to nodes that share a home; returns 1 unless every bundle is there and verifies."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("nodes", nargs="?", type=int, default=16, metavar="NODES", help="default: 16")
    parser.add_argument("operators", nargs="?", type=int, default=2, metavar="OPERATORS", help="default: 2")
    given = parser.parse_args()
    count, pushers = given.nodes, given.operators
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-shared-", dir="/tmp")))
        home = folder / "home"
        home.mkdir()
        shared = {number: {"HOME": str(home)} for number in range(count)}
        nodes = stack.enter_context(ssh_nodes(folder / "n", count, own=shared))
        operators = [Operator(folder / f"operator{number}", nodes) for number in range(pushers)]
        for operator in operators:
            operator.folder.mkdir()
        began = time.monotonic()
        found = push_all(operators, nodes)
        seconds = time.monotonic() - began
        bundles = [path for operator in operators for path in operator.folder.glob("results/*.tar")]
        verify = [sys.executable, "-m", "bench", "verify", *map(str, bundles)]
        valid = bundles and subprocess.run(verify, check=False, stdout=subprocess.DEVNULL).returncode == 0
        left = sorted(path.name for path in (home / ".bench").glob("runs/*"))
    outcomes = Counter(str(node["outcome"]) for node in found)
    print(
        f"{count} nodes with one home, {pushers} operators, {seconds:.0f} s: {len(bundles)} bundles, ", end=""
    )
    print(", ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items())))
    print(f"all bundles verify: {'yes' if valid else 'no'}; runs left in the home: {len(left)}")
    for node in found:
        if node["outcome"] != "done":
            print(f"  {node['host']}: {node['error']}")
    return 0 if valid and outcomes == {"done": count * pushers} and not left else 1


if __name__ == "__main__":
    sys.exit(main())
