"""InfiniBand and RoCE ports as sysfs shows them, from trees of files like those of real adapters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.base.strict_json import to_json
from bench.node_check.checks.gpudirect import GpuDirect, read_gpudirect
from bench.node_check.checks.gpudirect import judge as judge_gpudirect
from bench.node_check.checks.ports import SOURCE, NodePorts, Port, judge, node_ports, read_ports
from bench.node_check.judging.evidence import Evidence, Reading
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.standards import Expectations, Standards

NDR = "400 Gb/sec (4X NDR)"
GOOD = Port("mlx5_0", 1, "ACTIVE", "LinkUp", "InfiniBand", NDR, {"symbol_error": 0}, 32.0, 32.0, 16, 16)


def tree(root: Path, device: str, files: Mapping[str, str], port: int = 1) -> None:
    """Write an adapter's files as the kernel shows them; names that begin with "device/" are not a port's."""
    for name, text in files.items():
        path = root / device / name if name.startswith("device/") else root / device / f"ports/{port}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


HEALTHY = {
    "state": "4: ACTIVE", "phys_state": "5: LinkUp", "link_layer": "InfiniBand", "rate": NDR,
    "counters/symbol_error": "0", "counters/link_downed": "1", "counters/port_xmit_data": "123456",
    "hw_counters/local_ack_timeout_err": "2", "device/current_link_speed": "32.0 GT/s PCIe",
    "device/max_link_speed": "32.0 GT/s PCIe", "device/current_link_width": "16",
    "device/max_link_width": "16",
}  # fmt: skip


def test_a_port_is_read_from_its_files(tmp_path: Path) -> None:
    tree(tmp_path, "mlx5_0", HEALTHY)
    (port,) = read_ports(tmp_path)
    counters = {"link_downed": 1, "local_ack_timeout_err": 2, "symbol_error": 0}
    assert port == replace(GOOD, counters=counters)
    assert port.bytes_per_second == 50e9


LINKS = ("link_downed", "link_error_recovery", "local_link_integrity_errors")
PACKETS = (
    "symbol_error", "port_rcv_errors", "port_rcv_remote_physical_errors", "port_xmit_discards",
    "excessive_buffer_overrun_errors", "VL15_dropped", "packet_seq_err", "local_ack_timeout_err",
    "rnr_nak_retry_err", "rx_icrc_encapsulated",
)  # fmt: skip


@pytest.mark.parametrize("folder", ["counters", "hw_counters"])
@pytest.mark.parametrize(
    ("name", "verdict"), [*((n, "fail") for n in LINKS), *((n, "warn") for n in PACKETS)]
)
def test_a_counter_of_broken_links_that_rises_fails_and_one_of_lost_packets_warns(
    tmp_path: Path, folder: str, name: str, verdict: str
) -> None:
    tree(tmp_path, "mlx5_0", {"state": "4: ACTIVE", f"{folder}/{name}": "3"})
    after = read_ports(tmp_path)
    assert after[0].counters == {name: 3}
    (finding,) = judged([NodePorts(0, (replace(after[0], counters={name: 2}),), after)])
    assert (finding.verdict, finding.found) == (verdict, f"{name} +1 during the check")


def test_ports_are_in_the_order_of_adapters_and_numbers(tmp_path: Path) -> None:
    for device in ("mlx5_10", "mlx5_2"):
        for number in (2, 1):
            tree(tmp_path, device, {"state": "4: ACTIVE"}, number)
    assert [port.name for port in read_ports(tmp_path)] == [
        "mlx5_2 port 1", "mlx5_2 port 2", "mlx5_10 port 1", "mlx5_10 port 2",
    ]  # fmt: skip


def test_files_that_are_missing_or_strange_are_no_error(tmp_path: Path) -> None:
    tree(tmp_path, "irdma0", {"state": "", "rate": "unknown", "counters/symbol_error": "N/A (not supported)"})
    (tmp_path / "irdma0/ports/1/phys_state").mkdir()
    (tmp_path / "notes").write_text("a file, not an adapter")
    (port,) = read_ports(tmp_path)
    assert port == Port("irdma0", 1, rate="unknown")
    assert port.bytes_per_second == 0


def test_a_machine_without_infiniband_says_that_it_falls_back_to_tcp(tmp_path: Path) -> None:
    (finding,) = judged([node_ports(0, tmp_path / "infiniband")])
    assert (finding.verdict, finding.counts) == ("not-run", False)
    assert finding.found == (
        "no InfiniBand or RoCE (/sys/class/infiniband is missing): nodes exchange data by TCP"
    )


def judged(nodes: Sequence[NodePorts], expect: Expectations | None = None) -> list[Finding]:
    reading = Reading("ports", {"nodes": to_json(nodes)})
    evidence = Evidence("quick", "cuda", (), {"ports": reading})
    return list(judge(evidence, Standards(None, expect or Expectations())))


def alike(count: int, **changes: Any) -> list[NodePorts]:
    """Make nodes with two good ports each; the first port of node 1 has the changes."""
    nodes = [NodePorts(node, (GOOD, replace(GOOD, device="mlx5_1"))) for node in range(count)]
    nodes[1] = replace(nodes[1], ports=(replace(GOOD, **changes), nodes[1].ports[1]))
    return nodes


def test_healthy_ports_pass_with_one_answer_a_node() -> None:
    findings = judged(alike(3))
    assert [(f.subject, f.verdict, f.found) for f in findings] == [
        (f"node {node}", "pass", "2 x 400 Gb/sec (4X NDR), no errors") for node in range(3)
    ]


@pytest.mark.parametrize(
    ("changes", "verdict", "found", "advice"),
    [
        ({"state": "INIT"}, "fail", "INIT (LinkUp)", "subnet manager"),
        ({"state": "ARMED"}, "fail", "ARMED (LinkUp)", "subnet manager"),
        ({"state": "DOWN", "physical": "Polling"}, "fail", "DOWN (Polling)", "cable"),
        ({"state": "DOWN", "physical": "Disabled"}, "fail", "DOWN (Disabled)", "cable"),
        ({"rate": "200 Gb/sec (2X NDR)"}, "fail", "200 Gb/sec (2X NDR), where most ports have 400", "lanes"),
        ({"rate": ""}, "fail", "no rate, where most ports have 400 Gb/sec", "cable"),
        ({"pcie_width": 8}, "fail", "32 GT/s x 8", "slot"),
        ({"pcie_gt": 16.0}, "fail", "16 GT/s x 16", "slot"),
        ({"counters": {"link_downed": 6}}, "warn", "went down 6 times", "cable"),
    ],
)
def test_a_port_unlike_those_of_the_other_nodes_is_named(
    changes: dict[str, Any], verdict: str, found: str, advice: str
) -> None:
    (finding,) = [f for f in judged(alike(4, **changes)) if f.verdict != "pass"]
    assert (finding.subject, finding.verdict) == ("node 1 mlx5_0 port 1", verdict)
    assert found in finding.found
    assert advice in finding.advice


def test_on_a_single_node_a_port_that_is_down_may_be_unused_but_the_manifest_can_require_it() -> None:
    unused = NodePorts(0, (GOOD, replace(GOOD, device="mlx5_1", state="DOWN", physical="Polling")))
    (finding,) = judged([unused])
    assert (finding.subject, finding.verdict) == ("mlx5_1 port 1", "warn")
    assert "if the port is unused, nothing is wrong" in finding.advice
    count, _ = judged([unused], Expectations(ports=2))
    assert (count.verdict, count.found, count.expected) == ("fail", "1 of 2 ports active", "2 active")


def test_a_node_without_any_active_port_fails() -> None:
    down = NodePorts(0, (replace(GOOD, state="DOWN", physical="Polling"),))
    first = judged([down])[0]
    assert (first.verdict, first.subject, first.expected) == ("fail", "the node", "at least 1 active")
    assert first.source == SOURCE


def test_the_manifests_number_of_ports_is_asked_of_each_node() -> None:
    counts = [f for f in judged(alike(2, state="DOWN"), Expectations(ports=2)) if "active" in f.expected]
    (count,) = [finding for finding in counts if finding.found == "1 of 2 ports active"]
    assert (count.subject, count.expected, count.source) == ("node 1", "2 active", "the manifest")


def test_an_adapter_in_a_slow_slot_is_a_warning_where_all_are_alike() -> None:
    slow = [NodePorts(node, (replace(GOOD, pcie_width=8),)) for node in range(4)]
    assert [f.verdict for f in judged(slow)] == ["warn"] * 4


def test_more_ports_than_any_node_has_are_refused() -> None:
    with pytest.raises(ValueError, match="more than"):
        judged([NodePorts(0, (GOOD,) * 65)])
    with pytest.raises(ValueError, match="more than"):
        judged([NodePorts(node) for node in range(129)])


def test_a_node_without_ports_among_nodes_with_ports_fails() -> None:
    nodes = [*alike(3), NodePorts(3, missing=True)]
    (finding,) = [f for f in judged(nodes) if f.verdict == "fail"]
    assert finding.subject == "node 3"


@pytest.mark.parametrize(
    ("after", "verdict", "found"),
    [
        ({"counters": {"symbol_error": 7}}, "warn", "symbol_error +7 during the check"),
        ({"counters": {"link_downed": 1}}, "fail", "link_downed +1 during the check"),
        ({"counters": {"symbol_error": 0}}, "pass", "no errors"),
        ({"state": "DOWN"}, "fail", "was active before the traffic, and is not after it"),
    ],
)
def test_what_happens_during_the_traffic_is_told(after: dict[str, Any], verdict: str, found: str) -> None:
    (finding,) = judged([NodePorts(0, (GOOD,), after=(replace(GOOD, **after),))])
    assert (finding.verdict, found in finding.found) == (verdict, True)


def test_the_ways_to_read_gpu_memory_directly(tmp_path: Path) -> None:
    assert read_gpudirect(0, tmp_path).ways == []
    (tmp_path / "sys/module/nvidia_peermem").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module  580\n"
    )
    both = replace(read_gpudirect(0, tmp_path), kernel=(5, 12))
    assert both.ways == ["nvidia_peermem", "DMA-BUF"]
    assert replace(both, kernel=(5, 10)).ways == ["nvidia_peermem"]


@pytest.mark.parametrize(
    ("direct", "ports", "verdict", "found"),
    [
        (GpuDirect(0, True, "nvidia_peermem"), (GOOD,), "pass", "by nvidia_peermem"),
        (GpuDirect(0, True, None, True, (6, 8)), (GOOD,), "pass", "by DMA-BUF"),
        (GpuDirect(0, True), (GOOD,), "warn", "neither nvidia_peermem nor DMA-BUF"),
        (GpuDirect(0, True), (), "not-run", "there is no InfiniBand or RoCE port"),
        (GpuDirect(0, False), (GOOD,), "not-run", "there is no NVIDIA driver"),
    ],
)
def test_gpudirect_is_asked_of_nodes_with_gpus_and_ports(
    direct: GpuDirect, ports: tuple[Port, ...], verdict: str, found: str
) -> None:
    readings = {
        "ports": Reading("ports", {"nodes": to_json([NodePorts(0, ports)])}),
        "gpudirect": Reading("gpudirect", {"nodes": to_json([direct])}),
    }
    (finding,) = judge_gpudirect(Evidence("quick", "cuda", (), readings), Standards(None))
    assert (finding.verdict, finding.found) == (verdict, found)
