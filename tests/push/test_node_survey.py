"""Recorded answers of nodes, and the findings that follow from them."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.base.errors import EnvironmentCannot
from bench.images.engines import EngineFacts
from bench.images.engines.preflight import HostFacts
from bench.images.variants import find_variant
from bench.push import node_survey
from bench.push.node_findings import Need
from bench.push.node_survey import GpuState, Survey, read_survey, split_answers, survey_node
from bench.push.remote import Here
from tests.push.judged import judge

GIB = 2**30
DOCKER = (
    '{"ServerVersion":"27.5.1","DockerRootDir":"/var/lib/docker",'
    '"DriverStatus":[["Backing Filesystem","extfs"]],"CDISpecDirs":["/etc/cdi"],"Runtimes":{"runc":{}}}'
)
LAYER = "sha256:" + "a" * 64
ANSWERS: dict[str, tuple[int, str]] = {
    "who": (0, "ubuntu\n1000\n1000\n/home/ubuntu\n"),
    "clock": (0, "1763730000.123456789\n"),
    "os": (0, "Ubuntu 22.04.5 LTS\n"),
    "memory": (0, "MemTotal:       2113492236 kB\nMemFree: 1 kB\nMemAvailable:   2050000000 kB\n"),
    "load": (0, "224\n0.42 0.30 0.20 1/2000 4242\n"),
    "place": (0, "/home/ubuntu/.bench\n/dev/sda1  500000000 70000000 430000000  14% /\nwritable\n"),
    "programs": (0, ""),
    "cat /proc/driver/nvidia/version": (
        0,
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build\n",
    ),
    "nvidia-ctk --version": (0, "NVIDIA Container Toolkit CLI version 1.17.8\n"),
    "gpus": (0, "0, NVIDIA H100 80GB HBM3, 81559, 1, 0, 0\n1, NVIDIA H100 80GB HBM3, 81559, 1, 0, [N/A]\n"),
    "gpu users": (0, ""),
    "slurm": (127, "sh: 1: sinfo: not found\n"),
    "docker": (0, f"WARNING: something\n{DOCKER}\n"),
    "docker images": (0, f'sha256:{"b" * 64} ["{LAYER}"]\n'),
    "docker room": (0, "/dev/sda1  500000000 70000000 430000000  14% /\n"),
    "cdi": (0, "/etc/cdi/nvidia.yaml\n"),
}


def found(**changes: tuple[int, str]) -> Survey:
    return read_survey(
        ANSWERS | {k.replace("_", " "): v for k, v in changes.items()}, 1763730000.5, ["docker"]
    )


def test_a_rented_node_as_recorded() -> None:
    node = found()
    assert (node.user, node.uid, node.home, node.cores) == ("ubuntu", 1000, "/home/ubuntu", 224)
    assert node.memory_bytes == 2113492236 * 1024
    assert (node.place, node.place_free_bytes, node.place_writable) == (
        "/home/ubuntu/.bench",
        430000000 * 1024,
        True,
    )
    assert node.host == HostFacts("570.124.06", "1.17.8")
    assert node.gpus[1] == GpuState(1, "NVIDIA H100 80GB HBM3", 81559, 1, 0, 0)
    assert node.engines["docker"].facts == EngineFacts("docker", "27.5.1", "cdi", "/var/lib/docker")
    assert node.engines["docker"].images[0].diff_ids == (LAYER,)
    assert abs(node.skew_seconds) < 1
    assert node.slurm is None
    need = Need("docker", find_variant("cuda12.8"), on_cpu=False, gpus=2, engine_bytes=20 * GIB)
    assert judge(node, need) == []


def test_the_c_library_and_a_folder_from_which_nothing_runs_are_found() -> None:
    place = ANSWERS["place"][1]
    node = found(place=(0, f"{place}rw,nosuid,noexec,relatime\n"), libc=(0, "glibc 2.31\n"))
    assert (node.noexec, node.libc, node.place_writable) == (True, "glibc 2.31", True)
    node = found(place=(0, f"{place}rw,relatime\n"), libc=(0, "musl libc (x86_64)\n"))
    assert (node.noexec, node.libc) == (False, "musl libc (x86_64)")
    assert found().libc is None


@pytest.mark.parametrize(
    ("folder", "mode", "own", "refused"),
    [
        ("", 0o755, True, False), ("", 0o775, True, False), ("blobs", 0o700, True, False),
        ("notes", 0o777, True, False),
        ("", 0o755, False, True), ("", 0o1777, True, True), ("code", 0o757, True, True),
        ("environments", 0o702, True, True), ("packages", 0o702, True, True),
    ],
)  # fmt: skip
def test_a_place_in_which_others_may_put_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, mode: int, *, own: bool, refused: bool
) -> None:
    """Files that other users put there would run with the rights of the login."""
    place, link, programs = (tmp_path / name for name in ("place", "link", "programs"))
    changed = place / folder
    changed.mkdir(parents=True)
    changed.chmod(mode)
    link.symlink_to(place)
    if not own:  # the login is another user
        programs.mkdir()
        (programs / "id").write_text(f"#!/bin/sh\necho {os.getuid() + 1}\n")
        (programs / "id").chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    for path in (place, link):
        node = survey_node(Here(), f'"{path}"', ["none"], "python3")
        found = [finding.what for finding in judge(node, Need("none", None, on_cpu=True, gpus=None))]
        assert any("others may write to it" in what for what in found) == refused


def test_a_place_that_is_not_there_is_nobodys(tmp_path: Path) -> None:
    assert survey_node(Here(), f'"{tmp_path}/a/b"', ["none"], "python3").not_own == ()


def test_this_machine_answers_about_its_c_library() -> None:
    node = survey_node(Here(), '"$HOME/.bench"', ["venv"], "python3")
    assert node.libc is not None and node.libc.startswith("glibc 2.")
    assert not node.noexec


def test_this_machine_answers_the_same_questions() -> None:
    node = survey_node(Here(), '"$HOME/.bench"', ["none"], "python3")
    assert node.cores > 0
    assert node.python is not None
    assert abs(node.skew_seconds) < 5


@pytest.mark.parametrize(
    ("place", "found"),
    [("$HOME/.bench", "/.bench"), ("~/a b", "/a b"), ("work", "/work")],
)
def test_a_relative_place_is_below_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, found: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert survey_node(Here(), f'"{place}"', (), "python3").place == f"{tmp_path}{found}"
    assert survey_node(Here(), '"/srv/bench"', (), "python3").place == "/srv/bench"


def test_a_python_says_which_of_its_compiled_modules_it_lacks(tmp_path: Path) -> None:
    """A Python that cannot find _ssl and zlib stands for one that was built without them."""
    python = tmp_path / "python3"
    hide = "import importlib.util as u; old = u.find_spec; "
    hide += "u.find_spec = lambda name: None if name in ('_ssl', 'zlib') else old(name); exec(sys.argv[1])"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "import sys; {hide}" "$2"\n')
    python.chmod(0o755)
    (node,) = survey_node(Here(), '"$HOME/.bench"', ("venv",), str(python)).pythons
    assert (node.lacking, node.text.partition(" ")[2]) == (("_ssl", "zlib"), "without _ssl, zlib")
    (whole,) = survey_node(Here(), '"$HOME/.bench"', ("venv",), sys.executable).pythons
    assert whole.lacking == ()


@pytest.mark.parametrize("line", ["3.11-os /usr/bin/python3", "3.11- /usr/bin/python3", "3.11-_ssl"])
def test_a_python_that_says_anything_else_is_none(line: str) -> None:
    assert found(pythons=(0, f"{line}\n")).pythons == ()


def test_a_python_may_be_below_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my env").mkdir()
    (tmp_path / "my env/python").symlink_to(sys.executable)
    monkeypatch.setenv("HOME", str(tmp_path))
    asked = survey_node(Here(), '"$HOME/.bench"', ("none",), "~/my env/python")
    assert asked.python == f"{sys.version_info.major}.{sys.version_info.minor}"


def test_text_of_a_node_contains_no_terminal_control_characters() -> None:
    said = "\036os\037Ubuntu\033]0;mine\007\n\0370\035\036gpu users\0371:\ta\033[2J\nb\n\0370\035"
    assert split_answers(said) == {"os": (0, "Ubuntu?]0;mine?\n"), "gpu users": (0, "1: a?[2J\nb\n")}


def test_more_answers_and_longer_ones_than_a_node_gives_are_not_read() -> None:
    """Parsing a hostile answer takes time from all nodes, because they share one interpreter."""
    many = "".join(f"\036{number}\037x\0370\035" for number in range(1000))
    assert len(split_answers(many)) == 100
    assert split_answers(f"\036os\037{'x' * 100_000}\0370\035") == {"os": (0, "x" * 2**16)}


def test_a_list_of_images_may_be_long_but_holds_no_control_characters() -> None:
    stored = 'sha256:aaaa ["sha256:bbbb"]\n' * 10_000
    assert split_answers(f"\036docker images\037{stored}\0370\035") == {"docker images": (0, stored)}
    assert split_answers(f"\036docker images\037{stored}\x1b[2J\0370\035") == {}


def test_a_machine_that_cannot_run_bench_is_refused() -> None:
    for text in ("", "Welcome to the switch>", "\036who\037x\0370\035"):
        with pytest.raises(EnvironmentCannot, match="does not answer as a Linux machine"):
            read_survey(split_answers(text), 0.0, [])


NEED = Need("docker", find_variant("cuda12.8"), on_cpu=False, gpus=None, engine_bytes=20 * GIB)


@pytest.mark.parametrize(
    ("changes", "said", "advice"),
    [
        ({"docker": (127, "sh: docker: not found")}, "docker: not installed", "apt-get install docker.io"),
        ({"docker": (1, "permission denied while trying")}, "permission denied", "usermod -aG docker ubuntu"),
        ({"docker": (1, "Cannot connect to the Docker daemon")}, "Cannot connect", "systemctl start docker"),
        ({"docker": (0, '{"ServerErrors":["Cannot connect"]}')}, "Cannot connect", "systemctl"),
        ({"docker": (0, '{"ServerVersion":"27","SecurityOptions":["name=rootless"]}')}, "rootless", "podman"),
        ({"place": (0, "/x\n/dev/sda1 1 1 1000 1% /\nwritable\n")}, "1000 KiB are free, a run needs", "free"),
        ({"place": (0, "/x\n/dev/sda1 1 1 430000000 1% /\n")}, "ubuntu may not write to /x", "--place"),
        ({"docker_room": (0, "/dev/sda1 1 1 1000 1% /")}, "/var/lib/docker: 1000 KiB are", "free"),
        ({"clock": (0, "1763731000.0")}, "1000 s ahead", "timedatectl"),
        ({"clock": (0, "1763729000.0")}, "1000 s behind", "timedatectl"),
        ({"gpus": (0, "0, H100, 81559, 70000, 99, 0"), "gpu_users": (0, "eve: 4242, python, 70000 MiB")},
         "GPU 0 is in use: 99% busy, 70,000 MiB taken", "eve: 4242"),
        ({"cat_/proc/driver/nvidia/version": (0, "NVIDIA UNIX x86_64 Kernel Module  535.104.05  x")},
         "driver 535.104.05 is too old", "--engine none"),
        ({"nvidia-ctk_--version": (0, "Toolkit CLI version 1.16.1")}, "CVE-2025-23266", "1.17.8"),
        ({"uname_-m": (0, "aarch64\n")}, "is aarch64, the images are for x86_64", "--engine none"),
        ({"cdi": (1, "")}, "cannot pass GPUs to containers", "nvidia-ctk cdi generate"),
        ({"programs": (0, "sha256sum\nflock\n")}, "it lacks sha256sum, flock", "coreutils"),
        ({"memory": (0, "MemTotal: 9000000 kB\nMemAvailable: 1000 kB\n")}, "memory is free", ""),
    ],
)  # fmt: skip
def test_findings_that_stop_a_run_have_advice(
    changes: dict[str, tuple[int, str]], said: str, advice: str
) -> None:
    findings = [finding for finding in judge(found(**changes), NEED) if finding.level == "stop"]
    (first,) = [finding for finding in findings if said in finding.what]
    assert advice in first.advice


def test_a_disk_that_holds_the_image_alone_is_refused_if_the_run_is_on_it_too() -> None:
    """The layers are on it as they are sent, and as the engine unpacks them."""
    need = dataclasses.replace(NEED, engine_bytes=20 * GIB, place_bytes=6 * GIB)
    disk, kib = "/dev/sda1 1 1 {} 1% /", GIB // 1024  # in which df counts
    there = f"/x\n{disk.format(25 * kib)}\nwritable\n"
    one = judge(found(place=(0, there), docker_room=(0, disk.format(25 * kib - 4))), need)
    two = judge(found(place=(0, there), docker_room=(0, disk.format(21 * kib))), need)
    said = "/var/lib/docker: 25.0 GiB are free, the image together with a run in /x needs 26.0 GiB"
    assert [finding.what for finding in one] == [said]
    assert two == []


def test_findings_that_only_warn() -> None:
    busy = judge(found(load=(0, "8\n7.9 1 1 1/1 1\n")), NEED)
    assert [finding.level for finding in busy] == ["warn"]
    errors = judge(found(gpus=(0, "0, H100, 81559, 1, 0, 3\n")), NEED)
    assert [(finding.level, "3 uncorrected" in finding.what) for finding in errors] == [("warn", True)]
    skewed = judge(found(clock=(0, "1763730100.0")), NEED)
    assert [finding.level for finding in skewed] == ["warn"]


def test_fewer_gpus_than_the_manifest_requests() -> None:
    need = dataclasses.replace(NEED, gpus=8)
    assert "it has 2 GPUs, the manifest asks for 8" in [finding.what for finding in judge(found(), need)]


def test_faulty_gpus_do_not_stop_a_node_check() -> None:
    """Faulty GPUs must not stop a check: its signed bundle can be shown to the node's owner."""
    need = dataclasses.replace(NEED, gpus=8, checks=True)
    used = found(gpus=(0, "0, H100, 81559, 70000, 99, 0"))
    assert [(f.level, f.what.partition(",")[0]) for f in judge(used, need)] == [
        ("warn", "it has 1 GPUs"),
        ("warn", "GPU 0 is in use: 99% busy"),
    ]


