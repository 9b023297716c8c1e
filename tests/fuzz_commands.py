"""Give commands what a stranger signed, wrote or answered: none may end by a defect, or lose another verdict.

python -m tests.fuzz_commands [CASES] [SEED] [FIRST]     `make fuzz` runs many, the tests a few of each kind

Each case takes a bundle, a manifest, a node's answers or a feed, puts odd values into its structure, signs
again what was signed, and calls a command as a user does, beside an honest bundle where the command takes
several. A case follows from the seed and its number alone.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn
from unittest import mock

import bench
from bench.base.errors import BadInput, BenchError
from bench.base.stamps import sha256
from bench.base.strict_json import canonical_json
from bench.bundle.pack import pack
from bench.bundle.statement import PREDICATE_SCHEMA, parse_statement
from bench.bundle.tar_format import SIGNING, STATEMENT
from bench.cli import main as cli
from bench.cli.main import main
from bench.planning.manifest import load_manifest
from bench.push.node_findings import Need, machine_text, resources_text
from bench.push.node_survey import read_survey, split_answers
from bench.report import read_bundles
from tests.authority import RUN_KEY, contents
from tests.fuzz_documents import ANSWERS, CARD, CONFIG, FEED, PRICES, SBOM, VEX, WORDS
from tests.fuzz_values import follow, odd_text, twist
from tests.node_check.made import bundle as check_bundle
from tests.push.judged import judge

ROOT = Path(__file__).parents[1]
RUNS = tuple(
    ROOT / "results" / name for name in ("proof-h200/pythia-160m.tar", "slowed-h100/five-models.tar")
)
CHECKS = tuple(
    ROOT / "results" / name
    for name in ("node-check-h200/2gpus-run1.tar", "fabric-2xh200/two-ranks-nvlink.tar")
)
HONEST = ROOT / "results" / "proof-h200" / "pythia-410m.tar"
HONEST_CHECK = ROOT / "results" / "node-check-2xh100" / "quick.tar"
MANIFESTS = tuple(ROOT / "manifests" / name for name in ("quickstart.json", "hour.json"))
MOST_SECONDS = 30  # of a processor, for one case; an honest one takes less than a second
EXIT_CODES = range(6)
TAG = "<x-stranger>"  # in many odd texts; a page that holds it would run what a stranger wrote


class Defect(AssertionError):
    """A command did something that it must not do with any input."""


def _raise(error: Exception) -> NoReturn:
    """Replace the function that turns an unexpected exception into a refusal, "a defect of bench"."""
    raise Defect(f"{type(error).__name__}: {error}") from error


class Commands:
    """Makes cases, by number: the kind of a case is its number modulo the kinds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "stranger.tar"
        self.runs = [contents(path) for path in RUNS]
        (folder / "node").mkdir(exist_ok=True)
        with contextlib.redirect_stdout(io.StringIO()):
            newest = check_bundle(folder / "newest.tar", folder / "node", count=2)
        self.checks = [contents(path) for path in (*CHECKS, newest)]
        self.manifests = [json.loads(path.read_text()) for path in MANIFESTS]
        self.kinds: tuple[Callable[[random.Random], str], ...] = (
            self.verify,
            self.compare,
            self.compare_into_files,
            self.compare_checks,
            self.export,
            self.reproduce,
            self.plan,
            self.survey,
            self.scan,
            self.show,
            self.library,
            self.prices,
            self.card,
            self.init,
            self.explain,
        )

    def attempt(self, number: int, seed: int) -> str:
        """Make one case; return its outcome. Defect, or any other exception, if it went wrong."""
        with (
            _alarm(MOST_SECONDS),
            mock.patch.dict(os.environ, {"COLUMNS": "200"}),
            mock.patch.object(cli, "_defect", _raise),
            mock.patch.object(read_bundles, "_confusing", lambda _, error: _raise(error)),
        ):
            return self.kinds[number % len(self.kinds)](random.Random(f"{seed} {number}"))

    # --- the kinds ---------------------------------------------------------------------------------------

    def verify(self, dice: random.Random) -> str:
        self._forge(dice, self._run_or_check(dice))
        in_json = dice.random() < 0.5
        code, out = call("verify", self.path, HONEST, *(["--json"] if in_json else []))
        if str(HONEST) not in out or ("valid      " not in out and '"valid": true' not in out):
            raise Defect(f"the verdict of the honest bundle is lost:\n{out}")
        return f"verify: exit code {code}"

    def compare(self, dice: random.Random) -> str:
        self._forge(dice, dice.choice(self.runs))
        form = dice.choice(("table", "csv", "markdown", "json"))
        options = ["--rank-all", "--estimate=8xh100", "--budget-usd=9", *(["--settings"] * (form != "csv"))]
        options = [option for option in options if dice.random() < 0.3]
        code, out = call("compare", self.path, HONEST, "--format", form, *options)
        if "pythia-410m" not in out:
            raise Defect(f"the row of the honest bundle is lost:\n{out}")
        return f"compare as {form}: exit code {code}"

    def compare_into_files(self, dice: random.Random) -> str:
        self._forge(dice, dice.choice(self.runs))
        plots, page = self._empty("plots"), self.folder / "page.html"
        code, _ = call("compare", self.path, HONEST, "--html", page, "--plots", plots)
        written = [page, *plots.rglob("*.svg")]
        for path in written:
            require_harmless(path.read_text(), path.name)
        if code in (0, 1, 4) and (not page.exists() or "pythia-410m" not in page.read_text()):
            raise Defect("the honest bundle is not in the page")
        return f"compare into files: exit code {code}"

    def compare_checks(self, dice: random.Random) -> str:
        self._forge(dice, dice.choice(self.checks))
        form = dice.choice(("table", "csv", "markdown", "json"))
        page = self.folder / "fleet.html"
        code, out = call("compare", self.path, HONEST_CHECK, "--format", form, "--html", page)
        require_harmless(page.read_text(), page.name)
        if HONEST_CHECK.stem not in out:
            raise Defect(f"the row of the honest node is lost:\n{out}")
        return f"compare node checks as {form}: exit code {code}"

    def export(self, dice: random.Random) -> str:
        self._forge(dice, dice.choice(self.runs))
        folder = self._empty("exported")
        to = dice.choice(("script", "trainer", "accelerate", "deepspeed", "standalone", "standalone"))
        plain = ["--plain"] if to == "standalone" and dice.random() < 0.8 else []
        code, _ = call("export", self.path, "--to", to, *plain, folder)
        for path in folder.rglob("*.py"):
            compile(path.read_text(), path.name, "exec")
        return f"export to {to}: exit code {code}"

    def reproduce(self, dice: random.Random) -> str:
        original = dice.choice(RUNS)
        self._forge(dice, contents(original))
        pair = [original, self.path] if dice.random() < 0.5 else [self.path, original]
        code, _ = call("reproduce", pair[0], "--with", pair[1], *(["--json"] if dice.random() < 0.5 else []))
        return f"reproduce: exit code {code}"

    def plan(self, dice: random.Random) -> str:
        manifest = dice.choice(self.manifests)
        for _ in range(dice.choice((1, 1, 2))):
            manifest = twist(manifest, dice)
        path = self.folder / "manifest.json"
        path.write_text(json.dumps(manifest))
        code, _ = call(
            "plan", path, "--gpu", "h100", "--gpus", "2", *(["--json"] if dice.random() < 0.5 else [])
        )
        return f"plan: exit code {code}"

    def survey(self, dice: random.Random) -> str:
        """Let a hostile node answer the survey of a push."""
        answers = dict(ANSWERS)
        for name in dice.sample(sorted(answers), dice.choice((1, 1, 2, 4))):
            answers[name] = _spoiled(answers[name], dice)
        text = "".join(f"\036{name}\037{answer}\0370\035" for name, answer in answers.items())
        engines = ("none", "docker", "podman", "apptainer")
        try:
            survey = read_survey(split_answers(text), 1e9, engines)
            findings = judge(survey, Need("docker", None, on_cpu=False, gpus=8))
            shown = [machine_text(survey), resources_text(survey, "docker")]
            shown += [f"{finding.what} {finding.advice}" for finding in findings]
        except BenchError as error:
            shown = [str(error)]
        for line in shown:
            if len(line) > 20_000:
                raise Defect(f"{len(line)} characters of a node are shown")
        return "survey"

    def scan(self, dice: random.Random) -> str:
        feed, sbom = twist(FEED, dice), twist(SBOM, dice) if dice.random() < 0.3 else SBOM
        paths = [self.folder / name for name in ("feed.json", "sbom.json", "vex.json")]
        for path, document in zip(paths, (feed, sbom, twist(VEX, dice)), strict=True):
            path.write_text(json.dumps(document))
        vex = ["--vex", paths[2]] if dice.random() < 0.5 else []
        code, _ = call("image", "scan", paths[1], "--feed", paths[0], *vex)
        return f"scan: exit code {code}"

    def show(self, dice: random.Random) -> str:
        self._forge(dice, self._run_or_check(dice))
        code, _ = call("show", self.path, *(["--all"] if dice.random() < 0.5 else []))
        return f"show: exit code {code}"

    def library(self, dice: random.Random) -> str:
        """Call the functions of `import bench`, which raise nothing but their own errors."""
        self._forge(dice, dice.choice(self.runs))
        _, honest = bench.verify([self.path, HONEST])
        compared = bench.compare([self.path, HONEST], budget_usd=9, deadline="14d")
        if not honest.valid or all(part.model != "pythia-410m" for part in compared.runs.parts):
            raise Defect("the library lost the honest bundle")
        json.dumps([honest.to_json(), compared.to_json()])
        manifest = dice.choice(self.manifests)
        field = dice.choice(sorted(manifest))
        manifest = manifest | {field: twist(manifest[field], dice)}
        with contextlib.suppress(BenchError):
            planned = bench.plan(manifest, gpu="h100", gpus=2)
            json.dumps([planned.to_json(), bench.predict(manifest, gpu="h200,8xh100").to_json()])
        return f"library: {len(compared.refused)} refused"

    def prices(self, dice: random.Random) -> str:
        path = self._written("prices.json", _twisted(PRICES, dice))
        form = dice.choice(("table", "csv", "markdown", "json"))
        wish = [option for option in ("--budget-usd=90", "--deadline=90d", "--runs=3") if dice.random() < 0.3]
        page = self.folder / "priced.html"
        html = ["--html", page] if dice.random() < 0.3 else []
        code, _ = call("compare", HONEST, "--prices", path, "--format", form, *wish, *html)
        if html and code == 0:
            require_harmless(page.read_text(), page.name)
        call("prices", "--prices", path)
        return f"compare with prices as {form}: exit code {code}"

    def card(self, dice: random.Random) -> str:
        """Predict on a card that a file describes."""
        path = self._written("card.json", _twisted(CARD, dice))
        form = dice.choice(([], ["--json"], ["--format", "csv"], ["--explain"]))
        machines = ["--gpu", dice.choice(("x100", "8xx100,h200", "all"))]
        page = self.folder / "predicted.html"
        html = ["--html", page] if dice.random() < 0.3 else []
        code, _ = call("predict", MANIFESTS[-1], "--gpu-spec", path, *machines, *form, *html)
        if html and code == 0:
            require_harmless(page.read_text(), page.name)
        return f"predict on a card: exit code {code}"

    def init(self, dice: random.Random) -> str:
        """Make a first manifest of a config.json; the file must be a manifest, with mistakes or without."""
        config = self._written("config.json", _twisted(CONFIG, dice))
        answers = {"--precision": "bf16", "--train-on": "20M", "--hours": "1", "--rent": "2.50 h100"}
        if dice.random() < 0.6:
            answers[dice.choice(sorted(answers))] = dice.choice(
                (odd_text(dice), "-1", "1e400", "nan", "0", "²")
            ).replace("\0", " ")
        path = self._empty("first") / "mine.json"
        path.parent.mkdir()
        words = [f"{option}={text}" for option, text in answers.items()]
        code, _ = call("init", path, "--model", config, *words)
        if code == 0:
            with contextlib.suppress(BadInput):
                load_manifest(path)
        return f"init: exit code {code}"

    def explain(self, dice: random.Random) -> str:
        words = dice.choice((*WORDS, odd_text(dice), dice.choice(WORDS) + odd_text(dice)))
        code, _ = call("explain", *(["--json"] if dice.random() < 0.3 else []), "--", words)
        return f"explain: exit code {code}"

    # --- what strangers make -------------------------------------------------------------------------------

    def _forge(self, dice: random.Random, members: Mapping[str, bytes]) -> None:
        """Sign a bundle with odd values in one or two of its documents; its summaries may follow."""
        run = replace(parse_statement(members[STATEMENT]).predicate, schema=PREDICATE_SCHEMA)
        files = {name: data for name, data in members.items() if name not in SIGNING}
        for _ in range(dice.choice((1, 1, 2))):
            name = dice.choice([name for name in files if name.endswith((".json", ".jsonl"))])
            files[name] = _odd(files[name], name, dice)
        manifest = sha256(files["manifest.json"])
        with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError):
            results = json.loads(files["results.json"])
            if results["manifest_digest"] != f"sha256:{manifest}":
                results["manifest_digest"] = f"sha256:{manifest}"
                files["results.json"] = json.dumps(results).encode()
        if dice.random() < 0.7:
            with contextlib.suppress(Exception):  # nothing follows from what is no measurement
                follow(files)
        pack(self.path, dict(files), replace(run, manifest_sha256=manifest), RUN_KEY)

    def _run_or_check(self, dice: random.Random) -> Mapping[str, bytes]:
        return dice.choice(self.checks if dice.random() < 0.4 else self.runs)

    def _written(self, name: str, document: object) -> Path:
        path = self.folder / name
        path.write_text(json.dumps(document))
        return path

    def _empty(self, name: str) -> Path:
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        return folder


