"""Push a node check to ninety honest nodes, alone and beside ten others. Needs root: it starts sshds.

    PYTHONPATH=. python benchmarks/hundred_nodes.py [ROUNDS]     default: 2

Of the ten others two refuse the connection, two accept it and say nothing, and six are hostile in ways of
benchmarks/hostile_push.py, such as a byte a second and endless output. Nodes elsewhere would take no
processor time from the pushing machine or from each other: honest nodes have a lower priority than the push,
and hostile ones the lowest. Each round pushes to the ninety alone, then to all hundred. Prints when the last
honest bundle was there and when the `--json` was complete, the ratios of both, the processor time of the
pushing process, whether each honest node is in the JSON with a bundle that verifies, and the most memory of
the pushing process with all its children (PSS). A last push to all hundred is interrupted when half of the
honest nodes are done; printed is how long it lasts from then on, in all and of its processor, and what its
JSON says.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.bundle.verify import verify_bundle
from bench.node_check.recompute_any import recompute
from benchmarks.hostile_push import WAYS, cpu_seconds, hosts_apart
from benchmarks.passive_check import descendants, sizes
from tests.e2e.nodes import Nodes, free_port, ssh_nodes
from tests.e2e.pushing import Operator
from tests.warm import quick_python

HONEST = 90
HOSTILE = ("a byte a second", "endless output", "endless errors", "silence", "no exit status", "hangs up")
MOST_SECONDS = 1500.0
NODE_NICENESS = 10
AT_ONCE = "32"  # hosts; all of them share this machine


@dataclass
class WatchedPush:
    """A push in a separate process, with the most memory that it has had."""

    process: subprocess.Popen[bytes]
    answers: Path
    began: float
    bundles: Path
    peak_bytes: int = 0
    honest_seconds: float = 0.0  # until the last honest bundle was there; 0: it never was
    cpu_seconds: float = 0.0

    def watch(self) -> None:
        """Look at the memory until the process ends."""
        while self.process.poll() is None:
            if not self.honest_seconds and len(list(self.bundles.rglob("*.tar"))) == HONEST:
                self.honest_seconds = time.monotonic() - self.began
            with suppress(OSError):  # it has ended
                self.cpu_seconds = cpu_seconds(self.process.pid)
            self.peak_bytes = max(self.peak_bytes, sum(map(pss_bytes, descendants(self.process.pid))))
            if time.monotonic() - self.began > MOST_SECONDS:
                raise SystemExit(f"the push took more than {MOST_SECONDS:g} s")
            time.sleep(0.2)


def pss_bytes(process: int) -> int:
    """Return the memory of a process, of which shared pages count in part; 0 after its end."""
    with suppress(OSError):
        return sizes(Path(f"/proc/{process}/smaps_rollup").read_text()).get("Pss", 0)
    return 0


def begin(one: Operator, hosts: Sequence[str], out: str) -> WatchedPush:
    """Start a push of passive checks to these hosts, and return without waiting."""
    manifest = one.folder / "check.json"
    manifest.write_text(json.dumps({"schema": "bench/node-check/v1", "level": "passive"}))
    words = one.pushing(manifest, *hosts, "--out", out, "--new", "--json", "--parallel", AT_ONCE)
    answers = one.folder / f"{out}.json"
    with answers.open("wb") as json_out, (one.folder / f"{out}.txt").open("wb") as said:
        process = subprocess.Popen(
            one.command(*words), cwd=one.folder, env=one.environment(), stdout=json_out, stderr=said
        )
    return WatchedPush(process, answers, time.monotonic(), one.folder / out)


def whole(one: Operator, hosts: Sequence[str], out: str) -> Mapping[str, Any]:
    """Push to all of the hosts; return how long it took, its memory, and the hosts' outcomes."""
    push = begin(one, hosts, out)
    push.watch()
    return {
        "seconds": time.monotonic() - push.began,
        "honest_seconds": push.honest_seconds,
        "cpu_seconds": push.cpu_seconds,
    } | told(one, push)


