"""Survey a node: read all that preflight needs in one round trip, with programs that every Linux has.

In:  a `Node`. Out: a `Survey` of plain values, which node_findings judges. Changes nothing on the node.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.base.names import ANY_PYTHON, ENGINES_WITH_STORE, WITHOUT_CONTAINER
from bench.images.engines import EngineFacts, Gpus
from bench.images.engines.docker import gpu_access, names_images_by_configuration, unfit
from bench.images.engines.preflight import HostFacts, read_host
from bench.images.variants import images
from bench.push.answers import (
    PATH_CHARACTERS,
    absolute_path,
    decimal,
    is_number,
    json_fields,
    json_object,
    json_texts,
    number,
    short,
    understood,
    version,
)
from bench.push.connection import plain
from bench.push.remote import Node
from bench.push.shared_place import SHARED_FOLDERS

SURVEY_BYTES = 8 * 2**20  # of all answers together; a thousand stored images take less than half of it
_MOST_ANSWERS = 100  # of a script; there are fewer questions
_ANSWER_CHARACTERS = 2**16  # of one answer
_LISTS = tuple(f"{name} images" for name in ENGINES_WITH_STORE)  # only they may be longer
_SAME_DISK_BYTES = 16 * 2**20  # by which free space of one disk may differ between two questions
_MOST_GPUS = 256  # of one node
_MOST_LINES = 100  # of an answer that is a list of texts
_STORED = re.compile(r"(?:sha256:)?([\w.-]{1,100})", re.ASCII)  # an image's id
_CODE = re.compile(r"[0-9]{1,3}")  # exit code of a question
QUESTION_SECONDS = 15  # time limit of one question: a hanging engine must not hold up the other questions
# A survey prints something before each question. A node that drips is given up after four times this time.
_SILENCE_SECONDS = QUESTION_SECONDS * 2.0
_TOO_LATE = (124, 137)  # exit codes of timeout(1)
_BEGIN, _MIDDLE, _END = "\036", "\037", "\035"  # ASCII separators around an answer and its exit code
Answers = Mapping[str, tuple[int, str]]  # exit code and output, by question

# Modules that `bench run` imports. The survey only looks them up: importing them would take seconds.
NEEDED = ("torch", "transformers", "numpy", "cryptography", "jsonschema", "rich", "tabulate")
_LOOK_UP = (
    "import importlib.util as u,sys;"
    f"print(*sys.version_info[:2], sep='.');print(*[m for m in {NEEDED!r} if not u.find_spec(m)])"
)
_PYTHON_VERSION = re.compile(r"[0-9]{1,2}\.[0-9]{1,3}")
# Modules of Python's library that an environment needs, and that minimal packages and builds lack.
_COMPILED = ("_bz2", "_ctypes", "_lzma", "_ssl", "zlib")
_TELL = (
    "import importlib.util as u, sys; print('%d.%d' % sys.version_info[:2] + "
    f"''.join('-' + m for m in {_COMPILED!r} if not u.find_spec(m)), sys.executable)"
)
_PYTHONS = ("python3.11", "python3.12", "python3.13", ANY_PYTHON,
            *(f"{place}/python3" for place in ("/usr/bin", "/usr/local/bin", "/opt/conda/bin")))  # fmt: skip
# The fields of `docker info` that bench reads.
_DOCKER_INFO: Mapping[str, type] = {
    "ServerVersion": str,
    "DockerRootDir": str,
    "ServerErrors": list,
    "SecurityOptions": list,
    "DiscoveredDevices": list,
    "CDISpecDirs": list,
    "Runtimes": dict,
    "DriverStatus": list,
}
# Podman's --init runs catatonit, a package of its own: in $PATH, in a folder of helpers, or configured.
_HAS_INIT = (
    "command -v catatonit || "
    "ls /usr/local/libexec/podman/catatonit /usr/local/lib/podman/catatonit "
    "/usr/libexec/podman/catatonit /usr/lib/podman/catatonit 2>/dev/null | grep . || "
    "grep -hs '^ *init_path *=' /usr/share/containers/containers.conf /etc/containers/containers.conf "
    '/etc/containers/containers.conf.d/*.conf "$HOME/.config/containers/containers.conf" | grep .'
)
_GPU_LINE = re.compile(r"\s*\d+,[^,]*(,[^,]*){4}$")  # a GPU's line in the output of nvidia-smi


@dataclass(frozen=True, slots=True)
class GpuState:
    """A GPU of a node, as nvidia-smi reports it."""

    index: int
    name: str
    memory_mib: int
    used_mib: int
    busy_percent: int
    uncorrected_errors: int  # memory errors since the driver was loaded


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image in an engine's store."""

    id: str
    diff_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InstalledEngine:
    """The results of a node's survey about one container engine."""

    facts: EngineFacts | None  # None: the engine does not answer
    why: str = ""  # the reason why the engine does not answer
    free_bytes: int | None = None  # on the disk of the engine's images
    images: tuple[StoredImage, ...] = ()
    named_by_configuration: bool = True  # False: a containerd store, which names images by their manifest


