"""Push with the CPU image and a real engine: bytes on the wire are counted, and two nodes are compared.

The first test sends the whole image. Later ones find an older image on the nodes, and send the layer that
differs; those that need all layers to be sent, but not to be run, send a small image.
"""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.images.archive import facts_of
from tests.documented_commands import printed
from tests.e2e.images import Images
from tests.e2e.nodes import free_port, wire
from tests.e2e.pushing import MOODY, PAIR, TINY, WithImage, inside, nodes_with_engines
from tests.e2e.reader import Reader
from tests.e2e.services import image_registry
from tests.images.made_up_images import make_image

pytestmark = pytest.mark.e2e

MIB = 2**20


@pytest.fixture(scope="module")
def operator(images: Images) -> Iterator[WithImage]:
    assert images.one
    with nodes_with_engines() as made:
        (made.folder / "one.tar").hardlink_to(images.folder / "one.tar")
        yield made


@pytest.fixture(scope="module")
def changed(images: Images) -> Path:
    """Build the image after a change of bench's code."""
    assert images.changed
    return images.folder / "changed.tar"


@pytest.fixture(scope="module")
def identity(images: Images) -> str:
    """Return the identity of the image, for which `bench image id` would read a gigabyte."""
    config: str = images.one["config"]
    return config


@pytest.fixture(scope="module")
def older(operator: WithImage, changed: Path, images: Images) -> str:
    """Load the changed image into both engines, under a name that push does not use; return its identity."""
    for address in operator.docker:
        docker = ["docker", "-H", address]
        for words in (["load", "-qi", str(changed)], ["tag", "bench:cpu", "older"], ["rmi", "bench:cpu"]):
            subprocess.run([*docker, *words], check=True, stdout=subprocess.DEVNULL)
    config: str = images.changed["config"]
    return config


@pytest.fixture(scope="module")
def small(operator: WithImage) -> Path:
    """Make an image of megabytes that do not compress, as `bench image save` writes it."""
    made, saved = operator.folder / "made", operator.folder / "small.tar"
    made.mkdir()
    image = make_image(made, [{"first": random.Random(0).randbytes(8 * MIB)}, {"second": b"2"}])
    operator.bench("image", "save", image, "-o", saved)
    return saved


def test_bytes_on_the_wire(operator: WithImage, changed: Path) -> None:
    one = operator.folder / "one.tar"
    moved, compressed = [], 0
    with wire(operator.nodes, operator.nodes.addresses[0]) as line:
        host = f"{line.address}:{line.port}"
        for image in (one, one, changed, changed):
            line.count = 0
            found = operator.push(operator.manifest(), host, "--image", image, "--no-run", "--keep")["nodes"][
                0
            ]
            moved.append((found["outcome"], line.count))
            compressed = compressed or sum(blob.stat().st_size for blob in operator.compressed())
    outcomes, (first, unchanged, code, code_again) = [m[0] for m in moved], [m[1] for m in moved]
    print(f"compressed {compressed:,}; first {first:,}, unchanged {unchanged:,}, our code {code:,}")
    assert outcomes == ["ready", "unchanged", "ready", "unchanged"]
    assert compressed * 0.9 < first < compressed * 1.02
    assert compressed < 0.5 * one.stat().st_size
    assert code < 2 * MIB
    assert max(unchanged, code_again) < 64 * 1024


def test_push_run_cut_attach_fetch_verify_compare(operator: WithImage, older: str, identity: str) -> None:
    """The usual case, on nodes that have an older image."""
    image = operator.folder / "one.tar"
    manifest = operator.manifest("pinned", image=identity)
    pushing = operator.begin(manifest, *operator.nodes.addresses, "--image", image)
    with operator.halfway(*operator.nodes.addresses):
        assert operator.nodes.cut() > 0
        pushing.kill()
        pushing.communicate()
    done = json.loads(operator.bench("attach", "--json").stdout)
    assert [node["outcome"] for node in done["nodes"]] == ["done", "done"]
    bundles = [node["bundle"] for node in done["nodes"]]
    said = operator.bench(
        "verify", *bundles, "--trust", operator.folder / "config/bench/id_ed25519.pub"
    ).stdout
    assert said.count("level      operator") == 2
    assert said.count(f"image      cpu {identity}") == 2
    assert "tiny-vit" in operator.bench("compare", *bundles).stdout
    for number, address in enumerate(operator.nodes.addresses):
        assert operator.nodes.left(address) == []
        assert operator.images(number) == [older]


