"""Every command of every page is typed as it is printed, from the top of the page down, in one shell.

The reader sits at the machine of tests/e2e/reader_machine.py, in a folder with the files that the page names.
Their manifests have one tiny model, and checks of seconds; GPUs are those of the simulated driver.
"""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.documented_commands import HELP, DocumentedCommand, commands
from tests.e2e.published_row import BRIEFLY, published_rows
from tests.e2e.pushing import MOODY, TINY
from tests.e2e.reader import LINK_ENVIRONMENT
from tests.e2e.reader_machine import ReaderMachine, reader_machine
from tests.e2e.services import cosign
from tests.patience import PATIENCE_SECONDS
from tests.report.test_price_lists import INDEX, SKYPILOT
from tests.signers import signer
from tests.warm import ROOT
from website.sources import fences

pytestmark = pytest.mark.e2e

RESULTS = ROOT / "results"
OWN = "own.tar"  # a run of this test, on this machine
BUNDLES = {
    "out/run.tar": "hour-h200/17-minutes.tar",
    "out/one.tar": "hour-h200/17-minutes.tar",
    "out/RUN.tar": "hour-h200/17-minutes.tar",
    "bundles/one.tar": OWN,
    "bundles/that.tar": "every-setting-h200/pythia-160m-2gpus.tar",
    "good.tar": "hour-h200/20-minutes.tar",
    "slow.tar": "hour-h200/24-minutes.tar",
    "table2.tar": OWN,
    "checks/one.tar": "node-check-2xh100/quick.tar",
    "RUN.tar": "hour-h200/17-minutes.tar",
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64, "max_position_embeddings": 16,
}  # fmt: skip
MANIFEST = TINY | {"models": ["tiny-vit"], "micro_batch": 8}
PUBLISHED = "kempnerforge-2026-01-1g-7b-none"
PUBLISHED_ROWS = ROOT / "bench/data/published.json"
SHORT = {"minutes": 2, "warm_seconds": 0.05, "seconds": 0.05, "soak_seconds": 0.5}
SKIPPED = [*MOODY, "strangers"]  # the last: all nodes have the same simulated GPUs
LEVELS = dict.fromkeys(("quick", "standard", "soak", "nodes"), SHORT)
# Commands that end with a verdict: their exit codes, if not 0.
EXIT_CODES: Mapping[str, tuple[int, ...]] = {
    "bench reproduce speed/good.tar --with speed/slow.tar": (1,),  # the two nodes differ
    "bench reproduce table2.tar": (0, 1),  # this machine has other work, now or then
    "bench reproduce bundles/one.tar": (0, 1),
    "bench prices --stale 30d": (1,),  # a price is old
    "BENCH_FAKE_NVML=machine.json bench check --level quick": (1,),  # with the faults of the line before
}
# Commands that go on while the next ones are typed, elsewhere or in another window.
BESIDE = ("bench run manifests/paper.json --nodes 2 --node 0 ", "bench run manifest.json --challenge ")
# Commands that ask questions on a terminal; the answer to each is the one that is offered.
ASKING = ("bench init my.json", "bench keys new")
# Shell commands that prepare the machine of a page, or stand for what the reader does by hand before a line.
SIMULATED = (
    """echo '{"count": 8}' > /dev/shm/simulated.json; export BENCH_FAKE_NVML=/dev/shm/simulated.json"""
    "; echo BENCH_FAKE_NVML=$BENCH_FAKE_NVML > ~/.ssh/environment"
)
MEASURED = "rm ~/.ssh/environment; unset BENCH_FAKE_NVML"  # the end of simulated GPUs
SMALL_DISKS = (
    "for each in /scratch /lustre; do mkdir -p $each && mount -t tmpfs -o size=256m tmpfs $each; done"
)
COMMIT = "git -c user.name=me -c user.email=me@example.org commit -q --allow-empty -m one"
CHECKOUT = (
    f"git init -q -b main && cp -r {ROOT}/Makefile {ROOT}/pyproject.toml {ROOT}/benchmarks ."
    f" && git add . && {COMMIT} && {COMMIT}"
    f" && {LINK_ENVIRONMENT}; export MUTATIONS=20"  # of the bundles that `make fuzz` damages
)
MACHINES: Mapping[str, str] = {
    "README.md": CHECKOUT,
    "CONTRIBUTING.md": CHECKOUT,
    "docs/testing.md": CHECKOUT,
    "docs/checks.md": f"{SIMULATED}; {SMALL_DISKS}",
    "docs/compare.md": "cp prices.json mine.json",
    "docs/guides/accept-nodes.md": SIMULATED,
    "docs/guides/your-own-model.md": "cp own.json mine.json",
    "docs/monitoring.md": SIMULATED,
    "docs/trust.md": "rm -r out; export XDG_CONFIG_HOME=$PWD; bench keys revoke stolen.pub --file lab.krl",
}
BY_HAND: Mapping[str, str] = {
    # Simulated GPUs exchange nothing: processors stand in for them.
    "bench push manifests/fabric-check.json -i hosts.yml": (
        "rm -f ~/.ssh/environment; unset BENCH_FAKE_NVML"
        """; bench() { case "$*" in *fabric*) set -- "$@" --device cpu; esac; command bench "$@"; }"""
    ),
    # The shell's next `bench` finds a tiny model in place of one of 7B, and measures it for a moment.
    f"bench reproduce --published {PUBLISHED}": (
        f"bench() {{ unset -f bench; mount --bind rows.json {PUBLISHED_ROWS}"
        f"""; python -c "$(<briefly.py)" "$@"; set -- $?; umount {PUBLISHED_ROWS}; return $1; }}"""
    ),
    # What is changed, and what its tests read.
    'make mutate MODULES="bench/report/compare/offers.py" MUTANTS=4 SEED=0': (
        f"cp -r {ROOT}/bench {ROOT}/tests {ROOT}/results ."
    ),
    "tar -xf RUN.tar": (
        "mkdir empty && cp RUN.tar empty && bench keys show 2>&1 | tail -n 2"
        " | sed 's/^ *//; s/^[^ ]*@[^ ]* /lab@example.org /' > empty/allowed_signers && cd empty"
    ),
    "bench check --baseline good.tar": "cp $(ls -t out/*.tar | head -n 1) good.tar",
    "bench push speed.json -i racks.yml --limit rack7 --out speed": MEASURED,
    "bench compare speed/ --html speed.html": "cp good.tar slow.tar speed",
    "bench check --level passive --nagios --keep-last 300 --out /var/lib/bench/passive"
    " --baseline /etc/bench/good.tar": "bench check --level passive -o a; cp a/*.tar /etc/bench/good.tar",
    "bench push manifests/node-check.json -i racks.yml --limit rack7 --level standard --out rack7": SIMULATED,
    "bench attach gpu1": f"{MEASURED}; bench push manifests/paper.json gpu1 --new --detach",
    "bench check --nagios --level passive --keep-days 30": SIMULATED,
    "bench verify out/*.tar --trust keys.pub": MEASURED,
    "bench keys trust lab.pub --as lab@example.org": "cp bench/id_ed25519.pub lab.pub",
    "bench certify request.json": "until cp out/*/request.json .; do sleep 0.1; done",
    "bench receive RUN.tar": "cp run-cert.pub out/*/; until cp out/*.tar RUN.tar; do sleep 0.1; done",
}
# What a page can only name, as shell that prints it.
PLACEHOLDERS: Mapping[str, str] = {
    "bench-run:RUN": "$(ssh-keygen -L -f run-cert.pub | grep -om 1 'bench-run:.*')",
    "@RECEIVED_AT": "@$(grep -o '\"received_at\":[0-9]*' receipt.json | cut -d : -f 2)",
}


