"""A fleet of forty nodes: the bad ones are named in order, and no good one is."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.base.stamps import utc
from bench.bundle.verify import TrustRules, verify_bundle
from bench.cli.main import main
from bench.node_check.fleet import Fleet, FleetMember, compare_fleet, fleet_member
from bench.node_check.judging import Depth
from bench.node_check.judging.finding import Finding
from bench.node_check.recompute_any import recompute
from bench.report.pages import fleet_page
from bench.report.text import fleet_text
from bench.signing.allowed_signers import TrustPolicy
from bench.signing.ssh_keys import PublicKey
from tests.bundles import KEY
from tests.node_check.made import START, bundle
from tests.report.made import STRANGER

DAY = 86_400.0
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write twelve nodes: one slow by the reference, one slightly behind the others, one that lost a GPU."""
    folder = tmp_path_factory.mktemp("rack")
    made = tmp_path_factory.mktemp("made")
    for number in range(12):
        scenario = {
            3: {"rates": {"matmul": {"5": 0.7}}},
            7: {"rates": {"matmul": {"*": 0.945}}},
            9: {"lost": {"0": 4}},
        }.get(number, {})
        bundle(folder / f"n{number:02}.tar", made, START + number, **scenario)  # type: ignore[arg-type]
    return folder


def compared(folder: Path, rules: TrustRules | None = None) -> Fleet:
    seen = []
    for path in sorted(folder.rglob("*.tar")):
        verdict = verify_bundle(path, recompute, rules)
        seen.append(fleet_member(path, verdict, verdict.contents))  # type: ignore[arg-type]
    return compare_fleet(seen)


def test_the_worst_nodes_come_first_and_no_good_node_is_named(rack: Path) -> None:
    fleet = compared(rack)
    assert [node.seen.name for node in fleet.nodes if node.verdict != "pass"] == ["n03", "n09", "n07"]
    assert fleet.verdict == "fail"


def test_a_node_that_passed_alone_is_behind_the_fleet(rack: Path) -> None:
    (node,) = [node for node in compared(rack).nodes if node.seen.name == "n07"]
    assert node.verdict == "warn"
    assert isinstance(node.worst, Finding)
    assert (node.worst.basis, node.worst.check) == ("fleet", "matmul")
    assert node.worst.share == pytest.approx(0.945, abs=0.01)


def test_a_gpu_that_failed_twice_is_a_lemon_on_any_node(tmp_path: Path) -> None:
    rack = tmp_path / "rack"
    rack.mkdir()
    for number in range(5):
        bundle(rack / f"n{number}.tar", tmp_path, START + number)
    bad = {"rates": {"matmul": {"5": 0.7}}, "gpus": {"5": {"UUID": "GPU-bad"}}}
    bundle(rack / "before.tar", tmp_path, START - 30 * DAY, **bad)
    bundle(rack / "moved.tar", tmp_path, START + 9, **bad)
    fleet = compared(rack)
    (lemon,) = fleet.lemons
    assert lemon.uuid == "GPU-bad"
    assert "GPU 5 of before on 2026-08-22: matmul" in lemon.times[0]
    assert "of moved" in lemon.times[1]


GUEST = {"5": {"UUID": "GPU-shared", "UtilizationRates": {"gpu": 10, "memory": 1}}}


@pytest.mark.parametrize(
    "scenario",
    [
        {"gpus": GUEST},
        {"gpus": GUEST, "rates": {"copies": {"5": 0.6}}},
        {
            "gpus": {
                "5": {"UUID": "GPU-capped", "EnforcedPowerLimit": 500_000, "PowerManagementLimit": 500_000}
            }
        },
    ],
    ids=["somebody else's process", "the copies that it slows", "a power limit"],
)
def test_failures_that_are_not_the_cards_fault_make_no_lemon(
    tmp_path: Path, scenario: dict[str, Any]
) -> None:
    rack = tmp_path / "rack"
    rack.mkdir()
    for number in range(2):
        bundle(rack / f"n{number}.tar", tmp_path, START + number * DAY, **scenario)
    fleet = compared(rack)
    assert fleet.verdict == "fail"
    assert fleet.lemons == ()


