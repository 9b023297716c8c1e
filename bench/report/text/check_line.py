"""Format a node check as one line for monitoring systems that follow Nagios. Pure, and quick to import."""

from __future__ import annotations

from collections.abc import Iterator

from bench.node_check.check_results import CheckResults
from bench.node_check.judging.finding import Finding, worst
from bench.node_check.judging.standards import profile_for
from bench.report.text.check_summary import counted_text, node_text

NRPE_BYTES = 1023  # the longest line that every version of Nagios' remote agent passes on
NAGIOS_TEXT_BYTES = 500  # of NRPE_BYTES; the rest is for figures
NAGIOS_UNITS = {"FLOP/s": (1e12, "TFLOP/s"), "B/s": (1e9, "GB/s")}  # scale and unit; units have no digits


def nagios_line(results: CheckResults) -> str:
    """Format one line as Nagios plug-ins do: STATE - text | figures; the most serious finding comes first.

    The line fits into NRPE_BYTES. A figure is the lowest of the node's GPUs; the bundle has each GPU's.
    """
    state = {"pass": "OK", "warn": "WARNING", "fail": "CRITICAL", "not-run": "UNKNOWN"}[results.verdict]
    problem = worst([f for f in results.findings if f.counts])
    finding = f"{problem.line}; " if problem and results.verdict != "pass" else ""
    text = f"BENCH {state} - {finding}{counted_text(results.findings)}; {node_text(results)}"
    line = _nagios_text(text)
    separator = " | "
    for figure in _lowest_figures(results):
        if len(f"{line}{separator}{figure}".encode()) > NRPE_BYTES:
            break
        line, separator = f"{line}{separator}{figure}", " "
    return line


def _lowest_figures(results: CheckResults) -> Iterator[str]:
    """Yield each figure of the GPUs, by the lowest of them, as 'label'=value[unit];[warn:];[critical:]."""
    profile = profile_for(results.node.gpus)
    lowest: dict[str, Finding] = {}
    for f in results.findings:
        if f.gpu is not None and f.figure and f.value is not None:
            lowest[f.figure] = min(lowest.get(f.figure, f), f, key=lambda one: one.value or 0.0)
    for name, f in lowest.items():
        scale, unit = NAGIOS_UNITS.get(f.unit or "", (1.0, f.unit or ""))
        limits = ""
        if profile and (reference := profile.figures.get(name)):
            for percent in (reference.warn_percent, reference.fail_percent):
                limits += f";{reference.value * (1 - percent / 100) / scale:.4g}:"
        yield f"'{name}'={(f.value or 0.0) / scale:.4g}{unit}{limits}"


def nagios_unknown(reason: str) -> str:
    """Format a Nagios line for a check that could not begin; the reason becomes one line without `|`."""
    words = "; ".join(line.strip() for line in reason.splitlines())
    return _nagios_text(f"BENCH UNKNOWN - {words}")


def nagios_not_checked(reason: str) -> str:
    """Format a Nagios line for a node that was not checked because its GPUs are in use."""
    return _nagios_text(f"BENCH OK - not checked, its GPUs are in use: {reason}")


def _nagios_text(text: str) -> str:
    """Return a text without `|`, which begins the figures, and cut to NAGIOS_TEXT_BYTES."""
    data = text.replace("|", "/").encode()
    if len(data) <= NAGIOS_TEXT_BYTES:
        return data.decode()
    return data[: NAGIOS_TEXT_BYTES - 3].decode(errors="ignore") + "..."
