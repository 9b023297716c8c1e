"""A machine to rent for one manifest, and the shell script that it runs. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.base.errors import BadInput
from bench.base.gpu_catalogue import GpuModel

CODE_FILE, MANIFEST_FILE = "bench-code.tar.gz", "manifest.json"
LEAST_MINUTES = 15  # of which fetching the bundle and the installation of torch take the most
FETCH_SECONDS = 300  # at the end of the rented time, for the last trial to end and the bundle to be fetched
_NAME = re.compile(r"[a-z][a-z0-9-]{1,39}")  # that SkyPilot and dstack both accept
_CLOUD = re.compile(r"[a-z0-9-]{1,32}(?:/[A-Za-z0-9_-]{1,32}){0,2}")
# Parts of a driver's name that a program which rents machines leaves out.
_LEFT_OUT = re.compile(
    r"NVIDIA|GeForce|Generation|(Workstation|Server) Edition|Blackwell"
    r"|HBM3e?|SXM\d?|PCIe|\bAC\b|\b\d+GB?\b|[ -]",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Rental:
    """A machine to rent, and the manifest that it measures."""

    name: str
    checks: bool  # whether the manifest is a node check
    gpu: GpuModel
    gpus: int
    minutes: int  # after which the machine is given back, even in the middle of a run
    spot: bool
    cloud: str | None  # CLOUD, CLOUD/REGION or CLOUD/REGION/ZONE; None: any
    requirements: tuple[str, ...]  # packages that a run imports, as pip names them

    def check(self) -> None:
        """Refuse values that a file would not preserve, and too short a time."""
        if not _NAME.fullmatch(self.name):
            advice = "begin with a letter; 2 to 40 lower-case letters, digits and hyphens"
            raise BadInput(f"--name {self.name}", advice=advice)
        if self.cloud is not None and not _CLOUD.fullmatch(self.cloud):
            raise BadInput(f"--cloud {self.cloud}", advice="CLOUD or CLOUD/REGION, such as aws/us-east-1")
        if self.minutes < LEAST_MINUTES:
            advice = f"{LEAST_MINUTES} at least: torch has to be installed first"
            raise BadInput(f"--minutes {self.minutes} is too short", advice=advice)

    @property
    def card(self) -> str:
        """The GPU's name without vendor, form and memory: H100, A100, RTX4090."""
        return _LEFT_OUT.sub("", self.gpu.name)

    @property
    def memory_gb(self) -> int:
        """The memory of one GPU in whole GB, as programs that rent machines tell two sizes apart."""
        return round(self.gpu.memory_gib)


def script(rental: Rental) -> str:
    """Return what a rented machine does, as shell commands: its home has the code and the manifest.

    It measures until the rented time is nearly over. The bundle is then in bench-out, in its home.
    """
    verb, budget = ("check", "") if rental.checks else ("run", '--budget "${left}s" ')
    packages = " ".join(f"'{requirement}'" for requirement in rental.requirements)
    return f"""\
set -e
date +%s >"$HOME/bench-began"
export PATH="$HOME/.local/bin:$PATH"
command -v uv >/dev/null || python3 -m pip install --quiet uv==0.13.8 ||
  python3 -m pip install --quiet --break-system-packages uv==0.13.8
uv venv --quiet --python 3.11 "$HOME/bench-env"
uv pip install --quiet --python "$HOME/bench-env/bin/python" --torch-backend=auto {packages}
mkdir -p "$HOME/bench-code" "$HOME/bench-out"
tar -xzf "$HOME/{CODE_FILE}" -C "$HOME/bench-code"
left=$(( $(cat "$HOME/bench-began") + {rental.minutes * 60 - FETCH_SECONDS} - $(date +%s) ))
PYTHONPATH="$HOME/bench-code" timeout --signal=INT "$(( left + {FETCH_SECONDS // 2} ))" \\
  "$HOME/bench-env/bin/python" -m bench {verb} "$HOME/{MANIFEST_FILE}" {budget}\
  --out "$HOME/bench-out" || echo "bench ended with exit code $?"
"""


def block(text: str, indent: int = 2) -> str:
    """Return a text as a literal block of YAML, to stand behind `key: `."""
    return "|\n" + "".join(f"{' ' * indent}{line}\n" for line in text.splitlines())


def quoted(value: object) -> str:
    """Return a value as JSON, which YAML reads as the same value."""
    return json.dumps(value)


def head(tool: str, rental: Rental, commands: Mapping[str, str], notes: Sequence[str]) -> str:
    """Return the comment at the top of a file: its purpose, and the commands."""
    card = f"{rental.gpus} x {rental.gpu.name}, {rental.minutes} min at most"
    lines = [f"{tool}: {card}, given back by itself then. In this file's folder:", ""]
    width = max(map(len, commands))
    lines += [f"  {name.replace('_', ' ') + ':':<{width + 1}} {text}" for name, text in commands.items()]
    return "".join(f"# {line}".rstrip() + "\n" for line in [*lines, "", *notes])
