"""Compare the facts of a machine with a baseline: kernel, drivers, firmware, mounts, settings of the kernel.

The facts are in every check, so that any check can be the baseline of a later one. They name no host: sources
of mounts, serial numbers and addresses are left out.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.base.stamps import utc
from bench.base.strict_json import from_json
from bench.base.sysfs import first_line, short_line
from bench.node_check.checks import Check, CheckBudget, Rig
from bench.node_check.checks.bmc import manager_of
from bench.node_check.checks.network import cards_of
from bench.node_check.judging.evidence import BEFORE, Evidence
from bench.node_check.judging.finding import Finding, Question
from bench.node_check.judging.standards import Standards

Facts = Mapping[str, Mapping[str, str]]  # by group and name
MOST_FACTS = 4096
MOST_MOUNTS = 200
# Settings that training, data loading and collectives depend on.
SYSCTLS = (
    "vm/swappiness", "vm/overcommit_memory", "vm/zone_reclaim_mode", "vm/max_map_count", "vm/dirty_ratio",
    "vm/dirty_background_ratio", "vm/min_free_kbytes", "kernel/numa_balancing", "kernel/pid_max",
    "kernel/perf_event_paranoid", "kernel/dmesg_restrict", "kernel/shmmax", "fs/file-max", "fs/nr_open",
    "net/core/rmem_max", "net/core/wmem_max", "net/core/somaxconn", "net/core/netdev_max_backlog",
    "net/core/default_qdisc", "net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem", "net/ipv4/tcp_congestion_control",
    "net/ipv4/tcp_mtu_probing",
)  # fmt: skip
DMI = {"vendor": "sys_vendor", "machine": "product_name", "board": "board_name", "BIOS": "bios_version",
       "BIOS date": "bios_date"}  # fmt: skip
MODULES = ("nvidia", "nvidia_peermem", "mlx5_core", "mlx5_ib", "irdma", "efa", "gdrdrv", "ib_core", "lustre")
SETTINGS = {
    "huge pages": "sys/kernel/mm/transparent_hugepage/enabled",
    "huge pages, defragmentation": "sys/kernel/mm/transparent_hugepage/defrag",
    "clock source": "sys/devices/system/clocksource/clocksource0/current_clocksource",
    "hyper-threading": "sys/devices/system/cpu/smt/control",
    "processors": "sys/devices/system/cpu/online",
    "NUMA nodes": "sys/devices/system/node/online",
    "turbo off": "sys/devices/system/cpu/intel_pstate/no_turbo",
    "boost": "sys/devices/system/cpu/cpufreq/boost",
}
# File systems that hold no data of users, and folders whose mounts come and go.
PSEUDO = {
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs",
    "efivarfs", "fusectl", "fuse.lxcfs", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "ramfs",
    "rpc_pipefs", "securityfs", "selinuxfs", "squashfs", "sysfs", "tracefs",
}  # fmt: skip
PASSING = ("/run/", "/proc/", "/sys/", "/dev/", "/snap/", "/var/lib/docker/", "/var/lib/containers/",
           "/var/lib/kubelet/", "/var/lib/containerd/", "/tmp/", "/media/", "/etc/")  # fmt: skip
# Options that differ between starts of one machine, or name hosts.
_OWN_OPTIONS = ("addr=", "clientaddr=", "mountaddr=", "mountport=", "port=", "workdir=", "upperdir=",
                "lowerdir=", "inode64", "fd=", "pgrp=", "username=", "domain=", "seclabel")  # fmt: skip


def measure(rig: Rig, budget: CheckBudget) -> Mapping[str, Any]:
    """Return the facts that this check reads itself; `facts_of` adds those of other readings."""
    return {"facts": read_facts(Path("/"))}


def read_facts(root: Path) -> dict[str, dict[str, str]]:
    """Read the facts of the machine below `root`. A group without any fact is left out."""
    groups = {
        "kernel": _kernel(root),
        "firmware": _firmware(root),
        "driver": {
            name: version for name in MODULES if (version := first_line(root / f"sys/module/{name}/version"))
        },
        "setting": _settings(root),
        "sysctl": {
            name.replace("/", "."): value
            for name in SYSCTLS
            if (value := first_line(root / "proc/sys" / name))
        },
        "mount": _mounts(root / "proc/mounts"),
    }
    return {group: facts for group, facts in groups.items() if facts}


def _kernel(root: Path) -> dict[str, str]:
    release = first_line(root / "proc/sys/kernel/osrelease") or platform.release()
    return {"release": release, "version": first_line(root / "proc/sys/kernel/version")}


def _firmware(root: Path) -> dict[str, str]:
    facts = {
        name: text for name, file in DMI.items() if (text := first_line(root / f"sys/class/dmi/id/{file}"))
    }
    facts |= {
        f"adapter {folder.name}": text
        for folder in sorted(root.glob("sys/class/infiniband/*"))
        if (text := first_line(folder / "fw_ver"))
    }
    facts |= {
        f"disk {folder.name}": f"{first_line(folder / 'model')} {text}".strip()
        for folder in sorted(root.glob("sys/class/nvme/*"))
        if (text := first_line(folder / "firmware_rev"))
    }
    if microcode := _microcode(root / "proc/cpuinfo"):
        facts["microcode"] = microcode
    return {short_line(name): text for name, text in facts.items()}


def _microcode(path: Path) -> str:
    """Return the microcode versions in /proc/cpuinfo, each with the number of processors that have it."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            fields = (line.partition(":") for line in file)
            return _counted(
                Counter(short_line(text) for name, _, text in fields if name.strip() == "microcode")
            )
    except OSError:
        return ""


