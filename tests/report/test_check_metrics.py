"""The metrics of a node check, and the dashboard and the alert rules that read them."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from bench.base.errors import one_line
from bench.bundle.verify import verify_bundle
from bench.cli.main import main
from bench.node_check.check_results import CheckContents
from bench.node_check.recompute_any import recompute
from bench.report.text.check_metrics import FAMILIES, openmetrics
from tests.node_check.test_command import _home, machine

assert _home
ROOT = Path(__file__).parents[2]
MONITORING = Path(str(files("bench.data"))) / "monitoring"
DOCUMENTED = ROOT / "docs/monitoring.md"

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Samples:
    """Parse by the reference implementation of OpenMetrics; the samples by name and labels."""
    families = list(text_string_to_metric_families(text))
    assert {family.type for family in families} == {"gauge"}
    assert all(family.documentation for family in families)
    samples = [sample for family in families for sample in family.samples]
    found = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    assert len(found) == len(samples)
    return found


def value(samples: Samples, name: str, **labels: str) -> float:
    (one,) = [v for (n, have), v in samples.items() if n == name and have >= frozenset(labels.items())]
    return one


@pytest.fixture(scope="module")
def h100() -> CheckContents:
    """Two H100: GPU 1 has an uncorrected memory error in its past, which is a warning."""
    contents = verify_bundle(ROOT / "results/node-check-2xh100/quick.tar", recompute).contents
    assert isinstance(contents, CheckContents)
    return contents


def test_a_real_check_has_its_figures_by_uuid_with_their_units(h100: CheckContents) -> None:
    samples = parsed(openmetrics(h100.results, h100.evidence))
    measured = [f for f in h100.results.findings if f.figure and f.gpu is not None and f.basis == "reference"]
    assert len(measured) > 10
    for f in measured:
        unit = {"FLOP/s": "flops_per_second", "B/s": "bytes_per_second"}[f.unit or ""]
        uuid = next(gpu.uuid for gpu in h100.results.node.gpus if gpu.index == f.gpu)
        found = value(samples, f"bench_gpu_figure_{unit}", uuid=uuid, figure=f.figure or "", level="quick")
        assert found == pytest.approx(f.value, rel=1e-9)
    assert value(samples, "bench_check_verdict", verdict="warn") == 1
    assert value(samples, "bench_check_verdict", verdict="pass") == 0
    assert value(samples, "bench_check_findings", check="ecc", verdict="warn") == 1
    assert value(samples, "bench_gpu_findings", gpu="1", verdict="warn") == 1
    assert value(samples, "bench_gpu_power_limit_watts", gpu="0") == 700
    assert value(samples, "bench_check_ended_time_seconds") == pytest.approx(h100.results.run.ended_at)
    assert not [name for name, _ in samples if name == "bench_check_command_failed"]


def test_every_sample_belongs_to_a_documented_family_whose_name_ends_with_its_unit(
    h100: CheckContents,
) -> None:
    names = {family.name for family in FAMILIES}
    written = {name for name, _ in parsed(openmetrics(h100.results, h100.evidence, True))}
    assert written == names
    assert all(family.name.endswith(family.unit) for family in FAMILIES)
    assert set(re.findall(r"`(bench_\w+)`", DOCUMENTED.read_text())) == names


def test_a_name_with_odd_characters_is_escaped(h100: CheckContents) -> None:
    from dataclasses import replace

    odd = 'a "model"\\ of\ntwo lines\r\x1b]0;owned\x07\u202e\ud800'
    gpus = tuple(replace(gpu, name=odd) for gpu in h100.results.node.gpus)
    results = replace(h100.results, node=replace(h100.results.node, gpus=gpus))
    text = openmetrics(results, h100.evidence)
    assert value(parsed(text), "bench_check_info", model=one_line(odd)) == 1
    assert all(line.isprintable() for line in text.split("\n"))
    assert text.encode()


def test_the_file_is_replaced_by_each_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    passive = ["check", "--level", "passive", "--metrics", "bench.prom", "--on-change", "false"]
    machine(monkeypatch)
    assert main(passive) == 0
    assert value(parsed(Path("bench.prom").read_text()), "bench_check_verdict", verdict="pass") == 1
    machine(monkeypatch, xids={"3": [79]})
    assert main(passive) == 1
    samples = parsed(Path("bench.prom").read_text())
    assert value(samples, "bench_check_verdict", verdict="fail") == 1
    assert value(samples, "bench_gpu_findings", gpu="3", verdict="fail") == 1
    assert value(samples, "bench_check_command_failed") == 1
    machine(monkeypatch, no_driver=True)
    assert main(passive) == 3
    assert value(parsed(Path("bench.prom").read_text()), "bench_check_verdict", verdict="not-run") == 1
    assert sorted(path.name for path in Path().iterdir() if "prom" in path.name) == ["bench.prom"]


def test_metrics_that_cannot_be_written_change_no_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(monkeypatch)
    assert main(["check", "--level", "passive", "--metrics", "nowhere/bench.prom"]) == 0
    assert "--metrics nowhere/bench.prom: not written: No such file or directory" in capsys.readouterr().err
    assert main(["check", "--metrics", "bench.prom", "--engine", "docker"]) == 2


def expressions() -> dict[str, list[str]]:
    """Return the queries of the shipped files, by file."""
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())
    dashboard = json.loads((MONITORING / "grafana.json").read_text())
    return {
        "alerts.yml": [rule["expr"] for group in rules["groups"] for rule in group["rules"]],
        "grafana.json": [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]],
    }


@pytest.mark.parametrize("name", ["alerts.yml", "grafana.json"])
def test_every_query_reads_metrics_that_are_written(name: str, h100: CheckContents) -> None:
    written = parsed(openmetrics(h100.results, h100.evidence, True))
    labels: dict[str, set[str]] = {}
    for metric, pairs in written:
        labels.setdefault(metric, {"instance"}).update(label for label, _ in pairs)
    for query in expressions()[name]:
        read = re.findall(r"(bench_\w+)(?:\{([^}]*)\})?", query)
        assert read
        for metric, selector in read:
            assert set(re.findall(r"(\w+)=", selector)) <= labels[metric], query


def test_the_dashboard_is_whole() -> None:
    dashboard = json.loads((MONITORING / "grafana.json").read_text())
    panels: list[dict[str, Any]] = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = set[tuple[int, int]]()
    for panel in panels:
        assert panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & own, "panels overlap"
        cells |= own
    assert {one["name"] for one in dashboard["templating"]["list"]} == {"datasource", "instance"}
