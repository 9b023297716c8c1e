"""Every command that a document tells its reader to type is run, parsed, or listed here with the reason.

Commands of README and the guides are run as printed, in a folder with the files that they name. Commands of
`bench` on other pages are parsed by the real parser. The examples of the site's command reference are those
of `bench help`, which tests/cli/test_help.py parses; the site's build runs the commands of its gallery. Lines
of pip are installed by tests/test_pip_lines.py.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.cli.arguments import Parser
from bench.cli.main import parser
from tests.pip_lines.printed_lines import ENVIRONMENT, PIP
from website.sources import ROOT, documents, fences

RESULTS = ROOT / "results"
# A line of a prompt, or of a crontab, has its command behind this.
BEFORE = re.compile(r"^\s*(?:\w+\$ +|(?:[\d*/,-]+ +){5})")
SYNOPSIS = re.compile(r" \[-| \[[A-Z]+\]|\]\.\.\.|^ +\[")
MEASURES = (
    "it measures: minutes to an hour on a GPU; tests/e2e/test_reproduce.py and tests/runner run such commands"
)
PUSHES = "it needs another machine; tests/e2e/test_push.py starts one"
# Lines that other tests run or read.
RUN_ELSEWHERE = re.compile(rf"^(?:bench|make|pip download) |{PIP.pattern}|{ENVIRONMENT.pattern}")
# Commands of README and the guides that are parsed and not run.
TASKS = "tests/e2e/test_readme_tasks.py follows the three tasks, with a tiny model and a simulated node"
NOT_RUN = {
    "bench run manifests/hour.json --budget 60m": MEASURES,
    "bench run manifests/hour.json --budget 50m": MEASURES,
    "bench reproduce table2.tar": MEASURES,
    "bench reproduce --published kempnerforge-2026-01-1g-7b-none": MEASURES,
    "bench init mine.json --model my-model/config.json --train-on 20B": TASKS,
    "bench init mine.json --model llama-3.2-1b --train-on 100B": TASKS,
    "bench run mine.json": TASKS,
    "bench check --level quick": TASKS,
    "bench push manifests/hour.json ubuntu@203.0.113.7 --budget 50m": PUSHES,
    "bench push rack-7.json -i racks.yml --limit rack7 --level standard --out rack7": PUSHES,
    "bench push rack-7.json -i racks.yml --limit rack7 --out rack7": PUSHES,
}
# Exit codes other than 0: 1 is a verdict, here that the two nodes differ, and that a price is old.
EXIT_CODES = {"bench reproduce rack7/good.tar --with rack7/slow.tar": 1, "bench prices --stale 30d": 1}
# Commands that run as printed on any page: they read, and need nothing but the files that they name.
READ_ONLY = ("plan", "predict", "compare", "export", "prices", "paper", "show", "verify")
NO_FILE = "it names files of readers, which have other names or forms on each page"
NOT_READ = {
    "bench compare inventory/results/*.tar": NO_FILE,
    "bench compare bundles/ --prices mine.json --budget-usd 130000 --deadline 14d": NO_FILE,
    "bench compare bundles/ --prices verda.json --rent spot": NO_FILE,
    "bench export bundles/one.tar --to standalone alone/": "the fastest setting of that bundle is refused",
    "bench prices import 2026-10-10.csv -o index.json": NO_FILE,
    "bench prices import vms.csv --provider Verda --date 2026-11-01 -o verda.json": NO_FILE,
    "bench verify RUN.tar --trust lab.pub --revoked lab.krl": NO_FILE,
}
SECRET = "writes a secret for nodes that are not here; tests/e2e/nodes.py makes one"
RELEASED = "needs the files of a release; tests/release/test_release.py makes them"
CLUSTER = "needs a cluster; tests/e2e/test_kubernetes_schemas.py checks what is applied"
SYSTEM = "changes the system; tests/e2e/test_monitoring.py checks the files"
SIGNED = "needs the files of a certified run; tests/bundle checks such signatures with ssh-keygen"
FAKE = "a check takes minutes; tests/node_check runs checks with such files"
IMAGE = "needs an image and its signature; tests/e2e/test_registry.py and test_image.py call cosign"
PLAYBOOK = "needs other machines; tests/e2e/test_push_ansible.py runs the playbook"
# Programs other than bench, make and pip, with the reason why their lines are not run here.
OTHERS = {
    ".venv/bin/pre-commit install": "changes the checkout's git hooks",
    "ansible-galaxy collection install ./ansible": PLAYBOOK,
    "ansible-playbook -i inventory/hosts.yml bench.appliance.preflight": PLAYBOOK,
    "ansible-playbook -i inventory/hosts.yml bench.appliance.run -e bench_manifest=hour.json -f 40": PLAYBOOK,
    "openssl rand -hex 32 > meet-secret && chmod 600 meet-secret": SECRET,
    "python3 docker/kernels.py compile": "compiles for hours with nvcc",
    "cosign verify-blob-attestation --key bench-cuda13.key.pem": IMAGE,
    "cosign verify --key release.pem": IMAGE,
    "cosign verify-blob --key release.pem": RELEASED,
    "cosign verify-blob-attestation --key release.pem": RELEASED,
    "cosign verify-blob-attestation --key key.pem": SIGNED,
    "{ printf '": SIGNED,
    "cut -d ' ' -f 2 run-cert.pub": SIGNED,
    "sha256sum --check SHA256SUMS": RELEASED,
    "ssh-keygen -Y verify -f allowed_signers -I bench-release": RELEASED,
    "cp -r \"$(python3 -c 'import bench.data as d; print(*d.__path__)')\"/kubernetes .": CLUSTER,
    'sed "s|IMAGE|REGISTRY/bench@sha256:...|" kubernetes/node-check.yaml | kubectl apply': CLUSTER,
    "helm install bench kubernetes/chart": CLUSTER,
    "cp \"$(python3 -c 'import bench.data as d; print(*d.__path__)')\"/monitoring/* /etc/bench/": SYSTEM,
    "tail -n 3 /var/lib/bench/passive/history.jsonl": SYSTEM,
    "install -m 644 bench-check.service bench-check.timer": SYSTEM,
    "systemctl enable --now bench-check.timer": SYSTEM,
    "python -m tests.pip_lines.record": "needs the network and three versions of Python",
    "tar -xf RUN.tar": SIGNED,
    "ssh-keygen -L -f run-cert.pub": SIGNED,
    "TZ=UTC ssh-keygen -Y verify -n bench-bundle@v1": SIGNED,
    "ssh-keygen -Y verify -n bench-receipt@v1": SIGNED,
    "sha256sum statement.json": SIGNED,
    "sha256sum *.json *.jsonl logs/*": SIGNED,
    "echo '{\"count\": 8,": FAKE,
    "BENCH_FAKE_NVML=machine.json bench check --level quick": FAKE,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DocumentedCommand:
    """A line that a reader types: where it stands, and its text without the remark behind it."""

    document: str
    line: str

    @property
    def is_run(self) -> bool:
        """Whether the command stands where readers follow each step, or only reads; and can be run here."""
        if self.document.startswith(("README.md", "docs/guides/")):
            return self.line not in NOT_RUN
        return self.line.split()[1] in READ_ONLY and self.line not in NOT_READ

    def __str__(self) -> str:
        return f"{self.document}: {self.line}"


def typed(document: str) -> list[DocumentedCommand]:
    """Return the lines of a document that a reader types."""
    found = []
    for language, body in fences((ROOT / document).read_text(encoding="utf-8")):
        if language not in ("sh", "text"):
            continue
        for whole in re.sub(r"\\\n\s*", "", body).splitlines():
            line = without_remark(BEFORE.sub("", whole))
            is_ours = line.startswith("bench ") and line.split()[1] in parser().commands
            if line and not SYNOPSIS.search(line) and (is_ours or language == "sh"):
                found.append(DocumentedCommand(document, line))
    return found


def without_remark(line: str) -> str:
    return re.sub(r"(^|\s+)#( .*)?$", "", line).strip()


COMMANDS = list({str(each): each for document in documents() for each in typed(document)}.values())
OURS = [each for each in COMMANDS if each.line.startswith("bench ")]


@pytest.mark.parametrize("command", OURS, ids=str)
def test_commands_of_bench_are_parsed(command: DocumentedCommand) -> None:
    for part in re.split(r" && | \| |; ", command.line):
        words = shlex.split(re.sub(r" >>? ?\S+", "", part))
        assert words[0] == "bench"
        assert parser().parse_args(words[1:]).call is not None


@pytest.mark.slow
@pytest.mark.parametrize("command", [each for each in OURS if each.is_run], ids=str)
def test_commands_run_as_printed(command: DocumentedCommand, tmp_path: Path) -> None:
    prepare(tmp_path)
    program = tmp_path / "bin/bench"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m bench "$@"\n')
    program.chmod(0o755)
    environment = {
        "PATH": f"{program.parent}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path / "home"),
    }  # fmt: skip
    ended = subprocess.run(
        ["bash", "-c", command.line],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == EXIT_CODES.get(command.line, 0), ended.stderr
    assert ended.stdout or " > " in command.line


def prepare(folder: Path) -> None:
    """Lay out the files that README and the guides name."""
    shutil.copytree(ROOT / "manifests", folder / "manifests")
    (folder / "results").symlink_to(RESULTS)
    for name, bundle in {
        "out/run.tar": "hour-h200/17-minutes.tar",
        "bundles/one.tar": "every-setting-h200/pythia-160m-1gpu.tar",
        "bundles/that.tar": "every-setting-h200/pythia-160m-2gpus.tar",
        "rack7/good.tar": "hour-h200/20-minutes.tar",
        "rack7/slow.tar": "hour-h200/24-minutes.tar",
        "table2.tar": "every-setting-h200/pythia-160m-1gpu.tar",
        "checks/one.tar": "node-check-2xh100/quick.tar",
        "out/RUN.tar": "hour-h200/17-minutes.tar",
        "RUN.tar": "hour-h200/17-minutes.tar",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(RESULTS / bundle, folder / name)
    (folder / "authors.pub").write_text(signer(folder / "table2.tar"))
    (folder / "mine.json").write_text(first_json("docs/guides/your-own-model.md"))
    shutil.copy(ROOT / "manifests/hour.json", folder / "manifest.json")
    quote = {"gpu": ["NVIDIA H200"], "price": 3.5, "date": "2026-06-01", "source": "made up for this test"}
    prices = {"schema": "bench/prices/v1", "currency": "USD", "rents": [quote]}
    (folder / "prices.json").write_text(json.dumps(prices))


def first_json(document: str) -> str:
    blocks = fences((ROOT / document).read_text(encoding="utf-8"))
    return next(body for language, body in blocks if language == "json")


def signer(bundle: Path) -> str:
    """Return the public key in a bundle's SSH signature."""
    with tarfile.open(bundle) as tar:
        member = tar.extractfile("statement.json.sig")
        assert member is not None
        _head, *lines, _foot = member.read().decode().split("\n")[:-1]
    blob = base64.b64decode("".join(lines))
    length = int.from_bytes(blob[10:14], "big")  # behind "SSHSIG" and its version
    return f"ssh-ed25519 {base64.b64encode(blob[14 : 14 + length]).decode()}\n"


