"""A fake of pynvml that answers from a file, for rehearsing faults without a GPU.

Only pynvml is replaced: all other code of a node check is the real one. The default answers were
recorded on real cards (bench/data/fake). The bundle of such a check says that it is simulated.

A scenario file; every key is optional:

    {"machine": "h200", "count": 8,
     "all":   {"PersistenceMode": 0},            answers of every GPU, by query
     "gpus":  {"3": {"RemappedRows": [0, 1, 1, 0]}},
     "later": {"3": {"NvLinkErrorCounter.7.0": 5}},   from when the load begins
     "load":  {"3": {"CurrPcieLinkGeneration": 4}},   while there is load
     "xids":  {"3": [79]},
     "handles": {"3": {"error": "NVMLError_NoPermission", "value": 4}},   an error in place of a handle
     "kernel": {"gpus": []},                     the kernel's own list; without it, that of these GPUs
     "lost":  {"3": 3},      lost from this nvmlInit on: 1 before, 2 idle, 3 load, 4 after
     "hang":  {"gpu": 3, "query": "NvLinkState.0", "from": 1},
     "rates": {"matmul": {"5": 0.8}, "all-reduce": {"*": 0.7}},   as a share of a healthy GPU's rate;
                                                 of "own-card": of its rate alone, while all GPUs work
     "wrong": {"2": {"wrong_passes": 1}},        in the check agreement
     "cut":   ["0-2", "2-0"],                    pairs without a direct link
     "sag":   {"4": 0.8}, "algorithm": "RING"}
"""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from bench.base.shipped_data import read_data
from bench.base.strict_json import to_json
from bench.node_check.checks import CheckBudget
from bench.node_check.judging.evidence import Figure
from bench.node_check.judging.standards import profile_of

LOAD = 3  # the number of the nvmlInit call of the watch, during which the checks run
UNDER_LOAD = {
    "ClockInfo.SM": 1800,
    "PowerUsage": 698_000,
    "Temperature.GPU": 62,
    "CurrentClocksEventReasons": 4,
    "UtilizationRates": {"gpu": 100, "memory": 60},
}
LOAD_SECONDS = 0.12  # duration of each check: long enough for the watch to take a reading


class NVMLError(Exception):
    """The base of all errors of NVML, with NVML's number of the error."""

    def __init__(self, value: int) -> None:
        super().__init__(f"{type(self).__name__} ({value})")
        self.value = value


def _error(name: str, value: int) -> NVMLError:
    kind: type[NVMLError] = type(name, (NVMLError,), {})
    return kind(value)


class _FabricInfo(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint) for name in ("status", "state", "healthMask"))


class _SramStatus(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint), ("bThresholdExceeded", ctypes.c_uint))


