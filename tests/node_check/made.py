"""Bundles of node checks, as `bench check` writes them, of simulated machines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench import __version__
from bench.base.stamps import utc
from bench.base.strict_json import canonical_json, to_json
from bench.bundle.pack import pack
from bench.bundle.statement import Predicate, identity_of
from bench.node_check.all_checks import known_checks
from bench.node_check.check_manifest import load
from bench.node_check.check_results import CheckResults, readings_bytes, results_of
from bench.node_check.judging import Depth
from bench.node_check.judging.evidence import Evidence, Reading
from bench.node_check.judging.standards import Standards, profile_of
from bench.records.run_results import RunFacts
from bench.records.trial import NodeFacts
from tests.bundles import KEY
from tests.node_check.checks.node import evidence

START = 1_790_000_000.0


def results(found: Evidence, run: str = "0a1b2c", at: float = START, **changes: Any) -> CheckResults:
    node = NodeFacts("a CPU", 8, 2**40, "Debian", "6.1", "3.12.1", found.gpus, "580.159.04")
    header = {
        "bench_version": __version__, "manifest_digest": load(None).digest, "node": node, "simulated": False,
        "run": RunFacts(run, at, at + 90, True, None),
    }  # fmt: skip
    return results_of(found, Standards(profile_of(found.gpus[0].name)), (), **(header | changes))


def files(done: CheckResults, found: Evidence) -> dict[str, bytes | Path]:
    course = b"".join(canonical_json(to_json(sample)) + b"\n" for sample in found.course)
    return {
        "manifest.json": load(None).data,
        "results.json": done.to_bytes(),
        "samples.jsonl": readings_bytes(found.readings),
        "telemetry.jsonl": course,
    }


def packed(
    path: Path, done: CheckResults, contents: dict[str, bytes | Path], key: Ed25519PrivateKey = KEY
) -> Path:
    predicate = Predicate(
        run_id=done.run.id, manifest_sha256=done.manifest_digest.removeprefix("sha256:"),
        node=identity_of(done.node), started_at=utc(done.run.started_at),
        ended_at=utc(done.run.ended_at), complete=done.run.complete,
    )  # fmt: skip
    pack(path, contents, predicate, key)
    return path


def at_level(found: Evidence, level: Depth) -> Evidence:
    """Return the evidence of a check of this depth: without what only deeper checks measure."""
    why = f"not made at the level {level}"
    left_out = {
        name: Reading(name, reason=why, counts=False)
        for name, check in known_checks().items()
        if check.is_asked_at(level) and not check.is_made_at(level)
    }
    return replace(found, level=level, readings={**found.readings, **left_out})


def without(found: Evidence, name: str) -> Evidence:
    """Return the evidence of a check that leaves out one of its questions on purpose."""
    left_out = Reading(name, reason="left out on purpose", counts=False)
    return replace(found, readings={**found.readings, name: left_out})


def bundle(
    path: Path,
    folder: Path,
    at: float = START,
    measured: str | None = None,
    key: Ed25519PrivateKey = KEY,
    level: Depth = "quick",
    left_out: str | None = None,
    **scenario: Any,
) -> Path:
    """Write a complete bundle with GPUs named after its file; equal `measured` gives equal figures.

    `last_digits` adds so much to every figure, as a share of it.
    """
    last_digits = scenario.pop("last_digits", 0.0)
    count = scenario.get("count", 8)
    own = {str(i): {"UUID": f"GPU-{path.stem}-{i}"} for i in range(count)}
    for gpu, answers in scenario.pop("gpus", {}).items():
        own[gpu] = own[gpu] | answers
    found = at_level(evidence(folder, gpus=own, **scenario), level)
    found = without(found, left_out) if left_out else found
    little = 1 + last_digits + 1e-4 * crc32((measured or f"{path.stem} {at}").encode()) / 2**32
    for reading in found.readings.values():
        for figure in (reading.data or {}).get("figures", ()):
            figure["work"] *= little  # the times of two runs are never equal
    done = results(found, run=path.stem.replace("-", "")[-12:], at=at)
    return packed(path, done, files(done, found), key)