def _counted(values: Mapping[str, int]) -> str:
    """Format values with counts: "performance x 60, powersave x 4", or "performance" if all are equal."""
    if len(values) == 1:
        return next(iter(values))
    return ", ".join(f"{value} x {count}" for value, count in sorted(values.items()))


def _settings(root: Path) -> dict[str, str]:
    facts = {name: text for name, file in SETTINGS.items() if (text := first_line(root / file))}
    processors = root / "sys/devices/system/cpu"
    for name, file in (("governor", "scaling_governor"), ("frequency driver", "scaling_driver")):
        values = Counter(first_line(path) for path in processors.glob(f"cpu[0-9]*/cpufreq/{file}"))
        if values:
            facts[name] = _counted(values)
    for folder in sorted(root.glob("sys/kernel/mm/hugepages/hugepages-*")):
        facts[f"reserved {folder.name}"] = first_line(folder / "nr_hugepages")
    return facts


def _mounts(path: Path) -> dict[str, str]:
    """Return type and options of each permanent mount, by its folder."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in lines:
        parts = line.split(" ")
        if len(parts) < 4 or not parts[1].startswith("/") or parts[2] in PSEUDO:
            continue
        if f"{parts[1]}/".startswith(PASSING):
            continue
        options = sorted(one for one in parts[3].split(",") if not one.startswith(_OWN_OPTIONS))
        found[short_line(parts[1])] = short_line(f"{parts[2]} {','.join(options)}")
    return dict(sorted(found.items())[:MOST_MOUNTS])


def facts_of(evidence: Evidence) -> Facts | None:
    """Return all facts of a check, with those that other readings have; None if they were not read.

    ValueError for more facts than any machine has.
    """
    data = evidence.data("drift")
    if data is None:
        return None
    facts = {
        group: dict(found) for group, found in from_json(dict[str, dict[str, str]], data["facts"]).items()
    }
    if cards := cards_of(evidence):
        facts["network card"] = {
            f"{card.name} {what}": text
            for card in cards
            for what, text in (
                ("driver", card.driver),
                ("firmware", card.firmware),
                ("MTU", str(card.mtu or "")),
            )
            if text
        }
    manager = manager_of(evidence)
    if manager is not None and manager.firmware:
        facts["BMC"] = {"firmware": manager.firmware}
    if gpus := _of_gpus(evidence):
        facts["GPU"] = gpus
    if sum(map(len, facts.values())) > MOST_FACTS:
        raise ValueError(f"more than {MOST_FACTS} facts of a machine")
    return facts


def _of_gpus(evidence: Evidence) -> dict[str, str]:
    """Return the driver's version and each GPU's model and firmware, by its number."""
    inventory = evidence.data(BEFORE)
    facts = {"driver": short_line(str(inventory["driver"]))} if inventory and inventory.get("driver") else {}
    asked = (("model", "Name"), ("VBIOS", "VbiosVersion"), ("InfoROM", "InforomImageVersion"))
    for index, gpu in evidence.alive(BEFORE).items():
        for what, query in asked:
            if isinstance(text := gpu.get(query), str):
                facts[f"{index} {what}"] = short_line(text)
    return facts


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Warn of each fact that differs from the baseline; a fact that one check lacks is not compared."""
    facts, baseline = facts_of(evidence), standards.baseline
    if facts is None:
        return
    if baseline is None:
        yield Question("drift").unread(
            "no baseline was named", counts=False, advice="--baseline names an earlier check of a good state"
        )
        return
    source = f"check {baseline.run} of {utc(baseline.ended_at)}, signed by {baseline.signer}"
    differences = list(_differences(baseline.facts, facts))
    for name, was, now in differences:
        yield Question("drift", name).judged(
            "warn",
            f"is {now}, was {was}",
            expected=f"{was}, as in the baseline",
            basis="history",
            source=source,
            advice="if the change was meant, name a newer check as the baseline",
        )
    if missing := sorted(baseline.facts.keys() ^ facts.keys()):
        yield Question("drift", "facts").unread(
            f"not compared, as only one of the two checks read them: {', '.join(missing)}", counts=False
        )
    compared = baseline.facts.keys() & facts.keys()
    if compared and not differences:
        count = sum(len(facts[group]) for group in compared)
        yield Question("drift").judged(
            "pass", f"{count} facts as in the baseline", expected="no change", basis="history", source=source
        )


def _differences(before: Facts, after: Facts) -> Iterable[tuple[str, str, str]]:
    """Yield name, former and present value of each fact that differs; "none" for a missing one."""
    for group in sorted(before.keys() & after.keys()):
        was, now = before[group], after[group]
        for name in sorted(was.keys() | now.keys()):
            if was.get(name) != now.get(name):
                yield f"{group} {name}", was.get(name, "none"), now.get(name, "none")


CHECK = Check(
    "drift",
    "has the machine changed since its baseline?",
    judge,
    measure,
    torch=False,
    limit_seconds=15,
    blames="node",
    passive=True,
    has_older_bundles=True,
)
