"""The command in unusual cases: folders it may not write, input it cannot read, senseless arguments."""

from __future__ import annotations

import errno
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.base.errors import EnvironmentCannot
from bench.bundle.handshake import Challenge, write
from bench.cli import stdio
from bench.cli.arguments import Parser
from bench.cli.main import main, parser
from bench.planning.manifest import load_manifest
from bench.records.trial import Crashed
from bench.runner.run import execute as running
from bench.runner.run.events import TrialEnded
from bench.runner.run.run_state import Run
from tests.report.made import NO_MEMORY, bundle

ROOT = Path(__file__).parents[2]
CHECKS = str(ROOT / "results/node-check-h200/1gpu-run1.tar")
QUICKSTART = ROOT / "manifests" / "quickstart.json"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("out", "reason"),
    [
        ("file", "Not a directory"),
        ("file/sub", "Not a directory"),
        ("/dev/null", "Not a directory"),
        ("/proc/x", "No such file or directory"),
    ],
)
@pytest.mark.parametrize("command", [["run", str(QUICKSTART)], ["check", "--level", "quick"]])
def test_an_output_folder_that_cannot_be_written_is_reported(
    command: list[str], out: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").touch()
    assert main([*command, "--device", "cpu", "-o", out]) == 3
    expected = f"{out}: cannot be written: {reason}\n  name another directory with --out\n"
    assert capsys.readouterr().err.endswith(expected)


@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_an_output_folder_of_a_challenged_run_that_cannot_be_written_is_reported(
    resume: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    digest = load_manifest(QUICKSTART).digest.removeprefix("sha256:")
    Path("c.json").write_bytes(write(Challenge("7f3a2c", "5e" * 32, digest, 1_800_000_000)))
    out = "x" * 300
    assert main(["run", str(QUICKSTART), "--device", "cpu", "--challenge", "c.json", "-o", out, *resume]) == 3
    assert capsys.readouterr().err.startswith(f"{out}: cannot be written: File name too long\n")


def test_a_journal_that_cannot_be_read_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("out/abc/journal.jsonl").mkdir(parents=True)
    assert main(["run", str(QUICKSTART), "--device", "cpu", "--resume"]) == 3
    said = capsys.readouterr().err
    assert "out/abc/journal.jsonl: cannot be read: Is a directory\n  --out names another directory" in said


def test_a_damaged_journal_is_reported_with_how_to_start_again(capsys: pytest.CaptureFixture[str]) -> None:
    Path("out/abc").mkdir(parents=True)
    digest = load_manifest(QUICKSTART).digest
    Path("out/abc/journal.jsonl").write_text(json.dumps({"event": "run", "manifest": digest}) + "\n{\n")
    assert main(["run", str(QUICKSTART), "--device", "cpu", "--resume"]) == 2
    said = capsys.readouterr().err
    assert "line 2 is damaged" in said
    assert "--out names another directory: there the run starts over" in said


def test_figures_are_printed_if_the_bundle_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(run: Run, *_: object) -> str:
        (run.folder / "telemetry.jsonl").touch()
        return "the budget is spent"

    monkeypatch.setattr(running, "measure", measure)
    command = ["run", str(QUICKSTART), "--device", "cpu", "--resume"]
    assert main(command) == 5
    (left,) = Path("out").glob("*.tar")
    left.unlink()
    (left / "in-the-way").mkdir(parents=True)
    capsys.readouterr()
    assert main(command) == 3
    shown = capsys.readouterr()
    assert "INCOMPLETE  the budget is spent" in shown.out
    assert f"{left}: the bundle cannot be written: Is a directory\n" in shown.err
    assert f"what was measured is kept in {left.with_suffix('')}: bench run --resume packs it" in shown.err
    (left / "in-the-way").rmdir()
    left.rmdir()
    assert main(command) == 5
    assert left.is_file()


def test_a_run_that_ended_early_does_not_blame_the_settings_that_it_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running, "measure", lambda *_: "the budget is spent")
    asked = json.loads(QUICKSTART.read_text()) | {"models": ["tiny-vit"], "methods": ["naive", ["tf32"]]}
    Path("m.json").write_text(json.dumps(asked))
    assert main(["run", "m.json", "--device", "cpu"]) == 5
    assert "no figure for tiny-vit: none of its settings was measured before" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            EnvironmentCannot("no ceilings: crashed", where="log.txt", advice="read it"),
            "no ceilings: crashed",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "cannot be written: No space left on device"),
        (KeyError("of bench"), "KeyError: 'of bench'"),
        (KeyboardInterrupt(), "interrupted"),  # the second interrupt; measure_plan answers the first
    ],
)
def test_a_run_that_ends_for_any_reason_leaves_a_bundle(
    wrong: BaseException, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(run: Run, *_: object) -> str:
        run.record(TrialEnded(run.plan.cells[0].trials[0].id, Crashed("x")))
        raise wrong

    monkeypatch.setattr(running, "measure", measure)
    assert main(["run", str(QUICKSTART), "--device", "cpu"]) == 5
    shown = capsys.readouterr()
    assert re.search(f"INCOMPLETE  .*{said}, 14 of 15 settings undecided", shown.out)
    undecided = [line for line in shown.out.splitlines() if line.startswith("NOT DECIDED")]
    (missing,) = [
        line for line in shown.err.splitlines() if line.startswith("no figure for") and "before" in line
    ]
    assert len(undecided) <= 1 and missing.count(",") == 3  # four models, once each
    assert "--resume continues it" in shown.err
    (left,) = Path("out").glob("*.tar")
    assert main(["verify", str(left)]) == 0


@pytest.mark.parametrize("command", [["plan", str(QUICKSTART)], ["paper", "--json"]])
def test_a_full_disk_behind_stdout_is_reported(command: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        process = [sys.executable, "-m", "bench", *command]
        done = subprocess.run(process, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "stdout: cannot be written: No space left on device\n")


def test_a_closed_stderr_changes_neither_the_result_nor_the_exit_code(tmp_path: Path) -> None:
    (wrong := tmp_path / "wrong.json").write_text("{}")
    process = [sys.executable, "-m", "bench", "plan", str(wrong), "--json"]
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as unread, Path("/dev/full").open("w") as full:  # noqa: PTH123
        for stderr in (unread, full):
            done = subprocess.run(process, stdout=subprocess.PIPE, stderr=stderr, check=False)
            assert done.returncode == 2
            assert json.loads(done.stdout)["mistakes"]


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_the_command_works_without_stdin_stdout_and_stderr(closed: str) -> None:
    command = f"{sys.executable} -m bench plan {QUICKSTART} --gpu h100 --json {closed}"
    assert subprocess.run(["sh", "-c", command], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_figures_are_printed_in_a_locale_without_their_characters(encoding: str, tmp_path: Path) -> None:
    path = bundle(tmp_path / "caf\u0119.tar", settings=[((), 0.5), (("tf32",), Crashed("x" * 299))])
    process = [sys.executable, "-m", "bench", "compare", str(path)]
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(process, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    out = done.stdout.decode(encoding)
    shown = {"ascii": ("+-", "...", "caf\\u0119"), "latin-1": ("±", "...", "caf\\u0119")}
    for text in shown.get(encoding, ("±", "…", "caf\u0119")):
        assert text in out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["plan", "nowhere.json", "--json"], 2, "no such file"),
        (["run", "nowhere.json", "--json"], 2, "no such file"),
        (["run", "--json"], 2, "the following arguments are required: MANIFEST"),
        (["run", str(QUICKSTART), "--device", "cpu", "--json", "-o", "/proc/x"], 3, "cannot be written: "),
        (["verify", "nowhere.tar", "--json", "--trust", "nobody.pub"], 2, "the trusted keys cannot be read"),
        (["compare", "nowhere/*.tar", "--format", "json"], 2, "matches no file"),
        (
            ["compare", "x.tar", "--format=json", "--runs", "0"],
            2,
            "'0' is not a whole number",
        ),
        (["status", "nobody", "--json"], 2, ""),
    ],
)
def test_json_is_one_document_even_if_there_is_only_an_error(
    words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert (document["schema"], document["exit_code"]) == ("bench/error/v1", code)
    assert message in document["error"]["message"]
    assert document["error"]["message"] in shown.err


def test_every_mistake_of_a_manifest_is_in_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    manifest = {"schema": "bench/manifest/v1", "models": ["tiny-vitt"], "method": "naive"}
    Path("m.json").write_text(json.dumps(manifest))
    assert main(["plan", "m.json", "--json"]) == 2
    mistakes = json.loads(capsys.readouterr().out)["mistakes"]
    assert {mistake["path"] for mistake in mistakes} >= {"/models/0"}
    assert all(mistake.keys() == {"path", "found", "allowed"} for mistake in mistakes)


def test_without_json_an_error_leaves_stdout_empty(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "nowhere.json"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("command", [["verify"], ["compare"]])
def test_bundles_may_follow_options(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "one.tar", "--json", "two.tar"]) == 2
    said = capsys.readouterr().err
    assert "one.tar" in said
    assert "two.tar" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "M", "--meet", "gpu1:29500"], "--meet without --nodes"),
        (["run", "M", "--engine", "docker", "--meet", "gpu1:29500"], "--meet without --nodes"),
        (["run", "M", "--nodes", "2"], "--nodes 2 without --meet\n  --meet HOST:PORT"),
        (["run", "M", "--nodes", "2", "--meet", "gpu1"], "--meet gpu1 is not HOST:PORT"),
        (["run", "M", "--moved"], "--moved without --challenge and --resume"),
        (["run", "M", "--moved", "--resume"], "--moved without --challenge and --resume"),
        (["plan", "M", "--list-models"], "--list-models lists all models"),
        (["plan", "--list-models", "--gpu", "h100"], "--list-models lists all models"),
        (
            ["compare", CHECKS, "--budget-usd", "9", "--plots", "p"],
            "--budget-usd, --plots: for training runs",
        ),
        (["compare", CHECKS, "--estimate", "8xh100", "--json"], "--estimate: for training runs only"),
        (["compare", "x.tar", "--json", "--format", "csv"], "--json and --format csv"),
        (["compare", "x.tar", "--format", "markdown", "--json"], "--json and --format markdown"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(QUICKSTART) if word == "M" else word for word in words]) == 2
    assert message in capsys.readouterr().err


