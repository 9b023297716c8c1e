"""A whole run as a user sees it: exit codes, bundle, interruption, resumption. Real torch, tiny models."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from bench.base.source import source
from bench.runner.machine.exclusive_use import warn_of_others
from tests.authority import contents
from tests.patience import PATIENCE_SECONDS, until
from tests.warm import forked_for, quick_python

# Each run imports torch and transformers, which takes many seconds of CPU time. The usual case, interrupts
# and kills are always tested; other endings are end-to-end tests. The usual case and kills use an ordinary
# Python.
pytestmark = pytest.mark.slow

QUICK = {"target_percent": 50, "measure_seconds": 0.2, "warmup_seconds": 0.1, "loss_steps": 1}
MANIFEST: dict[str, Any] = {
    "schema": "bench/manifest/v1",
    "name": "test",
    "models": ["tiny-gpt-neox", "tiny-vit"],
    "methods": ["naive", ["checkpointing"]],
    "micro_batch": 8,
    "timing": QUICK,
}


def bench(
    *arguments: str | Path, folder: Path, cold: bool = False, **switches: str
) -> subprocess.CompletedProcess[str]:
    """Run bench; `cold` uses an ordinary Python, otherwise that of tests/warm.py is used."""
    command = [sys.executable if cold else quick_python(), "-m", "bench", *map(str, arguments)]
    around = environment(folder) | switches
    return subprocess.run(
        command, cwd=folder, env=around, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {"XDG_CONFIG_HOME": str(folder / "config"), "COLUMNS": "200", "TMPDIR": str(folder)}


def manifest(folder: Path, **changes: Any) -> Path:
    path = folder / "manifest.json"
    path.write_text(json.dumps(MANIFEST | changes))
    return path


@contextmanager
def started(folder: Path, cold: bool = False) -> Iterator[subprocess.Popen[str]]:
    python = sys.executable if cold else quick_python()
    command = [python, "-m", "bench", "run", str(manifest(folder))]
    process = subprocess.Popen(
        command, cwd=folder, env=environment(folder), stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def journal_lines(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in (folder / "out").glob("*/journal.jsonl")
        for line in path.read_text().splitlines()
    ]


def wait_for_trials(folder: Path, count: int) -> None:
    def trials() -> int:
        return sum(line["event"] == "trial" for line in journal_lines(folder))

    until(lambda: trials() >= count, f"trial {count}", every=0.02)


def descendants(pid: int) -> set[int]:
    found, forked = set(), forked_for()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = _state_of(int(entry.name))
            except OSError:
                continue
            if forked.get(int(entry.name), int(fields[1])) == pid and fields[0] != "Z":
                found |= {int(entry.name)} | descendants(int(entry.name))
    return found


def kill_youngest(pid: int) -> None:
    """Kill the process below `pid` that was started last, which is the trial.

    It need not have the highest number, because numbers are used again. If it ends by itself meanwhile, the
    next one is killed.
    """

    def is_killed() -> bool:
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(max(descendants(pid), key=lambda below: int(_state_of(below)[19])), signal.SIGKILL)
            return True
        return False

    until(is_killed, "a trial to kill", every=0.02)


def _state_of(pid: int) -> list[str]:
    """Return what the kernel says of a process after its name: state, parent, ..., and its start as 20th."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def gone(pids: set[int]) -> bool:
    """Wait for the end of these processes."""
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), f"the end of {pids}", every=0.02)
    return True


def decided(results: dict[str, Any]) -> None:
    """Return the decided models with their confidence."""
    by_id = {trial["id"]: trial for trial in results["trials"]}
    assert [found["model"] for found in results["winners"]] == list(
        dict.fromkeys(t["model"] for t in by_id.values())
    )
    for found in results["winners"]:
        own = [t["estimate"]["days"]["value"] for t in by_id.values() if t["model"] == found["model"]]
        assert by_id[found["trial"]]["estimate"]["days"]["value"] == min(own)
        assert found["undecided"] == 0
        assert 0 < found["confidence"] <= 1


