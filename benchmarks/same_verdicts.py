"""Verify every bundle of results/ by this version and by an earlier one, and name each verdict that differs.

    PYTHONPATH=. python benchmarks/same_verdicts.py COMMIT

The earlier version is checked out beside this one, and verifies the bundles that it has. Prints how many
bundles there are, how many are valid, and the facts that differ; exit code 1 if a verdict does: whether a
bundle is valid, its level, what is taken on trust, or what a node check was judged as.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
VERDICT = ("valid", "level", "reason")
RECOMPUTED_VERDICT = ("on_trust", "check_verdict")


def verdicts(tree: Path) -> dict[str, dict[str, Any]]:
    """Return what the version of bench in a tree says of each bundle in its results/, by path."""
    command = [sys.executable, "-m", "bench", "verify", "--json", "results"]
    environment = os.environ | {"PYTHONPATH": str(tree)}
    done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, check=False)
    return {document["path"]: document for document in json.loads(done.stdout)}


def flat(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with its recomputed fields beside the others."""
    return {**document, **document.get("recomputed", {})}


def compared(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return what differs between the verdicts of two versions on the same bundles."""
    both = sorted(before.keys() & now.keys())
    facts = {path: (flat(before[path]), flat(now[path])) for path in both}
    differ = {
        path: {name: [old.get(name), new.get(name)] for name in old | new if old.get(name) != new.get(name)}
        for path, (old, new) in facts.items()
        if before[path] != now[path]
    }
    judged = {*VERDICT, *RECOMPUTED_VERDICT}
    return {
        "bundles": len(now),
        "valid": sum(document["valid"] for document in now.values()),
        "of_both_versions": len(both),
        "no_longer_there": sorted(before.keys() - now.keys()),
        "facts_that_differ": {path: found.keys() - {"recomputed"} for path, found in differ.items()},
        "verdicts_that_differ": {path: found for path, found in differ.items() if judged & found.keys()},
    }


def main() -> int:
    """Print what differs from the verdicts of an earlier commit; returns 1 if a verdict does."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("commit", metavar="COMMIT", help="the earlier version")
    commit = parser.parse_args().commit
    with tempfile.TemporaryDirectory(prefix="bench-verdicts-") as folder:
        earlier = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(earlier), commit], check=True)
        try:
            before = verdicts(earlier)
        finally:
            subprocess.run([*git, "remove", "--force", str(earlier)], check=True)
    found = compared(before, verdicts(ROOT))
    json.dump(found, sys.stdout, indent=1, default=sorted)
    print()
    return int(bool(found["verdicts_that_differ"] or found["no_longer_there"]))


if __name__ == "__main__":
    sys.exit(main())