@pytest.mark.parametrize(("answer", "works"), [((0, "/usr/bin/catatonit\n"), True), ((1, ""), False)])
def test_podman_without_the_program_of_its_init_is_no_engine(answer: tuple[int, str], works: bool) -> None:
    podman = (0, '{"version": {"Version": "4.3.1"}, "store": {"graphRoot": "/var/lib/containers"}}')
    node = read_survey(ANSWERS | {"podman": podman, "podman init": answer}, 0.0, ("podman",))
    assert (node.engines["podman"].facts is not None) == works
    assert works or "catatonit" in node.engines["podman"].why


def test_the_program_of_podmans_init_is_found_wherever_podman_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = ["sh", "-c", node_survey._HAS_INIT]
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "catatonit").write_text("#!/bin/sh\n")
    (tmp_path / "catatonit").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert subprocess.check_output(ask, text=True).strip() == f"{tmp_path}/catatonit"
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    (tmp_path / ".config/containers").mkdir(parents=True)
    (tmp_path / ".config/containers/containers.conf").write_text('[containers]\ninit_path = "/opt/tini"\n')
    assert subprocess.run(ask, check=False, capture_output=True).returncode == 0


LOST = (
    "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system to recover"
)


def test_a_gpu_that_is_lost_hides_neither_the_others_nor_itself() -> None:
    """nvidia-smi exits with 15 if a GPU is lost; a node of eight GPUs then once counted as having none."""
    both = found(gpus=(15, f"0, H100, 81559, 1, 0, 0\n{LOST}\n"))
    assert [gpu.index for gpu in both.gpus] == [0]
    (finding,) = judge(both, NEED)
    assert (finding.level, finding.what) == ("warn", f"nvidia-smi: {LOST}")
    none = found(gpus=(9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"))
    (stop,) = judge(none, NEED)
    assert stop.level == "stop" and "couldn't communicate" in stop.what
    (silent,) = judge(found(gpus=(124, "")), NEED)
    assert (silent.level, silent.what) == ("stop", "nvidia-smi: no answer in 15 s")
    (warned,) = judge(none, dataclasses.replace(NEED, checks=True))
    assert warned.level == "warn"


def test_a_bare_environment() -> None:
    need = Need("none", None, on_cpu=True, gpus=None)
    assert judge(found(python=(0, "3.12\n\n")), need) == []
    assert "torch, transformers" in judge(found(python=(0, "3.12\ntorch transformers\n")), need)[0].what
    assert "the oldest supported is 3.11" in judge(found(python=(0, "3.9\n\n")), need)[0].what
    assert "does not run" in judge(found(python=(127, "not found")), need)[0].what
    for late in (124, 137):
        assert judge(found(python=(late, "")), need)[0].what == "its Python gave no answer in 15 s"