@dataclass(frozen=True, slots=True)
class NodePython:
    """A Python on a node that can be started, and whether it is complete."""

    version: str  # major.minor
    path: str
    lacking: tuple[str, ...] = ()  # modules of `_COMPILED` that it was built or packaged without

    @property
    def text(self) -> str:
        """The version, and the modules that are lacking, for messages."""
        return self.version + (f" without {', '.join(self.lacking)}" if self.lacking else "")


@dataclass(frozen=True, slots=True)
class Survey:
    """The state of a node before a run."""

    user: str
    uid: int
    gid: int
    home: str
    os: str
    cores: int
    load: float
    memory_bytes: int
    available_bytes: int  # free memory
    skew_seconds: float  # the node's clock minus this machine's clock
    place: str  # absolute path of the folder for runs
    place_free_bytes: int
    place_writable: bool
    host: HostFacts
    gpus: tuple[GpuState, ...] = ()
    gpu_users: tuple[str, ...] = ()  # processes that hold GPU memory
    engines: Mapping[str, InstalledEngine] = field(default_factory=dict)
    python: str | None = None  # Python's version, major.minor; None: not asked for, or Python does not run
    python_silent: bool = False  # Python was asked for, and gave no answer in time
    lacking: tuple[str, ...] = ()  # modules that the node's Python lacks
    pythons: tuple[NodePython, ...] = ()  # that could run an environment; empty: not asked for, or none
    libc: str | None = None  # as in "glibc 2.36" or "musl libc"; None: not asked for, or unknown
    not_own: tuple[str, ...] = ()  # folders of bench there that others own or may write to
    noexec: bool = False  # whether no program can be started from the folder for runs
    missing_programs: tuple[str, ...] = ()
    slurm: str | None = None  # Slurm's version; None: not installed
    gpu_trouble: str | None = None  # error message of nvidia-smi

    def on_one_disk(self, engine: str) -> bool:
        """Whether runs and the engine's images are on one disk; also if nothing is known of the engine's."""
        free = self.engines[engine].free_bytes
        return free is None or abs(free - self.place_free_bytes) < _SAME_DISK_BYTES


def survey_node(node: Node, place: str, engines: Sequence[str], python: str) -> Survey:
    """Survey a node. `place`, a shell word, is the folder for runs; `engines` are those to look for."""
    script = _script(_questions(place, engines, python))
    began = time.time()
    answer = node.ask(script, seconds=_SILENCE_SECONDS, most_bytes=SURVEY_BYTES)
    ended = time.time()
    return read_survey(split_answers(answer.text), (began + ended) / 2, engines)


def _script(questions: Mapping[str, str]) -> str:
    """Return a script that asks all questions, each with a time limit, and prints answers and exit codes."""
    limit = f"timeout -k 1 {QUESTION_SECONDS}"
    lines = [f"export LC_ALL=C; limit=; command -v timeout >/dev/null && limit='{limit}'"]
    for name, question in questions.items():
        lines.append(
            f"printf '{_BEGIN}{name}{_MIDDLE}'; $limit sh -c {shlex.quote(question)} </dev/null 2>&1; "
            f"printf '{_MIDDLE}%s{_END}' $?"
        )
    return "\n".join(lines)


def split_answers(text: str) -> dict[str, tuple[int, str]]:
    """Return the exit code and output of each question, from the output of `_script`.

    A hostile node cannot make this slow: marks beyond those of the longest script are not read, and each
    answer except a list of images is cut. A question without an end is left out, and so is a list of images
    with control characters.
    """
    answers = {}
    for part in text.split(_BEGIN, _MOST_ANSWERS)[1:]:
        name, _, rest = part.partition(_MIDDLE)
        out, _, rest = rest.partition(_MIDDLE)
        code, end, _ = rest.partition(_END)
        if end and _CODE.fullmatch(code) and (shown := _shown(name, out)) is not None:
            answers[name] = (int(code), shown)
    return answers


