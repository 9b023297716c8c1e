"""A simulated node, checked with the same queries, telemetry and judging as a real one."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from bench.base.strict_json import canonical_json, strict_loads
from bench.node_check.all_checks import known_checks
from bench.node_check.check_results import judge
from bench.node_check.checks import CheckBudget
from bench.node_check.judging.evidence import AFTER, BEFORE, IDLE, Answers, Evidence, Reading, read_course
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.standards import Standards, profile_of
from bench.runner.machine import fake_nvml, nvml
from bench.runner.machine.gpus import gpu_from_answers
from bench.runner.machine.watch import Watch

EFFORT = CheckBudget("quick", 0.0, 0.0, 0.0, "/nowhere", True)
HOST: Mapping[str, Any] = {  # of a machine without a fault
    "clock": {
        "state": 0,
        "status": 0,
        "max_error_seconds": 0.01,
        "estimated_error_seconds": 0.001,
        "virtual": False,
    },
    "disk": {
        "free_bytes": 400 << 30,
        "written_bytes": 1 << 30,
        "write_seconds": 0.5,
        "read_bytes": 1 << 30,
        "read_seconds": 0.2,
    },
    "host-memory": {
        "figures": [
            {
                "name": "host-memory",
                "gpu": None,
                "unit": "B/s",
                "work": 1e10,
                "samples": [0.1, 0.1],
                "kind": "",
            }
        ]
    },
    "xid": {"lines": []},
    "ports": {"nodes": [{"node": 0, "missing": True}]},
    "file-systems": {"figures": [], "file_systems": []},
    "numa": {
        "figures": [
            {
                "name": f"numa {node} {kernel}",
                "gpu": None,
                "unit": "B/s",
                "work": 3e10,
                "samples": [0.1, 0.1],
                "kind": f"numa {kernel}",
            }
            for node in (0, 1)
            for kernel in ("scale", "triad")
        ],
        "nodes": [
            {
                "number": node,
                "processors": 96,
                "memory_bytes": 1 << 40,
                "cache_bytes": 1 << 28,
                "array_bytes": 1 << 30,
                "bound": True,
            }
            for node in (0, 1)
        ],
        "channels": {"count": 24, "modules": 24, "kind": "DDR5", "transfers_per_second": 4.8e9},
        "busy_cores": 0.1,
    },
    "host-errors": {
        "errors": {
            "at": 1.79e9,
            "machine": "0123456789abcdef",
            "edac": True,
            "interrupts": {"MCE": 0},
            "controllers": [{"name": "mc0", "corrected": 0, "uncorrected": 0, "seconds": 1e6}],
        },
    },
    "network": {
        "cards": [
            {
                "name": "eth0",
                "driver": "mlx5_core",
                "firmware": "28.39",
                "state": "up",
                "speed_mbit": 100_000,
                "duplex": "full",
                "carrier_changes": 2,
            }
        ]
    },
    "bmc": {"bmc": {"firmware": "1.74", "sensors": [{"name": "Fan1", "state": "ok", "reading": "9000 RPM"}]}},
    "drift": {"facts": {"kernel": {"release": "6.8.0-60-generic"}}},
    "gpudirect": {"nodes": [{"node": 0, "driver": True, "peer_module": "nvidia_peermem"}]},
}


def evidence(folder: Path, host: Mapping[str, Any] | None = None, **scenario: Any) -> Evidence:
    """Collect the evidence of a machine with these faults: inventory, idle, load, inventory again."""
    path = folder / f"scenario-{len(list(folder.iterdir()))}.json"
    path.write_text(json.dumps({"count": 8, **scenario}))
    fake = fake_nvml.FakeNvml.from_file(path)
    with (
        mock.patch.object(nvml, "load", return_value=fake),
        mock.patch.object(nvml, "is_fake", return_value=True),
        mock.patch.object(fake_nvml, "LOAD_SECONDS", 0.0),
    ):
        readings = {
            BEFORE: _reading(BEFORE, nvml.read_inventory(print)),
            IDLE: _reading(IDLE, nvml.watch_idle(print)),
        }
        inventory = readings[BEFORE].data["gpus"]
        everyone = tuple(gpu_from_answers(Answers(i, raw)) for i, raw in enumerate(inventory))
        places = [gpu.index for gpu in everyone if gpu.memory_bytes]
        course = io.BytesIO()
        watch = Watch(fake, course)
        for name, check in known_checks().items():
            if name in HOST:
                readings[name] = _reading(name, (host or {}).get(name, HOST[name]))
            elif (why := check.refuse("cuda", everyone, len(places))) is not None:
                readings[name] = Reading(name, reason=why, counts=False)
            elif check.measure is not None:
                started = time.time() - 0.002
                data = fake.measure(name, places, EFFORT)
                watch.look()
                readings[name] = replace(
                    _reading(name, data), started_at=started, ended_at=time.time() + 0.002
                )
        readings[AFTER] = _reading(AFTER, nvml.read_inventory(print))
    lines = [strict_loads(line) for line in course.getvalue().splitlines()]
    return Evidence("quick", "cuda", everyone, readings, read_course(lines))


def _reading(name: str, data: Mapping[str, Any]) -> Reading:
    """Convert a reading to JSON and back, as in a bundle."""
    return Reading(name, strict_loads(canonical_json(data)))


def findings(
    found: Evidence, standards: Standards | None = None, require: tuple[str, ...] = ()
) -> tuple[Finding, ...]:
    return judge(found, standards or Standards(profile_of(found.gpus[0].name)), require)


def bad(every: tuple[Finding, ...]) -> list[Finding]:
    return [f for f in every if f.verdict != "pass" and f.counts]