@dataclass
class Shell:
    """A shell on the reader's machine that stays open for a page, so that variables and folders stay too."""

    machine: ReaderMachine
    folder: Path
    _process: subprocess.Popen[bytes] = field(init=False)
    _statuses: int = field(init=False)
    _count: int = 0

    def __post_init__(self) -> None:
        self._statuses, status = os.pipe()
        self._process = subprocess.Popen(
            self.machine.inside(f"exec bash --noprofile --norc {status}>&{status}", self.folder),
            env=self.machine.environment(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, pass_fds=[status], start_new_session=True, cwd="/",
        )  # fmt: skip
        self._status = status

    def type(self, line: str, seconds: float = PATIENCE_SECONDS) -> tuple[int, str]:
        """Type a line; return its exit code and what it printed."""
        self._count += 1
        out = self.folder.parent / f"{self.folder.name}-{self._count}.txt"
        assert self._process.stdin is not None
        script = f"{{ {line}\n}} < /dev/null > {out} 2>&1 {self._status}>&-\necho $? >&{self._status}\n"
        self._process.stdin.write(script.encode())
        self._process.stdin.flush()
        said, deadline = b"", time.monotonic() + seconds
        while not said.endswith(b"\n"):
            ready, _, _ = select.select([self._statuses], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{line}: no end after {seconds} s\n{out.read_text(errors='replace')}"
            said += os.read(self._statuses, 100)
        return int(said), out.read_text(encoding="utf-8", errors="replace")

    def close(self) -> None:
        os.close(self._status)
        os.close(self._statuses)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.wait()


@pytest.fixture(scope="module")
def machine() -> Iterator[ReaderMachine]:
    """Start the machine, and measure the tiny model on it once; `bench check` is short there."""
    with reader_machine(Path(tempfile.mkdtemp(prefix="bench-reader-"))) as made:
        (made.folder / "bin/cosign").symlink_to(cosign())
        folder = made.folder / "own"
        folder.mkdir()
        (folder / "tiny.json").write_text(json.dumps(MANIFEST))
        (folder / "check.json").write_text(json.dumps(quick_check("node-check")))
        short = f"mount --bind check.json {ROOT}/bench/data/node-check.json"
        line = f"{short} && bench run tiny.json && mv out/*.tar {OWN}"
        done = made.run(line, folder, made.environment())
        assert done.returncode == 0, done.stdout
        yield made


def to_type() -> dict[str, list[DocumentedCommand]]:
    """Return the lines to type of each page; of the examples in the help, those that no page has."""
    pages = {page: [each for each in lines if each.is_of_its_page] for page, lines in commands().items()}
    elsewhere = {each.line for page, lines in pages.items() if page != HELP for each in lines}
    pages[HELP] = [each for each in pages[HELP] if each.line not in elsewhere]
    return {page: lines for page, lines in pages.items() if lines}


PAGES = to_type()


@pytest.mark.timeout(1800)  # a page of pushes on a busy machine
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run_as_printed(page: str, machine: ReaderMachine) -> None:
    folder = machine.folder / re.sub(r"\W", "-", page)
    folder.mkdir()
    prepare(folder, machine)
    shell = Shell(machine, folder)
    try:
        if page in MACHINES:
            code, said = shell.type(MACHINES[page])
            assert code == 0, said
        follow(shell, PAGES[page])
    finally:
        shell.close()


def follow(shell: Shell, lines: list[DocumentedCommand]) -> None:
    beside = []
    for number, command in enumerate(lines):
        line = command.line
        if line in BY_HAND:
            code, said = shell.type(BY_HAND[line])
            assert code == 0, f"{BY_HAND[line]}\n{said}"
        if line.startswith(BESIDE):
            shell.type(f"{{ {line}; }} & beside{number}=$!")
            beside.append((number, line))
            continue
        for placeholder, value in PLACEHOLDERS.items():
            line = line.replace(placeholder, value)
        # script(1) keeps in memory all that its program has not read, so an answer comes every half second.
        asks = f"while echo; do sleep 0.5; done | script -qec {shlex.quote(line)} /dev/null"
        code, said = shell.type(asks if line in ASKING else line)
        print(f"$ {line}\n[{code}]\n{said}")
        assert code in EXIT_CODES.get(line, (0,)), f"{line}: {code}\n{said}"
    for number, line in beside:
        code, _ = shell.type(f"wait $beside{number}")
        assert code == 0, line


def prepare(folder: Path, machine: ReaderMachine) -> None:
    """Lay out the files that the pages name, and the lock with which `bench push` finds a node's packages."""
    (machine.home / ".ssh/environment").unlink(missing_ok=True)
    (folder / "docker").mkdir()
    shutil.copy(machine.folder / "cpu.lock", folder / "docker/cpu.lock")
    for name, bundle in BUNDLES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(machine.folder / "own" / bundle if bundle == OWN else RESULTS / bundle, folder / name)
    texts = {
        "authors.pub": signer(folder / "table2.tar"),
        "keys.pub": signer(folder / "out/run.tar") + signer(folder / "table2.tar"),
        "2026-10-10.csv": INDEX,
        "briefly.py": BRIEFLY,
        "vms.csv": SKYPILOT,
        **{f"{name}.pub": key_text(folder, name) for name in ("lab", "operator", "stolen")},
    }
    hosts: dict[str, object] = {"hosts": {"gpu1": {}, "gpu2": {}}}
    quote = {"gpu": ["NVIDIA H200"], "price": 3.5, "date": "2026-06-01", "source": "made up for this test"}
    rack = json.loads(first_json("docs/guides/accept-nodes.md")) | {"levels": LEVELS, "skip": SKIPPED}
    documents: dict[str, object] = {
        "prices.json": {"schema": "bench/prices/v1", "currency": "USD", "rents": [quote]},
        "hosts.yml": {"all": hosts},
        "racks.yml": {"all": {"children": {"rack7": hosts}}},
        "my-model/config.json": CONFIG,
        "rack-7.json": rack,
        "machine.json": {"count": 8},
        "rows.json": published_rows(PUBLISHED),
        "own.json": json.loads(first_json("docs/guides/your-own-model.md")),
        **{f"manifests/{name}.json": quick_check(name) for name in ("node-check", "fabric-check")},
        **dict.fromkeys(("speed.json", "manifest.json"), MANIFEST),
        **{f"manifests/{name}.json": MANIFEST for name in ("hour", "paper", "quickstart")},
    }
    texts |= {name: json.dumps(document) for name, document in documents.items()}
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def quick_check(name: str) -> object:
    """Return a shipped check manifest whose levels take seconds, without checks that other work disturbs."""
    shipped = json.loads((ROOT / f"manifests/{name}.json").read_bytes())
    return shipped | {"levels": LEVELS, "skip": SKIPPED}


def key_text(folder: Path, name: str) -> str:
    """Make an Ed25519 key beside the folder, and return its public half."""
    path = folder.parent / f"{folder.name}-{name}"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return Path(f"{path}.pub").read_text()


def first_json(document: str) -> str:
    blocks = fences((ROOT / document).read_text(encoding="utf-8"))
    return next(body for language, body in blocks if language == "json")
