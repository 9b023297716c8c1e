"""Every engine restricts the container in the same way: exact command lines and API options."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.names import ENGINES, GIB
from bench.images.container import Container, limits
from bench.images.engines import apptainer, docker, find_engine, follow, none, podman
from bench.images.engines.apptainer import Apptainer
from bench.images.engines.podman import Podman
from tests.images.made_up_images import make_image

C = Container(
    image="sha256:abc",
    command=("run", "/in/manifest.json", "--out", "/out"),
    manifest=Path("/home/me/m.json"),
    out=Path("/home/me/out"),
    memory_bytes=32 * GIB,
    gpus=True,
)


@pytest.mark.parametrize("argv", [docker.argv(C), podman.argv(C)], ids=["docker", "podman"])
def test_the_command_line_contains_all_restrictions(argv: list[str]) -> None:
    hardening = {
        "--rm", "--init", "--read-only", "--user=65534:65534", "--cap-drop=ALL", "--network=none",
        "--security-opt=no-new-privileges", "--ipc=private", "--pids-limit=8192",
        f"--memory={32 * GIB}", f"--memory-swap={32 * GIB}", "--log-driver=none",
    }  # fmt: skip
    assert hardening <= set(argv)
    assert not [
        word for word in argv if "sock" in word or "privileged" in word.replace("no-new-privileges", "")
    ]


@pytest.mark.parametrize("argv", [docker.argv(C), podman.argv(C)], ids=["docker", "podman"])
def test_only_the_cache_is_writable_and_executable(argv: list[str]) -> None:
    places = [word.partition("=")[2] for word in argv if word.startswith("--tmpfs=")]
    assert [p.partition(":")[0] for p in places if "noexec" not in p] == ["/cache"]
    assert all("nosuid" in p and "nodev" in p for p in places)
    assert f"--mount=type=bind,source={C.manifest},target=/in/manifest.json,readonly" in argv


@pytest.mark.parametrize("engine", [docker, podman, apptainer, none], ids=lambda e: e.__name__[22:])
def test_a_challenge_is_mounted_read_only_if_there_is_one(engine: Any) -> None:
    asked = dataclasses.replace(
        C, challenge=Path("/home/me/c.json"), command=(*C.command, "--challenge", "/in/challenge.json")
    )
    told = engine.argv(asked)
    if engine is none:
        assert told[-2:] == ["--challenge", "/home/me/c.json"]
    else:
        (mount,) = [word for word in told if "/home/me/c.json" in word]
        assert "/in/challenge.json" in mount
        assert mount.endswith((",readonly", ":ro"))
    assert not [word for word in engine.argv(C) if "challenge" in word]


def test_no_engine_dumps_core() -> None:
    """Podman and Apptainer inherit the limit; as an option of Podman it would replace configured ones."""
    assert "--ulimit=core=0" in docker.argv(C)
    assert not [word for word in podman.argv(C) if word.startswith("--ulimit")]
    code = f"from bench.images.engines import follow; follow({['sh', '-c', 'ulimit -c']!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_podmans_results_folder_is_not_executable_either() -> None:
    assert f"--volume={C.out}:/out:rw,noexec,nosuid,nodev" in podman.argv(C)


def test_podman_keeps_selinux_on_where_all_files_are_the_run_s_own() -> None:
    """Devices and data of the host have labels that a confined container may not use."""
    plain = dataclasses.replace(C, gpus=False, challenge=Path("/home/me/c.json"))
    argv = podman.argv(plain)
    assert f"--volume={C.out}:/out:rw,noexec,nosuid,nodev,Z" in argv
    assert not [word for word in argv if "label=disable" in word]
    mounts = [word for word in argv if word.startswith("--mount=")]
    assert len(mounts) == 2 and all(word.endswith(",readonly,relabel=shared") for word in mounts)
    for needs in ({"gpus": True}, {"rdma": True}, {"data": (Path("/data"),)}):
        argv = podman.argv(dataclasses.replace(plain, **needs))  # type: ignore[arg-type]
        assert "--security-opt=label=disable" in argv
        assert not [word for word in argv if "relabel" in word or word.endswith(",Z")]


def test_podman_gets_no_unknown_tmpfs_option_and_adds_no_tmpfs_of_its_own() -> None:
    argv = podman.argv(C)
    assert not [word for word in argv if word.startswith("--tmpfs=") and "uid=" in word]
    assert "--read-only-tmpfs=false" in argv


def test_the_api_options_equal_the_command_line() -> None:
    """API options that do not come from the shared table also agree with the command line."""
    pytest.importorskip("docker")
    told = docker.options(C)
    assert (told["read_only"], told["user"], told["init"]) == (True, "65534:65534", True)
    assert (told["cap_drop"], told["security_opt"]) == (["ALL"], ["no-new-privileges"])
    assert (told["network_mode"], told["ipc_mode"]) == ("none", "private")
    assert told["log_config"] == {"Type": "none"}
    assert (told["pids_limit"], told["mem_limit"], told["memswap_limit"]) == (8192, 32 * GIB, 32 * GIB)
    assert [f"--tmpfs={place}:{how}" for place, how in told["tmpfs"].items()] == [
        word for word in docker.argv(C) if word.startswith("--tmpfs")
    ]
    assert [(m["Target"], m["Source"], m["ReadOnly"]) for m in told["mounts"]] == [
        ("/in/manifest.json", "/home/me/m.json", True),
        ("/out", "/home/me/out", False),
    ]
    assert [r["DeviceIDs"] for r in told["device_requests"]] == [["nvidia.com/gpu=all"]]


def test_a_network_only_for_several_nodes() -> None:
    together = dataclasses.replace(C, network=True)
    assert "--network=host" in docker.argv(together)
    assert docker.options(together)["network_mode"] == "host"
    assert "--net" in apptainer.argv(C)
    assert "--net" not in apptainer.argv(together)


def test_nodes_that_train_together_have_the_network_s_devices_and_memory_that_stays() -> None:
    together = dataclasses.replace(C, network=True, rdma=True)
    assert {"--device=/dev/infiniband", "--ulimit=memlock=-1"} <= set(docker.argv(together))
    assert {"--device=/dev/infiniband", "--ulimit=memlock=-1"} <= set(podman.argv(together))
    assert "--bind=/dev/infiniband" in apptainer.argv(together)
    by_tcp = dataclasses.replace(C, network=True)  # an engine without the right to raise limits would fail
    for engine in (docker, podman, apptainer):
        assert not [word for word in engine.argv(by_tcp) if "infiniband" in word or "memlock" in word]
    pytest.importorskip("docker")
    told = docker.options(together)
    assert told["devices"] == ["/dev/infiniband"]
    limits = [(limit.name, limit.soft, limit.hard) for limit in told["ulimits"]]
    assert limits == [("core", 0, 0), ("memlock", -1, -1)]
    told = docker.options(by_tcp)
    assert (told["devices"], [limit.name for limit in told["ulimits"]]) == ([], ["core"])


def test_a_rootless_user_raises_no_limit() -> None:
    mine = podman.argv(dataclasses.replace(C, network=True, rdma=True, user=(1000, 100)))
    assert [word for word in mine if word.startswith("--ulimit")] == ["--ulimit=host"]


def test_gpus_are_passed_by_cdi_or_by_the_older_runtime_or_not_at_all() -> None:
    assert "--device=nvidia.com/gpu=all" in docker.argv(C)
    assert "--gpus=all" in docker.argv(C, "runtime")
    without = dataclasses.replace(C, gpus=False)
    assert not [word for word in docker.argv(without) if "gpu" in word]
    assert "--nv" not in apptainer.argv(without)


def test_apptainer_isolates_the_container_from_the_host() -> None:
    argv = apptainer.argv(C)
    assert {"--containall", "--cleanenv", "--no-home", "--drop-caps=all", "--no-privs"} <= set(argv)
    assert argv[-5:] == ["sha256:abc", *C.command]


def test_apptainers_cache_and_tmp_are_folders_on_the_node() -> None:
    argv = apptainer.argv(dataclasses.replace(C, cache=Path("/scratch/c")))
    assert {"--bind=/scratch/c:/cache:rw", "--workdir=/scratch/c"} <= set(argv)
    assert not [word for word in argv if word.startswith("--scratch")]


def test_without_an_engine_the_paths_are_those_of_the_host() -> None:
    assert none.argv(C)[1:] == ["-m", "bench", "run", "/home/me/m.json", "--out", "/home/me/out"]


def test_a_rootless_user_keeps_their_own_number() -> None:
    mine = dataclasses.replace(C, user=(1000, 100))
    assert {"--userns=keep-id", "--user=1000:100"} <= set(podman.argv(mine))
    assert "uid=1000,gid=100" in mine.tmpfs["/cache"]


def test_the_container_gets_only_benchs_environment() -> None:
    told = dataclasses.replace(C, environment={"BENCH_IMAGE": "{}"})
    assert {word for word in docker.argv(told) if word.startswith("--env")} == {
        "--env=XDG_CONFIG_HOME=/tmp",
        "--env=USER=nobody",
        "--env=BENCH_IMAGE={}",
    }


@pytest.mark.parametrize(("memory", "kept"), [(2048, 5), (64, 3.2), (8, 2), (2, 1)])
def test_the_node_keeps_some_memory_for_itself(memory: int, kept: float) -> None:
    left = memory - limits(memory * GIB) / GIB
    assert left == pytest.approx(kept if memory <= 64 else memory / 20, rel=0.01)


@pytest.mark.parametrize(
    ("info", "way"),
    [
        (
            {"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}], "Runtimes": {"runc": {}}},
            "cdi",
        ),
        ({"Runtimes": {"runc": {}, "nvidia": {}}}, "runtime"),
        ({"Runtimes": {"runc": {}}, "CDISpecDirs": ["/nowhere"]}, None),
        ({}, None),
    ],
)
def test_dockers_way_of_passing_gpus_is_detected(info: dict[str, object], way: str | None) -> None:
    assert docker.gpus_of(info) == way


def test_a_cdi_specification_of_another_vendor_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("kind: intel.com/gpu")
    assert docker.gpus_of({"CDISpecDirs": [str(tmp_path)]}) is None
    (tmp_path / "b.json").write_text('{"kind": "nvidia.com/gpu"}')
    assert docker.gpus_of({"CDISpecDirs": [str(tmp_path)]}) == "cdi"


def recorded(answers: dict[str, str]) -> Podman:
    def shell(command: Sequence[str]) -> tuple[int, str] | None:
        text = answers.get(command[1])
        return (0, text) if text is not None else (125, f"Error: {command[-1]}: image not known")

    return Podman(shell)


def test_podman_s_identity_is_the_configuration_s_digest() -> None:
    image = [
        {"Id": "ab" * 32, "RootFS": {"Layers": ["sha256:1", "sha256:2"]}, "Labels": {"bench.variant": "cpu"}}
    ]
    found = recorded({"image": json.dumps(image)}).inspect("bench:cpu")
    assert found.identity.config == "sha256:" + "ab" * 32
    assert found.identity.diff_ids == ("sha256:1", "sha256:2")
    assert found.runnable == found.identity.config


def test_an_image_that_apptainer_left_incomplete_does_not_count(tmp_path: Path) -> None:
    archive = make_image(tmp_path, [{"usr/a": b"one"}])
    codes = [255, 0, 0]

    def shell(command: Sequence[str]) -> tuple[int, str]:
        assert not Path(command[3]).exists()  # otherwise it would ask before overwriting
        Path(command[3]).write_bytes(b"image")
        return codes.pop(0), "FATAL: no space left on device"

    engine = Apptainer(shell)
    image = Path(engine.inspect(str(archive)).runnable)
    with pytest.raises(EnvironmentCannot, match="no space left"):
        engine.load(archive)
    assert not image.exists()
    engine.load(archive)
    assert image.read_bytes() == b"image"
    engine.load(archive)


ENDS = """
import sys
from bench.images.engines import follow
sys.exit(follow(["sh", "-c", sys.argv[1]]))
"""


def followed(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", ENDS, script], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ending_signals_are_passed_on_as_a_stop_request_and_the_end_is_awaited(
    end: signal.Signals,
) -> None:
    process = followed(
        "trap 'echo packed; exit 5' TERM; trap '' INT; echo begun; while :; do sleep 0.05; done"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(end)
    assert process.communicate()[0] == "packed\n"
    assert process.returncode == 5


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert follow(["sh", "-c", f"kill -HUP {os.getpid()}; exit 4"]) == 4
    finally:
        signal.signal(signal.SIGHUP, before)


class FakeContainer:
    """A container during whose output this process receives SIGTERM."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def attach(self, **_: object) -> Iterator[tuple[bytes, None]]:
        yield b"begun\n", None
        os.kill(os.getpid(), signal.SIGTERM)
        yield b"packed\n", None

    def start(self) -> None: ...

    def stop(self, timeout: int) -> None:
        self.told.append("stop")

    def wait(self) -> dict[str, int]:
        return {"StatusCode": 5}

    def remove(self, force: bool) -> None:
        self.told.append("remove")


