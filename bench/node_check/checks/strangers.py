"""Who else is on these GPUs, before anything of ours is? Processes, memory, load, traffic on the bus."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from bench.node_check.checks import Check, not_read
from bench.node_check.judging.evidence import BEFORE, IDLE, Answers, Evidence
from bench.node_check.judging.finding import Finding, Verdict, quantity
from bench.node_check.judging.standards import Standards

# An idle H200 without a context was seen at 0.60 GiB, the driver's own; displays hold some hundred MiB.
HELD_WARN, HELD_FAIL = 1.0, 2.0  # GiB
BUSY_WARN, BUSY_FAIL = 1.0, 4.0  # percent, mean of the look
TRAFFIC_WARN, TRAFFIC_FAIL = 50e6, 500e6  # B/s, both ways; an idle H200 was seen at 1.4e6
ADVICE = "end the other work, or ask the landlord who shares this GPU; then check again"


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    data = evidence.data(IDLE)
    if data is None:
        reading = evidence.readings.get(IDLE)
        yield not_read("strangers", reading.reason if reading and reading.reason else "nobody looked")
        return
    gpus = evidence.alive(BEFORE)
    for seen in data["gpus"]:
        index = seen["gpu"]
        if index in gpus:
            yield from _gpu(index, seen, gpus[index])


def _late(values: list[float]) -> list[float]:
    """NVML's load is that of the last second: the first looks may still see what ended before."""
    return values[len(values) // 4 :]


def _gpu(index: int, seen: dict[str, list[float]], answers: Answers) -> Iterator[Finding]:
    parts: list[tuple[Verdict, str]] = []
    processes = [
        p
        for kind in ("Compute", "Graphics", "MPSCompute")
        for p in answers.get(f"{kind}RunningProcesses") or ()
    ]
    compute = answers.get("ComputeRunningProcesses") or ()
    if compute:
        parts.append(("fail", f"{len(compute)} processes compute there (pid {_pids(compute)})"))
    elif processes:
        parts.append(("warn", f"{len(processes)} processes draw there (pid {_pids(processes)})"))
    if (memory := seen["used_bytes"]) and (held := min(memory) / 2**30) > HELD_WARN:
        parts.append(("fail" if held > HELD_FAIL else "warn", f"{held:.1f} GiB of memory are held"))
    if (busy := _late(seen["busy_percent"])) and mean(busy) > BUSY_WARN:
        parts.append(
            ("fail" if mean(busy) > BUSY_FAIL else "warn", f"it is busy {mean(busy):.0f}% of the time")
        )
    if (traffic := _late(seen["bus_bytes_per_second"])) and mean(traffic) > TRAFFIC_WARN:
        grave = mean(traffic) > TRAFFIC_FAIL
        parts.append(("fail" if grave else "warn", f"{quantity(mean(traffic), 'B/s')} cross its bus"))
    if not memory and not busy and not traffic:
        yield not_read("strangers", "it says nothing of memory, load or traffic", gpu=index)
        return
    known = {
        "no process": answers.get("ComputeRunningProcesses") is not None,
        "no load": bool(busy),
        "no traffic": bool(traffic),
    }
    verdict: Verdict = "fail" if any(v == "fail" for v, _ in parts) else "warn" if parts else "pass"
    yield Finding(
        "strangers", f"GPU {index}", verdict,
        "; ".join(text for _, text in parts) or f"idle: {', '.join(what for what in known if known[what])}",
        f"no process, under {HELD_WARN:g} GiB held, under {BUSY_WARN:g}% busy, under "
        f"{quantity(TRAFFIC_WARN, 'B/s')} on its bus",
        "rule", "bench: what an idle H200 showed", ADVICE if parts else "", index,
    )  # fmt: skip


def _pids(processes: list[dict[str, int]]) -> str:
    return ", ".join(str(p.get("pid")) for p in processes[:4])


CHECK = Check("strangers", "is anybody else on these GPUs?", judge, blames="guests")
