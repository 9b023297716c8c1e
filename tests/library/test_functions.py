"""The functions of `import bench`: values as commands print them, errors in their words, and no output."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import bench
from bench.cli.main import main
from bench.library.budget import budget_of
from bench.library.energy import energy_of
from bench.library.machines import machine_named
from bench.report.compare.energy_factors import EnergyFactors
from bench.report.compare.prices import Exchange, PriceBook
from bench.report.read_bundles import MANY_BUNDLES
from tests.report.made import STRANGER, bundle, trust_list

ROOT = Path(__file__).parents[2]
HOUR = ROOT / "manifests/hour.json"
DECIDED = ROOT / "results/hour-h200/decided.tar"
CHECK = ROOT / "results/node-check-2xh100/quick.tar"
TINY: dict[str, Any] = {
    "schema": "bench/manifest/v1",
    "models": ["tiny-gpt-neox"],
    "methods": ["naive"],
    "micro_batch": 16,
    "timing": {"target_percent": 50, "measure_seconds": 0.1, "warmup_seconds": 0.1},
}


@pytest.fixture(autouse=True)
def silence(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[None]:
    """Require that nothing is printed, except by a command whose output the test reads."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield
    assert (*capfd.readouterr(),) == ("", "")


def refusal(call: Callable[..., object], *given: Any, **options: Any) -> bench.BenchError:
    with pytest.raises(bench.BenchError) as caught:
        call(*given, **options)
    return caught.value


def printed(capfd: pytest.CaptureFixture[str], *words: str | Path, code: int = 0) -> str:
    """Return the output of a command on stdout, or on stderr if it fails."""
    assert main([*map(str, words)]) == code
    out, error = capfd.readouterr()
    return out or error


# --- the package ------------------------------------------------------------------------------------------


def fresh(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, encoding="utf-8"
    )
    return done.stdout.strip()


def test_importing_bench_imports_nothing_else() -> None:
    assert fresh("import sys; a = set(sys.modules); import bench; print(*set(sys.modules) - a)") == "bench"


def test_each_name_is_imported_when_it_is_first_used() -> None:
    code = "import sys, bench; bench.BenchError; print(sorted(m for m in sys.modules if 'bench.' in m))"
    assert fresh(code) == "['bench.base', 'bench.base.errors']"
    code = "import sys; from bench import plan, run, verify, compare, predict; print(*sys.modules)"
    assert not {"torch", "transformers", "numpy"} & set(fresh(code).split())


def test_every_public_name_exists_and_is_listed() -> None:
    for name in bench.__all__:
        assert getattr(bench, name) is not None
    assert set(bench.__all__) <= set(dir(bench))
    with pytest.raises(AttributeError, match="module 'bench' has no attribute 'measure'"):
        _ = bench.measure  # type: ignore[attr-defined]


def test_a_name_can_be_imported_while_a_command_of_that_name_runs() -> None:
    code = "import bench.cli.run, bench.cli.plan, bench; print(callable(bench.run) and callable(bench.plan))"
    assert fresh(code) == "True"


# --- values are those of the commands ---------------------------------------------------------------------


def test_a_plan_is_the_document_of_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    planned = bench.plan(HOUR, gpu="h100", gpus=2)
    assert planned.to_json() == json.loads(printed(capfd, "plan", HOUR, "--gpu=h100", "--gpus=2", "--json"))
    assert planned.plan.target.gpus == 2


