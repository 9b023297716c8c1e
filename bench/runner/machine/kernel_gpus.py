"""List the NVIDIA GPUs that the kernel has, from its driver's files in /proc and the PCI bus in sysfs.

A container may see its own GPUs in one list and all of the machine's in the other: both together count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from bench.records.trial import KernelGpu, KernelGpus

_NVIDIA = "0x10de"
_DISPLAY = "0x03"  # the PCI class of GPUs; cards have sound devices, and machines switches, of NVIDIA too
UNSEEN = "neither /proc/driver/nvidia/gpus nor the PCI bus in /sys shows an NVIDIA GPU here"


def kernel_gpus(root: Path = Path("/")) -> KernelGpus:
    """Return the kernel's NVIDIA GPUs. `root` is the folder of proc and sys."""
    driver = dict(_of_driver(root / "proc/driver/nvidia/gpus"))
    buses = {*driver, *_on_pci(root / "sys/bus/pci/devices")}
    gpus = (KernelGpu(bus, *_uuid_and_name(driver.get(bus, {}))) for bus in sorted(buses))
    return KernelGpus(tuple(gpus)) if buses else KernelGpus(unseen=UNSEEN)


def pci_address(bus: str) -> str:
    """Return a PCI address as sysfs writes it: NVML writes 00000000:3B:00.0 for 0000:3b:00.0."""
    domain, _, place = bus.strip().lower().partition(":")
    try:
        return f"{int(domain, 16):04x}:{place}"
    except ValueError:
        return bus.strip().lower()


def _of_driver(folder: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield each GPU's address, and the values in the driver's file about it, by the names in that file."""
    with suppress(OSError):
        for file in sorted(folder.glob("*/information")):
            with suppress(OSError):
                lines = [line.partition(":") for line in file.read_text(errors="replace").splitlines()]
                yield pci_address(file.parent.name), {name.strip(): text.strip() for name, _, text in lines}


def _uuid_and_name(information: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return a GPU's UUID and name from the driver's file, which may lack those of an unused GPU."""
    texts = (information.get("GPU UUID", ""), information.get("Model", ""))
    uuid, name = (text if text and "?" not in text and text != "Unknown" else None for text in texts)
    return uuid, name


def _on_pci(folder: Path) -> Iterator[str]:
    with suppress(OSError):
        for device in sorted(folder.iterdir()):
            with suppress(OSError):
                vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
                if vendor == _NVIDIA and kind.startswith(_DISPLAY):
                    yield pci_address(device.name)
