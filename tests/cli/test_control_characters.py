"""No text of a stranger reaches a terminal or a file as a terminal would obey it, from any command.

COMMANDS has, for every command of the parser, command lines that are given what strangers made, with control
characters wherever they may stand. A new command, flag or format fails here until it has a command line.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import io
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.cli import pushed_runs
from bench.cli.arguments import Parser
from bench.cli.main import main, parser
from bench.images.engines import EngineFacts
from bench.push import host_push
from bench.push.push_record import Records
from bench.records.trial import Crashed
from bench.runner.run import execute as running
from bench.runner.run.events import TrialEnded
from bench.runner.run.run_state import Run
from bench.signing.ssh_keys import PublicKey
from tests.authority import RUN_KEY, certified
from tests.fuzz_documents import ANSWERS, CARD, CONFIG, FEED, PRICES, SBOM, VEX
from tests.hostile_bundles import CONTROLS, ONE_LINE, OWNED, controls_in, spoil
from tests.images.made_up_images import LABELS, make_image
from tests.needs import needs
from tests.node_check.made import bundle as check_bundle
from tests.push.strange_nodes import Answers
from tests.push.test_push_record import R
from tests.report.made import START, bundle

pytestmark = needs("ssh-keygen")

Line = Sequence[str]
SURVEY = "".join(
    f"\036{name}\037{text}\0370\035"
    for name, text in (
        ANSWERS | {"os": CONTROLS, "gpu users": f"{CONTROLS}: 1, {CONTROLS}, 10 MiB", "python": "3.8\n"}
    ).items()
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch, _registry() as address:
        for name in ("CONFIG", "STATE", "CACHE"):
            patch.setenv(f"XDG_{name}_HOME", str(folder / name.lower()))
        patch.setenv("COLUMNS", "300")
        patch.chdir(folder)
        yield World(folder, address, patch)


class World:
    """A folder with what strangers made, and machines that answer with control characters."""

    def __init__(self, folder: Path, registry: str, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.registry = folder, registry
        (folder / "node").mkdir()
        bundle(
            folder / "plain.tar",
            settings=[((), 0.9), (("tf32",), Crashed(CONTROLS))],
            switches={"TORCH": "1"},
        )
        self.kinds = spoil(folder / "plain.tar", folder / "run.tar", document=_strange_names)
        check_bundle(folder / "plain-check.tar", folder / "node", count=2, at=START, persistence=0)
        self.check_kinds = spoil(folder / "plain-check.tar", folder / "check.tar", document=_of_other_rules)
        bundle(folder / "honest.tar", run_id="honest", uuid="H", pass_seconds=0.8)
        certified(folder / "certified.tar")
        self._write_documents()
        self._write_images()
        main(["keys", "new", "--no-passphrase"])
        main(["keys", "new", f"key{OWNED}", "--no-passphrase"])
        patch.setattr(host_push, "_LOOK_SECONDS", 0.0)
        patch.setattr(host_push, "Remote", lambda *_: Answers(lambda script: SURVEY))
        patch.setattr(pushed_runs, "_node_of", lambda record: Answers(self._status))
        patch.setattr(running, "measure", _measure)
        for module in ("image", "in_container"):
            patch.setattr(f"bench.cli.{module}.find_engine", lambda _: _Engine())
        kubectl = folder / "programs/kubectl"
        kubectl.parent.mkdir()
        kubectl.write_text(f"#!/bin/sh\nprintf '%s' '{CONTROLS}'; printf '%s' '{CONTROLS}' >&2; exit 1\n")
        kubectl.chmod(0o755)
        patch.setenv("PATH", f"{kubectl.parent}:{os.environ['PATH']}")
        patch.setenv("BENCH_FAKE_NVML", str(folder / "machine.json"))

    @property
    def key_file(self) -> Path:
        """A stranger's public key; the name is the stranger's too."""
        return self.folder / f"x{ONE_LINE}.pub"

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def record(self) -> str:
        """Note a pushed run, of which every text is a stranger's; return its id."""
        made = replace(
            R, local=True, host=f"n{CONTROLS}", state="running", out=self.path("results"), image=CONTROLS,
            slurm_job=None,
        )  # fmt: skip
        Records().save(made)
        made.mirror.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.path("fine.json"), made.mirror / "manifest.json")
        return made.run_id

    def _status(self, script: str) -> str:
        return f"exit 1\n{CONTROLS}" if "request.json" in script else CONTROLS

    def _write(self, name: str, document: object) -> None:
        (self.folder / name).write_text(json.dumps(document))

    def _write_documents(self) -> None:
        manifest = {"schema": "bench/manifest/v1", "models": ["tiny-gpt-neox"], "methods": "naive"}
        self._write("manifest.json", manifest | {"name": f"m{CONTROLS}"})
        self._write("fine.json", manifest | {"name": "fine"})
        self._write("own.json", manifest | {"models": [own_model()]})
        self._write("mistakes.json", manifest | {"models": [CONTROLS], CONTROLS: CONTROLS})
        self._write("config.json", CONFIG | {"architectures": [CONTROLS], CONTROLS: CONTROLS})
        self._write("bad-config.json", CONFIG | {"model_type": CONTROLS})
        self._write("prices.json", _everywhere(PRICES, keep=("schema", "currency", "date", "kind", "gpu")))
        self._write("card.json", _everywhere(CARD, keep=("compute_capability",)))
        self._write("bad-prices.json", PRICES | {CONTROLS: CONTROLS})
        self._write("list.json", [{"gpu": CONTROLS, "price": 1, "provider": CONTROLS}])
        self._write("published.json", _published())
        self._write("request.json", {"schema": "bench/request/v1", "run_id": CONTROLS, CONTROLS: CONTROLS})
        self._write("sbom.json", _everywhere(SBOM, keep=("bomFormat", "purl")))
        self._write(
            "feed.json", _everywhere(FEED, keep=("modified", "ecosystem", "name", "type", "versions"))
        )
        self._write("vex.json", _everywhere(VEX, keep=("@context", "timestamp", "status", "justification")))
        self._write(
            "machine.json", {"count": 2, "driver": f"580{CONTROLS}", "all": {"UUID": f"GPU{CONTROLS}"}}
        )
        self.key_file.write_text(f"{PublicKey.of(RUN_KEY).line()} {CONTROLS}\n")
        self._write(
            f"envelope{ONE_LINE}", {"payloadType": CONTROLS, "payload": CONTROLS, "signatures": [CONTROLS]}
        )

    def _write_images(self) -> None:
        document = json.dumps({"components": [{"name": CONTROLS}]}, ensure_ascii=False)
        inside: dict[str, bytes | None] = {"usr/share/bench/sbom.cdx.json": document.encode()}
        labels = {"bench.variant": "cpu", "bench.lock": CONTROLS, CONTROLS: CONTROLS}
        make_image(self.folder, [{"usr": None}, inside], labels=labels)
        make_image(self.folder, [{"usr": None}, inside], "named.tar", labels=LABELS)