def _shown(name: str, out: str) -> str | None:
    """Return an answer without control characters; None for a list of images that has some."""
    if name in _LISTS:
        return out if out.replace("\n", "").isprintable() else None
    return "\n".join(map(plain, out[:_ANSWER_CHARACTERS].split("\n")))


def _questions(place: str, engines: Sequence[str], python: str) -> dict[str, str]:
    """Return shell commands by name. Those that `read_host` looks up are named by their own text."""
    enter = f'p={place}; case $p in /*) ;; "~/"*) p=$HOME/${{p#*/}};; *) p=$HOME/$p;; esac; '
    return {
        "who": 'id -un; id -u; id -g; printf "%s\\n" "$HOME"',
        "clock": "date +%s.%N",
        "os": '. /etc/os-release; printf "%s\\n" "$PRETTY_NAME"',
        "memory": "cat /proc/meminfo",
        "load": "nproc; cat /proc/loadavg",
        "place": enter + 'printf "%s\\n" "$p"; while [ ! -d "$p" ]; do p=$(dirname "$p"); done; '
        'df -Pk "$p" | tail -n 1; test -w "$p" && echo writable; '
        'findmnt -no OPTIONS -T "$p" 2>/dev/null; true',
        # Files that others put there would run as this user, or be written through their links.
        "not own": f"{enter}for d in . {' '.join(SHARED_FOLDERS)}; do "
        'find -H "$p/$d" -maxdepth 0 \\( ! -user "$(id -u)" -o -perm -002 \\) 2>/dev/null; done; true',
        "programs": "for p in setsid sha256sum tar head tail; do command -v $p >/dev/null || echo $p; done",
        "cat /proc/driver/nvidia/version": "cat /proc/driver/nvidia/version",
        "nvidia-ctk --version": "nvidia-ctk --version",
        "uname -m": "uname -m",
        "gpus": "nvidia-smi --query-gpu=index,name,memory.total,memory.used,utilization.gpu,"
        "ecc.errors.uncorrected.volatile.total --format=csv,noheader,nounits",
        "gpu users": "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv,noheader | "
        'while IFS=, read -r p what; do printf "%s: %s,%s\\n" "$(ps -o user= -p $p)" "$p" "$what"; done',
        "slurm": "sinfo --version",
        **_python_questions(engines, python),
        **_engine_questions(engines),
    }


def _python_questions(engines: Sequence[str], python: str) -> dict[str, str]:
    """Return shell commands about the Pythons that the engines without a container would run."""
    questions = {}
    if "none" in engines:
        questions["python"] = f"{_word(python)} -c {shlex.quote(_LOOK_UP)}"
    if "venv" in engines:
        words = " ".join(_PYTHONS if python == ANY_PYTHON else (_word(python),))
        best = f"case $v in {images().python}' '*) break;; esac"  # no other one would be chosen
        ask = f'v=$($p -c {shlex.quote(_TELL)} 2>/dev/null) && echo "$v"'
        questions["pythons"] = f"for p in {words}; do {ask}; {best}; done; true"
        questions["libc"] = "getconf GNU_LIBC_VERSION 2>/dev/null || ldd --version 2>&1 | head -n 1"
    return questions


def _engine_questions(engines: Sequence[str]) -> dict[str, str]:
    """Return shell commands about container engines: version, images, free space."""
    questions = {}
    if "apptainer" in engines:
        questions["apptainer"] = "apptainer --version"
    for name in ENGINES_WITH_STORE:
        if name in engines:
            info = "--format '{{json .}}'" if name == "docker" else "--format=json"
            questions[name] = f"{name} info {info}"
            questions[f"{name} images"] = images_question(name)
            root = "{{.DockerRootDir}}" if name == "docker" else "{{.Store.GraphRoot}}"
            questions[f"{name} room"] = f"df -Pk \"$({name} info --format '{root}')\" | tail -n 1"
    if "podman" in engines:
        questions["podman init"] = _HAS_INIT
    if set(ENGINES_WITH_STORE) & set(engines):
        questions["cdi"] = "grep -ls nvidia.com/gpu /etc/cdi/* /var/run/cdi/*"
    return questions


# Arguments of an engine that prints an image's id and its layers, as `read_stored` parses them.
INSPECT = "image inspect --format '{{.Id}} {{json .RootFS.Layers}}'"


def images_question(engine: str) -> str:
    """Return shell commands that print the images in an engine's store."""
    return f'ids=$({engine} image ls -aq --no-trunc | sort -u); [ -z "$ids" ] || {engine} {INSPECT} $ids'