def ranked(results: dict[str, Any], compared: dict[str, Any]) -> set[str]:
    """Return the ids of the trials that `bench compare --json` ranks.

    The ranked trial of a model need not be `winners`' trial: a busy machine may have given that one a mark.
    """
    rows = [part["entries"][0]["row"] for part in compared["parts"]]
    best = [(row["model"], row["best"]["setting"], row["best"]["micro_batch"]) for row in rows]
    return {t["id"] for t in results["trials"] if (t["model"], t["setting"], t["micro_batch"]) in best}


def floors(results: dict[str, Any], ranked: set[str]) -> None:
    """Check that ranked trials, and no others, have a floor, or took less time than one on this busy CPU."""
    for trial in results["trials"]:
        if trial["id"] not in ranked:
            assert not (trial["floor"] or trial["no_floor"]), trial
        elif not trial["floor"]:
            assert re.fullmatch("its floor takes .* of its step", trial["no_floor"] or ""), trial


def gradients(results: dict[str, Any], ranked: set[str]) -> None:
    """Check that each ranked trial, and no other, has gradients that agree."""
    checks = {trial["id"]: trial["gradient_check"] for trial in results["trials"] if trial["gradient_check"]}
    assert checks.keys() == ranked
    assert all(check["worst_difference"] < 0.01 for check in checks.values())


def test_a_run_measures_decides_signs_and_verifies(tmp_path: Path) -> None:
    asked = manifest(tmp_path, floor=True, gradient_check=True)
    done = bench("run", asked, folder=tmp_path, cold=True)
    assert done.returncode == 0, done.stderr
    assert "tiny-gpt-neox" in done.stdout
    assert "checkpointing" in done.stdout
    (bundle,) = (tmp_path / "out").glob("*.tar")
    verified = bench("verify", bundle, "--json", folder=tmp_path)
    (verdict,) = json.loads(verified.stdout)
    assert verified.returncode == 0
    assert verdict["valid"]
    assert verdict["complete"]
    trusted = bench("verify", bundle, "--trust", tmp_path / "config/bench/id_ed25519.pub", folder=tmp_path)
    assert trusted.returncode == 0
    table = bench("compare", bundle, folder=tmp_path)
    assert done.stdout.strip() in table.stdout
    results = json.loads(contents(bundle)["results.json"])
    assert (results["bench_source"], results.get("bench_commit")) == (source().digest, source().commit)
    decided(results)
    compared = json.loads(bench("compare", bundle, "--json", folder=tmp_path).stdout)
    best = ranked(results, compared)
    assert len(best) == 2
    floors(results, best)
    gradients(results, best)


def test_json_is_one_document_on_stdout_with_the_numbers_of_the_bundle(tmp_path: Path) -> None:
    path = manifest(tmp_path, models=["tiny-vit"], methods="naive")
    with warn_of_others(["cpu"], lambda _: None):
        done = bench("run", path, "--json", "--resume", folder=tmp_path)
    assert "another bench measures on this machine since " in done.stderr
    assert "no unfinished run of this manifest in out: a new run begins\n" in done.stderr
    document = json.loads(done.stdout)
    (trial,) = document["results"]["trials"]
    assert trial["outcome"] == "measured"
    assert trial["estimate"]["days"]["value"] > 0
    assert "DISTURBED" in {mark["kind"] for mark in document["marks"][trial["id"]]}
    (journal,) = (tmp_path / "out").glob("*/journal.jsonl")
    marked = [line for line in map(json.loads, journal.read_text().splitlines()) if line["event"] == "marked"]
    assert "DISTURBED" in {mark["kind"] for line in marked for mark in line["marks"]}
    compared = bench("compare", document["bundle"], "--json", folder=tmp_path)
    (part,) = json.loads(compared.stdout)["parts"]
    best = part["entries"][0]["row"]["best"]
    assert (best["days"], best["peak_bytes"]) == (trial["estimate"]["days"], trial["estimate"]["peak_bytes"])


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.e2e)])
def test_an_interrupt_leaves_a_valid_partial_bundle_and_exit_5(
    tmp_path: Path, number: signal.Signals
) -> None:
    with started(tmp_path) as process:
        wait_for_trials(tmp_path, 1)
        below = descendants(process.pid)
        process.send_signal(number)
        assert process.wait(PATIENCE_SECONDS) == 5
    assert below
    assert gone(below)
    (bundle,) = (tmp_path / "out").glob("*.tar")
    verified = bench("verify", bundle, "--json", folder=tmp_path)
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout)[0]["complete"] is False