def test_a_cause_is_named_before_the_slowness_that_it_causes() -> None:
    """In real checks beside a copying process, good cards looked slow enough to be returned."""
    fleet = compared(ROOT / "results/node-check-h200")
    worst = {node.seen.name: node.worst for node in fleet.nodes}
    for node in ("1gpu-fault-traffic", "2gpus-fault-traffic", "4gpus-fault-traffic"):
        assert {f.check for n in fleet.nodes if n.seen.name == node for f in n.findings} >= {
            "strangers",
            "copies",
        }
        assert (found := worst[node]) is not None
        assert found.line.startswith("strangers: GPU 0: 1 processes compute there")


def test_a_cards_own_fault_counts_even_beside_another_process(tmp_path: Path) -> None:
    rack = tmp_path / "rack"
    rack.mkdir()
    for number in range(2):
        bundle(rack / f"n{number}.tar", tmp_path, START + number, gpus=GUEST, xids={"5": [79]})
    (lemon,) = compared(rack).lemons
    assert (lemon.uuid, lemon.times[0].rpartition(": ")[2]) == ("GPU-shared", "xid")


def test_lost_gpus_have_no_identity(tmp_path: Path) -> None:
    """Lost GPUs of two nodes are neither one lemon nor a sign that the two nodes are the same."""
    rack = tmp_path / "rack"
    rack.mkdir()
    for number in range(2):
        bundle(rack / f"n{number}.tar", tmp_path, START + number, count=1, lost={"0": 1})
    fleet = compared(rack)
    assert [node.seen.name for node in fleet.nodes] == ["n0", "n1"]
    assert (fleet.lemons, fleet.older) == ((), ())