def test_a_rootless_docker_is_refused_because_it_cannot_write_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    info = {"ServerVersion": "27.5.1", "SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless"]}
    client = nullcontext(SimpleNamespace(info=lambda: info))
    monkeypatch.setattr(docker.Docker, "_client", lambda _: client)
    with pytest.raises(EnvironmentCannot, match=r"rootless.*\n.*podman"):
        docker.Docker().facts()
    info["SecurityOptions"] = ["name=seccomp,profile=builtin", "name=cgroupns"]
    assert docker.Docker().facts().version == "27.5.1"


def test_a_docker_container_ends_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    made = FakeContainer()
    containers = SimpleNamespace(create=lambda **_: made)
    client = nullcontext(SimpleNamespace(containers=containers, info=dict))
    monkeypatch.setattr(docker.Docker, "_client", lambda _: client)
    monkeypatch.setattr(docker, "options", lambda *_: {})
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # so that SIGTERM does not end the tests
    try:
        assert docker.Docker().run(C) == 5
    finally:
        signal.signal(signal.SIGTERM, before)
    assert made.told == ["stop", "remove"]


def test_a_failure_of_the_engine_is_not_a_result_of_the_run() -> None:
    assert followed("exit 4").wait() == 4
    with pytest.raises(EnvironmentCannot, match="sh could not start the image"):
        follow(["sh", "-c", "exit 125"])


def test_a_missing_engine_is_reported_with_advice() -> None:
    with pytest.raises(EnvironmentCannot, match="podman is not installed"):
        Podman(lambda _: None).facts()
    with pytest.raises(EnvironmentCannot, match="podman has no image bench:nothing, and no file") as caught:
        recorded({}).inspect("bench:nothing")
    assert str(caught.value.advice).endswith("bench image load FILE --engine podman adds an image")
    with pytest.raises(EnvironmentCannot, match="podman has no image nope, and no file has this name"):
        recorded({}).save("nope", Path("saved.tar"))
    with pytest.raises(BadInput, match="there is no engine"):
        find_engine("lxc")


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_is_one_file_with_the_required_functions(name: str) -> None:
    engine = find_engine(name)
    assert engine.name == name
    assert all(callable(getattr(engine, verb)) for verb in ("facts", "load", "save", "inspect", "run"))
