"""The one line that `bench check --nagios` prints for a monitoring system."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.bundle.verify import verify_bundle
from bench.node_check.check_results import CheckContents, CheckResults
from bench.node_check.recompute_any import recompute
from bench.report.text.check_line import nagios_line, nagios_unknown

BUNDLE = Path(__file__).parents[2] / "results/node-check-2xh100/quick.tar"


@pytest.fixture(scope="module")
def results() -> CheckResults:
    """Two H100: GPU 1 has an uncorrected memory error in its past, which is a warning."""
    contents = verify_bundle(BUNDLE, recompute).contents
    assert isinstance(contents, CheckContents)
    return contents.results


def test_the_worst_finding_comes_first(results: CheckResults) -> None:
    text, _, _ = nagios_line(results).partition(" | ")
    assert text == (
        "BENCH WARNING - ecc: GPU 1 errors: 0 uncorrected since boot, 0 corrected; 1 uncorrected ever; "
        "1 warn, 18 pass, 11 not possible here, of 30 checks; 2 x NVIDIA H100 80GB HBM3, driver 580.159.04"
    )


def test_a_figure_is_the_lowest_of_the_gpus_with_its_unit_and_the_limits_of_the_profile(
    results: CheckResults,
) -> None:
    """bf16 products: GPU 0 reached 666.9 TFLOP/s and GPU 1 663.7; the profile warns below 619.7."""
    _, _, figures = nagios_line(results).partition(" | ")
    first, *_, last = figures.split()
    assert first == "'matmul-bf16'=663.7TFLOP/s;619.7:;540.3:"
    assert last.startswith("'soak'=673TFLOP/s;")
    assert "'device-to-host'=49.31GB/s;" in figures


def test_a_node_without_a_profile_has_figures_without_limits(results: CheckResults) -> None:
    gpus = tuple(replace(gpu, name="NVIDIA X9") for gpu in results.node.gpus)
    line = nagios_line(replace(results, node=replace(results.node, gpus=gpus)))
    assert " | 'matmul-bf16'=663.7TFLOP/s 'matmul-fp16'=641.3TFLOP/s " in line


def test_the_line_fits_into_what_the_remote_agent_passes_on(results: CheckResults) -> None:
    """Texts are cut, figures left out whole; no character is cut in two."""
    findings = tuple(
        replace(f, found="é" * 900, figure=f"{f.figure}-{number}" if f.figure else None)
        for number in range(9)
        for f in results.findings
    )
    line = nagios_line(replace(results, findings=findings))
    assert len(line.encode()) <= 1023
    text, _, figures = line.partition(" | ")
    assert text.startswith("BENCH WARNING - ecc: GPU 1 errors: éé")
    assert text.endswith("é...")
    assert len(text.encode()) <= 500
    assert figures.count("'") == 2 * figures.count("=")


def test_a_reason_without_a_check_is_cut_alike() -> None:
    line = nagios_unknown("no | such\n  file" + "x" * 2000)
    assert line.startswith("BENCH UNKNOWN - no / such; filexx")
    assert len(line) == 500