class FakeNvml:
    """The fake machine as this process sees it. A fault begins with the NVML session of a given number."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = "SM", "MEM", "GPU"
    nvmlEventTypeXidCriticalError = 8  # noqa: N815
    c_nvmlGpuFabricInfo_v2_t = _FabricInfo  # noqa: N815
    c_nvmlEccSramErrorStatus_v1_t = _SramStatus  # noqa: N815

    def __init__(self, scenario: Mapping[str, Any], marks: Path | None = None) -> None:
        self._scenario = scenario
        self._marks = marks  # a file with a byte for each nvmlInit: each session is in another process
        self._turn = 0
        self._machine = read_data(f"fake/{scenario.get('machine', 'h200')}.json")
        self._count = int(scenario.get("count", 1))
        self._xids = {int(gpu): list(xids) for gpu, xids in scenario.get("xids", {}).items()}
        self._answered: dict[tuple[int, int], dict[str, Any]] = {}  # by GPU and session

    @classmethod
    def from_file(cls, path: Path) -> FakeNvml:
        """Read a scenario; sessions are counted in a file beside it, since each is in another process."""
        return cls(json.loads(path.read_text()), path.with_suffix(".inits"))

    # NVML's functions

    def nvmlInit(self) -> None:  # noqa: N802
        """Begin a session and count it in the file of marks; fails if the scenario has no driver."""
        if self._marks is not None:
            with self._marks.open("ab") as file:
                file.write(b".")
            self._turn = self._marks.stat().st_size
        if self._scenario.get("no_driver"):
            raise _error("NVMLError_DriverNotLoaded", 9)

    def nvmlShutdown(self) -> None:  # noqa: N802
        """Do nothing: nvmlInit opened nothing."""

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        """Return the scenario's number of GPUs."""
        return self._count

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        """Return the scenario's driver, or that of the recorded machine."""
        return str(self._scenario.get("driver", self._machine["driver"]))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        """Return the index as the handle, or raise the error that the scenario has in its place."""
        if refused := self._scenario.get("handles", {}).get(str(index)):
            raise _error(refused["error"], refused["value"])
        return index

    def nvmlDeviceGetIndex(self, handle: int) -> int:  # noqa: N802
        """Return the handle: handles are indices here."""
        return handle

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[str]) -> Any:  # noqa: N802
        """Answer the first field only: bench asks for one at a time."""
        return self._ask(handle, f"field.{fields[0]}")

    def nvmlDeviceGetGpuFabricInfoV(self, handle: int, reference: Any) -> None:  # noqa: N802
        """Write the state of the fabric into the structure that `reference` points to."""
        self._fill(reference, self._ask(handle, "FabricInfo"))

    def nvmlDeviceGetSramEccErrorStatus(self, handle: int, reference: Any) -> None:  # noqa: N802
        """Write the state of the SRAM into the structure that `reference` points to."""
        self._fill(reference, self._ask(handle, "SramEccErrorStatus"))

    def _fill(self, reference: Any, values: Mapping[str, int]) -> None:
        for name, value in values.items():
            setattr(reference._obj, name, value)

    def nvmlEventSetCreate(self) -> object:  # noqa: N802
        """Return an empty set: all events are in the scenario."""
        return object()

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: object) -> None:  # noqa: N802
        """Answer like a query, so that a scenario can make it fail."""
        self._ask(handle, "RegisterEvents")

    def nvmlEventSetWait(self, events: object, milliseconds: int) -> SimpleNamespace:  # noqa: N802
        """Return the next Xid of the scenario at once, or raise the error of a timeout."""
        for gpu, xids in self._xids.items():
            if xids:
                return SimpleNamespace(device=gpu, eventData=xids.pop(0))
        raise _error("NVMLError_Timeout", 10)

    def __getattr__(self, name: str) -> Any:
        """Return the function nvmlDeviceGetX, which answers "X.a.b" to (handle, a, b), or a field's name."""
        if name.startswith("NVML_FI_DEV_"):
            return name
        if not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)
        query = name.removeprefix("nvmlDeviceGet")

        def answer(handle: int, *arguments: Any) -> Any:
            value = self._ask(handle, ".".join([query, *map(str, arguments)]))
            return SimpleNamespace(**value) if isinstance(value, dict) else value  # like NVML's structures

        return answer

    def _ask(self, gpu: int, query: str) -> Any:
        self._misbehave(gpu, query)
        value = self._answers(gpu).get(query, {"error": "NVMLError_NotSupported", "value": 3})
        if isinstance(value, dict) and "error" in value:
            raise _error(value["error"], value.get("value", 999))
        return value

    def _misbehave(self, gpu: int, query: str) -> None:
        hang = self._scenario.get("hang")
        if hang and hang["gpu"] == gpu and hang["query"] == query and self._turn >= hang.get("from", 1):
            time.sleep(3600)
        lost = self._scenario.get("lost", {}).get(str(gpu))
        if lost is not None and self._turn >= lost:
            raise _error("NVMLError_GpuIsLost", 15)

    def _answers(self, gpu: int) -> dict[str, Any]:
        """Return a GPU's answers by query; they change with the session alone, and are made once for each."""
        if (kept := self._answered.get((gpu, self._turn))) is not None:
            return kept
        answers: dict[str, Any] = {
            **self._machine["gpu"],
            "UUID": f"GPU-0000000{gpu}-0000-0000-0000-000000000000",
            "FabricInfo": {"state": 3, "status": 0, "healthMask": 0},
            "SramEccErrorStatus": {"bThresholdExceeded": 0},
            "RegisterEvents": 0,
        }
        answers["PciInfo"] = {"busId": f"00000000:{0x10 + gpu:02X}:00.0"}
        answers |= {f"P2PStatus.{other}.{what}": 0 for other in range(self._count) for what in (0, 4)}
        parts = [self._scenario.get("all", {}), self._scenario.get("gpus", {}).get(str(gpu), {})]
        if self._turn == LOAD:
            parts += [UNDER_LOAD, self._scenario.get("load", {}).get(str(gpu), {})]
        if self._turn >= LOAD:
            parts.append(self._scenario.get("later", {}).get(str(gpu), {}))
        for part in parts:
            answers |= part
        self._answered[gpu, self._turn] = answers
        return answers

    def kernel_gpus(self) -> Any:
        """Return the kernel's list of GPUs, as KernelGpus in JSON."""
        own = [(gpu, self._answers(gpu)) for gpu in range(self._count)]
        listed = [
            {"bus": f"0000:{0x10 + gpu:02x}:00.0", "uuid": answers["UUID"], "name": answers["Name"]}
            for gpu, answers in own
        ]
        return self._scenario.get("kernel", {"gpus": listed, "unseen": None})

    # Measurements of the checks

    def measure(self, check: str, gpus: list[int], budget: CheckBudget) -> dict[str, Any]:
        """Return what the check's `measure` returns for healthy GPUs, changed by the scenario's faults."""
        time.sleep(LOAD_SECONDS)
        if check in self._scenario.get("crash", ()):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if check in self._scenario.get("stuck", ()):
            time.sleep(3600)
        makers = {
            "peers": self._peers,
            "all-reduce": self._all_reduce,
            "agreement": self._agreement,
            "soak": self._soak,
            "own-card": self._own_card,
        }
        if check in makers:
            return makers[check](gpus)
        names = {
            "matmul": [f"matmul-{p}" for p in ("bf16", "fp16", "tf32", "fp32")],
            "memory": ["memory"],
            "copies": ["host-to-device", "device-to-host"],
        }[check]
        return {"figures": to_json([self._figure(check, name, gpu) for gpu in gpus for name in names])}

    def _figure(self, check: str, name: str, gpu: int | None, kind: str = "", place: str = "") -> Figure:
        profile = profile_of(str(self._answers(0)["Name"]))
        expected = profile.figures.get(kind or name) if profile else None
        factors = self._scenario.get("rates", {}).get(check, {})
        factor = factors.get(place or str(gpu), factors.get("*", 1.0))
        spread = 1 + 0.002 * ((7 * (gpu or 0)) % 5 - 2)  # healthy cards differ a little
        rate = (expected.value if expected else 1e11) * factor * spread
        unit: Literal["FLOP/s", "B/s"] = "FLOP/s" if check in ("matmul", "own-card", "soak") else "B/s"
        return Figure(name, gpu, unit, rate * 0.05, (0.05,) * 4, kind)

    def _own_card(self, gpus: list[int]) -> dict[str, Any]:
        names = {"matmul": "matmul alone", "own-card": "matmul together"}
        figures = [self._figure(check, names[check], gpu, "matmul-bf16") for gpu in gpus for check in names]
        return {"figures": to_json([replace(figure, kind="") for figure in figures])}

    def _peers(self, gpus: list[int]) -> dict[str, Any]:
        pairs = [(a, b) for a in gpus for b in gpus if a != b]
        cut = self._scenario.get("cut", ())
        figures = [self._figure("peers", f"peer {a}-{b}", None, "peer", f"{a}-{b}") for a, b in pairs]
        return {"figures": to_json(figures), "direct": {f"{a}-{b}": f"{a}-{b}" not in cut for a, b in pairs}}

    def _all_reduce(self, gpus: list[int]) -> dict[str, Any]:
        algorithm, count = self._scenario.get("algorithm", "RING"), len(gpus)
        figure = self._figure(
            "all-reduce", f"all-reduce {count} x 1 GiB", None, f"all-reduce {algorithm} {count}"
        )
        return {"figures": to_json([figure]), "algorithms": {str(1 << 30): algorithm}, "nvls": "0"}

    def _agreement(self, gpus: list[int]) -> dict[str, Any]:
        good = {
            "digests": {"bf16": "a" * 32},
            "passes": 80,
            "wrong_passes": 0,
            "memory_bytes": 2**37,
            "wrong_words": 0,
        }
        wrong = self._scenario.get("wrong", {})
        return {"gpus": [{"gpu": gpu, **good, **wrong.get(str(gpu), {})} for gpu in gpus]}

    def _soak(self, gpus: list[int]) -> dict[str, Any]:
        entries = []
        for gpu in gpus:
            base = self._figure("soak", "soak", gpu, "matmul-bf16")
            ends = self._scenario.get("sag", {}).get(str(gpu), 1.0)
            factors = [1.0 if i < 3 else ends for i in range(9)]
            windows = [Figure("soak", gpu, "FLOP/s", base.rate * f * 5.0, (5.0,)) for f in factors]
            entries.append({"gpu": gpu, "windows": to_json(windows), "wrong_windows": 0})
        return {"gpus": entries}
