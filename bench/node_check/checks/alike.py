"""Check that all GPUs have the same model, firmware, driver and power limit, from NVML's inventory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from bench.node_check.checks import Check
from bench.node_check.judging.evidence import BEFORE, Evidence
from bench.node_check.judging.finding import Finding, Question, Verdict, verdict_of
from bench.node_check.judging.standards import Standards

# NVML query: (property, verdict if it differs, advice)
SAME: dict[str, tuple[str, Verdict, str]] = {
    "Name": ("model", "fail", "one of the GPUs is not what was ordered"),
    "VbiosVersion": ("VBIOS", "warn", "bring all to one VBIOS with the vendor's tool"),
    "InforomImageVersion": ("InfoROM", "warn", "bring all to one firmware with the vendor's tool"),
    "BoardPartNumber": ("part number", "warn", "ask the vendor why boards differ"),
    "MigMode": ("MIG mode", "fail", "switch MIG alike on all GPUs (root)"),
    "ComputeMode": ("compute mode", "warn", "nvidia-smi -c 0 (root)"),
    "PowerManagementLimit": ("power limit", "fail", "nvidia-smi -pl (root): slow GPUs hold back the others"),
}

COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
PROHIBITED = 2


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Compare each property with that of most GPUs, and driver and VBIOS with the owner's expectations."""
    gpus = list(evidence.alive(BEFORE).values())
    for query in SAME:
        values = {g.index: _value_text(query, g.get(query)) for g in gpus if g.get(query) is not None}
        if values:
            yield from _compared(query, values)
    for gpu in gpus:
        if gpu.get("ComputeMode") == PROHIBITED:
            yield Question.of_gpu("alike", gpu.index, "compute mode").judged(
                "fail",
                "no program may compute there",
                expected="default, or exclusive process",
                source="NVML: nvmlDeviceGetComputeMode",
                advice=SAME["ComputeMode"][2],
            )
    yield from _driver(evidence, standards)
    yield from _vbios(evidence, standards)


def _compared(query: str, values: dict[int, str]) -> Iterator[Finding]:
    """Yield a finding for each GPU whose value is not the usual one, or a single pass if all are equal."""
    what, verdict, advice = SAME[query]
    usual, count = Counter(values.values()).most_common(1)[0]
    whose = "as on most GPUs of this node" if 2 * count > len(values) else "as another GPU has it"
    source = "the other GPUs of this node"
    for index, value in values.items():
        if value != usual:
            yield Question.of_gpu("alike", index).judged(
                verdict,
                f"{what} {value}",
                expected=f"{what} {usual}, {whose}",
                basis="peers",
                source=source,
                advice=advice,
            )
    if count == len(values):
        yield Question("alike", what).judged(
            "pass",
            f"{usual} on all" if count > 1 else usual,
            expected="the same on all GPUs",
            basis="peers",
            source=source,
        )


def _value_text(query: str, value: Any) -> str:
    match query, value:
        case "ComputeMode", int():
            return COMPUTE_MODES.get(value, str(value))
        case "PowerManagementLimit", int() | float():
            return f"{value / 1000:.0f} W"
        case "MigMode", [now, later]:
            mode, next_mode = ("on" if wanted else "off" for wanted in (now, later))
            return mode if mode == next_mode else f"{mode}, {next_mode} after the next reset"
    return str(value)


def _driver(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    data = evidence.data(BEFORE)
    if data is None:
        return
    question = Question("alike", "driver")
    library, module = data.get("driver"), data.get("kernel_module")
    if library and module and library != module:
        yield question.judged(
            "fail",
            f"libraries of {library}, kernel module {module}",
            expected="one version",
            source="NVML and /proc/driver/nvidia/version",
            advice="reload the module or reboot: an update was not finished",
        )
    expected = standards.expect.driver
    if library and expected:
        yield question.judged(
            verdict_of(fail=not str(library).startswith(expected)),
            str(library),
            expected=f"{expected}...",
            source="the manifest",
            advice="install the driver that the fleet has",
        )


def _vbios(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    expected = standards.expect.vbios
    for gpu in evidence.inventory(BEFORE) if expected else ():
        vbios = gpu.get("VbiosVersion")
        yield Question.of_gpu("alike", gpu.index).judged(
            verdict_of(fail=vbios != expected),
            f"VBIOS {vbios}",
            expected=f"VBIOS {expected}",
            source="the manifest",
            advice="update it with the vendor's tool",
        )


CHECK = Check(
    "alike", "are all GPUs alike in model, firmware, driver and limits?", judge, blames="node", passive=True
)
