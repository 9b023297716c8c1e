"""What a node says of itself: many questions in one round trip, answered by programs that any node has.

Nothing is changed there. What is read from the answers are plain values; what they mean, judge.py says.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.base.errors import EnvironmentCannot
from bench.images.engines import EngineFacts
from bench.images.engines.docker import gpu_access, unfit
from bench.images.engines.preflight import HostFacts, read_host
from bench.push.remote import Node, plain

_PATIENCE_SECONDS = 15  # for one question; an engine that hangs must not hold up the rest
_BEGIN, _MIDDLE, _END = "\036", "\037", "\035"

# What `bench run` imports; found, not imported, which takes a moment instead of seconds.
NEEDED = ("torch", "transformers", "numpy", "cryptography", "jsonschema", "rich", "tabulate")
_LOOK = (
    "import importlib.util as u,sys;"
    f"print(*sys.version_info[:2], sep='.');print(*[m for m in {NEEDED!r} if not u.find_spec(m)])"
)


_GPU = re.compile(r"\s*\d+,[^,]*(,[^,]*){4}$")  # a line of nvidia-smi's


@dataclass(frozen=True, slots=True)
class GpuState:
    index: int
    name: str
    memory_mib: int
    used_mib: int
    busy_percent: int
    uncorrected_errors: int  # of its memory, since the driver was loaded


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image in an engine's store."""

    id: str
    diff_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InstalledEngine:
    facts: EngineFacts | None  # None: it does not answer
    why: str = ""  # it does not
    free_bytes: int | None = None  # where its images go
    images: tuple[StoredImage, ...] = ()
    named_by_configuration: bool = True  # a containerd store names images by their manifest


@dataclass(frozen=True, slots=True)
class Survey:
    user: str
    uid: int
    gid: int
    home: str
    hostname: str
    kernel: str
    os: str
    cores: int
    load: float
    memory_bytes: int
    available_bytes: int
    skew_seconds: float
    place: str  # where we work on that node, absolute
    place_free_bytes: int
    place_writable: bool
    host: HostFacts
    gpus: tuple[GpuState, ...] = ()
    gpu_users: tuple[str, ...] = ()  # processes that hold GPU memory
    engines: Mapping[str, InstalledEngine] = field(default_factory=dict)
    python: str | None = None
    lacking: tuple[str, ...] = ()  # modules
    missing_programs: tuple[str, ...] = ()
    slurm: str | None = None
    gpu_trouble: str | None = None  # what nvidia-smi says besides


def survey(node: Node, place: str, engines: Sequence[str], python: str) -> Survey:
    questions = _questions(place, engines, python)
    began = time.time()
    answer = node.ask(_script(questions), seconds=_PATIENCE_SECONDS * 4)
    ended = time.time()
    return read_survey(answered(answer.text), (began + ended) / 2, engines)


def _script(questions: Mapping[str, str]) -> str:
    """Each answer between two marks, with its exit code; one that hangs is ended."""
    lines = ["export LC_ALL=C; limit=; command -v timeout >/dev/null && limit='timeout -k 1 15'"]
    for name, question in questions.items():
        lines.append(
            f"printf '{_BEGIN}{name}{_MIDDLE}'; $limit sh -c {shlex.quote(question)} </dev/null 2>&1; "
            f"printf '{_MIDDLE}%s{_END}' $?"
        )
    return "\n".join(lines)


def answered(text: str) -> dict[str, tuple[int, str]]:
    pattern = f"{_BEGIN}([^{_MIDDLE}]*){_MIDDLE}([^{_END}]*){_MIDDLE}(\\d+){_END}"
    return {
        name: (int(code), "\n".join(map(plain, out.split("\n"))))
        for name, out, code in re.findall(pattern, text)
    }


