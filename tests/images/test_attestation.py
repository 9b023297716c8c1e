"""Attestations of an image: SLSA's provenance and the list of its contents, signed, for one digest."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import __version__
from bench.base.stamps import file_sha256
from bench.base.strict_json import canonical_json
from bench.cli.main import main
from bench.images.archive import facts_of, manifest_digest
from bench.images.attestation import Attested
from bench.images.revision import REVISION
from bench.images.variants import images
from bench.signing.dsse import pae, seal
from bench.signing.key_file import load_key
from bench.signing.ssh_keys import PublicKey
from tests.authority import RUN_KEY
from tests.bundle.test_third_party import INSTALL_COSIGN
from tests.cli.test_keys import ssh_key
from tests.images.made_up_images import make_image
from tests.needs import needs

pytestmark = [needs("ssh-keygen"), needs("git")]

PLACE = "usr/share/bench/sbom.cdx.json"
DEB = f"libssl3 3.0.15-1~deb12u1 {'d' * 64} o/openssl/libssl3_3.0.15-1~deb12u1_amd64.deb\n"
PIN = f"torch==2.13.0+cpu --hash=sha256:{'a' * 64} --hash=sha256:{'b' * 64}\n"
PURLS = ("pkg:pypi/torch@2.13.0%2Bcpu", "pkg:deb/debian/libssl3@3.0.15-1~deb12u1?arch=amd64")
CONTENTS = {
    "bomFormat": "CycloneDX",
    "specVersion": "1.6",
    "components": [{"type": "library", "name": "x", "version": "1", "purl": purl} for purl in PURLS],
}


def git(root: Path, *arguments: str) -> str:
    own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    names = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | own | names)
    return done.stdout.strip()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Make a checkout with all that a build of the variant cpu takes from one."""
    root = tmp_path / "source"
    files = {
        "Dockerfile": "FROM scratch\n", "docker/install.py": "", "docker/kernels.py": "",
        "docker/debian.lock": DEB, "docker/cpu.lock": PIN, "docker/builder.lock": PIN.replace("torch", "pip"),
        "pyproject.toml": "", "README.md": "", "LICENSE": "", "bench/__init__.py": "",
    }  # fmt: skip
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "all")
    return root


def image_of(
    folder: Path, source: Path, name: str = "image.tar", contents: Any = CONTENTS, **labels: str
) -> Path:
    own = {
        "bench.variant": "cpu",
        "bench.lock": f"sha256:{file_sha256(source / 'docker/cpu.lock')}",
        "bench.debian": f"sha256:{file_sha256(source / 'docker/debian.lock')}",
    }
    layer: dict[str, bytes | None] = {PLACE: json.dumps(contents).encode()}
    return make_image(folder, [layer], name, own | labels)


@pytest.fixture
def image(tmp_path: Path, source: Path) -> Path:
    return image_of(tmp_path, source)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return ssh_key(tmp_path / "builder")


