"""Compare the step time of exported scripts with that of the bundle they were exported from.

python benchmarks/export.py [ROUNDS]     the smallest model on the CPU; 3 rounds by default
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.bundle.tar_format import open_bundle
from bench.export import WITH_BENCH

ROOT = Path(__file__).parents[1]
MANIFEST = {
    "schema": "bench/manifest/v1", "models": ["tiny-gpt-neox"], "methods": ["naive"], "micro_batch": 16,
    "timing": {"target_percent": 2, "measure_seconds": 10, "warmup_seconds": 5},
}  # fmt: skip
EVERY = 10  # steps per line of a script's log; the first line is warm-up
SECONDS = 10.0  # training time of a script, which logs at least four lines
ENVIRONMENT = {
    **os.environ, "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu", "ACCELERATE_USE_CPU": "1",
}  # fmt: skip


def do(*command: str | Path, folder: Path) -> str:
    """Run a Python module in a folder and return what it printed; its failure ends this benchmark."""
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        check=False, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{command}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout


def measured(folder: Path) -> tuple[Path, float]:
    """Measure a bundle on this machine; return its path and its seconds per step."""
    (folder / "manifest.json").write_text(json.dumps(MANIFEST))
    do("bench", "run", "manifest.json", "--device", "cpu", "--out", "out", folder=folder)
    (bundle,) = (folder / "out").glob("*.tar")
    with open_bundle(bundle) as opened:
        (trial,) = json.loads(opened.read("results.json"))["trials"]
    return bundle, float(trial["estimate"]["step_seconds"]["value"])


def trained(folder: Path, step: float) -> float:
    """Run an exported script; return its seconds per step, the median over its log lines after warm-up."""
    steps = EVERY * max(4, round(SECONDS / step / EVERY))
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", "1")
    log = do(*launcher, "train.py", "--steps", str(steps), "--log-every", str(EVERY), folder=folder)
    lines = [json.loads(line) for line in log.splitlines() if line.startswith('{"step"')]
    return statistics.median(line["step_seconds"] for line in lines[1:])


def main() -> int:
    """Print how long a step takes in each exported file, as a ratio to that of the bundle."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("rounds", nargs="?", type=int, default=3, metavar="ROUNDS", help="default: 3")
    rounds = parser.parse_args().rounds
    ratios: dict[str, list[float]] = {kind: [] for kind in WITH_BENCH}
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            bundle, step = measured(folder)
            print(f"round {number + 1}: bundle {1000 * step:.1f} ms per step", flush=True)
            for kind in WITH_BENCH:
                do("bench", "export", bundle, "--to", kind, folder / kind, folder=folder)
                ratios[kind].append(trained(folder / kind, step) / step)
    print(f"{'step of the script / of the bundle':<36} {'median':>7} {'min':>7} {'max':>7}")
    for kind, found in ratios.items():
        print(f"{kind:<36} {statistics.median(found):7.3f} {min(found):7.3f} {max(found):7.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