def test_nodes_with_identical_figures_are_not_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The readings of one good node are submitted for three nodes."""
    for name in ("n0", "n1", "n2"):
        bundle(tmp_path / f"{name}.tar", tmp_path, measured="n0")
    bundle(tmp_path / "n3.tar", tmp_path)
    fleet = compared(tmp_path)
    assert [(node.seen.name, node.verdict) for node in fleet.nodes] == [
        ("n0", "fail"), ("n1", "fail"), ("n2", "fail"), ("n3", "pass"),
    ]  # fmt: skip
    assert fleet.nodes[1].worst
    assert fleet.nodes[1].worst.found.endswith("figures are those of n0, n2")
    bundle(tmp_path / "n4.tar", tmp_path, measured=f"n3 {START}", last_digits=1e-11)
    assert {node.seen.name for node in compared(tmp_path).nodes if node.verdict == "pass"} == set()
    (tmp_path / "n4.tar").unlink()
    assert fleet.lemons == ()  # not the fault of a card
    assert main(["compare", str(tmp_path), "--html", str(tmp_path / "page.html")]) == 1
    assert "1 PASS, 3 FAIL" in capsys.readouterr().out
    assert "figures are those of n0, n2" in (tmp_path / "page.html").read_text()


def test_a_node_that_was_checked_again_is_listed_once(tmp_path: Path) -> None:
    rack = tmp_path / "rack"
    (rack / "later").mkdir(parents=True)
    bundle(rack / "n1.tar", tmp_path, START, rates={"matmul": {"1": 0.7}})
    bundle(rack / "later" / "n1.tar", tmp_path, START + DAY)
    fleet = compared(rack)
    assert [node.verdict for node in fleet.nodes] == ["pass"]
    assert fleet.older == (str(rack / "n1.tar"),)


@pytest.mark.parametrize("level", ["passive", "prolog"])
def test_a_check_without_load_replaces_no_failure_under_load(tmp_path: Path, level: Depth) -> None:
    """A timer checks without load every few minutes: it would hide each failure of a deeper check."""
    rack = tmp_path / "rack"
    (rack / "later").mkdir(parents=True)
    bundle(rack / "n1.tar", tmp_path, START, rates={"matmul": {"1": 0.7}})
    bundle(rack / "later" / "n1.tar", tmp_path, START + DAY, level=level)
    fleet = compared(rack)
    assert [(node.seen.level, node.verdict) for node in fleet.nodes] == [("quick", "fail"), (level, "warn")]
    assert (fleet.verdict, fleet.older) == ("fail", ())
    (remark,) = fleet.nodes[1].findings
    assert remark.found == (
        f"does not replace n1, an older check of the same GPUs, which did not pass matmul: at level {level}, "
        "this was not asked"
    )
    assert remark.advice == "check the node again at level quick"
    page = tmp_path / "page.html"
    fleet_page.write_fleet_html(page, fleet)
    for text in (fleet_text.table(fleet), fleet_text.as_markdown(fleet), page.read_text()):
        assert "FAIL (quick)" in text and f"WARN ({level})" in text


def test_a_failure_that_a_check_under_load_settled_stays_settled(tmp_path: Path) -> None:
    """A node fails, is repaired and passes; then its timer checks it without load."""
    rack = tmp_path / "rack"
    for folder in ("", "later", "latest"):
        (rack / folder).mkdir(parents=True, exist_ok=True)
    bundle(rack / "n1.tar", tmp_path, START, rates={"matmul": {"1": 0.7}})
    bundle(rack / "later" / "n1.tar", tmp_path, START + DAY)
    bundle(rack / "latest" / "n1.tar", tmp_path, START + 2 * DAY, level="passive")
    fleet = compared(rack)
    assert [(node.seen.level, node.verdict) for node in fleet.nodes] == [("passive", "pass")]
    assert fleet.older == (str(rack / "n1.tar"), str(rack / "later" / "n1.tar"))


def test_a_check_that_leaves_out_what_failed_replaces_no_failure(tmp_path: Path) -> None:
    rack = tmp_path / "rack"
    (rack / "later").mkdir(parents=True)
    bundle(rack / "n1.tar", tmp_path, START, rates={"matmul": {"1": 0.7}})
    bundle(rack / "later" / "n1.tar", tmp_path, START + DAY, left_out="matmul")
    fleet = compared(rack)
    assert (fleet.verdict, fleet.older) == ("fail", ())
    assert [f.found for f in fleet.nodes[1].findings] == [
        "its run left out what its manifest asks for: matmul",
        "does not replace n1, an older check of the same GPUs, which did not pass matmul: at level quick, "
        "this was not asked",
    ]


def test_a_check_without_load_replaces_what_it_can_see_itself(tmp_path: Path) -> None:
    rack = tmp_path / "rack"
    (rack / "later").mkdir(parents=True)
    bundle(rack / "n1.tar", tmp_path, START, gpus={"5": GUEST["5"] | {"UUID": "GPU-n1-5"}})
    assert compared(rack).verdict == "fail"
    bundle(rack / "later" / "n1.tar", tmp_path, START + DAY, level="prolog")
    assert [(node.seen.level, node.verdict) for node in compared(rack).nodes] == [("prolog", "pass")]


def test_the_depth_of_checks_is_told_only_where_it_differs(tmp_path: Path) -> None:
    rack = tmp_path / "rack"
    rack.mkdir()
    bundle(rack / "n1.tar", tmp_path, START)
    assert "(quick)" not in fleet_text.table(compared(rack))
    bundle(rack / "n2.tar", tmp_path, START, level="passive")
    assert "pass (quick)" in fleet_text.table(compared(rack))


# Strangers: anybody can sign a check with any GPUs, time and figures.

TRUSTED = TrustRules(trust=TrustPolicy.from_text(PublicKey.of(KEY).line(), "the test's list"), demanded=False)
SLOW: dict[str, Any] = {"rates": {"matmul": {"1": 0.7}}}


def verdicts(fleet: Fleet) -> dict[str, str]:
    return {node.seen.name: node.verdict for node in fleet.nodes}


def test_a_strangers_pass_replaces_no_trusted_failure(tmp_path: Path) -> None:
    rack = tmp_path / "rack"
    rack.mkdir()
    ours = {str(i): {"UUID": f"GPU-{i}"} for i in range(8)}
    bundle(rack / "ours.tar", tmp_path, START, gpus=ours, **SLOW)
    bundle(rack / "theirs.tar", tmp_path, START + DAY, gpus=ours, key=STRANGER)
    fleet = compared(rack, TRUSTED)
    assert verdicts(fleet) == {"ours": "fail", "theirs": "warn"}
    assert (fleet.verdict, fleet.older) == ("fail", ())
    (remark,) = fleet.nodes[1].findings
    assert remark.found == ("does not replace ours, an older check of the same GPUs, which is trusted more")
    for text in (fleet_text.table(fleet), fleet_text.as_markdown(fleet)):
        assert "self (trusted)" in text
    rows = list(csv.DictReader(io.StringIO(fleet_text.as_csv(fleet))))
    assert {(row["node"], row["signed_level"], row["trusted"]) for row in rows} == {
        ("ours", "self", "true"), ("theirs", "self", "false"),
    }  # fmt: skip


def test_without_trust_a_check_by_another_key_is_listed_beside_the_older_one(tmp_path: Path) -> None:
    """A stranger signed it, or the node got another key: only the reader can know."""
    rack = tmp_path / "rack"
    rack.mkdir()
    ours = {str(i): {"UUID": f"GPU-{i}"} for i in range(8)}
    bundle(rack / "before.tar", tmp_path, START, gpus=ours, **SLOW)
    bundle(rack / "after.tar", tmp_path, START + DAY, gpus=ours, key=STRANGER)
    fleet = compared(rack)
    assert verdicts(fleet) == {"before": "fail", "after": "warn"}
    assert (fleet.verdict, fleet.older) == ("fail", ())
    (remark,) = fleet.nodes[1].findings
    assert remark.found == (
        "does not replace before, an older check of the same GPUs, which another key signed: "
        "neither key is trusted"
    )
    assert remark.advice.startswith("bench keys trust adds a key")
    assert "level" not in fleet_text.table(fleet)
    new_key = TrustPolicy.from_text(PublicKey.of(STRANGER).line(), "the test's list")
    assert verdicts(compared(rack, TrustRules(trust=new_key, demanded=False))) == {"after": "pass"}


@pytest.mark.parametrize("rules", [TrustRules(now=START), replace(TRUSTED, now=START)])
@pytest.mark.parametrize(
    ("at", "listed"),
    [
        (START + DAY - 90, {"again": "pass"}),  # a check of this test takes 90 s
        (START + DAY - 89, {"before": "fail", "again": "warn"}),
        (START + 70 * 365 * DAY, {"before": "fail", "again": "warn"}),
    ],
)
def test_a_check_of_the_future_replaces_no_other_whoever_signed_it(
    tmp_path: Path, rules: TrustRules, at: float, listed: dict[str, str]
) -> None:
    rack = tmp_path / "rack"
    rack.mkdir()
    ours = {str(i): {"UUID": f"GPU-{i}"} for i in range(8)}
    bundle(rack / "before.tar", tmp_path, START - DAY, gpus=ours, **SLOW)
    bundle(rack / "again.tar", tmp_path, at, gpus=ours)
    fleet = compared(rack, rules)
    assert verdicts(fleet) == listed
    if len(listed) == 2:
        (remark,) = fleet.nodes[1].findings
        assert remark.found == (
            f"says that it ran on {utc(at)}, which lies in the future: it replaces no other check"
        )


def test_the_date_of_a_check_of_the_future_is_taken_on_trust(tmp_path: Path) -> None:
    path = bundle(tmp_path / "n1.tar", tmp_path, START)
    assert verify_bundle(path, recompute, TrustRules(now=START + 90 - DAY)).contents.notes == ()
    (note,) = verify_bundle(path, recompute, TrustRules(now=START + 89 - DAY)).contents.notes
    ended = utc(START + 90)
    assert str(note) == f"by its own clock it ran until {ended}, which lies in the future: taken on trust"


def test_a_trusted_check_replaces_a_strangers(tmp_path: Path) -> None:
    rack = tmp_path / "rack"
    rack.mkdir()
    ours = {str(i): {"UUID": f"GPU-{i}"} for i in range(8)}
    bundle(rack / "theirs.tar", tmp_path, START, gpus=ours, key=STRANGER, **SLOW)
    bundle(rack / "ours.tar", tmp_path, START + DAY, gpus=ours)
    fleet = compared(rack, TRUSTED)
    assert verdicts(fleet) == {"ours": "pass"}
    assert fleet.older == (str(rack / "theirs.tar"),)


def test_the_level_is_a_column_of_the_page_too(tmp_path: Path) -> None:
    bundle(tmp_path / "ours.tar", tmp_path)
    bundle(tmp_path / "theirs.tar", tmp_path, key=STRANGER)
    fleet_page.write_fleet_html(tmp_path / "rack.html", compared(tmp_path, TRUSTED))
    text = (tmp_path / "rack.html").read_text()
    assert '<td class="t" data-head="level">self (trusted)</td>' in text
    assert '<td class="t" data-head="level">self</td>' in text


@pytest.mark.parametrize("scenario", [{"rates": {"matmul": {"*": 1.2}}}, {"driver": "999.1"}])
def test_strangers_are_not_the_measure_of_trusted_nodes(tmp_path: Path, scenario: dict[str, Any]) -> None:
    """Any number of faster nodes, or of those with another driver, can be invented."""
    for number in range(5):
        bundle(tmp_path / f"ours{number}.tar", tmp_path, START + number)
    for number in range(8):
        bundle(tmp_path / f"theirs{number}.tar", tmp_path, START, key=STRANGER, **scenario)
    fleet = compared(tmp_path, TRUSTED)
    assert {verdict for name, verdict in verdicts(fleet).items() if name.startswith("ours")} == {"pass"}
    ours = [member.seen for member in fleet.nodes if member.seen.trusted]
    assert fleet.spreads
    assert compare_fleet(ours).spreads == fleet.spreads


def test_a_strangers_shape_that_no_trusted_node_has_is_compared_with_none(tmp_path: Path) -> None:
    for number in range(5):
        bundle(tmp_path / f"ours{number}.tar", tmp_path, START + number)
    bundle(tmp_path / "theirs.tar", tmp_path, START, key=STRANGER, count=3)
    findings = [f.found for n in compared(tmp_path, TRUSTED).nodes for f in n.findings if not n.seen.trusted]
    assert findings == ["number of GPUs 3, where most of the fleet have 8"]


def test_a_stranger_makes_no_trusted_gpu_a_repeat_offender(tmp_path: Path) -> None:
    rack = tmp_path / "rack"
    rack.mkdir()
    uuid = {"gpus": {"1": {"UUID": "GPU-ours"}}}
    bundle(rack / "ours.tar", tmp_path, START, **uuid, **SLOW)
    for number in range(3):
        bundle(rack / f"theirs{number}.tar", tmp_path, START + number, key=STRANGER, **uuid, **SLOW)
    assert compared(rack, TRUSTED).lemons == ()
    (lemon,) = compared(rack).lemons
    assert len(lemon.times) == 4
    # A stranger's bundle with the run id of a trusted one takes no failure of its place.
    (rack / "other").mkdir()
    bundle(rack / "other" / "ours.tar", tmp_path, START + DAY, key=STRANGER)
    bundle(rack / "again.tar", tmp_path, START + DAY, **uuid, **SLOW)
    (lemon,) = compared(rack, TRUSTED).lemons
    assert [line.partition(" on ")[0] for line in lemon.times] == ["GPU 1 of ours", "GPU 1 of again"]


def test_a_strangers_copy_of_a_trusted_check_fails_alone(tmp_path: Path) -> None:
    """The copy may be named first, and may have the run id of the original."""
    bundle(tmp_path / "n1.tar", tmp_path)
    (tmp_path / "a").mkdir()
    bundle(tmp_path / "a" / "n0.tar", tmp_path, measured=f"n1 {START}", key=STRANGER)
    bundle(
        tmp_path / "a" / "n1.tar", tmp_path, key=STRANGER,
        gpus={str(i): {"UUID": f"GPU-new-{i}"} for i in range(8)},
    )  # fmt: skip
    nodes = compared(tmp_path, TRUSTED).nodes
    assert [(node.seen.trusted, node.verdict) for node in nodes] == [
        (False, "fail"), (False, "fail"), (True, "pass"),
    ]  # fmt: skip


def test_a_check_given_twice_is_no_copy(tmp_path: Path) -> None:
    first = bundle(tmp_path / "n1.tar", tmp_path)
    (tmp_path / "again.tar").write_bytes(first.read_bytes())
    assert [node.verdict for node in compared(tmp_path).nodes] == ["pass"]


def test_a_node_that_lost_a_gpu_since_is_listed_once(tmp_path: Path) -> None:
    """The node's older check, from before the loss, is not listed among the nodes that pass."""
    rack = tmp_path / "rack"
    rack.mkdir()
    ours = {str(i): {"UUID": f"GPU-{i}"} for i in range(8)}
    bundle(rack / "before.tar", tmp_path, START, gpus=ours)
    bundle(rack / "now.tar", tmp_path, START + DAY, gpus=ours, lost={"3": 1})
    half = {str(i): {"UUID": f"GPU-{i}"} for i in range(4)}
    bundle(rack / "half.tar", tmp_path, START + 2 * DAY, count=4, gpus=half)
    fleet = compared(rack)
    assert {node.seen.name: node.verdict for node in fleet.nodes} == {"now": "fail", "half": "pass"}
    assert fleet.older == (str(rack / "before.tar"),)