def own_model() -> dict[str, Any]:
    recipe = {
        "objective": "causal-lm",
        "batch_size": 8,
        "steps": 10,
        "precision": "bf16",
        "sequence_length": 64,
    }
    architecture = {"model_type": "gpt_neox", "vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2}
    return {"name": f"own{CONTROLS}", "architecture": architecture | {"a": CONTROLS}, "recipe": recipe}


def _strange_names(results: dict[str, Any]) -> None:
    """Give keys that are names of packages and switches."""
    results["node"]["packages"][ONE_LINE] = ONE_LINE
    results["node"]["switches"][ONE_LINE] = ONE_LINE


def _of_other_rules(results: dict[str, Any]) -> None:
    """Let a check be judged by rules of another version, so that its findings need not follow."""
    results["rules"] = "sha256:" + "0" * 64


def _everywhere(value: Any, keep: Sequence[str]) -> Any:
    """Put control characters into every text but those of the fields in `keep`."""
    if isinstance(value, str):
        return value + CONTROLS
    if isinstance(value, dict):
        return {key: item if key in keep else _everywhere(item, keep) for key, item in value.items()}
    return [_everywhere(item, keep) for item in value] if isinstance(value, list) else value


def _published() -> dict[str, Any]:
    from bench.base.shipped_data import PUBLISHED, read_data

    shipped = read_data(PUBLISHED)
    row = shipped["rows"][0]
    source = shipped["sources"][row["source"]] | {"title": f"t{CONTROLS}", "note": CONTROLS}
    texts = dict.fromkeys(("name", "url", "quote", "software"), f"x{CONTROLS}")
    return shipped | {"sources": {row["source"]: source}, "rows": [row | texts]}


def _measure(run: Run, *_: object) -> str:
    run.record(TrialEnded(run.plan.cells[0].trials[0].id, Crashed(CONTROLS)))
    return CONTROLS


class _Engine:
    """An engine that says nothing but control characters."""

    name = "docker"

    def facts(self) -> EngineFacts:
        return EngineFacts("docker", CONTROLS, None, None)

    def inspect(self, image: str) -> None:
        return None

    def load(self, archive: Path) -> None:
        """Load nothing."""


@contextlib.contextmanager
def _registry() -> Iterator[str]:
    """Serve a registry on this machine, whose every answer is an error of control characters."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = json.dumps(
                {"errors": [{"code": CONTROLS, "message": CONTROLS}]}, ensure_ascii=False
            ).encode()
            self.send_response(400, "\x1b]0;owned\x07")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = answer  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


# --- the command lines ---------------------------------------------------------------------------------


def _each(option: str, *values: str) -> list[Line]:
    return [[option, value] for value in values]


def _with_run(verb: str, *more: Line) -> Callable[[World], list[Line]]:
    """Give a command the id of a pushed run, with each of these options."""
    return lambda w: [[verb, w.record(), *words] for words in ([], *more)]


COMMANDS: dict[str, Callable[[World], list[Line]]] = {
    "init": lambda w: [
        ["init", "made.json", "--model", w.path("config.json"), "--train-on", "20M", "--force"],
        ["init", "made.json", "--model", w.path("bad-config.json"), "--train-on", "20M", "--force"],
        ["init", "made.json", "--model", CONTROLS, "--train-on", CONTROLS, "--rent", CONTROLS, "--force"],
    ],
    "run": lambda w: [
        *(["run", w.path("fine.json"), "--device", "cpu", *more] for more in ([], ["--json"])),
        ["run", w.path("mistakes.json")],
    ],
    "plan": lambda w: [
        *(
            ["plan", w.path(name), "--gpu", "h100", *more]
            for name in ("manifest.json", "own.json", "mistakes.json")
            for more in ([], ["--json"], ["--all"])
        ),
        ["plan", "--list-models", CONTROLS],
    ],
    "check": lambda w: [
        ["check", "--level", "passive", *more]
        for more in (
            ["--junit", "written/j.xml", "--html", "written/h.html", "--metrics", "written/m.prom"],
            ["--json"],
            ["--nagios"],
            ["--reason"],
            ["--list"],
        )
    ],
    "verify": lambda w: [
        ["verify", w.path("run.tar"), w.path("check.tar"), w.path("certified.tar"), *more]
        for more in ([], ["--json"])
    ],
    "show": lambda w: [
        ["show", w.path(name), *more] for name in ("run.tar", "check.tar") for more in ([], ["--all"])
    ],
    "compare": lambda w: [
        ["compare", w.path(one), w.path("honest.tar"), *more]
        for one in ("run.tar", "check.tar")
        for more in (
            *_each("--format", "table", "json", "csv", "markdown"),
            ["--json"],
            ["--settings"],
            ["--settings", "--format", "markdown"],
            ["--rank-all", "--prices", w.path("prices.json"), "--estimate", "8xh100"],
            ["--html", "written/c.html", "--plots", "written/plots", "--rank-all"],
            ["--prices", w.path("bad-prices.json")],
        )
    ],
    "export": lambda w: [
        ["export", w.path("run.tar"), *to, *more, "written/exported"]
        for to in _each("--to", "script", "trainer", "accelerate", "deepspeed", "standalone")
        for more in ([], ["--plain"])
        if to[1] == "standalone" or not more
    ],
    "reproduce": lambda w: [
        *(
            ["reproduce", w.path(one), "--with", w.path(other), *more]
            for one, other in (("run.tar", "honest.tar"), ("honest.tar", "run.tar"))
            for more in ([], ["--json"])
        ),
        *(
            ["reproduce", "--published", name, "--published-in", w.path("published.json"), *more]
            for name in ("list", CONTROLS)
            for more in ([], ["--json"])
        ),
        [
            "reproduce",
            "--published",
            f"x{CONTROLS}",
            "--published-in",
            w.path("published.json"),
            "--with",
            w.path("run.tar"),
        ],
    ],
    "predict": lambda w: [
        *(
            ["predict", w.path(name), "--gpu-spec", w.path("card.json"), "--gpu", "8xh100,x100", *more]
            for name in ("own.json", "fine.json")
            for more in (
                *_each("--format", "table", "csv"),
                ["--json"],
                ["--explain"],
                ["--own", "--prices", w.path("prices.json")],
                ["--html", "written/p.html", "--plots", "written/p", "--measured", w.path("run.tar")],
            )
        ),
    ],
    "prices": lambda w: [
        *(
            ["prices", "--prices", w.path("prices.json"), *more]
            for more in ([], ["--json"], ["--stale", "1d"])
        ),
        *(["prices", "import", w.path("list.json"), *more] for more in ([], ["-o", "written/prices.json"])),
    ],
    "paper": lambda w: [["paper", "--figures", "written/figures"], ["paper", "--json"]],
    "push": lambda w: [
        *(
            ["push", w.path("fine.json"), *hosts, "--engine", "none", "--device", "cpu", "--dry-run", *more]
            for hosts in (["one"], ["one", "two"])
            for more in ([], ["--json"])
        ),
        ["push", w.path("fine.json"), "--kubernetes", "--image", f"a/b@sha256:{'0' * 64}"],
    ],
    "status": _with_run("status", ["--json"]),
    "attach": _with_run("attach", ["--json"]),
    "fetch": _with_run("fetch", ["--json"]),
    "cancel": _with_run("cancel", ["--kill"], ["--detach"]),
    "clean": _with_run("clean"),
    "rent": lambda w: [
        ["rent", tool, w.path("own.json"), "--gpu", "h100", "-o", "written/rent", *more]
        for tool in ("skypilot", "dstack")
        for more in ([], ["--json"], ["--name", CONTROLS])
    ],
    "challenge": lambda w: [["challenge", w.path("own.json"), "-o", "challenge.json"]],
    "certify": lambda w: [["certify", w.path("request.json")]],
    "receive": lambda w: [["receive", w.path("run.tar")], ["receive", f"no{CONTROLS}.tar"]],
    "keys new": lambda w: [["keys", "new", f"new{OWNED}", "--no-passphrase"]],
    "keys show": lambda w: [["keys", "show", str(w.key_file)]],
    "keys trust": lambda w: [
        ["keys", "trust", str(w.key_file)],
        ["keys", "trust", f"key{OWNED}.pub", "--as", f"x{CONTROLS}"],
    ],
    "keys revoke": lambda w: [
        ["keys", "revoke", one] for one in (w.path("run.tar"), str(w.key_file), CONTROLS)
    ],
    "image build": lambda w: [
        ["image", "build", "cpu", "--source", CONTROLS, *more] for more in ([], ["--json"])
    ],
    "image kernels": lambda w: [["image", "kernels", "cuda13", "--wheels", CONTROLS]],
    "image add": lambda w: [
        ["image", "add", w.path("image.tar"), f"no{CONTROLS}.tar", "-o", "out.tar", *more]
        for more in ([], ["--json"])
    ],
    "image id": lambda w: [["image", "id", w.path("image.tar"), *more] for more in ([], ["--json"])],
    "image sbom": lambda w: [["image", "sbom", w.path("image.tar")]],
    "image save": lambda w: [
        ["image", "save", w.path("image.tar"), "-o", "saved.tar", *more] for more in ([], ["--json"])
    ],
    "image load": lambda w: [["image", "load", w.path("image.tar")]],
    "image push": lambda w: [
        ["image", "push", w.path("named.tar"), f"{w.registry}/bench:x", "--key", f"{key}{OWNED}"]
        for key in ("key", "missing")
    ],
    "image pull": lambda w: [
        ["image", "pull", f"{w.registry}/bench@sha256:{'0' * 64}", "--key", f"{key}{OWNED}.pub", *more]
        for key in ("key", "missing")
        for more in ([], ["--json"])
    ],
    "image attest": lambda w: [
        ["image", "attest", w.path("image.tar"), "-o", "attested", "--key", f"{key}{OWNED}"]
        for key in ("key", "missing")
    ],
    "image verify": lambda w: [
        ["image", "verify", w.path("image.tar"), f"{w.path('envelope')}{ONE_LINE}", "--key", str(w.key_file)]
    ],
    "image scan": lambda w: [
        ["image", "scan", w.path(one), "--feed", w.path("feed.json"), "--vex", w.path("vex.json"), *more]
        for one in ("sbom.json", "image.tar")
        for more in ([], ["--json"])
    ],
    "help": lambda w: [["help", CONTROLS]],
    "explain": lambda w: [["explain", CONTROLS, *more] for more in ([], ["--json"])],
    "completion": lambda w: [
        *(["completion", shell] for shell in ("bash", "zsh", "fish")),
        ["completion", "--of", "push", CONTROLS],
    ],
}

# Flags and choices that decide what is measured, made or read, and not how something is shown.
NO_OUTPUT = {
    "--any-stack", "--anyway", "--cloud", "--detach", "--device", "--dry-run", "--engine", "--force",
    "--gpus", "--if-idle", "--keep", "--kill", "--kind", "--kubernetes", "--level", "--load",
    "--meet-in-public", "--moved", "--new", "--no-assemble", "--no-passphrase", "--no-run", "--once",
    "--plain", "--plain-http", "--png", "--rent", "--resume", "--run-code", "--shared", "--slurm",
    "--spot", "--token", "--variant",
}  # fmt: skip
# No stranger wrote anything that these commands show.
OF_BENCH_ALONE = {"paper", "completion"}


def commands(of: Parser, name: str = "") -> Iterator[tuple[str, Parser]]:
    """Yield each command that has none below it, with its name."""
    for word, below in of.commands.items():
        yield from commands(below, f"{name} {word}".strip())
    if not of.commands:
        yield name, of


def test_every_command_has_its_lines() -> None:
    assert sorted(name for name, _ in commands(parser())) == sorted(COMMANDS)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_form_of_output_has_its_line(world: World, command: str) -> None:
    lines = [[str(word) for word in line] for line in COMMANDS[command](world)]
    (of,) = [found for name, found in commands(parser()) if name == command]
    for action in of._actions:
        names = {*action.option_strings}
        if names & NO_OUTPUT or isinstance(action, argparse._HelpAction):
            continue
        used = [line for line in lines if names & {*line} or not names]
        is_output = (
            action.nargs == 0
            or action.choices
            or "write" in (action.help or "")
            or "draw" in (action.help or "")
        )
        if is_output:
            assert used, f"{command}: no line has {' or '.join(names)}"
        for choice in action.choices or ():
            assert any(choice in line for line in used), f"{command}: no line has {choice}"


# Files that no terminal shows: archives, with copies of what a stranger made, and lists of revoked keys.
BINARY = {".tar", ".krl"}


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_no_control_character_is_printed_or_written(world: World, command: str) -> None:
    shown = ""
    for line in COMMANDS[command](world):
        words = [str(word) for word in line]
        before = {path: path.stat().st_mtime_ns for path in world.folder.rglob("*") if path.is_file()}
        out, err = call(words)
        for name, text in (("stdout", out), ("stderr", err)):
            assert not controls_in(text), f"{words}: {name}: {ascii(text)[:2000]}"
        shown += out + err
        for path in world.folder.rglob("*"):
            if path.is_file() and path.stat().st_mtime_ns != before.get(path) and path.suffix not in BINARY:
                text = path.read_bytes().decode(errors="replace")
                assert not controls_in(text), f"{words}: {path}: {ascii(text)[:2000]}"
                shown += text
        shutil.rmtree(world.folder / "written", ignore_errors=True)
    assert (OWNED in shown) == (command not in OF_BENCH_ALONE)


def call(words: Sequence[str]) -> tuple[str, str]:
    """Call a command as on a terminal that is a file; return what it printed there."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="surrogatepass") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        main(words)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode(errors="replace"))  # type: ignore[attr-defined]
    return texts[0], texts[1]


def test_strangers_texts_stand_in_many_places(world: World) -> None:
    """A bundle that could hold no control characters would prove nothing."""
    assert world.kinds >= 15 and world.check_kinds >= 60
