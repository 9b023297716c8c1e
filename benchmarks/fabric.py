"""How often does a check between nodes name the slow link, and how often a link that is not slow?

sudo .venv/bin/python -m benchmarks.fabric [RUNS] [NODES]: real TCP between network namespaces. In each
run the link of one node has half of the rate that the others have.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.e2e.fabric import check_fabric
from tests.e2e.network import MEGABIT, network


def main() -> None:
    """Print how often the check between nodes names the one that is slow, and how often a wrong one."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("runs", nargs="?", type=int, default=10, metavar="RUNS", help="default: 10")
    parser.add_argument("nodes", nargs="?", type=int, default=8, metavar="NODES", help="default: 8")
    given = parser.parse_args()
    runs, nodes = given.runs, given.nodes
    right = wrong = 0
    for run in range(runs):
        slow = random.Random(run).randrange(nodes)
        with network(nodes) as net, tempfile.TemporaryDirectory() as folder:
            net.slow(slow, MEGABIT / 2)
            checked = check_fabric(net, Path(folder), seconds=1.0)
        right += f"node {slow}" in checked.named
        wrong += len({*checked.named} - {f"node {slow}", "the tournament"})
        made, planned = checked.rounds
        print(f"run {run}: node {slow} is slow; {made} of {planned} rounds; {checked.named}", flush=True)
    print(f"named in {right} of {runs} runs; {wrong} false names")


if __name__ == "__main__":
    main()