def test_a_node_that_differs_from_the_others_is_reported(tmp_path: Path) -> None:
    """Each node passes alone: another driver, another VBIOS, one GPU less, one memory module less."""
    rack = tmp_path / "rack"
    rack.mkdir()
    odd: dict[int, dict[str, Any]] = {
        1: {"driver": "570.86.10"},
        2: {"all": {"VbiosVersion": "96.00.00.00.01"}},
        3: {"count": 7},
    }
    for number in range(14):
        bundle(rack / f"n{number:02}.tar", tmp_path, START + number, **odd.get(number, {}))
    fleet = compared(rack)
    said = {n.seen.name: [f.found for f in n.findings] for n in fleet.nodes if n.verdict != "pass"}
    assert said == {
        "n01": ["driver 570.86.10, where most of the fleet have 580.159.04"],
        "n02": ["VBIOS 96.00.00.00.01, where most of the fleet have 96.00.A5.00.1A"],
        "n03": ["number of GPUs 7, where most of the fleet have 8"],
    }
    assert fleet.verdict == "warn"
    every = [node.seen for node in fleet.nodes]
    less = [
        replace(seen, host_bytes=int(0.9 * seen.host_bytes)) if i == 5 else seen
        for i, seen in enumerate(every)
    ]
    (node,) = [n for n in compare_fleet(less).nodes if n.seen.host_bytes < 2**40]
    assert "921.6 GiB of memory, where most of the fleet have 1,024.0 GiB" in "".join(
        f.found for f in node.findings
    )