def test_synopses_name_only_options_that_exist() -> None:
    seen = 0
    for document in documents():
        for _, body in fences((ROOT / document).read_text(encoding="utf-8")):
            for whole in re.split(r"\n(?=\S)", body):
                words = whole.split()
                if len(words) > 2 and words[0] == "bench" and SYNOPSIS.search(whole):
                    one = known(words[1:])
                    options = set(re.findall(r"--[a-z][a-z-]*", whole))
                    assert options <= set(one._option_string_actions), document
                    seen += 1
    assert seen >= 6


def known(words: list[str]) -> Parser:
    found = parser()
    for word in words:
        if word not in found.commands:
            break
        found = found.commands[word]
    return found


def test_targets_of_make_exist() -> None:
    targets = set(
        re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    named = [each for each in COMMANDS if each.line.startswith("make ")]
    assert len(named) > 8
    assert [str(each) for each in named if each.line.split()[1] not in targets] == []


def test_every_other_command_is_listed_with_its_reason_and_every_listed_one_is_there() -> None:
    others = [each.line for each in COMMANDS if not RUN_ELSEWHERE.search(each.line)]
    assert [line for line in others if not line.startswith(tuple(OTHERS))] == []
    assert [listed for listed in OTHERS if not any(line.startswith(listed) for line in others)] == []
    ours = {each.line for each in OURS}
    assert [line for line in [*NOT_RUN, *NOT_READ, *EXIT_CODES] if line not in ours] == []
