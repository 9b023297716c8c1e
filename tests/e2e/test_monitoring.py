"""The files for monitoring, read by the programs that they are for: promtool and systemd."""

from __future__ import annotations

import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from bench.bundle.verify import verify_bundle
from bench.node_check.check_results import CheckContents
from bench.node_check.recompute_any import recompute
from bench.report.text.check_metrics import openmetrics
from tests.e2e.services import require

pytestmark = pytest.mark.e2e

MONITORING = Path(str(files("bench.data"))) / "monitoring"
BUNDLE = Path(__file__).parents[2] / "results/node-check-2xh100/quick.tar"


def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    require("promtool")
    for file in (MONITORING / "alerts.yml", Path(__file__).with_name("alerts.test.yml")):
        shutil.copy(file, tmp_path)
    test_rules = ["promtool", "test", "rules", str(tmp_path / "alerts.test.yml")]
    done = subprocess.run(test_rules, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_reads_the_metrics_without_a_complaint() -> None:
    require("promtool")
    contents = verify_bundle(BUNDLE, recompute).contents
    assert isinstance(contents, CheckContents)
    text = openmetrics(contents.results, contents.evidence, False)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_systemd_takes_the_units_and_finds_the_service_confined(tmp_path: Path) -> None:
    require("systemd-analyze")
    service, timer = tmp_path / "bench-check.service", tmp_path / "bench-check.timer"
    service.write_text((MONITORING / service.name).read_text().replace("/usr/local/bin/bench", "/bin/true"))
    timer.write_text((MONITORING / timer.name).read_text())
    analyze = ["systemd-analyze", "--no-pager"]
    done = subprocess.run(
        [*analyze, "verify", str(timer), str(service)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    confined = [*analyze, "security", "--offline=true", "--threshold=35", str(service)]  # of 100; 96 without
    done = subprocess.run(confined, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-500:]