def member(number: int, **changes: Any) -> FleetMember:
    """Make a check of a node that passed, of which nothing but these properties is known."""
    seen = FleetMember(
        f"n{number}.tar", f"run{number}", f"2026-06-0{number}T00:00:00Z", f"id{number}", "NVIDIA H100",
        {"0": f"GPU-{number}"}, "quick", simulated=False, findings=(), values=(), gpu_count=8,
        driver="580.1", vbios="96.1", host_bytes=2**40,
    )  # fmt: skip
    return replace(seen, **changes)


@pytest.mark.parametrize(
    ("changes", "check", "advice"),
    [
        ({"gpu_count": 7, "host_bytes": 2**40}, "present", 'set "gpus" in the manifest'),
        ({"driver": "570.1"}, "alike", "install the driver that the fleet has"),
        ({"vbios": "95.1"}, "alike", "bring it to the fleet's with the vendor's tool"),
        ({"host_bytes": 2**39}, "host-memory", "check for a memory module that is missing"),
    ],
)
def test_each_property_that_differs_is_of_its_own_check(
    changes: dict[str, Any], check: str, advice: str
) -> None:
    fleet = compare_fleet([*(member(number) for number in range(1, 9)), member(9, **changes)])
    (finding,) = [f for node in fleet.nodes for f in node.findings]
    assert (finding.check, finding.verdict) == (check, "warn")
    assert finding.advice.startswith(advice)