@pytest.fixture
def made(tmp_path: Path, source: Path, image: Path, key: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Attest the image; return the folder of the written files."""
    out = tmp_path / "attested"
    command = ["image", "attest", str(image), "--source", str(source), "--key", str(key), "-o", str(out)]
    assert main(command) == 0
    names = [Path(line).name.removeprefix("bench-cpu.") for line in capsys.readouterr().out.splitlines()]
    assert names == ["provenance.dsse.json", "contents.dsse.json", "config.json", "key.pem"]
    return out


PROVENANCE, LIST = "bench-cpu.provenance.dsse.json", "bench-cpu.contents.dsse.json"


def payload(envelope: Path) -> dict[str, Any]:
    return dict(json.loads(base64.b64decode(json.loads(envelope.read_text())["payload"])))


def verified(image: Path, key: Path, *envelopes: Path) -> int:
    return main(["image", "verify", str(image), *map(str, envelopes), "--key", f"{key}.pub"])


def test_the_provenance_is_slsas_v1_and_names_everything_that_the_image_is_made_of(
    source: Path, image: Path, made: Path
) -> None:
    statement = payload(made / PROVENANCE)
    identity = facts_of(image).identity.config.removeprefix("sha256:")
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert statement["subject"] == [
        {"name": "bench:test", "digest": {"sha256": identity}},
        {"name": "image.tar", "digest": {"sha256": file_sha256(image)}},
    ]
    definition, details = statement["predicate"]["buildDefinition"], statement["predicate"]["runDetails"]
    assert definition["externalParameters"] == {"variant": "cpu", "without": []}
    own = images()
    assert definition["internalParameters"] == {"epoch": own.epoch, "suite": own.suite, "python": own.python}
    by_uri: dict[str, list[dict[str, str]]] = {}
    for one in definition["resolvedDependencies"]:
        by_uri.setdefault(one["uri"], []).append(one["digest"])
    assert by_uri["git+file:."] == [{"gitCommit": git(source, "rev-parse", "HEAD")}]
    assert by_uri["file:docker/cpu.lock"] == [{"sha256": file_sha256(source / "docker/cpu.lock")}]
    assert by_uri["pkg:pypi/torch@2.13.0%2Bcpu"] == [{"sha256": "a" * 64}, {"sha256": "b" * 64}]
    assert by_uri["pkg:deb/debian/libssl3@3.0.15-1~deb12u1"] == [{"sha256": "d" * 64}]
    assert {uri for uri in by_uri if uri.startswith("file:")} == {
        f"file:{name}"
        for name in ("Dockerfile", "docker/install.py", "docker/kernels.py", "docker/cpu.lock",
                     "docker/debian.lock", "docker/builder.lock")
    }  # fmt: skip
    assert {one["uri"]: one["name"] for one in definition["resolvedDependencies"] if "name" in one} == {
        uri: uri.removeprefix("file:") for uri in by_uri if uri.startswith("file:")
    }
    assert details["builder"]["id"].startswith("urn:uuid:")
    assert details["builder"]["version"] == {"bench": __version__}
    listed = hashlib.sha256(json.dumps(CONTENTS).encode()).hexdigest()
    assert details["byproducts"] == [{"name": "sbom.cdx.json", "digest": {"sha256": listed}}]
    assert (made / "bench-cpu.config.json").read_bytes() == facts_of(image).config_bytes


def test_the_file_that_save_wrote_is_named_by_its_digest_in_a_registry_too(
    tmp_path: Path, source: Path, image: Path, key: Path
) -> None:
    saved = tmp_path / "saved.tar"
    assert main(["image", "save", str(image), "-o", str(saved)]) == 0
    out = ["--key", str(key), "-o", str(tmp_path)]
    assert main(["image", "attest", str(saved), "--source", str(source), *out]) == 0
    in_registry = manifest_digest(saved, facts_of(saved))
    assert in_registry is not None
    with tarfile.open(saved) as archive:
        assert f"blobs/{in_registry.replace(':', '/')}" in archive.getnames()
    subjects = payload(tmp_path / PROVENANCE)["subject"]
    assert [subject["name"] for subject in subjects] == [
        "bench:test",
        "saved.tar",
        "bench:test in a registry",
    ]
    assert subjects[2]["digest"] == {"sha256": in_registry.removeprefix("sha256:")}


def test_the_list_of_contents_is_that_of_the_image(image: Path, made: Path) -> None:
    statement = payload(made / LIST)
    assert statement["predicateType"] == "https://cyclonedx.org/bom"
    assert statement["predicate"] == CONTENTS
    assert statement["subject"] == payload(made / PROVENANCE)["subject"]


def test_an_envelope_is_signed_over_its_type_and_payload(key: Path, made: Path) -> None:
    """DSSE's pre-authentication encoding: the payload alone is not what is signed."""
    document = json.loads((made / LIST).read_text())
    public = PublicKey.from_line(key.with_suffix(".pub").read_text())
    data = base64.b64decode(document["payload"])
    public.check(base64.b64decode(document["signatures"][0]["sig"]), pae(document["payloadType"], data))
    assert document["payloadType"] == "application/vnd.in-toto+json"
    assert document["signatures"][0]["keyid"] == public.fingerprint


def test_what_was_attested_is_verified(
    image: Path, key: Path, made: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verified(image, key, made / PROVENANCE, made / LIST) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == f"image      {facts_of(image).identity.config}"
    commit = git(source, "rev-parse", "HEAD")[:12]
    assert second.startswith(f"provenance variant cpu of commit {commit}, 10 inputs, by urn:uuid:")
    assert third.startswith("contents   2 components, as the image's own SBOM lists them, signed by SHA256:")


def test_a_builder_has_the_name_that_it_is_given(
    tmp_path: Path, source: Path, image: Path, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["image", "attest", str(image), "--source", str(source), "--key", str(key), "-o", str(tmp_path)]
    assert main([*command, "--builder", "https://lab.example/builder"]) == 0
    builder = payload(tmp_path / PROVENANCE)["predicate"]["runDetails"]["builder"]
    assert builder["id"] == "https://lab.example/builder"


# --- what is not attested ---------------------------------------------------------------------------------


def refused_to_attest(image: Path, source: Path, key: Path, capsys: pytest.CaptureFixture[str]) -> str:
    out = image.parent / "refused"
    assert (
        main(["image", "attest", str(image), "--source", str(source), "--key", str(key), "-o", str(out)]) == 2
    )
    assert not out.exists()
    return capsys.readouterr().err


@pytest.mark.parametrize("lock", ["docker/cpu.lock", "docker/debian.lock"])
def test_an_image_of_other_locks_is_not_attested(
    image: Path, source: Path, key: Path, lock: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with (source / lock).open("a") as file:
        file.write("# later\n")
    assert f"was not built with {lock} as it is here" in refused_to_attest(image, source, key, capsys)


@pytest.mark.parametrize("name", ["Dockerfile", "bench/__init__.py", "bench/new.py", "docker/new.lock"])
def test_a_checkout_that_differs_from_its_commit_attests_nothing(
    image: Path, source: Path, key: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (source / name).write_text("# changed")
    assert f"{name} differs from the commit" in refused_to_attest(image, source, key, capsys)


def test_what_is_no_checkout_attests_nothing(
    image: Path, source: Path, key: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(source / ".git")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(source.parent))
    assert "is not a git checkout" in refused_to_attest(image, source, key, capsys)
    git(source, "init", "-q")  # a repository without any commit
    assert "is not a git checkout" in refused_to_attest(image, source, key, capsys)


@pytest.mark.parametrize("name", ["Dockerfile", "docker/builder.lock", "docker/cpu.lock"])
def test_a_folder_that_lacks_a_file_of_the_build_attests_nothing(
    image: Path, source: Path, key: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (source / name).unlink()
    assert f"{source}: lacks {name}" in refused_to_attest(image, source, key, capsys)


def test_an_image_with_a_malformed_list_is_not_attested(
    tmp_path: Path, source: Path, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = facts_of(image_of(tmp_path, source)).labels
    image = make_image(tmp_path, [{PLACE: b"{"}], "odd.tar", labels)
    assert "the list of contents in the image is malformed" in refused_to_attest(image, source, key, capsys)


def test_an_image_of_another_commit_is_not_attested(
    tmp_path: Path, source: Path, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    revision = {REVISION: "c" * 40}
    image = image_of(tmp_path, source, "odd.tar", **revision)
    assert "was built from another commit than" in refused_to_attest(image, source, key, capsys)


def test_provenance_of_another_commit_than_the_images(
    tmp_path: Path, source: Path, key: Path, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The signer's statement is about this very image, and wrong."""
    image = image_of(tmp_path, source, "odd.tar", **{REVISION: "c" * 40})
    statement = payload(made / PROVENANCE)
    statement["subject"][0]["digest"]["sha256"] = facts_of(image).identity.config.removeprefix("sha256:")
    private = load_key(key).private
    (made / PROVENANCE).write_bytes(seal(canonical_json(statement), private))
    assert "another commit than the image's label" in refused(image, key, made / PROVENANCE, capsys)


def test_a_damaged_checkout_attests_nothing(
    image: Path, source: Path, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A damaged checkout cannot say whether its files are those of the commit."""
    (source / ".git" / "index").write_bytes(b"damaged")
    assert "is not a git checkout" in refused_to_attest(image, source, key, capsys)


# --- what is not believed -----------------------------------------------------------------------------------


def refused(image: Path, key: Path, envelope: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert verified(image, key, envelope) == 4
    err = capsys.readouterr().err
    assert err.startswith(f"{envelope}: ")
    return err


@pytest.mark.parametrize("name", [PROVENANCE, LIST])
def test_an_attestation_by_another_key(
    tmp_path: Path, image: Path, made: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "the envelope is not signed by" in refused(image, ssh_key(tmp_path / "other"), made / name, capsys)


def test_one_of_several_keys_is_enough(tmp_path: Path, image: Path, key: Path, made: Path) -> None:
    other = ssh_key(tmp_path / "other")
    for keys in ((key, other), (other, key)):
        options = [word for each in keys for word in ("--key", f"{each}.pub")]
        assert main(["image", "verify", str(image), str(made / LIST), *options]) == 0


@pytest.mark.parametrize("name", [PROVENANCE, LIST])
def test_an_attestation_of_another_image(
    tmp_path: Path, source: Path, key: Path, made: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = image_of(tmp_path, source, "other.tar", {**CONTENTS, "version": 2})
    assert "is about another image: 'bench:test'" in refused(other, key, made / name, capsys)


def test_a_changed_payload_under_the_old_signature(
    image: Path, key: Path, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads((made / LIST).read_text())
    changed = base64.b64decode(document["payload"]).replace(b"2.13.0", b"2.14.0")
    (made / LIST).write_text(json.dumps({**document, "payload": base64.b64encode(changed).decode()}))
    assert "the envelope is not signed by" in refused(image, key, made / LIST, capsys)


def test_another_payload_type_under_the_old_signature(
    image: Path, key: Path, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads((made / LIST).read_text())
    (made / LIST).write_text(json.dumps({**document, "payloadType": "text/plain"}))
    assert "the envelope is not signed by" in refused(image, key, made / LIST, capsys)


Edit = Callable[[dict[str, Any]], object]


def test_a_signed_payload_that_is_no_json(
    image: Path, key: Path, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (made / LIST).write_bytes(seal(b"no json", load_key(key).private))
    assert "its statement is malformed" in refused(image, key, made / LIST, capsys)


def definition(statement: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = statement["predicate"]["buildDefinition"]
    return found


def without_input(uri: str) -> Edit:
    """Return a function that removes the dependency of this URI."""

    def edit(statement: dict[str, Any]) -> None:
        every = definition(statement)["resolvedDependencies"]
        every[:] = [one for one in every if one["uri"] != uri]

    return edit


@pytest.mark.parametrize(
    ("name", "edit", "why"),
    [
        (LIST, lambda s: s.update(_type="https://x"), "is not an in-toto statement of v1"),
        (LIST, lambda s: s.update(predicateType="https://x"), "attests 'https://x', which bench does not"),
        (LIST, lambda s: s.update(subject=[]), "is about another image: 'nothing'"),
        (LIST, lambda s: s.update(subject=3), "its statement is malformed"),
        (LIST, lambda s: s.pop("predicate"), "its statement is malformed"),
        (LIST, lambda s: s["predicate"]["components"].pop(), "lists other contents than the image"),
        (PROVENANCE, lambda s: definition(s).update(buildType="https://x"), "in a way that bench does not"),
        (PROVENANCE, lambda s: definition(s)["externalParameters"].update(variant="cuda13"),
         "states other parameters of the build"),
        (PROVENANCE, lambda s: definition(s)["externalParameters"].update(without=["x"]),
         "states other parameters of the build"),
        (PROVENANCE, without_input("file:docker/cpu.lock"), "other locks than the image's label bench.lock"),
        (PROVENANCE, without_input("file:docker/debian.lock"), "other locks than the image's label"),
        (PROVENANCE, without_input("git+file:."), "its statement is malformed"),
        (PROVENANCE, lambda s: s["predicate"]["runDetails"].update(byproducts=[]), "names another SBOM"),
    ],
)  # fmt: skip
def test_a_statement_that_its_signer_changed(
    image: Path, source: Path, made: Path, name: str, edit: Edit, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trusted signer may be mistaken, too; the image itself says what it is."""
    statement = payload(made / name)
    edit(statement)
    (made / name).write_bytes(seal(canonical_json(statement), RUN_KEY))
    public = made / "run"
    public.with_suffix(".pub").write_text(PublicKey.of(RUN_KEY).line() + "\n")
    assert why in refused(image, public, made / name, capsys)


@pytest.mark.parametrize(("stated", "code"), [(["x", "y"], 0), (["x"], 4), ([], 4)])
def test_kernels_that_were_left_out_are_those_of_the_label(
    tmp_path: Path, source: Path, made: Path, stated: list[str], code: int
) -> None:
    image = image_of(tmp_path, source, "without.tar", **{"bench.without": "x y"})
    statement = payload(made / PROVENANCE)
    statement["subject"][0]["digest"]["sha256"] = facts_of(image).identity.config.removeprefix("sha256:")
    definition(statement)["externalParameters"]["without"] = stated
    (made / PROVENANCE).write_bytes(seal(canonical_json(statement), RUN_KEY))
    (made / "run.pub").write_text(PublicKey.of(RUN_KEY).line() + "\n")
    assert verified(image, made / "run", made / PROVENANCE) == code


def test_an_image_of_an_engine_may_have_no_tag_and_has_no_file(image: Path) -> None:
    facts = facts_of(image)
    identity = facts.identity.config.removeprefix("sha256:")
    nameless = Attested(replace(facts, tags=()), b"{}", None)
    assert nameless.subjects() == [("bench", identity)]
    assert Attested(facts, b"{}", None).subjects() == [("bench:test", identity)]


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"payload": "", "payloadType": "", "signatures": []}'])
def test_what_is_no_envelope(
    image: Path, key: Path, made: Path, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (made / LIST).write_bytes(data)
    assert "the envelope is malformed" in refused(image, key, made / LIST, capsys)


# --- cosign -------------------------------------------------------------------------------------------------


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("name", "kind"),
    [(PROVENANCE, "https://slsa.dev/provenance/v1"), (LIST, "https://cyclonedx.org/bom")],
)
def test_cosign_verifies_the_attestations_by_configuration_and_by_archive(
    tmp_path: Path, image: Path, made: Path, name: str, kind: str
) -> None:
    program = shutil.which("cosign")
    if program is None:
        done = subprocess.run(
            ["sh", INSTALL_COSIGN, tmp_path / "c"], capture_output=True, text=True, check=True
        )
        program = done.stdout.strip()
    other = tmp_path / "other"
    other.write_bytes(b"{}")
    for blob, code in ((made / "bench-cpu.config.json", 0), (image, 0), (other, 1)):
        command = [
            program,
            "verify-blob-attestation",
            "--key",
            made / "bench-cpu.key.pem",
            "--insecure-ignore-tlog",
        ]
        command += ["--offline", "--signature", made / name, "--type", kind, blob]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ | {"HOME": str(tmp_path)}
        )
        assert (done.returncode != 0) == bool(code), done.stderr
        assert ("Verified OK" in done.stderr) == (not code)