def commands_of(command: Parser) -> Iterator[Parser]:
    """List the commands at or below a parser that have parsers of their own."""
    groups = [action.choices for action in command._actions if isinstance(action.choices, dict)]
    if not groups:
        yield command
    for group in groups:
        for below in group.values():
            if isinstance(below, Parser):
                yield from commands_of(below)


COMMANDS = {command.prog.removeprefix("bench "): command for command in commands_of(parser())}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_fills_a_field_of_the_commands_request(name: str) -> None:
    """Argument names are text, which a type checker does not verify."""
    function, request = COMMANDS[name].get_default("call").load()
    (parameter,) = inspect.signature(function).parameters.values()
    assert parameter.annotation == request.__name__
    arguments = {action.dest for action in COMMANDS[name]._actions} - {"help"}
    fields = inspect.signature(request).parameters
    assert arguments <= fields.keys()
    assert all(fields[name].default is not inspect.Parameter.empty for name in fields.keys() - arguments)


@pytest.mark.parametrize("name", dict.fromkeys(name.split()[0] for name in COMMANDS))
def test_a_parser_for_one_command_has_all_its_options_and_no_other_command(name: str) -> None:
    one = {
        command.prog.removeprefix("bench "): command.format_help() for command in commands_of(parser(name))
    }
    assert one == {
        known: whole.format_help() for known, whole in COMMANDS.items() if known.split()[0] == name
    }
    assert parser(name).format_help() == parser().format_help() == parser("").format_help()