@pytest.mark.parametrize("unknown", [{"gpu_count": 0}, {"driver": ""}, {"vbios": ""}])
def test_a_property_that_a_node_does_not_tell_differs_from_nothing(unknown: dict[str, Any]) -> None:
    fleet = compare_fleet([*(member(number) for number in range(1, 9)), member(9, **unknown)])
    assert [f for node in fleet.nodes for f in node.findings] == []


def test_if_two_halves_of_a_fleet_differ_neither_is_wrong(tmp_path: Path) -> None:
    rack = tmp_path / "rack"
    rack.mkdir()
    for number in range(8):
        bundle(rack / f"n{number}.tar", tmp_path, START + number, driver=f"58{number % 2}.1")
    assert compared(rack).verdict == "pass"


def test_bench_compare_shows_it_in_every_format(
    rack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(rack), "--html", str(tmp_path / "rack.html")]) == 1
    table = capsys.readouterr().out
    assert table.index("n03") < table.index("n09") < table.index("n07")
    assert "9 PASS" in table
    page = (tmp_path / "rack.html").read_text()
    assert "n03" in page and "<script" not in page and "http" not in page.replace("http-equiv", "")
    assert main(["compare", str(rack), "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["schema"] == "bench/fleet/v1"
    assert main(["compare", str(rack), "--format", "csv"]) == 1
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["node"] for row in rows} == {f"n{i:02}" for i in range(12)}
    assert main(["compare", str(rack), "--format", "markdown"]) == 1
    assert "| n03" in capsys.readouterr().out


def test_one_line_states_the_expectation_and_the_number_of_gpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rack = tmp_path / "rack"
    rack.mkdir()
    bundle(rack / "n1.tar", tmp_path, START, all={"EnforcedPowerLimit": 650_000})
    bundle(rack / "n2.tar", tmp_path, START, rates={"memory": {"1": 0.5}}, count=2)
    assert main(["compare", str(rack)]) == 1
    table = " ".join(capsys.readouterr().out.split())
    assert "power: GPU 0 limit: 650 W, expected 700 W; 7 other GPUs too" in table
    assert "memory: GPU 1 memory: 2.13 TB/s, expected at least 4.09 TB/s" in table


def test_the_page_starts_with_the_answer_and_folds_older_checks(tmp_path: Path) -> None:
    rack = tmp_path / "rack"
    rack.mkdir()
    ours = {str(i): {"UUID": f"GPU-{i}"} for i in range(2)}
    for number in range(2):
        bad = {"count": 2, "gpus": ours, "rates": {"matmul": {"1": 0.7}}}
        bundle(rack / f"n{number}.tar", tmp_path, START + number * DAY, **bad)
    assert main(["compare", str(rack), "--html", str(tmp_path / "rack.html")]) == 1
    answer, _, rest = (tmp_path / "rack.html").read_text().partition("</table>")
    assert "<strong>1 FAIL</strong>" in answer
    assert "lemon" not in answer.lower()
    assert str(rack) not in answer
    assert "<li>GPU-1<ul><li>GPU 1 of n0 on" in rest
    folded = rest.partition("<details><summary>1 older: the same GPUs were checked again</summary>")[2]
    assert f"<li>{rack}/n0.tar</li>" in folded


def test_a_bundle_that_does_not_verify_is_named_and_left_out(
    rack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = (rack / "n00.tar").read_bytes()
    (tmp_path / "good.tar").write_bytes(good)
    (tmp_path / "damaged.tar").write_bytes(good.replace(b"NVIDIA H200", b"NVIDIA H299", 1))
    assert main(["compare", str(tmp_path)]) == 4
    assert "damaged.tar" in capsys.readouterr().err