def test_containers_of_two_nodes_train_as_one(operator: WithImage, older: str) -> None:
    image, (lead, other) = operator.folder / "one.tar", operator.nodes.addresses
    manifest = operator.manifest(**PAIR | {"models": ["tiny-vit"]})
    meet = f"{lead}:{free_port()}"
    words = [manifest, lead, other, "--image", image, "--device", "cpu", "--together", meet]
    done = operator.push(*words)["nodes"]
    assert [node["outcome"] for node in done] == ["done", "done"]
    assert len(inside(done[0]["bundle"], "env.json")["nodes"]) == 2
    assert [operator.images(number) for number in (0, 1)] == [[older], [older]]


def test_nodes_check_themselves_in_containers(operator: WithImage, older: str) -> None:
    check, image = operator.folder / "check.json", operator.folder / "one.tar"
    asked = {"schema": "bench/node-check/v1", "gpus": 2, "level": "quick", "skip": MOODY}
    check.write_text(json.dumps(asked))
    words = [check, *operator.nodes.addresses, "--image", image]
    done = operator.push(*words, "--device", "cpu")["nodes"]
    came_to = [(node["outcome"], node["check"], node["level"]) for node in done]
    assert came_to == [("done", "pass", "operator")] * 2
    lacking = operator.push(*words[:2], "--image", image, code=3)["nodes"][0]  # the GPUs are missing
    assert (lacking["outcome"], lacking["check"]) == ("done", "not-run")
    assert [operator.images(number) for number in (0, 1)] == [[older], [older]]


@pytest.fixture(scope="module")
def reader(operator: WithImage) -> Reader:
    """A reader whose images for GPUs are those of the CPU, and whose rented node is the operator's first."""
    folder = operator.folder / "reader"
    (folder / "manifests").mkdir(parents=True)
    for name in ("bench-cuda13.tar", "with-kernels.tar"):
        (folder / name).hardlink_to(operator.folder / "one.tar")
    for name in ("others", "mamba", "manifests/hour"):
        (folder / f"{name}.json").write_text(json.dumps(TINY | {"models": ["tiny-vit"]}))
    stands_for = {"ubuntu@203.0.113.7": operator.nodes.addresses[0]}
    return Reader(folder, operator.environment(), stands_for, operator.nodes.ssh_config)


def test_the_documented_lines_push_an_image_to_a_rented_node(
    operator: WithImage, older: str, identity: str, reader: Reader
) -> None:
    keeping = printed("bench push others.json ubuntu@203.0.113.7 --image bench-cuda13.tar --keep")
    assert "level: operator" in reader.type(keeping)
    assert set(operator.images(0)) == {identity, older}
    for line in (
        printed("bench push mamba.json ubuntu@203.0.113.7 --image with-kernels.tar"),
        printed("bench push manifests/hour.json ubuntu@203.0.113.7 --image with-kernels.tar"),
    ):
        assert "level: operator" in reader.type(line)
        assert operator.images(0) == [older]


def test_an_image_that_existed_before_is_kept(operator: WithImage, older: str, identity: str) -> None:
    image = operator.folder / "one.tar"
    subprocess.run(
        ["docker", "-H", operator.docker[0], "load", "-qi", str(image)], check=True, stdout=subprocess.DEVNULL
    )
    done = operator.push(
        operator.manifest(models=["tiny-vit"]), operator.nodes.addresses[0], "--image", image
    )["nodes"][0]
    assert (done["outcome"], done["sent_bytes"]) == ("done", 0)
    assert set(operator.images(0)) == {identity, older}
    operator.remove(0, "bench:cpu")