def options_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> set[str]:
    """List the options of a command and of all commands below it, as in its help."""
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    said = capsys.readouterr().out
    has_some = "COMMAND ..." in said or "ACTION ..." in said
    below = re.findall(r"^    ([a-z]+)(?: |$)", said, re.MULTILINE) if has_some else []
    found = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", said))
    return found.union(*(options_of([*words, name], capsys) for name in below))


def test_every_option_stands_in_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/guides").glob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    every = options_of([], capsys) - {"--help", "--version"}
    assert len(every) > 70
    assert [option for option in sorted(every) if not re.search(rf"{option}(?![\w-])", text)] == []


HOUR = ROOT / "results/hour-h200"


@pytest.mark.parametrize(
    "words",
    [
        ["plan", str(QUICKSTART), "--gpu", "h100"],
        ["verify", str(HOUR / "17-minutes.tar"), str(QUICKSTART)],
        ["compare", str(HOUR / "17-minutes.tar")],
        ["compare", CHECKS],
        ["reproduce", str(HOUR / "20-minutes.tar"), "--with", str(HOUR / "24-minutes.tar")],
        ["paper"],
    ],
    ids=lambda words: " ".join(words)[:15],
)
def test_every_field_of_json_is_documented(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main([*words, "--json"])
    document = json.loads(capsys.readouterr().out)
    page = (ROOT / "docs" / "json.md").read_text()
    for part in document if isinstance(document, list) else [document]:
        assert [field for field in part if f"`{field}`" not in page] == []
        assert f"`{part.get('schema', 'bench/plan/v1')}`" in page


@pytest.mark.usefixtures("plans_once")
@pytest.mark.parametrize(("manifest", "searched"), [("hour", 9), ("paper", 0)])
def test_a_plan_says_whether_all_of_it_is_measured(
    manifest: str, searched: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A search of nine models plans two hundred settings and measures few of them."""
    words = ["plan", str(QUICKSTART.with_name(f"{manifest}.json")), "--gpu", "h100", "--gpus", "8"]
    assert main(words) == 0
    assert ("settings to measure at most" in capsys.readouterr().out) == bool(searched)
    assert main([*words, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["searched"]) == searched


def test_a_plan_states_the_memory_it_was_made_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reasons of skipped settings give only the amount of memory, so the plan must say what it is."""
    for gib, said in ((40, "79.6 GiB each, capped at 40.0 GiB\n"), (100, "79.6 GiB each\n")):
        path = tmp_path / "capped.json"
        path.write_text(json.dumps({**json.loads(QUICKSTART.read_text()), "memory_cap_gib": gib}))
        assert main(["plan", str(path), "--gpu", "h100"]) == 0
        assert said in capsys.readouterr().out


@pytest.mark.usefixtures("plans_once")
def test_a_plan_marks_settings_that_are_unlikely_to_fit(capsys: pytest.CaptureFixture[str]) -> None:
    """Predictions may be wrong: a setting that is slightly too large is tried, but marked."""
    words = ["plan", str(QUICKSTART.with_name("hour.json")), "--gpu", "h100", "--all"]
    assert main(words) == 0
    blocks = capsys.readouterr().out.split("\n\n")
    (block,) = (block for block in blocks if block.startswith("pythia-6.9b\n"))
    assert main([*words, "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    settings = [cell["setting"] for cell in cells if cell["model"] == "pythia-6.9b"]
    without_offload = sum("offload" not in setting for setting in settings)
    assert block.count("hardly fits: 1") == block.count("hardly fits") == without_offload > 0


@pytest.mark.usefixtures("plans_once")
def test_a_plan_for_elsewhere_says_what_offloading_takes_of_the_host(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One 4090 trains pythia-6.9b only with offloading, so a renter must know the host memory it needs."""
    words = ["plan", str(QUICKSTART.with_name("hour.json")), "--gpu", "4090"]
    assert main(words) == 0
    assert "offload  pythia-6.9b: about 156.1 GiB to 219.9 GiB of the host" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert all((cell["host_bytes"] > 0) is ("offload" in cell["setting"]) for cell in cells)
    assert main(["plan", str(QUICKSTART)]) == 0
    assert "offload" not in capsys.readouterr().out


def test_reasons_stand_below_the_table_once_and_a_shortened_one_is_marked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reason = f"ValueError: hidden_size must be divisible by num_heads (got {'1' * 300} and 4)"
    failed = [(("checkpointing",), Crashed(reason)), (("tf32",), Crashed(reason)), (("compile",), NO_MEMORY)]
    path = bundle(Path("a.tar"), settings=[((), 0.5), *failed])
    assert main(["compare", str(path)]) == 0
    shown = capsys.readouterr().out
    assert f"\ncheckpointing 16 x 4, tf32 16 x 4: {f'crashed: {reason}'[:199]}…\n" in shown
    assert re.findall(r"16 x 4  ( *[a-z ]*)$", shown, re.MULTILINE)
    ends = [line.split("16 x 4")[1].strip() for line in shown.splitlines() if re.match("    (c|t)", line)]
    assert ends == ["crashed", "crashed", "out of memory"]


def test_what_a_terminal_would_obey_is_escaped_on_stdout_whoever_wrote_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with stdio.wrapped_streams():
        print("a\tb ± 7", "\x1b[2J\r\x9b\u202e\ud800", sep="\n")
    assert capsys.readouterr().out == "a\tb ± 7\n" + r"\x1b[2J\r\x9b\u202e\ud800" + "\n"
