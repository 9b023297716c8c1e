"""The lines of docs/images.md, and of the help, about an image of cuda13: typed as printed, on a small one.

The reader sits in a checkout with the image in out/images, beside Docker, Podman, a registry and cosign. The
stand-in has the labels that a build of this checkout would write, and two small layers.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.images.archive import facts_of
from bench.images.build_image import BuildInputs, labels
from bench.images.variants import find_variant
from tests.cli.test_keys import ssh_key
from tests.documented_commands import printed
from tests.e2e.nodes import free_port
from tests.e2e.reader import Reader
from tests.e2e.services import cosign, docker_engine, image_registry, podman_store
from tests.images.made_up_images import make_image
from tests.images.stand_in_kernels import SITE, TORCH, compiled_wheel
from tests.release.checkouts import checkout
from tests.signers import public_pem

pytestmark = pytest.mark.e2e

ARCHIVE = "out/images/bench-cuda13.tar"
CONTENTS = {"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [TORCH]}
ADVISORY = {
    "id": "GHSA-1", "aliases": ["CVE-2026-0001"], "modified": "2026-01-01T00:00:00Z", "summary": "a leak",
    "affected": [{"package": {"ecosystem": "PyPI", "name": "torch"}, "versions": ["2.11.0"]}],
}  # fmt: skip
DOES_NOT_APPLY = {
    "@context": "https://openvex.dev/ns/v0.2.0", "@id": "urn:x", "author": "lab@example.org", "version": 1,
    "timestamp": "2026-11-26T00:00:00Z",
    "statements": [
        {"vulnerability": {"name": "CVE-2026-0001"}, "products": [{"@id": "pkg:pypi/torch@2.11.0+cu130"}],
         "status": "not_affected", "justification": "vulnerable_code_not_in_execute_path"},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    # The path is short, for the sockets of the engines.
    with tempfile.TemporaryDirectory(prefix="bench-e2e-") as name:
        folder = checkout(Path(name) / "checkout")
        (folder / ".git/info/exclude").write_text("*\n")
        make_archive(folder)
        for engine in ("docker", "podman"):
            (Path(name) / engine).mkdir()
        with (
            docker_engine(Path(name) / "docker") as address,
            podman_store(Path(name) / "podman") as podman,
            image_registry(Path(name) / "registry", free_port()) as registry,
        ):
            own = {"DOCKER_HOST": address, "XDG_CONFIG_HOME": str(folder / "config"), **podman}
            (folder / "programs").mkdir()
            (folder / "programs/cosign").symlink_to(cosign())
            made = Reader(folder, own, {"registry.site": registry})
            made.type(f"bench image load {ARCHIVE} --engine docker")
            yield made


def make_archive(checkout: Path) -> None:
    """Make the image that `bench image build cuda13` would write, but for most of its contents."""
    layers: list[dict[str, bytes | None]] = [
        {"usr": None, f"{SITE}/torch/__init__.py": b"version = 1\n"},
        {"usr/share/bench/sbom.cdx.json": json.dumps(CONTENTS).encode()},
    ]
    made = checkout.parent / "made"
    made.mkdir()
    said = labels(BuildInputs(checkout, find_variant("cuda13"), made))
    (checkout / ARCHIVE).parent.mkdir(parents=True)
    make_image(made, layers, "bench-cuda13.tar", said, "bench:cuda13").rename(checkout / ARCHIVE)


def identity(reader: Reader, name: str) -> str:
    return facts_of(reader.folder / name).identity.config


def test_an_image_is_identified_listed_saved_and_loaded(reader: Reader) -> None:
    config = identity(reader, ARCHIVE)
    assert config in reader.type(printed("bench image id bench:cuda13"))
    assert json.loads(reader.type(printed("bench image sbom bench:cuda13"))) == CONTENTS
    reader.type(printed("bench image save bench:cuda13 -o bench-cuda13.tar"))
    assert identity(reader, "bench-cuda13.tar") == config
    reader.type(printed("bench image load bench-cuda13.tar --engine docker"))
    reader.type(printed("bench image load bench-cuda13.tar --engine podman"))
    assert config in reader.type("bench image id bench:cuda13 --engine podman")


@pytest.fixture(scope="module")
def saved(reader: Reader) -> str:
    """Save the image as a file in the folder; return its identity."""
    reader.type(f"bench image save {ARCHIVE} -o bench-cuda13.tar")
    return identity(reader, "bench-cuda13.tar")


def test_kernels_become_a_layer_that_is_added(reader: Reader, saved: str) -> None:
    compiled_wheel(reader.folder / "wheels", "mamba-ssm", "9.0")
    reader.type(printed("bench image kernels cuda13 --wheels wheels/"))
    assert "9.0" in reader.type(printed("bench image id out/images/bench-cuda13-kernels.tar"))
    reader.type(
        printed("bench image add bench-cuda13.tar out/images/bench-cuda13-kernels.tar -o with-kernels.tar")
    )
    assert saved in reader.type("bench image id with-kernels.tar")


def test_an_image_is_attested_verified_and_scanned(reader: Reader, saved: str) -> None:
    reader.type("bench keys new --no-passphrase && cp config/bench/id_ed25519.pub builder.pub")
    reader.type(printed("bench image attest out/images/bench-cuda13.tar -o attested/"))
    reader.type(printed("bench image verify bench-cuda13.tar attested/*.dsse.json --key builder.pub"))
    reader.type("cp attested/bench-cuda13.provenance.dsse.json built.dsse.json")
    reader.type(printed("bench image verify bench-cuda13.tar built.dsse.json --key builder.pub"))
    line = printed(
        "cosign verify-blob-attestation --key bench-cuda13.key.pem --insecure-ignore-tlog --offline"
        " --type https://slsa.dev/provenance/v1 --signature bench-cuda13.provenance.dsse.json"
        " bench-cuda13.config.json"
    )
    assert "Verified OK" in reader.type(f"cd attested && {line}")
    (reader.folder / "osv").mkdir()
    (reader.folder / "osv/all.json").write_text(json.dumps(ADVISORY))
    (reader.folder / "vex.json").write_text(json.dumps(DOES_NOT_APPLY))
    assert "GHSA-1" in reader.type(printed("bench image scan bench-cuda13.tar --feed osv/"), code=1)
    said = reader.type(printed("bench image scan bench-cuda13.tar --feed osv/ --vex vex.json"))
    assert "does not apply" in said


def test_an_image_goes_through_a_registry(reader: Reader, saved: str) -> None:
    elsewhere = reader.folder.parent / "carrier"  # in a checkout, release is a folder
    elsewhere.mkdir()
    for name in ("bench-cuda13.tar", "programs"):
        (elsewhere / name).symlink_to(reader.folder / name)
    reader = replace(reader, folder=elsewhere)
    key = ssh_key(elsewhere / "release")
    (elsewhere / "release.pem").write_bytes(public_pem(key))
    line = printed("bench image push bench-cuda13.tar registry.site/bench:cuda13 --key release")
    (digest,) = re.findall(r"/bench@sha256:(\w{64})$", reader.type(line), re.MULTILINE)
    reader = replace(reader, stands_for=dict(reader.stands_for) | dict.fromkeys(("...", "0" * 64), digest))
    for line in (
        printed("bench image pull registry.site/bench@sha256:... --key release.pub"),
        printed(
            "bench image pull registry.site/bench@sha256:00000000000000000000000000000000"
            "00000000000000000000000000000000 --key release.pub"
        ),
    ):
        (elsewhere / ARCHIVE).unlink(missing_ok=True)
        assert saved in reader.type(line)
        assert identity(reader, ARCHIVE) == saved
    said = reader.type(
        printed("cosign verify --key release.pem --insecure-ignore-tlog registry.site/bench@sha256:...")
    )
    assert f"sha256:{digest}" in said