def told(one: Operator, push: WatchedPush) -> Mapping[str, Any]:
    """Return what the push said of honest and of other nodes; the honest bundles must verify."""
    nodes = json.loads(push.answers.read_bytes())["nodes"]
    honest = [node for node in nodes if node["host"] in one.nodes.addresses]
    others = [node for node in nodes if node["host"] not in one.nodes.addresses]
    bundles = [Path(node["bundle"]) for node in honest if node["outcome"] == "done"]
    for bundle in bundles:
        verify_bundle(one.folder / bundle, recompute)
    return {
        "exit_code": push.process.returncode,
        "honest": Counter(node["outcome"] for node in honest),
        "why": Counter(node["error"]["message"] for node in honest if node.get("error")),
        "bundles_that_verify": len(bundles),
        "others": {node["host"]: (node.get("error") or {}).get("message", "") for node in others},
        "peak_pss_mb": push.peak_bytes / 1e6,
    }


def interrupted(one: Operator, hosts: Sequence[str], out: str) -> Mapping[str, Any]:
    """Interrupt a push once half of the honest nodes are done."""
    push = begin(one, hosts, out)
    watching = threading.Thread(target=push.watch, daemon=True)
    watching.start()
    while len(list((one.folder / out).rglob("*.tar"))) < HONEST // 2 and push.process.poll() is None:
        time.sleep(0.1)
    asked, used = time.monotonic(), cpu_seconds(push.process.pid)
    push.process.send_signal(signal.SIGINT)
    push.process.wait(60)
    ended = time.monotonic() - asked
    watching.join()
    after = {"ends_after_interrupt_seconds": ended, "of_its_processor": push.cpu_seconds - used}
    return after | told(one, push)


def bad_hosts(nodes: Nodes, folder: Path, stack: ExitStack) -> list[str]:
    """Start the ten that are dead, hung, dripping or hostile."""
    refused = [f"127.78.0.{number}:{free_port()}" for number in (1, 2)]
    listeners = [stack.enter_context(socket.create_server((f"127.78.0.{number}", 0))) for number in (3, 4)]
    silent = [f"127.78.0.{number}:{one.getsockname()[1]}" for number, one in enumerate(listeners, 3)]
    ways = [way for way in WAYS if way[0] in HOSTILE]
    hostile = hosts_apart(nodes, folder, ways, stack)
    return [*hostile, *refused, *silent]


def main() -> None:
    """Print as JSON what a push costs alone and beside bad nodes, and how one ends that is interrupted."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("rounds", nargs="?", type=int, default=2, metavar="ROUNDS", help="default: 2")
    rounds = parser.parse_args().rounds
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background would ignore it
    found: dict[str, Any] = {"rounds": []}
    with tempfile.TemporaryDirectory(prefix="bench-hundred-") as name, ExitStack() as stack:
        folder = Path(name)
        os.setpriority(os.PRIO_PROCESS, 0, NODE_NICENESS)
        quick_python()  # it runs the nodes' programs
        nodes = stack.enter_context(ssh_nodes(folder / "nodes", HONEST))
        os.setpriority(os.PRIO_PROCESS, 0, 0)
        one = Operator(folder, nodes)
        plain = nodes.ssh_config.read_text()
        for number in range(rounds):
            alone = whole(one, nodes.addresses, f"alone{number}")
            with ExitStack() as servers:
                bad = bad_hosts(nodes, folder / f"round{number}", servers)
                beside = whole(one, [*bad, *nodes.addresses], f"beside{number}")
                nodes.ssh_config.write_text(plain)
            ratios = {
                f"{name}over_alone": beside[f"{name}seconds"] / alone[f"{name}seconds"]
                for name in ("", "honest_", "cpu_")
                if beside[f"{name}seconds"] and alone[f"{name}seconds"]
            }
            found["rounds"].append(ratios | {"alone": alone, "beside": beside})
        with ExitStack() as servers:
            bad = bad_hosts(nodes, folder / "last", servers)
            found["interrupted"] = interrupted(one, [*bad, *nodes.addresses], "interrupted")
    json.dump(found, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