def _word(path: str) -> str:
    """Return a path as a word of the shell; ~/ at its beginning is the node's home."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def read_survey(answers: Answers, asked_at: float, engines: Sequence[str]) -> Survey:
    """Convert the answers to a Survey; EnvironmentCannot if they are not those of a Linux machine."""
    advice = "it needs sh, coreutils, util-linux and /proc"
    with understood("does not answer as a Linux machine does", advice=advice):
        user, uid, gid, home = answers["who"][1].split("\n")[:4]
        place, disk, *about_place = answers["place"][1].strip().split("\n")
        cores, load = answers["load"][1].split("\n")[:2]
        memory = _memory(answers["memory"][1])
        clock = number(answers["clock"][1].split(".")[0].strip())
        python, lacking = _python(answers)
        return Survey(
            user=short(user),
            uid=number(uid),
            gid=number(gid),
            home=short(home, PATH_CHARACTERS),
            os=short(answers["os"][1].strip()),
            cores=number(cores),
            load=decimal(load.split()[0]),
            memory_bytes=memory["MemTotal"] * 1024,
            available_bytes=memory.get("MemAvailable", 0) * 1024,
            skew_seconds=clock + 0.5 - asked_at,
            place=absolute_path(place),
            place_free_bytes=_free_bytes(disk) or 0,
            place_writable="writable" in about_place,
            host=_host(answers),
            gpus=tuple(_gpus(answers)),
            gpu_users=tuple(_lines(answers, "gpu users")),
            engines={name: _engine(name, answers) for name in engines if name not in WITHOUT_CONTAINER},
            python=python,
            python_silent=answers.get("python", (0, ""))[0] in _TOO_LATE,
            lacking=lacking,
            pythons=_pythons(answers),
            libc=next(iter(_lines(answers, "libc")), None),
            not_own=tuple(_lines(answers, "not own")),
            noexec=any("noexec" in line.split(",") for line in about_place),
            missing_programs=tuple(map(short, answers["programs"][1].split()[:_MOST_LINES])),
            slurm=next(iter(_lines(answers, "slurm")), None),
            gpu_trouble=_gpu_trouble(answers),
        )


def _memory(text: str) -> dict[str, int]:
    """Return the sizes in /proc/meminfo, in KiB, by their names."""
    fields = [line.split() for line in text.splitlines()]
    return {words[0].rstrip(":"): number(words[1]) for words in fields if words[2:] == ["kB"]}


def _host(answers: Answers) -> HostFacts:
    facts = read_host(lambda command: answers.get(" ".join(command)))
    for found in (facts.driver, facts.toolkit):
        if found is not None:
            version(found)
    return HostFacts(facts.driver, facts.toolkit, short(facts.machine) if facts.machine else None)


def _lines(answers: Answers, name: str) -> list[str]:
    code, text = answers.get(name, (1, ""))
    lines = [] if code else [line.strip() for line in text.splitlines() if line.strip()]
    return [short(line) for line in lines[:_MOST_LINES]]


def _free_bytes(line: str) -> int | None:
    """Return the free bytes that the last line of df -Pk reports; None if it is not such a line."""
    fields = line.split()
    return number(fields[-3]) * 1024 if len(fields) >= 6 and is_number(fields[-3]) else None


def _gpus(answers: Answers) -> list[GpuState]:
    """Return the GPUs that nvidia-smi lists; if one GPU is lost, it fails but still lists the others."""
    gpus = []
    for line in filter(_GPU_LINE.match, answers.get("gpus", (1, ""))[1].splitlines()):
        index, name, *numbers = (field.strip() for field in line.split(","))
        total, used, busy, errors = (number(n) if is_number(n) else 0 for n in numbers)  # 0 for "[N/A]"
        gpus.append(GpuState(number(index), short(name), total, used, busy, errors))
    if len(gpus) > _MOST_GPUS:
        raise ValueError("more GPUs than a machine has")
    return gpus


def _gpu_trouble(answers: Answers) -> str | None:
    code, text = answers.get("gpus", (127, ""))
    messages = [line.strip() for line in text.splitlines() if line.strip() and not _GPU_LINE.match(line)]
    if code == 127 or not (messages or code):  # nvidia-smi is not installed, or succeeds
        return None
    if messages:
        return messages[0][:300]
    if code in _TOO_LATE:
        return f"no answer in {QUESTION_SECONDS} s"
    return f"it ends with exit code {code}"


def _python(answers: Answers) -> tuple[str | None, tuple[str, ...]]:
    """Return Python's version and the modules that it lacks, from the output of `_LOOK_UP`."""
    code, text = answers.get("python", (1, ""))
    found, _, lacking = text.strip().partition("\n")
    if code or not _PYTHON_VERSION.fullmatch(found):
        return None, ()
    return found, tuple(name for name in NEEDED if name in lacking.split())