def test_a_verification_is_the_document_of_the_command(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = [DECIDED, tmp_path / "missing.tar", HOUR, CHECK]
    found = json.loads(json.dumps([checked.to_json() for checked in bench.verify(paths)]))
    assert main(["verify", *map(str, paths), "--json"]) == 4
    assert found == json.loads(capfd.readouterr().out)


def test_a_comparison_is_the_document_of_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    compared = bench.compare(DECIDED, deadline="14d", budget_usd="20,000", runs=2, estimate="8xh100")
    words = ("--deadline=14d", "--budget-usd=20,000", "--runs=2", "--estimate=8xh100", "--json")
    assert compared.to_json() == json.loads(printed(capfd, "compare", DECIDED, *words))
    assert compared.fleet is None


def test_a_fleet_is_the_document_of_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    compared = bench.compare(CHECK)
    assert compared.fleet is not None
    assert compared.to_json() == json.loads(printed(capfd, "compare", CHECK, "--json"))


def test_a_prediction_is_the_document_of_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    found = bench.predict(HOUR, gpu=["h200", "8xh100"], deadline=30, interrupted_every="12h", own=True)
    words = ("--gpu=h200,8xh100", "--deadline=30", "--interrupted-every=12h", "--own", "--json")
    assert json.loads(json.dumps(found.to_json())) == json.loads(printed(capfd, "predict", HOUR, *words))


def test_values_cannot_be_changed() -> None:
    values = (
        bench.plan(TINY, gpu="h100"), *bench.verify(DECIDED), bench.compare(DECIDED),
        bench.predict(TINY, gpu="h100"),
    )  # fmt: skip
    for value in values:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(value)[0].name, None)


def test_calls_leave_the_process_as_it_was(tmp_path: Path) -> None:
    """Commands treat their process as their own. A caller's signals, collector and folder stay."""
    threshold = gc.get_threshold()
    gc.set_threshold(701, 11, 12)
    before, frozen = state(), gc.get_freeze_count()
    bench.plan(TINY, gpu="h100")
    bench.predict(TINY, gpu="h100")
    bench.verify(DECIDED)
    bench.compare(DECIDED)
    refusal(bench.run, TINY, out=tmp_path, device="cpu", key=HOUR)
    after = state()
    gc.set_threshold(*threshold)
    assert after == before
    assert gc.get_freeze_count() <= frozen  # what an earlier test froze may be freed meanwhile


def state() -> tuple[object, ...]:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    collector = gc.get_threshold(), gc.isenabled()
    return collector, handlers, Path.cwd(), dict(os.environ), threading.active_count()


# --- what is given ----------------------------------------------------------------------------------------


def test_a_dictionary_is_the_same_manifest_as_its_file(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(TINY, indent=1) + "\n", encoding="utf-8", newline="\n")
    document = bench.plan(TINY, gpu="h100").to_json()
    assert document == bench.plan(path, gpu="h100").to_json() == bench.plan(str(path), gpu="h100").to_json()


def test_a_shipped_manifest_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert bench.plan("manifests/hour.json", gpu="h100") == bench.plan(HOUR, gpu="h100")
    monkeypatch.undo()


def test_one_path_several_and_a_generator_are_bundles() -> None:
    (one,) = bench.verify(str(DECIDED))
    assert [checked.path for checked in bench.verify(path for path in (DECIDED, CHECK))] == [DECIDED, CHECK]
    assert one.verdict is not None and one.verdict.run_id
    folder = bench.verify(DECIDED.parent)
    assert folder == bench.verify(f"{DECIDED.parent}/*.tar")
    assert len(folder) > 3


def test_node_checks_beside_runs_are_both_in_the_value_and_in_no_document() -> None:
    compared = bench.compare([DECIDED, CHECK], deadline=14)
    assert compared.runs.parts and compared.fleet
    error = refusal(compared.to_json)
    assert error.message == "some bundles are node checks and some are not"


def test_the_command_refuses_both_kinds_before_options_for_one(capfd: pytest.CaptureFixture[str]) -> None:
    both = ("compare", DECIDED, CHECK, "--deadline=3", "--settings")
    assert "some bundles are node checks and some are not" in printed(capfd, *both, code=2)
    checks = ("compare", CHECK, "--deadline=3", "--settings", "--runs=2")
    assert printed(capfd, *checks, code=2).startswith(
        "--deadline, --runs, --settings: for training runs only"
    )


def test_telemetry_is_kept_if_asked_for() -> None:
    kept, left = (bench.compare(DECIDED, telemetry=asked).runs.parts[0].rows[0] for asked in (True, False))
    assert kept.telemetry is not None and left.telemetry is None


