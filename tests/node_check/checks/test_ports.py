"""InfiniBand and RoCE ports as sysfs shows them, from trees of files like those of real adapters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.base.strict_json import to_json
from bench.base.sysfs import MOST_CHARACTERS
from bench.node_check.checks import ports
from bench.node_check.checks.gpudirect import GpuDirect, read_gpudirect
from bench.node_check.checks.gpudirect import judge as judge_gpudirect
from bench.node_check.checks.ports import SOURCE, NodePorts, Port, judge, node_ports, read_ports
from bench.node_check.judging.evidence import Evidence, Reading
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.standards import Expectations, Standards
from tests.node_check.checks.answers import answers

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
    for device in ("mlx5_10", "mlx5_3", "mlx5_2"):
        for number in (2, 1):
            tree(tmp_path, device, {"state": "4: ACTIVE"}, number)
    assert [port.name for port in read_ports(tmp_path)] == [
        "mlx5_2 port 1", "mlx5_2 port 2", "mlx5_3 port 1", "mlx5_3 port 2", "mlx5_10 port 1",
        "mlx5_10 port 2",
    ]  # fmt: skip


def test_files_that_are_missing_or_strange_are_no_error(tmp_path: Path) -> None:
    tree(tmp_path, "irdma0", {"state": "", "rate": "unknown", "counters/symbol_error": "N/A (not supported)"})
    (tmp_path / "irdma0/ports/1/phys_state").mkdir()
    (tmp_path / "notes").write_text("a file, not an adapter")
    (port,) = read_ports(tmp_path)
    assert port == Port("irdma0", 1, rate="unknown")
    assert port.bytes_per_second == 0


@pytest.mark.parametrize(
    ("file", "text", "field", "value"),
    [
        ("device/current_link_speed", "16 GT/s", "pcie_gt", 16.0),
        ("device/max_link_speed", "8.0 GT/s PCIe", "pcie_gt_most", 8.0),
        ("device/current_link_width", "4", "pcie_width", 4),
        ("device/max_link_width", "8", "pcie_width_most", 8),
        ("device/current_link_speed", "Unknown", "pcie_gt", None),
        ("device/max_link_width", "none", "pcie_width_most", None),
        ("phys_state", "3: Disabled", "physical", "Disabled"),
        ("link_layer", "Ethernet", "layer", "Ethernet"),
        ("state", f"  4: {'A' * 200}", "state", "A" * (MOST_CHARACTERS - len("4: "))),
        ("rate", "a\nb", "rate", "a"),
    ],
)
def test_each_property_of_a_port_has_its_file(
    tmp_path: Path, file: str, text: str, field: str, value: object
) -> None:
    tree(tmp_path, "mlx5_0", HEALTHY | {file: text})
    (port,) = read_ports(tmp_path)
    assert getattr(port, field) == value


def test_the_ports_of_sysfs_are_measured() -> None:
    assert str(ports.INFINIBAND) == "/sys/class/infiniband"
    assert ports.measure(None, None) == {"nodes": to_json([node_ports(0)])}  # type: ignore[arg-type]


def test_a_file_that_is_not_utf_8_is_read_too(tmp_path: Path) -> None:
    tree(tmp_path, "mlx5_0", HEALTHY)
    (tmp_path / "mlx5_0/ports/1/rate").write_bytes(b"\xff")
    (port,) = read_ports(tmp_path)
    assert port.rate == "\ufffd"


def test_ports_without_a_number_are_none_and_at_most_64_are_read(tmp_path: Path) -> None:
    (tmp_path / "mlx5_0/ports/one").mkdir(parents=True)
    for number in range(1, 66):
        tree(tmp_path, "mlx5_0", {"state": "4: ACTIVE"}, number)
    assert [port.number for port in read_ports(tmp_path)] == list(range(1, 65))
    assert node_ports(3, tmp_path) == NodePorts(3, read_ports(tmp_path))


@pytest.mark.parametrize(
    ("rate", "state", "bytes_per_second"),
    [
        (NDR, "ACTIVE", 50e9),
        ("2.5 Gb/sec (1X SDR)", "ACTIVE", 312.5e6),
        (NDR, "DOWN", 0.0),
        ("", "ACTIVE", 0.0),
    ],
)
def test_the_rate_of_an_active_port_is_in_bytes(rate: str, state: str, bytes_per_second: float) -> None:
    assert replace(GOOD, rate=rate, state=state).bytes_per_second == bytes_per_second


def test_a_machine_without_infiniband_says_that_it_falls_back_to_tcp(tmp_path: Path) -> None:
    (finding,) = judged([node_ports(0, tmp_path / "infiniband")])
    assert (finding.verdict, finding.counts) == ("not-run", False)
    assert finding.found == (
        "no InfiniBand or RoCE (/sys/class/infiniband is missing): nodes exchange data by TCP"
    )
    assert finding.subject == "the node"
    (finding,) = judged([node_ports(0, tmp_path)])
    assert finding.found == (
        "no InfiniBand or RoCE (no port in /sys/class/infiniband): nodes exchange data by TCP"
    )


def test_a_machine_whose_ports_were_not_read_has_no_answer() -> None:
    assert list(judge(Evidence("quick", "cuda", (), {}), Standards(None))) == []


def judged(nodes: Sequence[NodePorts], expect: Expectations | None = None) -> list[Finding]:
    reading = Reading("ports", {"nodes": to_json(nodes)})
    evidence = Evidence("quick", "cuda", (), {"ports": reading})
    return answers("ports", judge(evidence, Standards(None, expect or Expectations())))


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
        ({"pcie_width": 8, "pcie_width_most": 8}, "fail", "32 GT/s x 8", "slot"),
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


@pytest.mark.parametrize(
    ("changes", "expected", "basis", "source"),
    [
        ({"state": "DOWN"}, "ACTIVE, as on the other nodes", "peers", SOURCE),
        ({"rate": "200 Gb/sec (2X NDR)"}, "400 Gb/sec", "peers", "the other ports of this check"),
        ({"pcie_width": 8}, "32 GT/s x 16, or as most adapters have", "rule",
         "sysfs: current_link_speed and current_link_width of the adapter"),
        ({"counters": {"link_downed": 6}}, "fewer than 6 times", "rule", "bench"),
    ],
)  # fmt: skip
def test_a_fault_says_what_was_expected_and_by_whom(
    changes: dict[str, Any], expected: str, basis: str, source: str
) -> None:
    (finding,) = [f for f in judged(alike(4, **changes)) if f.verdict != "pass"]
    assert (finding.expected, finding.basis, finding.source) == (expected, basis, source)


@pytest.mark.parametrize(("down", "verdict"), [(5, "pass"), (6, "warn"), (7, "warn")])
def test_a_link_that_went_down_six_times_is_a_warning(down: int, verdict: str) -> None:
    (finding,) = judged([NodePorts(0, (replace(GOOD, counters={"link_downed": down}),))])
    assert finding.verdict == verdict


@pytest.mark.parametrize(
    ("others_active", "others", "verdict"), [(3, 4, "fail"), (2, 3, "warn"), (2, 2, "fail"), (0, 0, "warn")]
)
def test_a_port_is_used_if_it_is_active_on_more_than_two_thirds_of_the_other_nodes(
    others_active: int, others: int, verdict: str
) -> None:
    down = replace(GOOD, state="DOWN", physical="Polling")
    ports = [down, *[GOOD] * others_active, *[down] * (others - others_active)]
    nodes = [NodePorts(node, (port, replace(GOOD, device="mlx5_1"))) for node, port in enumerate(ports)]
    first = judged(nodes)[0]
    subject = "mlx5_0 port 1" if len(nodes) == 1 else "node 0 mlx5_0 port 1"
    assert (first.subject, first.verdict) == (subject, verdict)


@pytest.mark.parametrize(
    ("state", "verdict"), [("INIT", "fail"), ("ARMED", "fail"), ("DOWN", "warn"), ("", "warn")]
)
def test_a_port_of_one_node_that_waits_for_a_subnet_manager_fails(state: str, verdict: str) -> None:
    other = replace(GOOD, device="mlx5_1", state=state, physical="")
    (finding,) = judged([NodePorts(0, (GOOD, other))])
    assert (finding.verdict, finding.found) == (verdict, f"{state or 'no state'} (no physical state)")
    assert (finding.basis, finding.expected) == ("rule", "ACTIVE, or a port that nobody uses")


@pytest.mark.parametrize(
    ("fast", "slow", "named"), [(3, 1, 1), (2, 1, 0), (2, 2, 0), (5, 2, 2), (1, 1, 0), (1, 3, 0)]
)
def test_a_rate_is_usual_if_more_than_two_thirds_of_the_ports_have_it(
    fast: int, slow: int, named: int
) -> None:
    ports = [replace(GOOD, device=f"mlx5_{n}", rate=NDR if n < fast else "200 Gb/sec (4X HDR)")
             for n in range(fast + slow)]  # fmt: skip
    assert sum(finding.verdict == "fail" for finding in judged([NodePorts(0, tuple(ports))])) == named


def test_ports_of_another_layer_or_that_are_down_have_no_part_in_the_usual_rate() -> None:
    ports = [replace(GOOD, device=f"mlx5_{n}") for n in range(4)]
    ethernet = replace(GOOD, device="mlx5_8", layer="Ethernet", rate="25 Gb/sec (1X EDR)")
    silent = replace(GOOD, device="mlx5_9", rate="", state="DOWN")
    found = judged([NodePorts(0, (*ports, ethernet, silent))])
    assert [(f.subject, f.verdict) for f in found] == [("mlx5_9 port 1", "warn")]
    slow = replace(GOOD, device="mlx5_7", rate="200 Gb/sec (2X NDR)")
    found = judged([NodePorts(0, (*ports[:3], slow, silent))])
    assert ("mlx5_7 port 1", "fail") in [(f.subject, f.verdict) for f in found]


@pytest.mark.parametrize(
    ("own", "most", "verdict"),
    [
        ({}, {}, "pass"),
        ({"pcie_width": 8}, {}, "warn"),
        ({"pcie_width": 8}, {"pcie_width_most": 8}, "pass"),
        ({"pcie_gt": 16.0}, {"pcie_gt_most": None}, "pass"),
        ({"pcie_gt": 2.5, "pcie_width": 1}, {"pcie_gt_most": None}, "pass"),
        ({"pcie_gt": 16.0, "pcie_width": 1}, {"pcie_width_most": None}, "pass"),
        ({"pcie_width": None}, {}, "pass"),
        ({"pcie_gt": None}, {}, "pass"),
    ],
)
def test_an_adapters_link_is_compared_with_what_it_can_have(
    own: dict[str, Any], most: dict[str, Any], verdict: str
) -> None:
    (finding,) = judged([NodePorts(0, (replace(GOOD, **own, **most),))])
    assert finding.verdict == verdict


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
    assert len(judged([NodePorts(n, (GOOD,) * 64) for n in range(2)])) == 2
    assert len(judged([NodePorts(node) for node in range(128)])) == 128
    with pytest.raises(ValueError, match="more than"):
        judged([NodePorts(0, (GOOD,) * 65)])
    with pytest.raises(ValueError, match="more than"):
        judged([NodePorts(node) for node in range(129)])


def test_a_node_without_ports_among_nodes_with_ports_fails() -> None:
    nodes = [*alike(3), NodePorts(3, missing=True)]
    (finding,) = [f for f in judged(nodes) if f.verdict == "fail"]
    assert (finding.subject, finding.basis, finding.source) == ("node 3", "peers", SOURCE)
    assert finding.found == (
        "no InfiniBand or RoCE port (/sys/class/infiniband is missing), where other nodes have some"
    )


@pytest.mark.parametrize(
    ("after", "verdict", "found"),
    [
        ({"counters": {"symbol_error": 7}}, "warn", "symbol_error +7 during the check"),
        ({"counters": {"link_downed": 1}}, "fail", "link_downed +1 during the check"),
        ({"counters": {"symbol_error": 0}}, "pass", "no errors"),
        (
            {"counters": {"symbol_error": 7, "link_downed": 2}},
            "fail",
            "symbol_error +7, link_downed +2 during the check",
        ),
        ({"state": "DOWN"}, "fail", "was active before the traffic, and is not after it"),
        ({"device": "mlx5_7"}, "fail", "was active before the traffic, and is not after it"),
    ],
)
def test_what_happens_during_the_traffic_is_told(after: dict[str, Any], verdict: str, found: str) -> None:
    (finding,) = judged([NodePorts(0, (GOOD,), after=(replace(GOOD, **after),))])
    assert (finding.verdict, found in finding.found) == (verdict, True)


def test_a_port_that_was_down_before_the_traffic_is_told_once() -> None:
    down = replace(GOOD, device="mlx5_1", state="DOWN", physical="Polling")
    (finding,) = judged([NodePorts(0, (GOOD, down), after=(GOOD, down))])
    assert (finding.subject, finding.verdict) == ("mlx5_1 port 1", "warn")


def test_counters_that_were_reset_during_the_check_rose_by_nothing() -> None:
    before = replace(GOOD, counters={"symbol_error": 9, "link_downed": 9})
    (finding,) = judged([NodePorts(0, (before,), after=(GOOD,))])
    assert finding.verdict == "pass"


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
