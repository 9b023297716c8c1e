"""What a node check leaves: judged, packed and signed."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

from bench import __version__
from bench.base.strict_json import pretty_json, to_json
from bench.bundle.pack import pack
from bench.node_check.check_results import CheckResults, readings_bytes, results_of
from bench.node_check.judging.evidence import Evidence, read_course
from bench.node_check.judging.standards import Standards, profile_for
from bench.records.run_results import RunFacts
from bench.runner.check.request import CheckRequest, NodeReadings
from bench.runner.machine import nvml, probe, telemetry
from bench.runner.run.execute import predicate, surroundings
from bench.runner.run.fit_into_bundle import fitting_course, marks_of_checks
from bench.runner.run.seal import Seal


def finish(
    asked: CheckRequest, folder: Path, found: NodeReadings, seal: Seal, started: float, stopped: str | None
) -> tuple[CheckResults, Evidence, Path]:
    node = replace(probe.probe(gpus_too=False), gpus=found.gpus, driver=found.driver)
    course = (folder / telemetry.FILE_NAME).read_bytes()
    course = course[: course.rfind(b"\n") + 1]  # one that was killed leaves half a line
    course = fitting_course(course, marks_of_checks(found.readings))
    lines = [json.loads(line) for line in course.splitlines()]
    evidence = Evidence(asked.level, asked.device, found.gpus, found.readings, read_course(lines))
    ours = {gpu.uuid for gpu in found.gpus}
    past = {uuid: runs for uuid, runs in asked.history.items() if uuid in ours}
    standards = Standards(profile_for(found.gpus), asked.manifest.expected(asked.device), past)
    results = results_of(
        evidence, standards, asked.manifest.require,
        bench_version=__version__, manifest_digest=asked.manifest.digest, node=node, simulated=nvml.is_fake(),
        run=RunFacts(folder.name, started, time.time(), stopped is None, stopped),
    )  # fmt: skip
    bundle = folder.with_suffix(".tar")
    signed = predicate(results.run, node, asked.manifest.digest, seal)
    pack(bundle, _files(asked, folder, results, evidence, course), signed, seal.key, seal.certificate)
    return results, evidence, bundle


def _files(
    asked: CheckRequest, folder: Path, results: CheckResults, evidence: Evidence, course: bytes
) -> dict[str, bytes | Path]:
    return {
        "manifest.json": asked.manifest.data,
        "results.json": results.to_bytes(),
        "samples.jsonl": readings_bytes(evidence.readings),
        "telemetry.jsonl": course,
        "env.json": pretty_json({"node": to_json(results.node), "packages": probe.all_packages()}),
        **surroundings(folder),
    }
