"""Format a node check as OpenMetrics, for the textfile collector of Prometheus' node exporter. Pure.

Every family is a gauge, because the collector reads the older format of Prometheus, which names counters in
another way. The unit of a figure is the end of its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bench.base.errors import one_line
from bench.node_check.all_checks import known_checks
from bench.node_check.check_results import CheckResults
from bench.node_check.judging.evidence import AFTER, BEFORE, Answers, Evidence, GpuSample
from bench.node_check.judging.finding import VERDICTS, Finding

Labels = Mapping[str, str]
RATES = {"FLOP/s": "flops_per_second", "B/s": "bytes_per_second"}


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """The head of metrics of one name, as OpenMetrics has it."""

    name: str
    help: str
    unit: str = ""  # the end of the name, if the values have a unit


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One value of a family in its unit, told apart by its labels."""

    family: str
    labels: Labels
    value: float


FAMILIES = (
    MetricFamily("bench_check_info", "what was checked by which version of bench"),
    MetricFamily("bench_check_verdict", "1 for the verdict of the last node check, 0 for the others"),
    MetricFamily("bench_check_ended_time_seconds", "unix time at which the last node check ended", "seconds"),
    MetricFamily("bench_check_duration_seconds", "how long the last node check took", "seconds"),
    MetricFamily("bench_check_findings", "answers of each check that count, by verdict"),
    MetricFamily("bench_check_command_failed", "1 if the command of --on-change failed"),
    MetricFamily("bench_gpu_findings", "answers about a GPU that count, by verdict"),
    MetricFamily("bench_gpu_temperature_celsius", "temperature", "celsius"),
    MetricFamily("bench_gpu_power_watts", "power draw", "watts"),
    MetricFamily("bench_gpu_power_limit_watts", "enforced power limit", "watts"),
    MetricFamily("bench_gpu_sm_clock_hertz", "clock of the multiprocessors", "hertz"),
    MetricFamily("bench_gpu_memory_used_bytes", "memory in use", "bytes"),
    MetricFamily("bench_gpu_pcie_lanes", "lanes of the PCIe link, at rest"),
    MetricFamily("bench_gpu_nvlinks_up", "NVLinks that are up"),
    MetricFamily("bench_gpu_ecc_uncorrected_errors", "uncorrected memory errors since boot"),
    MetricFamily("bench_gpu_ecc_corrected_errors", "corrected memory errors since boot"),
    MetricFamily("bench_gpu_remapped_rows", "memory rows that were remapped"),
    MetricFamily("bench_gpu_remapping_pending", "1 if a row waits for a reset to be remapped"),
    MetricFamily("bench_gpu_figure_flops_per_second", "measured arithmetic", "flops_per_second"),
    MetricFamily("bench_gpu_figure_bytes_per_second", "measured bandwidth", "bytes_per_second"),
    MetricFamily("bench_node_figure_bytes_per_second", "measured bandwidth of the node", "bytes_per_second"),
)


def openmetrics(results: CheckResults, evidence: Evidence, command_failed: bool | None = None) -> str:
    """Return the text of the file; `command_failed` is None if there is no command."""
    by_family: dict[str, list[MetricSample]] = {}
    level = {"level": results.level}
    for sample in (*_of_check(results, command_failed), *_of_gpus(results, evidence)):
        by_family.setdefault(sample.family, []).append(sample)
    lines = []
    for family in FAMILIES:
        if samples := by_family.get(family.name):
            lines += [f"# TYPE {family.name} gauge"]
            lines += [f"# UNIT {family.name} {family.unit}"] if family.unit else []
            lines += [f"# HELP {family.name} {family.help}"]
            lines += [_line(family.name, {**level, **one.labels}, one.value) for one in samples]
    return "\n".join([*lines, "# EOF\n"])


def _line(name: str, labels: Labels, value: float) -> str:
    escaped = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{escaped}}} {value:.12g}"


def _escaped(text: str) -> str:
    """Escape a text for the format, and the control characters of terminals in it."""
    return one_line(text).replace("\\", r"\\").replace('"', r"\"")


