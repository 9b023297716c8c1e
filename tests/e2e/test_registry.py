"""Debian's registry between bench, skopeo and cosign: each reads what the others wrote."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from bench.base.strict_json import canonical_json
from bench.images.archive import facts_of, manifest_digest
from bench.signing.dsse import seal
from bench.signing.key_file import load_key
from tests.cli.test_keys import ssh_key
from tests.e2e.images import ROOT
from tests.e2e.nodes import free_port
from tests.e2e.services import cosign, image_registry
from tests.images.made_up_images import make_image

pytestmark = pytest.mark.e2e
SLSA = "https://slsa.dev/provenance/v1"


class Lab:
    """A registry, a release's key, and an image."""

    def __init__(self, folder: Path, registry: str, cosign: str) -> None:
        self.folder, self.name, self._cosign = folder, f"{registry}/lab/bench", cosign
        self.key = ssh_key(folder / "release")
        private = load_key(self.key).private
        form = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / "private.pem").write_bytes(private.private_bytes(*form))
        public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        self.pem = folder / "key.pem"
        self.pem.write_bytes(public)
        self.image = make_image(folder, [{"a": random.Random(0).randbytes(2 * 2**20)}, {"b": b"2"}])

    def bench(self, *words: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "bench", "image", *map(str, words)]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(self.folder)}
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def cosign(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        own = {"HOME": str(self.folder), "COSIGN_PASSWORD": "", "COSIGN_YES": "true"}
        environment = os.environ | own
        command = [self._cosign, *words]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )

    def skopeo(self, *words: str) -> str:
        command = ["skopeo", "--insecure-policy", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("lab")
    with image_registry(folder / "registry", free_port()) as registry:
        yield Lab(folder, registry, str(cosign()))


VERIFY = ("--insecure-ignore-tlog", "--allow-http-registry")


def test_what_bench_pushed_is_verified_by_cosign_and_copied_by_skopeo(lab: Lab) -> None:
    lab.bench("save", lab.image, "-o", "saved.tar")
    saved = lab.folder / "saved.tar"
    digest = manifest_digest(saved, facts_of(saved))
    assert digest is not None
    subject = [{"name": "bench", "digest": {"sha256": digest.removeprefix("sha256:")}}]
    statement = {"_type": "https://in-toto.io/Statement/v1", "predicateType": SLSA, "subject": subject}
    definition = {"buildType": "urn:x", "externalParameters": {}, "resolvedDependencies": []}
    predicate = {"buildDefinition": definition, "runDetails": {"builder": {"id": "urn:y"}}}
    envelope = seal(canonical_json(statement | {"predicate": predicate}), load_key(lab.key).private)
    (lab.folder / "provenance.json").write_bytes(envelope)
    command = ["push", saved, f"{lab.name}:cpu", "--key", lab.key, "--attestation", "provenance.json"]
    ref = lab.bench(*command).stdout.strip()
    assert ref == f"{lab.name}@{digest}"  # an archive's digest is known before it is in any registry

    done = lab.cosign("verify", "--key", lab.pem, *VERIFY, ref)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["critical"]["image"]["docker-manifest-digest"] == digest
    done = lab.cosign("verify-attestation", "--key", lab.pem, "--type", "slsaprovenance1", *VERIFY, ref)
    assert done.returncode == 0, done.stderr

    other = ssh_key(lab.folder / "other")
    public = load_key(other).private.public_key()
    (lab.folder / "other.pem").write_bytes(
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    done = lab.cosign("verify", "--key", "other.pem", *VERIFY, ref)
    assert done.returncode != 0 and "no matching signatures" in done.stderr
    assert "is not signed by" in lab.bench("pull", ref, "--key", f"{other}.pub", code=4).stderr

    copy = [
        "copy",
        "--quiet",
        "--src-tls-verify=false",
        f"docker://{lab.name}:cpu",
        "docker-archive:copied.tar",
    ]
    subprocess.run(["skopeo", "--insecure-policy", *copy], check=True, cwd=lab.folder)
    pulled = lab.bench("pull", ref, "--key", f"{lab.key}.pub", "-o", "pulled.tar").stdout.strip()
    identities = {facts_of(lab.folder / name).identity for name in ("copied.tar", "pulled.tar", "saved.tar")}
    assert identities == {facts_of(lab.image).identity}
    assert pulled == facts_of(lab.image).identity.config


def test_what_skopeo_copied_and_cosign_signed_is_pulled(lab: Lab) -> None:
    target = f"{lab.name}:copied"
    lab.skopeo(
        "copy", "--quiet", "--dest-tls-verify=false", f"docker-archive:{lab.image}", f"docker://{target}"
    )
    digest = json.loads(lab.skopeo("inspect", "--tls-verify=false", f"docker://{target}"))["Digest"]
    ref = f"{lab.name}@{digest}"
    assert "is not signed" in lab.bench("pull", ref, "--key", f"{lab.key}.pub", code=4).stderr
    done = lab.cosign("import-key-pair", "--key", "private.pem")
    assert done.returncode == 0, done.stderr
    sign = ["sign", "--key", "import-cosign.key", "--tlog-upload=false", "--allow-http-registry", ref]
    done = lab.cosign(*sign)
    assert done.returncode == 0, done.stderr
    lab.bench("pull", ref, "--key", f"{lab.key}.pub", "-o", "signed.tar")
    assert facts_of(lab.folder / "signed.tar").identity == facts_of(lab.image).identity

    # cosign's signature is added to one of bench's by another key: both count.
    other = ssh_key(lab.folder / "second")
    ref = lab.bench("push", "signed.tar", lab.name, "--key", other).stdout.strip()
    done = lab.cosign(*sign[:-1], ref)
    assert done.returncode == 0, done.stderr
    for key in (lab.key, other):
        lab.bench("pull", ref, "--key", f"{key}.pub", "-o", "again.tar")
