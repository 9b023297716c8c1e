"""A published throughput of a tiny model, and a `bench` that measures it for a moment."""

from __future__ import annotations

from typing import Any

TIMING = {"target_percent": 50, "measure_seconds": 0.1, "warmup_seconds": 0.1}


def published_rows(name: str) -> dict[str, Any]:
    """Return a file of published throughputs with one row, which every machine reaches."""
    row = {
        "name": name, "source": "me", "url": "example.org", "quote": "| 1 |", "software": "mine 1.0",
        "card": "NVIDIA H200", "gpus": 1, "model": {"name": "tiny-gpt-neox"}, "methods": ["checkpointing"],
        "micro_batch": 16, "per_second_per_gpu": 1.0,
    }  # fmt: skip
    sources = {"me": {"title": "my table", "day": "2026-01-31"}}
    return {"schema": "bench/published-rows/v1", "sources": sources, "rows": [row]}


# A row and the command line have no timing: a manifest without one is measured for a minute and a half.
BRIEFLY = f"""
import sys
from bench.base.strict_json import pretty_json
from bench.cli.main import main
from bench.planning import published
published.pretty_json = lambda document: pretty_json(document | {{"timing": {TIMING}}})
sys.exit(main())
"""
