"""A valid bundle of any size, with summaries that follow from its samples."""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import sys
from pathlib import Path

from bench.base.stamps import utc
from bench.base.strict_json import canonical_json
from bench.bundle.pack import pack
from bench.bundle.statement import identity_of
from bench.records.run_results import Results, RunFacts, samples_bytes
from bench.records.trial import Measured, NodeFacts, Outcome, StepSample, Trial
from tests.builders import MODEL, measurement, reduce_trials, trial
from tests.bundles import KEY, predicate
from tests.report import made

MANIFEST = b'{"models":["test-model"]}'
BATCH = 720_720  # has 240 divisors, so 239 micro-batches with two passes or more
START = 1_800_000_000.0


def large_bundle(path: Path, size_bytes: int, trials: int = 198, steps: int = 200) -> Path:
    """Write a bundle of the paper's nine models in 22 settings, as far as they fit, filled up with telemetry.

    Telemetry is also the largest part of the bundles in results/.
    """
    base = measurement(
        [StepSample(1 + i % 2, 0.1 + 0.001 * (i % 7)) for i in range(steps)], losses=(3.0, 2.9)
    )
    per_trial = len(samples_bytes([(trial(), "naive", Measured(base))])) + 1500
    count = max(1, min(trials, size_bytes // 2 // per_trial))
    model = dataclasses.replace(MODEL, recipe=dataclasses.replace(MODEL.recipe, batch_size=BATCH))
    sizes = [size for size in range(1, BATCH // 2 + 1) if BATCH % size == 0]
    ends: list[tuple[Trial, str, Outcome]] = [
        (trial(model=model, seed=0, micro_batch=size, gpus=1), "naive", Measured(base))
        for size in sizes[:count]
    ]
    results = Results(
        bench_version="0",
        manifest_digest="sha256:" + hashlib.sha256(MANIFEST).hexdigest(),
        run=RunFacts("large", START, START + 3600, True, None),
        node=NodeFacts("cpu", 1, 2**40, "os", "kernel", "3"),
        models=(model,),
        seed=0,
        timing=trial().timing,
        memory_cap_bytes=None,
        ceilings=(),
        trials=reduce_trials(ends, (), {}),
        skipped=(),
    )
    files = {
        "manifest.json": MANIFEST,
        "results.json": results.to_bytes(),
        "samples.jsonl": samples_bytes(ends),
    }
    left = size_bytes - sum(map(len, files.values()))
    lines = b"".join(
        b'{"at":%d.5,"gpu":0,"watts":700.0,"name":"%s"}\n' % (START + i, b"x" * 800) for i in range(1000)
    )
    telemetry = path.with_suffix(".telemetry")
    with telemetry.open("wb") as file:
        while left > 0:
            left -= file.write(lines[:left])
    node = identity_of(results.node)
    facts = predicate(files, run_id="large", node=node, started_at=utc(START), ended_at=utc(START + 3600))
    pack(path, {**files, "telemetry.jsonl": telemetry}, facts, KEY)
    telemetry.unlink()
    return path


def large_gpu_bundle(path: Path, size_bytes: int, *, held_back: bool = False) -> Path:
    """Write the bundle of a run on eight GPUs, read once a second for hours: nearly all is telemetry."""
    asked = made.manifest()
    one = Trial(asked.models[0], (), 8, 8, asked.seed, asked.timing)
    reading = {
        "sm_mhz": 1980, "memory_mhz": 2619, "power_watts": 612.4, "energy_joules": 0.0, "celsius": 63,
        "throttle_reasons": 0x24 if held_back else 0x04, "used_bytes": 71_234_567_890, "busy_percent": 100,
        "pcie_generation": 5, "pcie_width": 16, "xids": [], "lost": None,
    }  # fmt: skip
    lines, size = [], 0
    while size < size_bytes:
        at = made.START + len(lines)
        gpus = [{**reading, "energy_joules": 612.4 * len(lines) + gpu} for gpu in range(8)]
        sample = {"at": at, "trial": one.id, "load": 12.5, "available_bytes": 2**40, "gpus": gpus}
        lines.append(canonical_json(sample) + b"\n")
        size += len(lines[-1])
    return made.bundle(path, gpus=8, micro_batch=8, of=asked, telemetry=b"".join(lines))


def peak_bytes(path: Path) -> int:
    """Verify a bundle in a separate process, as the command does; return the peak of its memory.

    The peak comes from /proc/self: resource usage of a child also counts memory shared with its parent before
    exec.
    """
    code = """if True:
        import pathlib, re, sys
        from bench.cli.main import main
        code = main(["verify", sys.argv[1]])
        print(re.search(r"VmHWM:\\s+([0-9]+) kB", pathlib.Path("/proc/self/status").read_text())[1])
        sys.exit(code)"""
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    return int(done.stdout.splitlines()[-1]) * 1024
