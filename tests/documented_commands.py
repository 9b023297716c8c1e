"""The commands that the documents and the help of `bench` tell their reader to type, in their order.

NOT_RUN is the only list of lines that tests/e2e/test_documented_pages.py does not run, with the reasons.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from bench.cli.examples import EXAMPLES
from bench.cli.main import parser
from tests.pip_lines.printed_lines import ENVIRONMENT, PIP
from website.sources import ROOT, documents, fences

HELP = "bench --help"  # the page of the examples in the help of all commands
# A line of a prompt, or of a crontab, has its command behind this.
BEFORE = re.compile(r"^\s*(?:\w+\$ +|(?:[\d*/,-]+ +){5})")
SYNOPSIS = re.compile(r" \[-| \[[A-Z]+\]|\]\.\.\.|^ +\[")
# Lines that tests/test_pip_lines.py and tests/e2e/test_pip_lines.py install.
OF_PIP = re.compile(rf"{PIP.pattern}|{ENVIRONMENT.pattern}|^pip download ")


@dataclass(frozen=True, slots=True)
class DocumentedCommand:
    """A line that a reader types: where it stands, and its text without the remark behind it."""

    document: str
    line: str

    @property
    def is_of_bench(self) -> bool:
        return self.line.startswith("bench ")

    @property
    def reason_not_to_run(self) -> str | None:
        """Return why no test types a line; None for a line that is run."""
        if OF_PIP.search(self.line):
            return "tests/test_pip_lines.py and tests/e2e/test_pip_lines.py install it"
        return next((why for begin, why in NOT_RUN.items() if self.line.startswith(begin)), None)

    def __str__(self) -> str:
        return f"{self.document}: {self.line}"


def typed(document: str) -> Iterator[DocumentedCommand]:
    """Yield the lines of a document that a reader types."""
    for language, body in fences((ROOT / document).read_text(encoding="utf-8")):
        if language not in ("sh", "text"):
            continue
        for whole in joined(body):
            line = without_remark(BEFORE.sub("", whole))
            is_ours = line.startswith("bench ") and line.split()[1] in parser().commands
            if line and not SYNOPSIS.search(line) and (is_ours or language == "sh"):
                yield DocumentedCommand(document, line)


def joined(body: str) -> Iterator[str]:
    """Yield the lines of a block; a line that continues, by a backslash or inside of braces, is joined."""
    group: list[str] = []
    for line in re.sub(r"\\\n\s*", "", body).splitlines():
        group.append(line.strip() if group else line)
        if not group[0].startswith("{ ") or "; }" in line:
            yield "; ".join(group)
            group = []
    yield from group


def without_remark(line: str) -> str:
    return re.sub(r"(^|\s+)#( .*)?$", "", line).strip()


def commands() -> dict[str, tuple[DocumentedCommand, ...]]:
    """Return the commands of each page that has any."""
    found = {document: tuple(typed(document)) for document in documents()}
    examples = dict.fromkeys(line for lines in EXAMPLES.values() for line in lines)
    found[HELP] = tuple(DocumentedCommand(HELP, line) for line in examples)
    return {document: lines for document, lines in found.items() if lines}


# Pages whose commands other tests type as printed, in the environment that these tests make.
TYPED_ELSEWHERE = {
    "README.md": "tests/e2e/test_readme_tasks.py",
    "ansible/README.md": "tests/e2e/test_push_ansible.py",
}
MAKE = "a target of make is itself a test, a build or a release of minutes to hours"
IMAGE = (
    "an image is built for minutes to hours; tests/e2e/test_image.py, test_image_build.py and"
    " test_push_image.py build the one of the CPU, load it, run and check in it, and push it"
)
PARTS = (
    "needs images, layers and attestations; tests/images makes small ones for these commands, and"
    " tests/e2e/test_image.py and test_registry.py call them with Docker, Podman, a registry and cosign"
)
KUBERNETES = "a pod without GPUs measures nothing; tests/e2e/test_push_kubernetes.py pushes with --device cpu"
CLUSTER = (
    "needs a whole API server; tests/e2e/test_kubernetes_schemas.py and tests/push check what is applied"
)
SLURM = "needs GPUs, accounts or Apptainer; tests/e2e/test_push_slurm.py submits such jobs to a real Slurm"
FABRIC = "simulated GPUs exchange nothing; tests/e2e/test_fabric.py checks nodes with --device cpu"
RELEASED = "needs the files of a release; tests/release/test_release.py makes them, and types these lines"
RECEIVED = (
    "needs a bundle with a receipt; tests/bundle/test_third_party.py makes some, and calls these programs"
)
# Beginnings of lines that are parsed and not typed, with the reason.
NOT_RUN = {
    "make ": MAKE,
    "python -m tests.pip_lines.record": "needs the network and three versions of Python",
    "python3 docker/kernels.py compile": "compiles for hours with nvcc",
    "bench reproduce --published kempnerforge-2026-01-1g-7b-none": "trains a model of 7B on a GPU",
    "bench image ": PARTS,
    "cosign verify": PARTS,
    "bench run manifests/paper.json --engine": IMAGE,
    "bench run manifests/quickstart.json --engine": IMAGE,
    "bench check --engine docker": IMAGE,
    "bench push manifests/hour.json ubuntu@203.0.113.7 --image": IMAGE,
    "bench push others.json": IMAGE,
    "bench push mamba.json": IMAGE,
    "bench push manifests/hour.json --kubernetes": KUBERNETES,
    "bench push manifests/node-check.json gpu-07 gpu-08 --kubernetes": KUBERNETES,
    "bench push manifests/node-check.json --kubernetes": KUBERNETES,
    'sed "s|IMAGE|': CLUSTER,
    "helm install": CLUSTER,
    "bench push manifests/paper.json login.cluster --slurm": SLURM,
    "bench push manifests/paper.json --slurm": SLURM,
    "bench check --nodes": FABRIC,
    "bench push manifests/fabric-check.json": FABRIC,
    "systemctl enable": "needs a system that systemd booted; tests/e2e/test_monitoring.py reads its units",
    "sha256sum --check SHA256SUMS": RELEASED,
    "ssh-keygen -Y verify -f allowed_signers -I bench-release": RELEASED,
    "ssh-keygen -L -f run-cert.pub": RECEIVED,
    "TZ=UTC ssh-keygen": RECEIVED,
    "ssh-keygen -Y verify -n bench-receipt": RECEIVED,
    "sha256sum statement.json": RECEIVED,
    "sha256sum *.json": RECEIVED,
    "{ printf ": RECEIVED,
}  # fmt: skip