def _odd(data: bytes, name: str, dice: random.Random) -> bytes:
    """Put an odd value into a document, or into one line of a file of lines."""
    if name.endswith(".json"):
        return json.dumps(twist(json.loads(data), dice)).encode()
    lines = data.splitlines()
    at = dice.randrange(len(lines))
    lines[at] = canonical_json(twist(json.loads(lines[at]), dice))
    return b"\n".join(lines) + b"\n"


def _twisted(document: Mapping[str, object], dice: random.Random) -> object:
    """Put one or two odd values into a document."""
    twisted: object = document
    for _ in range(dice.choice((1, 1, 2))):
        twisted = twist(twisted, dice)
    return twisted


def _spoiled(answer: str, dice: random.Random) -> str:
    """Change an answer of a node: cut it, repeat it, put an odd text or a twisted document into it."""
    if answer.startswith("{") and dice.random() < 0.7:
        return json.dumps(twist(json.loads(answer), dice))
    words = answer.split(" ")
    match dice.randrange(5):
        case 0:
            return answer[: dice.randrange(len(answer) + 1)]
        case 1:
            return answer * dice.choice((2, 300))
        case 2:
            return str(odd_text(dice))
        case 3:
            return ""
        case _:
            words[dice.randrange(len(words))] = dice.choice(
                ("-1", "9" * 400, "1e9", "nan", "²", odd_text(dice))
            )
            return " ".join(words)


