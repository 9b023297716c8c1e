"""The kernel's list of NVIDIA GPUs, read from folders like /proc and /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.records.trial import KernelGpu, KernelGpus
from bench.runner.machine.kernel_gpus import UNSEEN, kernel_gpus, pci_address

INFORMATION = """Model: \t\t NVIDIA H200
IRQ:   \t\t 170
GPU UUID: \t {uuid}
Video BIOS: \t 96.00.af.00.01
Bus Type: \t PCIe
Bus Location: \t {bus}
"""
H200 = "0000:1b:00.0"


def pci(root: Path, address: str, vendor: str = "0x10de", kind: str = "0x030200") -> None:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")


def driver(root: Path, address: str, uuid: str = "GPU-1") -> None:
    folder = root / "proc/driver/nvidia/gpus" / address
    folder.mkdir(parents=True)
    (folder / "information").write_text(INFORMATION.format(uuid=uuid, bus=address))


def test_the_driver_and_the_bus_are_one_list(tmp_path: Path) -> None:
    """In a container, the driver's files may be those of its own GPUs alone."""
    pci(tmp_path, H200)
    pci(tmp_path, "0000:2c:00.0")
    driver(tmp_path, H200)
    assert kernel_gpus(tmp_path) == KernelGpus(
        (KernelGpu(H200, "GPU-1", "NVIDIA H200"), KernelGpu("0000:2c:00.0", None, None))
    )


def test_what_is_no_nvidia_gpu_does_not_count(tmp_path: Path) -> None:
    pci(tmp_path, H200, kind="0x030000")  # with a display
    pci(tmp_path, "0000:1b:00.1", kind="0x040300")  # the sound device of the card
    pci(tmp_path, "0000:05:00.0", kind="0x068000")  # an NVSwitch
    pci(tmp_path, "0000:02:00.0", vendor="0x1a03", kind="0x030000")
    (tmp_path / "sys/bus/pci/devices/0000:03:00.0").mkdir()  # without files
    assert [gpu.bus for gpu in kernel_gpus(tmp_path).gpus] == [H200]


@pytest.mark.parametrize("uuid", ["GPU-????????-????-????-????-????????????", ""])
def test_a_gpu_that_nobody_used_yet_has_no_uuid(tmp_path: Path, uuid: str) -> None:
    driver(tmp_path, H200, uuid)
    assert kernel_gpus(tmp_path).gpus == (KernelGpu(H200, None, "NVIDIA H200"),)


def test_where_nothing_is_visible_the_list_says_so(tmp_path: Path) -> None:
    assert kernel_gpus(tmp_path) == KernelGpus(unseen=UNSEEN)
    pci(tmp_path, "0000:02:00.0", vendor="0x1a03")
    assert kernel_gpus(tmp_path) == KernelGpus(unseen=UNSEEN)


@pytest.mark.parametrize(
    ("written", "address"),
    [("00000000:3B:00.0", "0000:3b:00.0"), ("0000:3b:00.0", "0000:3b:00.0"),
     ("00010000:01:00.0", "10000:01:00.0"), ("no address", "no address")],
)  # fmt: skip
def test_addresses_are_written_in_one_way(written: str, address: str) -> None:
    assert pci_address(written) == address