def _pythons(answers: Answers) -> tuple[NodePython, ...]:
    """Return the Pythons that run on the node, each path once, in the order in which they were asked for."""
    found: dict[str, NodePython] = {}
    for line in _lines(answers, "pythons"):
        about, _, path = line.partition(" ")
        version, *lacking = about.split("-")
        if _PYTHON_VERSION.fullmatch(version) and {*lacking} <= {*_COMPILED} and path:
            found.setdefault(path, NodePython(version, absolute_path(path), tuple(lacking)))
    return tuple(found.values())


def _engine(name: str, answers: Answers) -> InstalledEngine:
    code, text = answers.get(name, (127, ""))
    if code == 127:
        return InstalledEngine(None, "not installed")
    if code:
        return InstalledEngine(None, (text.strip().splitlines() or ["it does not answer"])[-1][:300])
    try:
        if name == "apptainer":
            last_word = (text.split() or [""])[-1]
            return InstalledEngine(EngineFacts("apptainer", version(last_word), "runtime", None))
        return _docker(answers, text) if name == "docker" else _podman(answers, text)
    except ValueError:
        return InstalledEngine(None, f"it does not answer as {name} does")


def _docker(answers: Answers, text: str) -> InstalledEngine:
    info = json_object(text, _DOCKER_INFO)
    for device in info.get("DiscoveredDevices", ()):
        json_fields(device, {"ID": str})
    if not info.get("ServerVersion"):
        errors = info.get("ServerErrors") or ["its daemon does not answer"]
        return InstalledEngine(None, str(errors[0])[:300])
    if why := unfit(info):
        return InstalledEngine(None, why)
    facts = EngineFacts(
        "docker",
        version(info["ServerVersion"]),
        gpu_access(info, specified=_specified(answers)),
        _storage(info, "DockerRootDir"),
    )
    return _with_images(facts, answers, named_by_configuration=names_images_by_configuration(info))


def _podman(answers: Answers, text: str) -> InstalledEngine:
    info = json_object(text, {"version": dict, "store": dict})
    if answers.get("podman init", (0, ""))[0]:
        why = "it lacks catatonit, which its --init runs: apt install catatonit, or dnf install catatonit"
        return InstalledEngine(None, why)
    found = json_fields(info.get("version", {}), {"Version": str}).get("Version")
    store = json_fields(info.get("store", {}), {"graphRoot": str})
    gpus: Gpus | None = "cdi" if _specified(answers) else None
    facts = EngineFacts("podman", version(found) if found else "?", gpus, _storage(store, "graphRoot"))
    return _with_images(facts, answers, named_by_configuration=True)


def _specified(answers: Answers) -> bool:
    """Whether the node has a CDI specification of NVIDIA's GPUs."""
    code, text = answers.get("cdi", (1, ""))
    return code == 0 or bool(text.strip())


def _storage(info: Mapping[str, str], name: str) -> str | None:
    return absolute_path(info[name]) if name in info else None


def _with_images(facts: EngineFacts, answers: Answers, *, named_by_configuration: bool) -> InstalledEngine:
    """Add the free space of an engine's disk and the images in its store."""
    disk = _lines(answers, f"{facts.name} room")
    code, text = answers.get(f"{facts.name} images", (1, ""))
    return InstalledEngine(
        facts,
        free_bytes=_free_bytes(disk[-1]) if disk else None,
        images=() if code else read_images(text),
        named_by_configuration=named_by_configuration,
    )


def read_images(text: str) -> tuple[StoredImage, ...]:
    """Parse the output of `images_question`; ValueError for anything else."""
    return tuple(read_stored(line.strip()) for line in text.splitlines() if " [" in line)


def read_stored(line: str) -> StoredImage:
    """Parse what an engine prints for INSPECT: `ID ["sha256:...", ...]`; ValueError for anything else."""
    word, _, layers = line.partition(" ")
    match = _STORED.fullmatch(word)
    if match is None:
        raise ValueError("not an image's id")
    return StoredImage(f"sha256:{match[1]}", json_texts(layers))