@pytest.mark.e2e
def test_a_lost_terminal_leaves_a_valid_partial_bundle(tmp_path: Path) -> None:
    """After the terminal is lost, every write to it fails."""
    ours, theirs = os.openpty()
    command = [quick_python(), "-m", "bench", "run", str(manifest(tmp_path)), "--json"]
    with os.fdopen(theirs, "w") as terminal, (tmp_path / "out.json").open("w") as out:
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment(tmp_path), stdout=out, stderr=terminal
        )
    wait_for_trials(tmp_path, 1)
    os.close(ours)
    process.send_signal(signal.SIGHUP)
    assert process.wait(PATIENCE_SECONDS) == 5
    verified = bench("verify", *(tmp_path / "out").glob("*.tar"), folder=tmp_path)
    assert verified.returncode == 0, verified.stderr


@pytest.mark.parametrize("victim", ["supervisor", pytest.param("worker", marks=pytest.mark.e2e)])
def test_kill_9_loses_at_most_the_trial_in_flight(tmp_path: Path, victim: str) -> None:
    with started(tmp_path, cold=victim == "supervisor") as process:
        wait_for_trials(tmp_path, 1)
        if victim == "supervisor":
            below = descendants(process.pid)
            process.kill()
            process.wait()
            assert gone(below)
            assert not list(tmp_path.glob("bench-*")), "temporary files"
        else:
            kill_youngest(process.pid)
            assert process.wait(PATIENCE_SECONDS) == 0
    finished = {line["id"] for line in journal_lines(tmp_path) if line["event"] == "trial"}
    done = bench("run", tmp_path / "manifest.json", "--resume", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert len(results["trials"]) == 4
    if victim == "supervisor":
        assert len(list((tmp_path / "out").glob("*/journal.jsonl"))) == 1
        assert finished <= {trial["id"] for trial in results["trials"]}
        lines = [line["id"] for line in journal_lines(tmp_path) if line["event"] == "trial"]
        assert sorted(lines) == sorted(set(lines))  # finished trials were not run again


@pytest.mark.e2e
def test_a_spent_budget_is_incomplete_and_resumable(tmp_path: Path) -> None:
    done = bench("run", manifest(tmp_path), "--budget", "0.01s", folder=tmp_path)
    assert done.returncode == 5
    assert "budget" in done.stderr
    again = bench("run", tmp_path / "manifest.json", "--resume", folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert len(list((tmp_path / "out").glob("*.tar"))) == 1


@pytest.mark.e2e
def test_a_run_continues_only_with_the_same_switches(tmp_path: Path) -> None:
    begun = bench("run", manifest(tmp_path), "--budget", "0.01s", folder=tmp_path, NVIDIA_TF32_OVERRIDE="0")
    assert begun.returncode == 5
    assert "set in this environment: NVIDIA_TF32_OVERRIDE=0; " in begun.stderr
    (path,) = (tmp_path / "out").glob("*.tar")
    kept = json.loads(contents(path)["results.json"])["node"]["switches"]
    assert kept["NVIDIA_TF32_OVERRIDE"] == "0"
    verified = bench("verify", path, folder=tmp_path)
    assert "NVIDIA_TF32_OVERRIDE=0" in verified.stdout
    refused = bench("run", tmp_path / "manifest.json", "--resume", folder=tmp_path)
    assert refused.returncode == 2
    assert "NVIDIA_TF32_OVERRIDE not set here, 0 there" in refused.stderr


@pytest.mark.e2e
def test_a_budget_ends_the_current_trial_and_leaves_it_open(tmp_path: Path) -> None:
    timing = {"target_percent": 0.001, "measure_seconds": 1e6, "warmup_seconds": 1}
    path = manifest(tmp_path, timing=timing, models=["tiny-vit"], methods=["naive"], trial_minutes=1e5)
    done = bench("run", path, "--budget", "8s", "--json", folder=tmp_path)
    assert done.returncode == 5, done.stderr
    results = json.loads(done.stdout)["results"]
    assert results["trials"] == []
    assert results["winners"] == [{"confidence": None, "model": "tiny-vit", "trial": None, "undecided": 1}]


@pytest.mark.e2e
def test_without_room_for_the_model_the_outcome_is_out_of_memory(tmp_path: Path) -> None:
    path = manifest(tmp_path, models=["tiny-vit"], methods="naive", memory_cap_gib=0.05, micro_batch="auto")
    done = bench("run", path, "--json", folder=tmp_path)
    assert done.returncode == 3
    assert "no figure for tiny-vit: out of host memory: " in done.stderr
    trials = json.loads(done.stdout)["results"]["trials"]
    assert {trial["outcome"] for trial in trials} == {"out-of-memory"}
    assert len(trials) > 1  # smaller micro-batches were tried
    assert trials[-1]["micro_batch"] == 1


@pytest.mark.e2e
def test_a_trial_that_takes_too_long_times_out_and_the_next_one_runs(tmp_path: Path) -> None:
    done = bench("run", manifest(tmp_path, trial_minutes=0.0001), "--json", folder=tmp_path)
    trials = json.loads(done.stdout)["results"]["trials"]
    assert [trial["outcome"] for trial in trials] == ["timed-out"] * 4
    assert done.returncode == 3
    assert f"no figure for {', '.join(MANIFEST['models'])}: timed out after 0 s in " in done.stderr


def test_a_model_without_a_figure_is_named_and_the_others_are_reported(tmp_path: Path) -> None:
    odd = {"name": "odd", "architecture": {"model_type": "llama", "hidden_size": 32, "intermediate_size": 8,
           "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 100, "rms_norm_eps": -1.0},
           "recipe": {"objective": "causal-lm", "batch_size": 8, "steps": 100, "precision": "fp32",
                      "sequence_length": 16}}  # fmt: skip
    path = manifest(tmp_path, models=["tiny-vit", odd], methods="naive")
    done = bench("run", path, folder=tmp_path)
    assert "no figure for odd: crashed: " in done.stderr
    assert "no figure for tiny-vit" not in done.stderr
    assert done.returncode == 0
    assert bench("run", manifest(tmp_path, models=[odd], methods="naive"), folder=tmp_path).returncode == 3


@pytest.mark.e2e
def test_your_own_model_inline(tmp_path: Path) -> None:
    recipe = {
        "objective": "causal-lm",
        "batch_size": 8,
        "steps": 100,
        "precision": "bf16",
        "sequence_length": 16,
    }
    llama = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100}  # fmt: skip
    neox = {"model_type": "gpt_neox", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 16}  # fmt: skip
    models = [
        {"name": "my-llama", "architecture": llama, "recipe": recipe},
        {"name": "my-neox", "architecture": neox, "recipe": recipe},
    ]
    done = bench("run", manifest(tmp_path, models=models, micro_batch=8), "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    trials = json.loads(done.stdout)["results"]["trials"]
    assert [(t["model"], t["outcome"]) for t in trials] == [(m["name"], "measured") for m in models] * 2
    assert all(t["estimate"]["flops_per_second"] > 0 for t in trials)