def test_a_push_that_filled_the_disk_is_completed_by_the_next_one(operator: WithImage, small: Path) -> None:
    address, place, before = operator.nodes.addresses[1], operator.folder / "full", operator.images(1)
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], check=True)
    words = [operator.manifest(), address, "--image", small, "--place", f"{place}/p", "--no-run", "--anyway"]
    try:
        found = operator.push(*words, code=3)["nodes"][0]
        assert found["error"]["message"] == "its disk is full"
        assert operator.images(1) == before
        subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
        again = operator.push(*words)["nodes"][0]
        assert again["outcome"] == "ready"
        assert len(operator.images(1)) == len(before) + 1
    finally:
        subprocess.run(["umount", str(place)], check=True)
        operator.remove(1, *operator.tags(1))


def test_problems_are_reported_before_anything_is_sent(operator: WithImage, older: str) -> None:
    address, image = operator.nodes.addresses[0], operator.folder / "one.tar"
    another = operator.manifest("another", image="sha256:" + "0" * 64)
    found = operator.push(another, address, "--image", image, code=3)["nodes"][0]
    assert "the manifest asks for sha256:0000" in found["error"]["message"]
    gpus = operator.manifest("gpus", gpus=8)
    found = operator.push(gpus, address, "--image", image, "--device", "auto", code=3)["nodes"][0]
    assert "GPUs" in found["error"]["message"]
    broken = operator.folder / "broken.tar"
    with tarfile.open(broken, "w"):
        pass
    assert operator.push(operator.manifest(), address, "--image", broken, code=2)["nodes"][0]["error"]
    assert operator.images(0) == [older]


def test_a_damaged_layer_is_refused_by_its_digest(operator: WithImage, small: Path) -> None:
    """A layer that already exists on the node is accepted only if its digest matches its name."""
    address, before = operator.nodes.addresses[0], operator.images(0)
    blobs = operator.nodes.homes[address] / ".bench/blobs"
    blobs.mkdir(parents=True)
    layers = facts_of(small).layers
    for layer in layers:
        (blobs / f"{Path(layer.name).name}.part").write_bytes(gzip.compress(b"not the layer"))
    found = operator.push(operator.manifest(), address, "--image", small, "--no-run")["nodes"][0]
    assert found["outcome"] == "ready"
    assert found["sent_bytes"] > 2 * sum(layer.size for layer in layers) - 1024  # each layer was sent twice
    assert set(operator.images(0)) == {*before, operator.bench("image", "id", small).stdout.strip()}
    operator.remove(0, *operator.tags(0))


def test_an_image_may_be_pulled_and_must_still_match_the_manifest(
    operator: WithImage, older: str, identity: str
) -> None:
    address, image = operator.nodes.addresses[0], operator.folder / "one.tar"
    manifest = operator.manifest("pulled", models=["tiny-vit"], image=identity)
    with image_registry(operator.folder / "registry", free_port()) as registry:
        put_something_else(operator, f"{registry}/bench:other")
        copy = ["skopeo", "copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false"]
        copy += ["--dest-compress-level=1", f"docker-archive:{image}", f"docker://{registry}/bench:cpu"]
        subprocess.run(copy, check=True)
        for reference, said in {
            f"{registry}/bench:none": f"docker cannot pull {registry}/bench:none: ",
            f"{registry}/bench:other": f", the manifest asks for {identity}",
        }.items():
            found = operator.push(manifest, address, "--pull", reference, code=3)["nodes"][0]
            assert said in found["error"]["message"]
            assert operator.images(0) == [older]
        found = operator.push(manifest, address, "--pull", f"{registry}/bench:cpu")["nodes"][0]
    assert (found["outcome"], found["level"], found["image"]) == ("done", "operator", identity)
    assert f"image      cpu {identity}" in operator.bench("verify", found["bundle"]).stdout
    assert (operator.nodes.left(address), operator.images(0)) == ([], [older])


def put_something_else(operator: WithImage, reference: str) -> None:
    """Load an image that is not bench's, through the other node's engine."""
    with tarfile.open(operator.folder / "other.tar", "w") as tar:
        tar.add(Path(__file__), "file")
    docker = ["docker", "-H", operator.docker[1]]
    for words in (["import", str(operator.folder / "other.tar")], ["push"], ["image", "rm"]):
        subprocess.run([*docker, *words, reference], check=True, stdout=subprocess.DEVNULL)