# --- bad input --------------------------------------------------------------------------------------------

MANIFEST_CALLS: list[Callable[..., object]] = [bench.plan, bench.predict, bench.run]


@pytest.mark.parametrize("call", MANIFEST_CALLS)
def test_a_missing_manifest_is_refused_as_by_the_command(
    call: Callable[..., object], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "missing.json"
    error = refusal(call, path)
    assert (type(error), error.where, error.exit_code) == (bench.BadInput, str(path), 2)
    assert printed(capfd, call.__name__, path, code=2) == f"{error}\n"


@pytest.mark.parametrize("call", MANIFEST_CALLS)
def test_an_unknown_model_is_refused_with_the_nearest(call: Callable[..., object]) -> None:
    error = refusal(call, TINY | {"models": ["tiny-gpt-nox"], "gpus": 0})
    assert isinstance(error, bench.BadInput)
    assert [mistake.path for mistake in error.mistakes] == ["/gpus", "/models/0"]
    assert 'nearest: "tiny-gpt-neox"' in str(error)
    assert error.where == "manifest"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (TINY | {"seed": {1, 2}}, "cannot be written as JSON: Object of type set"),
        (TINY | {"seed": float("nan")}, "NaN"),
        (TINY | {"models": [Path("a")]}, "cannot be written as JSON: Object of type"),
        ({}, "mistakes"),
    ],
)
def test_a_dictionary_that_is_no_manifest_is_refused(given: Any, said: str) -> None:
    error = refusal(bench.plan, given, gpu="h100")
    assert (type(error), error.where) == (bench.BadInput, "manifest")
    assert said in error.message


def test_a_dictionary_without_end_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["models"] = [endless]
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    for given in (endless, {"models": deep}):
        assert "cannot be written as JSON" in refusal(bench.plan, given).message


