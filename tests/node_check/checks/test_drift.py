"""Facts of a machine, from a tree of files like the kernel's, and their differences from a baseline."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.base.strict_json import to_json
from bench.node_check.checks.bmc import BoardManager
from bench.node_check.checks.drift import SETTINGS, SYSCTLS, facts_of, judge, measure, read_facts
from bench.node_check.checks.network import NetworkCard
from bench.node_check.judging.evidence import BEFORE, Evidence, Reading
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.standards import Baseline, Standards
from bench.records.trial import Gpu
from tests.node_check.checks.answers import answers

TREE = {
    "proc/sys/kernel/osrelease": "6.8.0-60-generic",
    "proc/sys/vm/swappiness": "10",
    "proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456",
    "proc/cpuinfo": "processor\t: 0\nmicrocode\t: 0x2b\nprocessor\t: 1\nmicrocode\t: 0x2b\n",
    "proc/mounts": "/dev/sda1 / ext4 rw,relatime 0 0\n"
                   "proc /proc proc rw 0 0\n"
                   "filer.example:/home /home nfs4 rw,vers=4.2,addr=10.0.0.5,clientaddr=10.0.0.7 0 0\n"
                   "overlay /var/lib/docker/overlay2/1f/merged overlay rw 0 0\n"
                   "tmpfs /run/user/1000 tmpfs rw 0 0\n"
                   "a line without a form\n"
                   "10.0.0.9@o2ib:/scratch /lustre/my\\040data lustre rw,flock 0 0\n",
    "sys/class/dmi/id/bios_version": "3.2",
    "sys/class/infiniband/mlx5_0/fw_ver": "28.39.1002",
    "sys/class/nvme/nvme0/firmware_rev": "GDC7302Q",
    "sys/class/nvme/nvme0/model": "SAMSUNG MZQL23T8",
    "sys/module/nvidia/version": "580.159.04",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "0",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "powersave",
}  # fmt: skip


RELEASE = {"kernel": {"release": "6.8"}}


def machine(root: Path, **changes: str) -> dict[str, dict[str, str]]:
    for name, text in (TREE | changes).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return read_facts(root)


def test_the_facts_of_a_machine(tmp_path: Path) -> None:
    facts = machine(tmp_path)
    assert facts["kernel"]["release"] == "6.8.0-60-generic"
    assert facts["sysctl"] == {"vm.swappiness": "10", "net.ipv4.tcp_rmem": "4096 131072 6291456"}
    assert facts["firmware"] == {
        "BIOS": "3.2", "adapter mlx5_0": "28.39.1002", "disk nvme0": "SAMSUNG MZQL23T8 GDC7302Q",
        "microcode": "0x2b",
    }  # fmt: skip
    assert facts["driver"] == {"nvidia": "580.159.04"}
    assert facts["setting"]["governor"] == "performance x 1, powersave x 1"
    assert facts["setting"]["reserved hugepages-2048kB"] == "0"


def test_mounts_that_last_are_facts_and_no_host_is_named(tmp_path: Path) -> None:
    facts = machine(tmp_path)
    assert facts["mount"] == {
        "/": "ext4 relatime,rw", "/home": "nfs4 rw,vers=4.2", "/lustre/my\\040data": "lustre flock,rw",
    }  # fmt: skip
    assert "10.0.0" not in str(facts) and "filer" not in str(facts)


def test_an_empty_machine_has_few_facts(tmp_path: Path) -> None:
    assert set(read_facts(tmp_path)) == {"kernel"}


@pytest.mark.parametrize("mounts", [199, 200, 201])
def test_a_machine_with_very_many_mounts_has_two_hundred_facts_of_them(tmp_path: Path, mounts: int) -> None:
    lines = "\n".join(f"/dev/sd{n} /data/{n:03} ext4 rw 0 0" for n in range(mounts))
    assert len(machine(tmp_path, **{"proc/mounts": lines})["mount"]) == min(mounts, 200)


@pytest.mark.parametrize(
    ("name", "file"),
    [("vendor", "sys_vendor"), ("machine", "product_name"), ("board", "board_name"),
     ("BIOS", "bios_version"), ("BIOS date", "bios_date")],
)  # fmt: skip
def test_the_board_and_its_bios_are_facts(tmp_path: Path, name: str, file: str) -> None:
    assert machine(tmp_path, **{f"sys/class/dmi/id/{file}": f" of  {file}"})["firmware"][name] == f"of {file}"


@pytest.mark.parametrize(
    "module",
    ["nvidia", "nvidia_peermem", "mlx5_core", "mlx5_ib", "irdma", "efa", "gdrdrv", "ib_core", "lustre"],
)
def test_the_version_of_every_driver_that_training_needs_is_a_fact(tmp_path: Path, module: str) -> None:
    assert machine(tmp_path, **{f"sys/module/{module}/version": "7.1"})["driver"][module] == "7.1"


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("huge pages", "sys/kernel/mm/transparent_hugepage/enabled"),
        ("huge pages, defragmentation", "sys/kernel/mm/transparent_hugepage/defrag"),
        ("clock source", "sys/devices/system/clocksource/clocksource0/current_clocksource"),
        ("hyper-threading", "sys/devices/system/cpu/smt/control"),
        ("processors", "sys/devices/system/cpu/online"),
        ("NUMA nodes", "sys/devices/system/node/online"),
        ("turbo off", "sys/devices/system/cpu/intel_pstate/no_turbo"),
        ("boost", "sys/devices/system/cpu/cpufreq/boost"),
        ("frequency driver", "sys/devices/system/cpu/cpu17/cpufreq/scaling_driver"),
        ("reserved hugepages-1048576kB", "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages"),
    ],
)
def test_every_setting_is_read_from_its_file(tmp_path: Path, name: str, file: str) -> None:
    assert machine(tmp_path, **{file: "its value"})["setting"][name] == "its value"


def test_the_kernels_own_version_and_its_release_are_facts(tmp_path: Path) -> None:
    kernel = machine(tmp_path, **{"proc/sys/kernel/version": "#60 SMP"})["kernel"]
    assert kernel == {"release": "6.8.0-60-generic", "version": "#60 SMP"}
    assert read_facts(tmp_path / "nowhere")["kernel"] == {"release": platform.release(), "version": ""}


def test_processors_that_differ_are_counted(tmp_path: Path) -> None:
    different = "microcode\t: 0x2c\nmicrocode\t: 0x2b\nmicrocode\t: 0x2c\nflags: microcode\n"
    assert machine(tmp_path, **{"proc/cpuinfo": different})["firmware"]["microcode"] == "0x2b x 1, 0x2c x 2"
    assert "microcode" not in machine(tmp_path, **{"proc/cpuinfo": "processor: 0"})["firmware"]


def test_adapters_and_disks_without_firmware_are_no_facts(tmp_path: Path) -> None:
    more = {
        "sys/class/infiniband/mlx5_1/fw_ver": "", "sys/class/nvme/nvme1/firmware_rev": "",
        "sys/class/nvme/nvme2/firmware_rev": "1.0",
    }  # fmt: skip
    found = machine(tmp_path, **more)["firmware"]
    assert {name for name in found if name.startswith(("adapter", "disk"))} == {
        "adapter mlx5_0", "disk nvme0", "disk nvme2",
    }  # fmt: skip
    assert found["disk nvme2"] == "1.0"  # its model is not known


FOLDERS_THAT_COME_AND_GO = (
    "/run /run/user/0 /proc/sys /sys/fs /dev/shm /snap/core /var/lib/docker/volumes /var/lib/containers/a"
    " /var/lib/kubelet/pods /var/lib/containerd/a /tmp /tmp/a /media/stick /etc/resolv.conf"
)


@pytest.mark.parametrize("folder", FOLDERS_THAT_COME_AND_GO.split())
def test_a_mount_that_comes_and_goes_is_no_fact(tmp_path: Path, folder: str) -> None:
    lines = f"/dev/sdb {folder} ext4 rw 0 0\n/dev/sda1 /data ext4 rw 0 0"
    assert list(machine(tmp_path, **{"proc/mounts": lines})["mount"]) == ["/data"]


OPTIONS_OF_ONE_START = (
    "addr=1 clientaddr=1 mountaddr=1 mountport=1 port=1 workdir=/a upperdir=/a lowerdir=/a inode64 fd=1"
    " pgrp=1 username=a domain=a seclabel"
)


@pytest.mark.parametrize("option", OPTIONS_OF_ONE_START.split())
def test_an_option_that_differs_between_starts_is_no_fact(tmp_path: Path, option: str) -> None:
    lines = f"filer:/data /data nfs4 rw,{option},hard 0 0"
    assert machine(tmp_path, **{"proc/mounts": lines})["mount"] == {"/data": "nfs4 hard,rw"}


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        ("/dev/sda1 /data ext4 rw", {"/data": "ext4 rw"}),
        ("/dev/sda1 /data ext4", {}),
        ("/dev/sda1 data ext4 rw 0 0", {}),
        ("/dev/sda1 /da\x1bta ext4 rw 0 0", {"/da?ta": "ext4 rw"}),
    ],
)
def test_a_mount_has_a_folder_a_type_and_options(tmp_path: Path, line: str, facts: dict[str, str]) -> None:
    assert machine(tmp_path, **{"proc/mounts": line}).get("mount", {}) == facts


def test_files_that_are_not_utf_8_are_read_too(tmp_path: Path) -> None:
    machine(tmp_path)
    (tmp_path / "proc/mounts").write_bytes(b"/dev/sda1 /d\xff ext4 rw 0 0\n")
    (tmp_path / "proc/cpuinfo").write_bytes(b"model: \xff\nmicrocode: 0x2b\n")
    facts = read_facts(tmp_path)
    assert facts["mount"] == {"/d\ufffd": "ext4 rw"}
    assert facts["firmware"]["microcode"] == "0x2b"


def test_mounts_are_in_the_order_of_their_folders(tmp_path: Path) -> None:
    lines = "/dev/sdb /b ext4 rw 0 0\n/dev/sda /a ext4 rw 0 0"
    assert list(machine(tmp_path, **{"proc/mounts": lines})["mount"]) == ["/a", "/b"]


KINDS_WITHOUT_DATA = (
    "autofs binfmt_misc bpf cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs fusectl fuse.lxcfs"
    " hugetlbfs mqueue nsfs proc pstore ramfs rpc_pipefs securityfs selinuxfs squashfs sysfs tracefs"
)


@pytest.mark.parametrize("kind", KINDS_WITHOUT_DATA.split())
def test_a_file_system_without_data_is_no_fact(tmp_path: Path, kind: str) -> None:
    lines = f"none /somewhere {kind} rw 0 0\n/dev/sda1 /data ext4 rw 0 0"
    assert list(machine(tmp_path, **{"proc/mounts": lines})["mount"]) == ["/data"]


def test_every_setting_that_the_kernel_has_is_a_fact(tmp_path: Path) -> None:
    sysctls = {f"proc/sys/{name}": f"value of {name}" for name in SYSCTLS}
    settings = {file: f"value of {name}" for name, file in SETTINGS.items()}
    facts = machine(tmp_path, **sysctls, **settings)
    assert facts["sysctl"] == {name.replace("/", "."): f"value of {name}" for name in SYSCTLS}
    assert facts["setting"].items() >= {name: f"value of {name}" for name in SETTINGS}.items()
    assert len(facts["sysctl"]) == 23 and all("." in name for name in facts["sysctl"])


def test_the_facts_are_those_of_this_machine() -> None:
    facts = measure(None, None)["facts"]  # type: ignore[arg-type]
    assert facts["sysctl"]["vm.swappiness"] == Path("/proc/sys/vm/swappiness").read_text().strip()


def evidence(facts: Mapping[str, Any], **readings: Mapping[str, Any]) -> Evidence:
    made = {name: Reading(name, data) for name, data in {"drift": {"facts": facts}, **readings}.items()}
    return Evidence("passive", "cuda", (Gpu(0, "NVIDIA H200", "GPU-0", 1, "9.0"),), made)


def judged(found: Evidence, before: Mapping[str, Mapping[str, str]] | None) -> list[Finding]:
    baseline = Baseline("abc", 1.79e9, before, "SHA256:x") if before is not None else None
    return answers("drift", judge(found, Standards(None, baseline=baseline)))


def test_each_difference_is_a_line_with_what_it_was_and_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    before = machine(tmp_path / "a")
    after = machine(
        tmp_path / "b",
        **{
            "proc/sys/kernel/osrelease": "6.8.0-71-generic",
            "sys/class/dmi/id/bios_version": "",
            "sys/module/nvidia_peermem/version": "580.159.04",
            "proc/mounts": "/dev/sda1 / ext4 ro,relatime 0 0",
        },
    )
    findings = judged(evidence(after), before)
    assert {(f.verdict, f.basis) for f in findings} == {("warn", "history")}
    assert [(f.subject, f.found) for f in findings] == [
        ("driver nvidia_peermem", "is 580.159.04, was none"),
        ("firmware BIOS", "is none, was 3.2"),
        ("kernel release", "is 6.8.0-71-generic, was 6.8.0-60-generic"),
        ("mount /", "is ext4 relatime,ro, was ext4 relatime,rw"),
        ("mount /home", "is none, was nfs4 rw,vers=4.2"),
        ("mount /lustre/my\\040data", "is none, was lustre flock,rw"),
    ]
    assert findings[0].source == "check abc of 2026-09-21T14:13:20Z, signed by SHA256:x"


def test_an_unchanged_machine_passes_and_without_a_baseline_nothing_is_said() -> None:
    facts = {"kernel": {"release": "6.8"}, "mount": {"/": "ext4 rw"}}
    (finding,) = judged(evidence(facts), facts)
    assert (finding.verdict, finding.found) == ("pass", "2 facts as in the baseline")
    assert (finding.basis, finding.expected) == ("history", "no change")
    assert finding.source == "check abc of 2026-09-21T14:13:20Z, signed by SHA256:x"
    (finding,) = judged(evidence(facts), None)
    assert (finding.verdict, finding.counts, finding.found) == ("not-run", False, "no baseline was named")
    assert finding.advice == "--baseline names an earlier check of a good state"


def test_facts_of_other_readings_are_compared_too() -> None:
    card = to_json([NetworkCard("eth0", "mlx5_core", "28.40", mtu=9000)])
    gpus = {"driver": "580.1", "gpus": [{"Name": "NVIDIA H200", "VbiosVersion": "96.00", "UUID": "GPU-0"}]}
    found = evidence(
        {"kernel": {"release": "6.8"}},
        network={"cards": card},
        bmc={"bmc": to_json(BoardManager("1.74"))},
        **{BEFORE: gpus},
    )
    facts = facts_of(found)
    assert facts is not None
    assert facts["network card"] == {"eth0 driver": "mlx5_core", "eth0 firmware": "28.40", "eth0 MTU": "9000"}
    assert facts["BMC"] == {"firmware": "1.74"}
    assert facts["GPU"] == {"driver": "580.1", "0 model": "NVIDIA H200", "0 VBIOS": "96.00"}
    assert facts["kernel"] == {"release": "6.8"}


def test_what_other_readings_do_not_know_is_no_fact() -> None:
    silent = evidence(
        RELEASE,
        network={"cards": to_json([NetworkCard("eth0")])},
        bmc={"bmc": to_json(BoardManager(why="no BMC"))},
        **{BEFORE: {"driver": "", "gpus": [{"Name": 7, "UUID": "GPU-0"}]}},
    )
    assert facts_of(silent) == {**RELEASE, "network card": {}}
    assert facts_of(evidence(RELEASE, network={"cards": []})) == RELEASE


def test_the_firmware_of_a_gpu_is_a_fact_in_printable_characters() -> None:
    gpus = [{"Name": "A", "InforomImageVersion": "G520\x1b", "VbiosVersion": None}]
    facts = facts_of(evidence(RELEASE, **{BEFORE: {"driver": 5, "gpus": gpus}}))
    assert facts is not None
    assert facts["GPU"] == {"driver": "5", "0 model": "A", "0 InfoROM": "G520?"}


def test_without_facts_nothing_is_compared() -> None:
    made = Evidence("passive", "cuda", (), {})
    assert facts_of(made) is None
    assert judged(made, RELEASE) == []


def test_what_only_one_check_has_read_is_told_and_no_difference() -> None:
    findings = judged(
        evidence({"kernel": {"release": "6.8"}}), {"kernel": {"release": "6.8"}, "BMC": {"firmware": "1"}}
    )
    assert [(f.verdict, f.counts) for f in findings] == [("not-run", False), ("pass", True)]
    assert findings[0].subject == "facts"
    assert findings[0].found == "not compared, as only one of the two checks read them: BMC"
    assert findings[1].found == "1 facts as in the baseline"


def test_checks_that_share_no_fact_have_no_answer_but_that() -> None:
    (finding,) = judged(evidence(RELEASE), {"mount": {"/": "ext4"}, "BMC": {"firmware": "1"}})
    assert finding.found == "not compared, as only one of the two checks read them: BMC, kernel, mount"


def test_a_difference_is_told_without_a_pass_beside_it() -> None:
    two = {"kernel": {"release": "6.9"}, "mount": {"/": "ext4"}}
    (finding,) = judged(evidence(two), {"kernel": {"release": "6.8"}, "mount": {"/": "ext4"}})
    assert finding.expected == "6.8, as in the baseline"
    assert finding.advice == "if the change was meant, name a newer check as the baseline"


def test_more_facts_than_any_machine_has_are_refused() -> None:
    most = {"mount": {str(number): "" for number in range(4095)}, **RELEASE}
    assert facts_of(evidence(most)) == most
    with pytest.raises(ValueError, match="more than 4096"):
        facts_of(evidence(most, bmc={"bmc": to_json(BoardManager("1.74"))}))
