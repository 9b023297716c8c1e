"""Call the command of --on-change when the verdict of a node changes.

In:  the results of a check, and the state last reported to the command. Out: the state reported now, or why
the command failed. A failed command is called again after the next check, and changes no verdict.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.base.linux_processes import kill_group
from bench.base.stamps import utc
from bench.base.strict_json import canonical_json, to_json
from bench.node_check.check_results import CheckResults, shown_findings
from bench.node_check.judging.finding import State, state_of
from bench.node_check.reason import reason_of

COMMAND_SECONDS = 20.0  # that the command may take; Slurm's HealthCheckProgram has 60 s in all
OUTPUT_BYTES = 300  # of the command's output that an error repeats
SCHEMA = "bench/verdict-change/v1"


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """A change of a node's state, which is reported to the command of --on-change."""

    before: State | None  # None: nothing was reported before, or the history is gone
    after: State
    error: str | None = None  # why the command failed


def document_of(change: VerdictChange, results: CheckResults, bundle: Path, host: str) -> dict[str, Any]:
    """Return the JSON that the command gets on its standard input."""
    return {
        "schema": SCHEMA,
        "from": change.before,
        "to": change.after,
        "verdict": results.verdict,
        "reason": reason_of(results),
        "host": host,
        "at": utc(results.run.ended_at),
        "level": results.level,
        "simulated": results.simulated,
        "run": results.run.id,
        "bundle": str(bundle.absolute()),
        "findings": to_json(shown_findings(results.findings)),
    }


def tell(
    command: list[str], results: CheckResults, bundle: Path, before: State | None
) -> VerdictChange | None:
    """Call the command if the node's state differs from the last reported one; return None if it does not."""
    after = state_of(results.verdict)
    if after == before:
        return None
    change = VerdictChange(before, after)
    return replace(change, error=call(command, document_of(change, results, bundle, socket.gethostname())))


def call(command: list[str], document: Mapping[str, Any]) -> str | None:
    """Run the command with the document on its standard input; return why it failed, or None."""
    words = {"BENCH_FROM": document["from"] or "", "BENCH_TO": document["to"]}
    environment = os.environ | words | {"BENCH_REASON": document["reason"]}
    try:
        # Files instead of pipes: a program that the command leaves behind may keep a pipe open forever.
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as output:
            given.write(canonical_json(document) + b"\n")
            given.seek(0)
            process = subprocess.Popen(
                command, stdin=given, stdout=output, stderr=output, env=environment, start_new_session=True
            )
            code = _waited_for(process)
            output.seek(max(0, output.seek(0, os.SEEK_END) - OUTPUT_BYTES))
            said = " ".join(output.read().decode(errors="replace").split())
    except OSError as error:
        return f"cannot be started: {error.strerror}"
    if code == 0:
        return None
    if code is None:
        return f"did not end within {COMMAND_SECONDS:g} s and was killed"
    ended = f"ended with exit code {code}" if code > 0 else f"was ended by signal {-code}"
    return f"{ended}: {said}" if said else ended


def _waited_for(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit code; None if the process took too long, and was killed with what it started."""
    try:
        return process.wait(COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:  # also after Ctrl-C
            kill_group(process.pid)
            process.wait()
