"""Check for other users of the GPUs before the load: processes, memory, load and bus traffic. From NVML."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from bench.node_check.checks import Check
from bench.node_check.judging.evidence import BEFORE, IDLE, Answers, Evidence
from bench.node_check.judging.finding import Finding, Question, memory, quantity, verdict_of
from bench.node_check.judging.standards import Standards

# An idle H200 without a context was seen at 0.60 GiB, the driver's own; displays hold some hundred MiB.
HELD_WARN, HELD_FAIL = 2**30, 2 * 2**30  # bytes
BUSY_WARN, BUSY_FAIL = 1.0, 4.0  # percent, mean while idle
TRAFFIC_WARN, TRAFFIC_FAIL = 50e6, 500e6  # B/s, both ways; an idle H200 was seen at 1.4e6
ADVICE = "end the other work, or ask the provider who shares this GPU; then check again"


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Fail foreign processes that compute and heavy use of an idle GPU; warn of light use."""
    data = evidence.data(IDLE)
    if data is None:
        reading = evidence.readings.get(IDLE)
        yield Question("strangers").unread((reading and reading.reason) or "it was not measured")
        return
    gpus = evidence.alive(BEFORE)
    for rates in data["gpus"]:
        index = rates["gpu"]
        if index in gpus:
            yield _use(index, rates, gpus[index])


def _late(values: list[float]) -> list[float]:
    """Leave out the first quarter: NVML's load is an average that still covers work which ended before."""
    return values[len(values) // 4 :]


def _use(index: int, rates: dict[str, list[float]], answers: Answers) -> Finding:
    question = Question.of_gpu("strangers", index)
    used = rates["used_bytes"]
    busy, traffic = _late(rates["busy_percent"]), _late(rates["bus_bytes_per_second"])
    parts = list(_processes(answers))
    if used and (held := min(used)) > HELD_WARN:
        parts.append((held > HELD_FAIL, f"{memory(held)} of memory are in use"))
    if busy and (percent := mean(busy)) > BUSY_WARN:
        parts.append((percent > BUSY_FAIL, f"it is busy {percent:.0f}% of the time"))
    if traffic and (rate := mean(traffic)) > TRAFFIC_WARN:
        parts.append((rate > TRAFFIC_FAIL, f"{quantity(rate, 'B/s')} cross its bus"))
    if not used and not busy and not traffic:
        return question.unread("reports neither memory use, load nor traffic")
    watched = answers.get("ComputeRunningProcesses") is not None
    free = ["no process"] * watched + ["no load"] * bool(busy) + ["no traffic"] * bool(traffic)
    return question.judged(
        verdict_of(fail=any(grave for grave, _ in parts), warn=parts),
        "; ".join(text for _, text in parts) or f"idle: {', '.join(free)}",
        expected=f"no process, under {memory(HELD_WARN)} in use, under {BUSY_WARN:g}% busy, under "
        f"{quantity(TRAFFIC_WARN, 'B/s')} on its bus",
        source="bench: what an idle H200 showed",
        advice=ADVICE,
    )


def _processes(answers: Answers) -> Iterator[tuple[bool, str]]:
    """Yield in words which processes run on a GPU, after whether that is a fault."""
    compute, *others = (
        answers.get(f"{kind}RunningProcesses") or () for kind in ("Compute", "Graphics", "MPSCompute")
    )
    drawing = [process for processes in others for process in processes]
    if compute:
        yield True, f"{len(compute)} processes compute there (pid {_pids(compute)})"
    elif drawing:
        yield False, f"{len(drawing)} graphics processes run there (pid {_pids(drawing)})"


def _pids(processes: list[dict[str, int]]) -> str:
    return ", ".join(str(p.get("pid")) for p in processes[:4])


CHECK = Check("strangers", "does anything else use these GPUs?", judge, blames="guests", prolog=True)