def _questions(place: str, engines: Sequence[str], python: str) -> dict[str, str]:
    asked = {
        "who": 'id -un; id -u; id -g; printf "%s\\n" "$HOME"; uname -n; uname -r',
        "clock": "date +%s.%N",
        "os": '. /etc/os-release; printf "%s\\n" "$PRETTY_NAME"',
        "memory": "cat /proc/meminfo",
        "load": "nproc; cat /proc/loadavg",
        "place": f'p={place}; case $p in /*) ;; "~/"*) p=$HOME/${{p#*/}};; *) p=$HOME/$p;; esac; '
        'printf "%s\\n" "$p"; while [ ! -d "$p" ]; do p=$(dirname "$p"); done; '
        'df -Pk "$p" | tail -n 1; test -w "$p" && echo writable',
        "programs": "for p in setsid sha256sum tar head tail; do command -v $p >/dev/null || echo $p; done",
        "cat /proc/driver/nvidia/version": "cat /proc/driver/nvidia/version",
        "nvidia-ctk --version": "nvidia-ctk --version",
        "uname -m": "uname -m",
        "gpus": "nvidia-smi --query-gpu=index,name,memory.total,memory.used,utilization.gpu,"
        "ecc.errors.uncorrected.volatile.total --format=csv,noheader,nounits",
        "gpu users": "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv,noheader | "
        'while IFS=, read -r p what; do printf "%s: %s,%s\\n" "$(ps -o user= -p $p)" "$p" "$what"; done',
        "slurm": "sinfo --version",
    }
    if "none" in engines:
        own = python.startswith("~/")
        word = f'"$HOME"/{shlex.quote(python[2:])}' if own else shlex.quote(python)
        asked["python"] = f"{word} -c {shlex.quote(_LOOK)}"
    if "apptainer" in engines:
        asked["apptainer"] = "apptainer --version"
    for name in ("docker", "podman"):
        if name in engines:
            info = "--format '{{json .}}'" if name == "docker" else "--format=json"
            asked[name] = f"{name} info {info}"
            asked[f"{name} images"] = (
                f'ids=$({name} image ls -aq --no-trunc | sort -u); [ -z "$ids" ] || '
                f"{name} image inspect --format '{{{{.Id}}}} {{{{json .RootFS.Layers}}}}' $ids"
            )
            root = "{{.DockerRootDir}}" if name == "docker" else "{{.Store.GraphRoot}}"
            asked[f"{name} room"] = f"df -Pk \"$({name} info --format '{root}')\" | tail -n 1"
    if {"docker", "podman"} & set(engines):
        asked["cdi"] = "grep -ls nvidia.com/gpu /etc/cdi/* /var/run/cdi/*"
    return asked


# --- reading the answers --------------------------------------------------------------------------------


def read_survey(answers: Mapping[str, tuple[int, str]], asked_at: float, engines: Sequence[str]) -> Survey:
    """The answers as values. Raises EnvironmentCannot where this is no machine that we know how to use."""
    try:
        user, uid, gid, home, hostname, kernel = answers["who"][1].split("\n")[:6]
        place, room, *writable = answers["place"][1].strip().split("\n")
        cores, load = answers["load"][1].split("\n")[:2]
        memory = dict(re.findall(r"(\w+):\s+(\d+) kB", answers["memory"][1]))
        clock = float(answers["clock"][1].split(".")[0])
        return Survey(
            user, int(uid), int(gid), home, hostname, kernel, answers["os"][1].strip(),
            int(cores), float(load.split()[0]),
            int(memory["MemTotal"]) * 1024, int(memory.get("MemAvailable", 0)) * 1024,
            clock + 0.5 - asked_at,
            place, _free(room) or 0, writable == ["writable"],
            _host(answers),
            tuple(_gpus(answers)), tuple(_lines(answers, "gpu users")),
            {name: _engine(name, answers) for name in engines if name != "none"},
            *_python(answers),
            tuple(answers["programs"][1].split()),
            next(iter(_lines(answers, "slurm")), None),
            _gpu_trouble(answers),
        )  # fmt: skip
    except (KeyError, ValueError, IndexError):
        raise EnvironmentCannot(
            "does not answer as a Linux machine does", advice="it takes sh, coreutils, util-linux and /proc"
        ) from None