@pytest.mark.parametrize(
    ("call", "given", "options", "said"),
    [
        (bench.plan, HOUR, {"gpu": "h999"}, "--gpu h999: unknown GPU"),
        (bench.plan, HOUR, {"gpu": "h100", "gpus": 0}, "--gpus 0 is not at least 1"),
        (bench.predict, HOUR, {"gpu": "8xh999"}, "--gpu 8xh999: no such machine"),
        (bench.predict, HOUR, {"rent": "spott"}, "rent spott: not a choice"),
        (bench.predict, HOUR, {"restart": 0}, "restart: 0 is not more than 0"),
        (bench.predict, HOUR, {"prices": "missing.json"}, "missing.json"),
        (bench.compare, DECIDED, {"runs": 0}, "runs: 0 is not more than 0"),
        (bench.compare, DECIDED, {"rent": "spott"}, "rent spott: not a choice"),
        (bench.compare, DECIDED, {"deadline": True}, "deadline: True is not a number"),
        (bench.compare, DECIDED, {"budget_usd": float("inf")}, "budget_usd: inf is not a number"),
        (bench.compare, DECIDED, {"utilisation": 85}, "utilisation: 85 is more than 1"),
        (bench.compare, DECIDED, {"estimate": ["9xh999"]}, "--estimate 9xh999: no such machine"),
        (bench.compare, CHECK, {"deadline": 3, "runs": 2}, "--deadline, --runs: for training runs only"),
        (bench.run, TINY, {"device": "gpu"}, "device gpu: not a choice"),
        (bench.run, TINY, {"moved": True}, "--moved without --challenge and --resume"),
        (bench.run, TINY, {"budget": "3"}, "budget: '3' is not a duration"),
        (bench.run, TINY, {"challenge": HOUR}, "manifests/hour.json"),
        (bench.verify, DECIDED, {"trust": "missing.pub"}, "missing.pub"),
        (bench.verify, "missing/*.tar", {}, "missing/*.tar: matches no file"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(
    call: Callable[..., object], given: Any, options: dict[str, Any], said: str
) -> None:
    error = refusal(call, given, **options)
    assert isinstance(error, bench.BadInput)
    assert said in str(error)


def test_a_folder_without_bundles_is_refused(tmp_path: Path) -> None:
    assert refusal(bench.verify, tmp_path).message == "holds no .tar, so no bundle"


def test_a_refused_bundle_is_a_value_and_the_others_get_their_verdicts(tmp_path: Path) -> None:
    forged, stranger = tmp_path / "forged.tar", bundle(tmp_path / "stranger.tar", key=STRANGER)
    good = bundle(tmp_path / "good.tar")
    forged.write_bytes(good.read_bytes().replace(b"580", b"581"))
    paths = [forged, good, stranger, tmp_path / "missing.tar"]
    found = bench.verify(paths, trust=trust_list(tmp_path / "keys"))
    assert [(each.path, each.valid) for each in found] == list(
        zip(paths, (False, True, False, False), strict=True)
    )
    kinds = [type(each.refusal) for each in found]
    assert kinds[1] is type(None) and kinds[3] is bench.BadInput
    assert all(issubclass(kind, bench.VerificationFailed) for kind in (kinds[0], kinds[2]))
    compared = bench.compare(paths, trust=tmp_path / "keys")
    assert {refused.path for refused in compared.refused} == {str(p) for p in paths if p != good}
    assert [row.path for part in compared.runs.parts for row in part.rows] == [str(good)]


def test_factors_of_energy_are_read_each_by_itself() -> None:
    assert energy_of(None, None) == EnergyFactors(None, None)
    assert energy_of(1.5, None) == energy_of("1.5", None) == EnergyFactors(1.5, None)
    assert energy_of(None, 400) == energy_of(None, "400") == EnergyFactors(None, 400)
    assert refusal(lambda: energy_of(0.5, None)).message.startswith("node_overhead: ")
    assert refusal(lambda: energy_of(None, -1)).message == "gco2_per_kwh: -1 is not more than 0"


@pytest.mark.parametrize(("text", "count"), [("h100", 1), ("1xh100", 1), ("16xh100", 16)])
def test_a_machine_has_a_number_of_gpus(text: str, count: int) -> None:
    gpu, found = machine_named(text, "--gpu")
    assert (gpu.name, found) == ("NVIDIA H100 80GB HBM3", count)


@pytest.mark.parametrize(("text", "count"), [("4090", 1), ("2x4090", 2)])
def test_a_card_may_be_named_by_its_number(text: str, count: int) -> None:
    gpu, found = machine_named(text, "--gpu")
    assert (gpu.name, found) == ("NVIDIA GeForce RTX 4090", count)


@pytest.mark.parametrize("text", ["0xh100", "00xh100", "-1xh100", "xh100", "1.5xh100", "8x"])
def test_a_machine_without_gpus_is_refused(text: str) -> None:
    assert refusal(lambda: machine_named(text, "--gpu")).message == f"--gpu {text}: no such machine"


def test_a_budget_has_the_currency_of_the_prices() -> None:
    yen = PriceBook("JPY", exchange=(Exchange("USD", 150.0, "2026-06-01", "a bank"),))
    assert budget_of(20, yen) == budget_of("20", yen) == 3_000
    assert budget_of(20, PriceBook("USD")) == 20
    assert budget_of(None, yen) is None


def test_a_budget_in_dollars_is_converted_to_the_currency_of_the_prices(tmp_path: Path) -> None:
    """A yen is not a dollar: a run of some thousand dollars costs some hundred thousand yen."""
    quote = {"gpu": ["NVIDIA H200"], "price": 500, "date": "2026-06-01", "source": "a quote"}
    rate = {"currency": "USD", "price": 150, "date": "2026-06-01", "source": "a bank"}
    book: dict[str, Any] = {
        "schema": "bench/prices/v1",
        "currency": "JPY",
        "shipped": False,
        "rents": [quote],
    }
    path = tmp_path / "prices.json"

    def found(**more: Any) -> list[str]:
        path.write_text(json.dumps(book | more), encoding="utf-8", newline="\n")
        given = TINY | {"models": ["pythia-160m"]}
        rows = bench.predict(given, gpu="h200", prices=path, budget_usd=5_000).predicted
        return [row.predicted.model for row in rows]

    assert found(exchange=[rate]) == ["pythia-160m"]
    error = refusal(found)
    assert error.message == "--budget-usd, but the prices are in JPY"


# --- threads ----------------------------------------------------------------------------------------------


def test_threads_verify_side_by_side() -> None:
    paths = [*sorted((ROOT / "results/hour-h200").glob("*.tar")), CHECK, HOUR]
    alone = [checked.to_json() for checked in bench.verify(paths)]
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: bench.verify(paths), range(8)):
            assert [checked.to_json() for checked in found] == alone


def test_a_process_with_several_threads_is_not_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that another thread holds would stay locked in the fork, which would wait for it forever."""
    monkeypatch.setattr(os, "fork", None)
    source = bundle(tmp_path / "one.tar").read_bytes()
    for number in range(MANY_BUNDLES):
        (tmp_path / f"{number}.tar").write_bytes(source)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(bench.verify, tmp_path).result()
    assert sum(checked.valid for checked in found) == MANY_BUNDLES + 1


def test_a_process_with_one_thread_verifies_many_bundles_in_several_processes(tmp_path: Path) -> None:
    source = bundle(tmp_path / "one.tar").read_bytes()
    for number in range(MANY_BUNDLES):
        (tmp_path / f"{number}.tar").write_bytes(source)
    script = "import os, bench\nreal, made = os.fork, []\n"
    script += "os.fork = lambda: made.append(real()) or made[-1]\n"
    script += f"found = bench.verify({str(tmp_path)!r})\nprint(len(found), len(made) > 0)"
    assert fresh(script) == f"{MANY_BUNDLES + 1} True"


# --- runs -------------------------------------------------------------------------------------------------


def test_a_run_belongs_into_the_main_thread() -> None:
    with ThreadPoolExecutor(1) as pool:
        error = refusal(pool.submit(bench.run, TINY).result)
    assert isinstance(error, bench.EnvironmentCannot)
    assert "only the main thread" in error.message
    assert threading.active_count() >= 1


def test_a_run_needs_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    error = refusal(bench.run, TINY)
    monkeypatch.undo()
    assert isinstance(error, bench.EnvironmentCannot)
    assert error.message == "measuring needs Linux, and this machine has macOS"


@pytest.mark.slow
def test_a_run_returns_what_the_command_prints_and_tells_its_lines(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], quick_children: None
) -> None:
    told: list[str] = []
    before, frozen = state(), gc.get_freeze_count()
    measured = bench.run(TINY, out=tmp_path, device="cpu", say=told.append)
    assert state() == before
    assert gc.get_freeze_count() <= frozen
    assert (measured.stopped, measured.earlier, measured.kept) == (None, False, False)
    assert [trial.outcome for trial in measured.results.trials] == ["measured"]
    assert told[0].startswith("new signing key: ")
    assert any(line.startswith(f"run {measured.results.run.id}") for line in told)
    (checked,) = bench.verify(measured.bundle)
    assert checked.verdict is not None and checked.verdict.fingerprint == measured.signed_by
    document = json.loads(json.dumps(measured.to_json()))
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps(TINY), encoding="utf-8", newline="\n")
    words = ("run", manifest, "--device=cpu", "--json", "--out", tmp_path / "again")
    assert json.loads(printed(capfd, *words)).keys() == document.keys()


@pytest.mark.slow
def test_a_run_out_of_budget_is_a_value_that_says_so_and_can_be_resumed(
    tmp_path: Path, quick_children: None
) -> None:
    stopped = bench.run(TINY, out=tmp_path, device="cpu", budget=1e-3)
    assert stopped.stopped is not None and "budget" in stopped.stopped
    (checked,) = bench.verify(stopped.bundle)
    assert checked.verdict is not None and not checked.verdict.complete
    whole = bench.run(TINY, out=tmp_path, device="cpu", resume=True)
    assert (whole.stopped, whole.bundle) == (None, stopped.bundle)
