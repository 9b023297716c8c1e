"""The files for monitoring, read and run by the programs that they are for: promtool and systemd."""

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
from tests.documented_commands import printed
from tests.e2e.booted_machine import booted_machine
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


def test_systemd_checks_the_node_by_the_documented_lines(tmp_path: Path) -> None:
    """The timer's next check is started at once; the GPUs are those of the simulated driver."""
    with booted_machine(tmp_path) as machine:
        machine.type(
            "mkdir -p /etc/bench && cp \"$(python3 -c 'import bench.data as d; print(*d.__path__)')\""
            "/monitoring/* /etc/bench/"
        )
        machine.type(
            printed(
                "install -m 644 /etc/bench/bench-check.service /etc/bench/bench-check.timer"
                " /etc/systemd/system/"
            )
        )
        machine.type("mkdir -p /var/lib/prometheus/node-exporter /var/lib/bench")
        machine.type("""echo '{"count": 8}' > /var/lib/bench/simulated.json""")
        machine.type("systemctl set-environment BENCH_FAKE_NVML=/var/lib/bench/simulated.json")
        machine.type(printed("systemctl enable --now bench-check.timer"))
        assert "bench-check.service" in machine.type("systemctl list-timers --no-pager")
        assert machine.type("systemctl is-enabled bench-check.timer") == "enabled\n"
        said = machine.type(
            "systemctl start bench-check.service; code=$?; journalctl --no-pager -u bench-check; exit $code"
        )
        metrics = machine.root / "var/lib/prometheus/node-exporter/bench-passive.prom"
        assert 'gpus="8"' in metrics.read_text(), said
        assert len(list((machine.root / "var/lib/bench/passive").glob("*.tar"))) == 1
