"""How often does a check between nodes name the slow link, and how often a link that is not slow?

sudo .venv/bin/python -m benchmarks.fabric [RUNS] [NODES]: real TCP between network namespaces. In each
run the link of one node has half of the rate that the others have.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

from tests.e2e.fabric import check_fabric
from tests.e2e.network import MEGABIT, network


def main(runs: int = 10, nodes: int = 8) -> None:
    """Print how often the check between nodes names the one that is slow, and how often a wrong one."""
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
    main(*map(int, sys.argv[1:]))
