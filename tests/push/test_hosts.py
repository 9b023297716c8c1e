"""Hosts from arguments and inventories; all mistakes are reported at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.base.errors import BadInput
from bench.push.hosts import Host, find_hosts, from_inventory, parse_host
from bench.push.remote import refuse_twins


@pytest.mark.parametrize(
    ("text", "address", "user", "port"),
    [
        ("gpu1", "gpu1", None, None),
        ("ubuntu@203.0.113.7", "203.0.113.7", "ubuntu", None),
        ("gpu1:2222", "gpu1", None, 2222),
        ("me@[2001:db8::1]:22", "2001:db8::1", "me", 22),
        ("me@example.org@gpu1:22", "gpu1", "me@example.org", 22),
    ],
)
def test_hosts_are_accepted_in_all_usual_forms(
    text: str, address: str, user: str | None, port: int | None
) -> None:
    assert parse_host(text) == Host(text, address, user, port)


@pytest.mark.parametrize(
    "text", ["", "-oProxyCommand=x", "a b", "me@", "gpu1:0", "gpu1:99999", "gpu1:ssh", "a@b@"]
)
def test_a_malformed_host_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="is not a host"):
        parse_host(text)


def test_duplicate_hosts_and_all_other_mistakes_are_reported_at_once() -> None:
    with pytest.raises(BadInput) as caught:
        find_hosts(["gpu1", "GPU1", "a b", "me@gpu1", "gpu1:99999"], None, None, None)
    assert len(caught.value.mistakes) == 3
    assert "the same machine as gpu1" in str(caught.value)


def test_the_hosts_of_an_inventory_are_those_that_ansible_lists() -> None:
    listed = {
        "_meta": {"hostvars": {"r1": {
            "ansible_host": "10.0.0.1", "ansible_user": "ops", "ansible_port": "2222",
            "ansible_ssh_private_key_file": "/k", "bench_python": "/v/bin/python",
        }}},
        "all": {"children": ["rack"]},
        "rack": {"hosts": ["r1", "r2"]},
    }  # fmt: skip
    first, second = from_inventory(listed, "hosts.ini", None)
    assert first == Host("r1", "10.0.0.1", "ops", 2222, Path("/k"), "/v/bin/python")
    assert second == Host("r2", "r2")


def test_an_inventorys_arguments_for_ssh_reach_ssh() -> None:
    facts = {
        "ansible_ssh_common_args": "-o ProxyCommand='nc -X connect %h %p' -J door",
        "ansible_ssh_extra_args": "-4",
        "ansible_ssh_args": "-o Compression=yes",
        "ansible_connection": "ansible.builtin.ssh",
    }
    (host,) = from_inventory({"_meta": {"hostvars": {"r1": facts}}, "all": {"hosts": ["r1"]}}, "h", None)
    assert host.ssh_arguments == (
        "-o", "Compression=yes", "-o", "ProxyCommand=nc -X connect %h %p", "-J", "door", "-4"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "wrong"),
    [
        ({"ansible_connection": "local"}, '"local" is not ssh'),
        ({"ansible_connection": "community.docker.docker"}, '"community.docker.docker" is not ssh'),
        ({"ansible_ssh_common_args": "-o 'ProxyJump=a"}, "no list of arguments"),
    ],
)
def test_a_host_that_ssh_does_not_reach_is_a_mistake(facts: dict[str, str], wrong: str) -> None:
    with pytest.raises(BadInput, match=wrong):
        from_inventory({"_meta": {"hostvars": {"r1": facts}}, "all": {"hosts": ["r1"]}}, "h", None)


def test_passwords_in_an_inventory_are_refused_and_never_shown() -> None:
    listed = {"_meta": {"hostvars": {"r1": {"ansible_password": "hunter2"}}}, "all": {"hosts": ["r1"]}}
    with pytest.raises(BadInput) as caught:
        from_inventory(listed, "hosts.ini", None)
    assert "ansible_password" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_an_inventory_without_hosts_or_with_an_invalid_port() -> None:
    with pytest.raises(BadInput, match="names no hosts"):
        from_inventory({"_meta": {"hostvars": {}}, "all": {"children": ["ungrouped"]}}, "hosts.ini", None)
    with pytest.raises(BadInput, match="is not a port"):
        from_inventory({"_meta": {"hostvars": {"r1": {"ansible_port": "ssh"}}}}, "hosts.ini", None)


@pytest.mark.parametrize(
    "words",
    [
        ["m.json", "gpu1", "gpu2", "--budget", "60m"],
        ["--budget", "60m", "m.json", "gpu1", "gpu2"],
        ["m.json", "--budget", "60m", "gpu1", "gpu2"],
        ["m.json", "gpu1", "--budget", "60m", "gpu2"],
    ],
)
def test_hosts_may_be_anywhere_among_the_arguments(words: list[str]) -> None:
    from bench.cli.main import parser

    arguments = parser().parse_args(["push", *words])
    assert (str(arguments.manifest), arguments.hosts) == ("m.json", ["gpu1", "gpu2"])
    assert arguments.budget_seconds == 3600


IN_CLUSTER = ["--kubernetes", "--image", f"registry.example/bench@sha256:{'0' * 64}"]


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["gpu1", "--together", "gpu1:29500"], "at least two"),
        (["gpu1", "gpu2", "--together", "gpu1"], "is not HOST:PORT"),
        (["gpu1", "gpu2", "--together", ":29500"], "is not HOST:PORT"),
        (["gpu1", "gpu2", "--together", "gpu1:70000"], "is not HOST:PORT"),
        (["gpu1", "gpu2", "--together", "gpu1:²"], "is not HOST:PORT"),
        (["gpu1", "gpu2", "--together", "gpu1:29500", "--slurm"], "--together excludes --slurm"),
        (["login", "--partition", "gpu", "--time", "90"], "--partition needs --slurm"),
        (["login", "--slurm-nodes", "2"], "--slurm-nodes needs --slurm"),
        (["login", "--slurm", "--budget", "4h"], "the job ends after 120 min"),
        (["login", "--sbatch=--qos=high"], "--sbatch needs --slurm"),
        (["gpu1", "--context", "prod"], "--context needs --kubernetes"),
        (["gpu1", "--nodes", "2"], "--nodes needs --kubernetes"),
        (["--kubernetes"], "needs an image"),
        (["--kubernetes", "--image", "bench:1.0"], "does not name an image by its digest"),
        ([*IN_CLUSTER, "--slurm"], "--slurm is for hosts"),
        ([*IN_CLUSTER, "--together", "gpu1:29500"], "--together is for hosts"),
        ([*IN_CLUSTER, "--engine", "docker"], "--engine is for hosts"),
        ([*IN_CLUSTER, "gpu1", "--nodes", "2"], "leave one of them out"),
        ([*IN_CLUSTER, "gpu1", "gpu1"], "gpu1 is named twice"),
        ([*IN_CLUSTER, "--gpus-per-node", "h100:8"], "h100:8 is no number"),
        ([*IN_CLUSTER, "--place", "out"], "is no folder of a pod"),
        ([*IN_CLUSTER, "--queue", "a b"], "is no name of Kubernetes"),
    ],
)
def test_options_that_exclude_each_other_are_refused(tmp_path: Path, words: list[str], wrong: str) -> None:
    from bench.cli.main import parser

    manifest = tmp_path / "m.json"
    manifest.write_text('{"schema": "bench/manifest/v1", "models": ["tiny-vit"]}')
    arguments = parser().parse_args(["push", str(manifest), *words])
    with pytest.raises(BadInput, match=wrong):
        arguments.call(arguments)


def test_two_names_of_one_machine_are_one(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host a b c\n  HostName 10.0.0.1\nHost c\n  ProxyJump door\n")
    refuse_twins([parse_host("a"), parse_host("c"), parse_host("a:2222")], config)  # behind doors, on ports
    with pytest.raises(BadInput) as caught:
        refuse_twins([parse_host("a"), parse_host("me@b"), parse_host("10.0.0.1:22")], config)
    assert [mistake.path for mistake in caught.value.mistakes] == ["me@b", "10.0.0.1:22"]