# --- what every command must do ----------------------------------------------------------------------------


def call(*arguments: object) -> tuple[int, str]:
    """Call a command; return its exit code and what it printed, which must be harmless on a terminal."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as exit_:
            raise Defect(f"the command left by {exit_!r}") from None
    for text in (out.getvalue(), err.getvalue()):
        if bad := [c for c in text if not c.isprintable() and c not in "\n\t"]:
            raise Defect(f"prints {bad[0]!r}: {text[max(0, text.index(bad[0]) - 60) :][:120]!r}")
    if code not in EXIT_CODES:
        raise Defect(f"exit code {code}")
    return code, out.getvalue()


def require_harmless(text: str, name: str) -> None:
    if TAG in text:
        raise Defect(f"{name} holds a stranger's element")
    if bad := [c for c in text if not c.isprintable() and c not in "\n\t"]:
        raise Defect(f"{name} holds {bad[0]!r}")


@contextlib.contextmanager
def _alarm(seconds: int) -> Iterator[None]:
    def over(*_: object) -> None:
        raise Defect(f"takes more than {seconds} s of a processor")

    before = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def run_cases(count: int, seed: int, first: int = 0) -> int:
    """Run cases, print their outcomes, and return how many went wrong."""
    outcomes: Counter[str] = Counter()
    wrong = []
    with tempfile.TemporaryDirectory(prefix="fuzz-commands-") as folder:
        commands = Commands(Path(folder))
        for number in range(first, first + count):
            try:
                outcomes[commands.attempt(number, seed)] += 1
            except Exception:
                wrong.append(number)
                print(f"case {number} of seed {seed}:", file=sys.stderr)
                traceback.print_exc()
    for outcome, times in sorted(outcomes.items()):
        print(f"{times:>8}  {outcome}")
    print(f"{count:,} cases of commands, seed {seed}: {len(wrong)} went wrong {wrong[:20] or ''}".rstrip())
    return len(wrong)


if __name__ == "__main__":
    count, seed, *first = [int(word) for word in (*sys.argv[1:], *("1000", "0")[len(sys.argv) - 1 :])]
    sys.exit(min(1, run_cases(count, seed, *first[:1])))
