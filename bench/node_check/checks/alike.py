"""Are all GPUs of one kind, with one firmware, one driver and one power limit?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from bench.node_check.checks import Check
from bench.node_check.judging.evidence import BEFORE, Evidence
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.standards import Standards

SAME = {
    "Name": ("model", "fail", "one of the GPUs is not what was ordered"),
    "VbiosVersion": ("VBIOS", "warn", "bring all to one VBIOS with the vendor's tool"),
    "InforomImageVersion": ("InfoROM", "warn", "bring all to one firmware with the vendor's tool"),
    "BoardPartNumber": ("part number", "warn", "ask the vendor why boards differ"),
    "MigMode": ("MIG mode", "fail", "switch MIG alike on all GPUs (root)"),
    "ComputeMode": ("compute mode", "warn", "nvidia-smi -c 0 (root)"),
    "PowerManagementLimit": ("power limit", "fail", "nvidia-smi -pl (root): slow GPUs hold back the others"),
}  # fmt: skip

COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
PROHIBITED = 2


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    gpus = list(evidence.alive(BEFORE).values())
    for query, (what, verdict, advice) in SAME.items():
        found = {g.index: _words(query, g.get(query)) for g in gpus if g.get(query) is not None}
        usual, count = Counter(found.values()).most_common(1)[0] if found else ("", 0)
        whose = "as most of this node have it" if 2 * count > len(found) else "as another has it"
        for index, value in found.items():
            if value != usual:
                yield Finding(
                    "alike", f"GPU {index}", verdict,  # type: ignore[arg-type]
                    f"{what} {value}", f"{what} {usual}, {whose}", "peers",
                    "the other GPUs of this node", advice, index,
                )  # fmt: skip
        if found and len(set(found.values())) == 1:
            yield Finding(
                "alike", what, "pass", f"{usual}" + (" on all" if len(found) > 1 else ""), "one on all GPUs",
                "peers", "the other GPUs of this node",
            )  # fmt: skip
    for gpu in gpus:
        if gpu.get("ComputeMode") == PROHIBITED:
            yield Finding(
                "alike", f"GPU {gpu.index} compute mode", "fail", "no program may compute there",
                "default, or exclusive process", "rule", "NVML: nvmlDeviceGetComputeMode",
                SAME["ComputeMode"][2], gpu.index,
            )  # fmt: skip
    yield from _driver(evidence, standards)
    yield from _vbios(evidence, standards)


def _words(query: str, value: Any) -> str:
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
    library, module = data.get("driver"), data.get("kernel_module")
    if library and module and library != module:
        yield Finding(
            "alike",
            "driver",
            "fail",
            f"libraries of {library}, kernel module {module}",
            "one version",
            "rule",
            "NVML and /proc/driver/nvidia/version",
            "reload the module or reboot: an update was not finished",
        )
    wanted = standards.expect.driver
    if library and wanted:
        good = str(library).startswith(wanted)
        yield Finding(
            "alike",
            "driver",
            "pass" if good else "fail",
            str(library),
            f"{wanted}...",
            "rule",
            "the manifest",
            "" if good else "install the driver that the fleet has",
        )


def _vbios(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    for gpu in evidence.inventory(BEFORE) if standards.expect.vbios else ():
        found = gpu.get("VbiosVersion")
        good = found == standards.expect.vbios
        yield Finding(
            "alike",
            gpu.where,
            "pass" if good else "fail",
            f"VBIOS {found}",
            f"VBIOS {standards.expect.vbios}",
            "rule",
            "the manifest",
            "" if good else "update it with the vendor's tool",
            gpu.index,
        )


CHECK = Check("alike", "are all GPUs alike in model, firmware, driver and limits?", judge, blames="node")