def _of_check(results: CheckResults, command_failed: bool | None) -> Iterator[MetricSample]:
    node = results.node
    info = {
        "version": results.bench_version,
        "gpus": str(len(node.gpus)),
        "model": ", ".join(sorted({gpu.name for gpu in node.gpus})),
        "driver": node.driver or "",
        "profile": results.profile.name if results.profile else "",
        "simulated": str(results.simulated).lower(),
    }
    yield MetricSample("bench_check_info", info, 1)
    for verdict in VERDICTS:
        yield MetricSample("bench_check_verdict", {"verdict": verdict}, verdict == results.verdict)
    yield MetricSample("bench_check_ended_time_seconds", {}, results.run.ended_at)
    yield MetricSample("bench_check_duration_seconds", {}, results.run.ended_at - results.run.started_at)
    for check in known_checks():
        answers = [f.verdict for f in results.findings if f.check == check and f.counts]
        for verdict in VERDICTS:
            labels = {"check": check, "verdict": verdict}
            yield MetricSample("bench_check_findings", labels, answers.count(verdict))
    if command_failed is not None:
        yield MetricSample("bench_check_command_failed", {}, command_failed)


def _of_gpus(results: CheckResults, evidence: Evidence) -> Iterator[MetricSample]:
    answers = evidence.alive(BEFORE) | evidence.alive(AFTER)
    last = evidence.course[-1].gpus if evidence.course else ()
    uuids = {gpu.index: gpu.uuid for gpu in results.node.gpus}
    for index, uuid in uuids.items():
        labels = {"gpu": str(index), "uuid": uuid}
        own = [f.verdict for f in results.findings if f.gpu == index and f.counts]
        for verdict in VERDICTS:
            yield MetricSample("bench_gpu_findings", {**labels, "verdict": verdict}, own.count(verdict))
        values = _at_rest(answers[index]) if index in answers else {}
        values |= _sampled(last[index]) if index < len(last) else {}
        for name, value in values.items():
            if value is not None:
                yield MetricSample(f"bench_gpu_{name}", labels, value)
    yield from _figures(results.findings, uuids)


def _at_rest(gpu: Answers) -> dict[str, float | None]:
    """Return NVML's answers about a GPU, by the end of the metric's name."""
    limit, rows = gpu.number("EnforcedPowerLimit"), gpu.get("RemappedRows")
    links = [state for link in range(18) if (state := gpu.number(f"NvLinkState.{link}")) is not None]
    return {
        "power_limit_watts": limit / 1000 if limit is not None else None,
        "pcie_lanes": gpu.number("CurrPcieLinkWidth"),
        "nvlinks_up": links.count(1.0) if links else None,
        "ecc_uncorrected_errors": gpu.number("TotalEccErrors.1.0"),
        "ecc_corrected_errors": gpu.number("TotalEccErrors.0.0"),
        "remapped_rows": rows[0] + rows[1] if rows else None,
        "remapping_pending": bool(rows[2]) if rows else None,
    }


def _sampled(gpu: GpuSample) -> dict[str, float | None]:
    """Return a GPU's values in the last reading of telemetry, by the end of the metric's name."""
    return {
        "temperature_celsius": gpu.celsius,
        "power_watts": gpu.power_watts,
        "sm_clock_hertz": gpu.sm_mhz * 1e6 if gpu.sm_mhz is not None else None,
        "memory_used_bytes": gpu.used_bytes,
    }


def _figures(findings: tuple[Finding, ...], uuids: Mapping[int, str]) -> Iterator[MetricSample]:
    """Yield each measured figure once, though it may be judged by several standards."""
    figures = {(f.gpu, f.figure): f for f in findings if f.figure and f.value is not None}
    for (gpu, figure), finding in figures.items():
        unit = RATES.get(finding.unit or "")
        if unit is None or figure is None or finding.value is None:
            continue
        if gpu is None:
            yield MetricSample(f"bench_node_figure_{unit}", {"figure": figure}, finding.value)
        elif gpu in uuids:
            labels = {"gpu": str(gpu), "uuid": uuids[gpu], "figure": figure}
            yield MetricSample(f"bench_gpu_figure_{unit}", labels, finding.value)