def _lines(answers: Mapping[str, tuple[int, str]], name: str) -> list[str]:
    code, text = answers.get(name, (1, ""))
    return [] if code else [line.strip() for line in text.splitlines() if line.strip()]


def _free(line: str) -> int | None:
    """Bytes, from the last line of df -Pk."""
    fields = line.split()
    return int(fields[-3]) * 1024 if len(fields) >= 6 and fields[-3].isdigit() else None


def _host(answers: Mapping[str, tuple[int, str]]) -> HostFacts:
    return read_host(lambda command: answers.get(" ".join(command)))


def _gpus(answers: Mapping[str, tuple[int, str]]) -> list[GpuState]:
    """Of those that answer: where one is lost, nvidia-smi ends badly, and says so between the others."""
    found = []
    for line in filter(_GPU.match, answers.get("gpus", (1, ""))[1].splitlines()):
        index, name, *numbers = (field.strip() for field in line.split(","))
        total, used, busy, errors = (int(n) if n.isdigit() else 0 for n in numbers)  # "[N/A]" is no number
        found.append(GpuState(int(index), name, total, used, busy, errors))
    return found


def _gpu_trouble(answers: Mapping[str, tuple[int, str]]) -> str | None:
    code, text = answers.get("gpus", (127, ""))
    said = [line.strip() for line in text.splitlines() if line.strip() and not _GPU.match(line)]
    if code == 127 or not (said or code):  # there is no nvidia-smi, or it is content
        return None
    if not said and code in (124, 137):  # as timeout(1) ends it
        return f"no answer in {_PATIENCE_SECONDS} s"
    return said[0][:300] if said else f"it ends with exit code {code}"


def _python(answers: Mapping[str, tuple[int, str]]) -> tuple[str | None, tuple[str, ...]]:
    lines = answers.get("python", (1, ""))[1].splitlines() if answers.get("python", (1, ""))[0] == 0 else []
    return (lines[0], tuple(" ".join(lines[1:]).split())) if lines else (None, ())


def _engine(name: str, answers: Mapping[str, tuple[int, str]]) -> InstalledEngine:
    code, text = answers.get(name, (127, ""))
    if code == 127:
        return InstalledEngine(None, f"there is no {name}")
    if code:
        return InstalledEngine(None, (text.strip().splitlines() or ["it does not answer"])[-1][:300])
    if name == "apptainer":
        return InstalledEngine(EngineFacts("apptainer", text.split()[-1], "runtime", None))
    info = json.loads(text[text.index("{") :])  # warnings may come first
    if name == "docker" and not info.get("ServerVersion"):
        errors = info.get("ServerErrors") or ["its daemon does not answer"]
        return InstalledEngine(None, str(errors[0])[:300])
    if name == "docker" and (why := unfit(info)):
        return InstalledEngine(None, why)
    specified = answers.get("cdi", (1, ""))[0] == 0 or bool(answers.get("cdi", (1, ""))[1].strip())
    room = _lines(answers, f"{name} room")
    return InstalledEngine(
        _docker(info, specified) if name == "docker" else _podman(info, specified),
        free_bytes=_free(room[-1]) if room else None,
        images=tuple(read_stored(line) for line in _lines(answers, f"{name} images") if " [" in line),
        named_by_configuration="io.containerd.snapshotter" not in json.dumps(info.get("DriverStatus") or []),
    )


def _docker(info: Mapping[str, Any], specified: bool) -> EngineFacts:
    return EngineFacts(
        "docker", info["ServerVersion"], gpu_access(info, specified), info.get("DockerRootDir")
    )


def _podman(info: Mapping[str, Any], specified: bool) -> EngineFacts:
    version = info.get("version", {}).get("Version", "?")
    return EngineFacts(
        "podman", version, "cdi" if specified else None, info.get("store", {}).get("graphRoot")
    )


def read_stored(line: str) -> StoredImage:
    image, layers = line.split(" ", 1)
    return StoredImage(f"sha256:{image.removeprefix('sha256:')}", tuple(json.loads(layers) or ()))
