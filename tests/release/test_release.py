"""A release has equal bytes for equal commits, is verified by other programs, and installs offline."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from bench import __version__
from bench.base.errors import BadInput
from bench.base.paths import cache_path
from bench.base.source import PACKAGE, digest_of
from bench.base.stamps import file_sha256
from bench.cli.main import main
from bench.images.archive import facts_of, manifest_digest
from bench.images.build_image import BuildInputs, labels
from bench.images.variants import find_variant
from release import __main__ as script
from tests.cli.test_keys import ssh_key
from tests.documented_commands import printed
from tests.e2e.images import ROOT
from tests.e2e.reader import LINK_ENVIRONMENT, Reader
from tests.e2e.services import SYSTEM, cosign, require, require_root
from tests.images.made_up_images import make_image
from tests.images.odd_packages import make_wheel
from tests.release.checkouts import checkout, git, release

pytestmark = pytest.mark.e2e
NAME = f"bench_appliance-{__version__}"
WHEEL = f"{NAME}-py3-none-any.whl"
DEBIAN = f"bench-appliance_{__version__}_amd64.deb"
SLSA = "https://slsa.dev/provenance/v1"


class Released:
    """A release, the checkout that it was made of, and its key."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.source = folder, checkout(folder / "one")
        self.commit = git(self.source, "rev-parse", "HEAD")
        self.key = ssh_key(folder / "release-key")
        self.image = self.image_of(self.commit)
        self.files = folder / "files"
        release(self.source, "--key", self.key, "--image", self.image, "-o", self.files)

    def image_of(self, commit: str, name: str = "cpu.tar") -> Path:
        revision = {"org.opencontainers.image.revision": commit}
        return image_of(self.source, "cpu", self.folder, name, **revision)


def image_of(source: Path, variant: str, folder: Path, name: str, **other: str) -> Path:
    """Make a small image with the labels that `bench image build` would write, and others."""
    said = labels(BuildInputs(source, find_variant(variant), folder))
    contents = {"bomFormat": "CycloneDX", "specVersion": "1.6", "components": []}
    layer: dict[str, bytes | None] = {"usr/share/bench/sbom.cdx.json": json.dumps(contents).encode()}
    return make_image(folder, [{"a": b"1" * 5000}, layer], name, {**said, **other})


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Released:
    return Released(tmp_path_factory.mktemp("released"))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_two_checkouts_of_a_commit_make_the_same_bytes(released: Released) -> None:
    """The folder, the time, the user's mask, time zone and language differ."""
    other = checkout(released.folder / "two")
    assert git(other, "rev-parse", "HEAD") == released.commit
    for path in other.rglob("*.py"):
        os.utime(path, (1e9, 1e9))
    out = released.folder / "again"
    words = ["--key", released.key, "--image", released.image, "-o", out]
    release(other, *words, umask=0o077, TZ="Asia/Tokyo", LC_ALL="C", SOURCE_DATE_EPOCH="1")
    assert contents(out) == contents(released.files)


def test_what_a_release_has(released: Released) -> None:
    image = f"bench-cpu-{__version__}"
    suffixes = ("tar", "cdx.json", "config.json", "contents.dsse.json", "provenance.dsse.json", "digests.txt")
    assert set(contents(released.files)) == {
        f"{NAME}.tar.gz", WHEEL, f"{NAME}.operator.lock", f"{NAME}.cdx.json", DEBIAN,
        *(f"{image}.{suffix}" for suffix in suffixes),
        "SHA256SUMS", "SHA256SUMS.sig", "SHA256SUMS.cosign", "provenance.dsse.json",
        "release.pub", "release.pem", "allowed_signers",
    }  # fmt: skip


def test_sdist_and_wheel_carry_code_manifests_and_what_images_are_built_from(
    released: Released, tmp_path: Path
) -> None:
    with zipfile.ZipFile(released.files / WHEEL) as archive:
        archive.extractall(tmp_path)
    assert digest_of(tmp_path / "bench") == digest_of(PACKAGE)
    beside = tmp_path / "bench_source"
    for name in ("Dockerfile", "requirements.lock", "docker/debian.lock", "manifests/hour.json"):
        assert (beside / name).read_bytes() == (ROOT / name).read_bytes()
    assert (beside / "revision").read_text().strip() == released.commit
    with tarfile.open(released.files / f"{NAME}.tar.gz") as archive:
        names = {member.name.partition("/")[2] for member in archive}
        assert {(member.uid, member.gid, member.uname) for member in archive.getmembers()} == {(0, 0, "")}
    assert {"manifests/hour.json", "Dockerfile", "setup.py", "release/operator.lock", "revision"} <= names


# --- signatures, as others verify them --------------------------------------------------------------------


SUMS = printed("sha256sum --check SHA256SUMS")
SSH = printed(
    "ssh-keygen -Y verify -f allowed_signers -I bench-release -n bench-release@v1"
    " -s SHA256SUMS.sig < SHA256SUMS"
)


def test_checksums_and_the_ssh_signature_are_verified_by_the_documented_commands(
    released: Released, tmp_path: Path
) -> None:
    reader = Reader(released.files)
    reader.type(SUMS)
    said = reader.type(SSH)
    assert 'Good "bench-release@v1" signature for bench-release with ED25519 key' in said
    for name, data in contents(released.files).items():
        (tmp_path / name).write_bytes(data)
    with (tmp_path / WHEEL).open("ab") as file:
        file.write(b"x")
    other = Reader(tmp_path)
    assert f"{WHEEL}: FAILED" in other.type(SUMS, code=1)
    (tmp_path / "SHA256SUMS").write_bytes((tmp_path / "SHA256SUMS").read_bytes() + b"\n")
    other.type(SSH, code=255)


COSIGN_BLOB = printed(
    "cosign verify-blob --key release.pem --insecure-ignore-tlog --signature SHA256SUMS.cosign SHA256SUMS"
)
COSIGN_PROVENANCE = printed(
    "cosign verify-blob-attestation --key release.pem --insecure-ignore-tlog"
    " --type https://slsa.dev/provenance/v1 --signature provenance.dsse.json"
    " bench_appliance-VERSION-py3-none-any.whl"
)


def test_cosign_verifies_the_checksums_and_the_provenance_of_each_file(
    released: Released, tmp_path: Path
) -> None:
    program = cosign()
    reader = Reader(
        released.files,
        {"HOME": str(tmp_path), "PATH": f"{program.parent}:{SYSTEM}"},
        {"VERSION": __version__},
    )
    for line in (COSIGN_BLOB, COSIGN_PROVENANCE):
        assert "Verified OK" in reader.type(line)

    def verify(*words: str) -> int:
        environment = os.environ | {"HOME": str(tmp_path)}
        command = [str(program), *words]
        return subprocess.run(
            command, cwd=released.files, env=environment, capture_output=True, check=False
        ).returncode

    assert verify(*COSIGN_BLOB.split()[1:-1], WHEEL) != 0
    attested = ("verify-blob-attestation", "--key", "release.pem", "--insecure-ignore-tlog", "--type", SLSA)
    for name in (WHEEL, f"{NAME}.tar.gz", "SHA256SUMS", f"bench-cpu-{__version__}.tar"):
        assert verify(*attested, "--signature", "provenance.dsse.json", name) == 0
    assert verify(*attested, "--signature", "provenance.dsse.json", "allowed_signers") != 0
    image = f"bench-cpu-{__version__}"
    assert verify(*attested, "--signature", f"{image}.provenance.dsse.json", f"{image}.tar") == 0


def test_the_provenance_names_every_file_and_what_it_was_made_of(released: Released) -> None:
    envelope = json.loads((released.files / "provenance.dsse.json").read_text())
    statement = json.loads(base64.b64decode(envelope["payload"]))
    sums = [line.split("  ") for line in (released.files / "SHA256SUMS").read_text().splitlines()]
    subjects = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    assert subjects.items() >= {(name, value) for value, name in sums}
    keys = {"release.pub", "release.pem", "allowed_signers"}
    signatures = {"SHA256SUMS", "SHA256SUMS.sig", "SHA256SUMS.cosign", "provenance.dsse.json"}
    assert {name for _, name in sums} == set(contents(released.files)) - keys - signatures
    inputs = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert inputs[0]["digest"] == {"gitCommit": released.commit}
    assert [one["uri"] for one in inputs[1:]][:1] == ["file:release/operator.lock"]
    assert all(one["uri"].startswith("pkg:pypi/setuptools@") for one in inputs[2:])


# --- images -----------------------------------------------------------------------------------------------


def test_an_image_is_an_oci_archive_with_its_digest_in_a_registry(released: Released) -> None:
    path = released.files / f"bench-cpu-{__version__}.tar"
    facts = facts_of(path)
    assert facts.identity == facts_of(released.image).identity
    raw = ["skopeo", "inspect", "--raw", f"oci-archive:{path}"]
    listed = subprocess.run(raw, check=True, capture_output=True).stdout
    assert json.loads(listed)["config"]["digest"] == facts.identity.config
    reader = Reader(released.files, stands_for={"VERSION": __version__})
    reader.type(
        printed(
            "bench image verify bench-cpu-VERSION.tar bench-cpu-VERSION.provenance.dsse.json"
            " --key release.pub"
        )
    )
    digests = (released.files / f"bench-cpu-{__version__}.digests.txt").read_text().split()
    verify = [f"bench-cpu-{__version__}.{kind}.dsse.json" for kind in ("provenance", "contents")]
    words = [str(released.files / name) for name in (path.name, *verify)]
    assert main(["image", "verify", *words, "--key", str(released.files / "release.pub")]) == 0
    assert digests == ["identity", facts.identity.config, "registry", manifest_digest(path, facts)]


def test_kernels_are_those_that_the_locks_name_by_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, folder = tmp_path / "given/deeper", tmp_path / "files"
    given.mkdir(parents=True)
    folder.mkdir()
    right, wrong = make_wheel(given, "deepspeed", {"a": (b"1", 0o644)}), make_wheel(given, "flash_attn", {})
    (tmp_path / "docker").mkdir()
    lock = tmp_path / "docker/cuda13.built.lock"
    lock.write_text(
        f"deepspeed==1.0 --hash=sha256:{file_sha256(right)}\nflash-attn==1.0 --hash=sha256:{'0' * 64}\n"
    )
    monkeypatch.setattr(script, "ROOT", tmp_path)
    inputs = list(script._kernels(folder, given.parent))
    assert set(contents(folder)) == {f"kernels-cuda13/{right.name}"}
    assert inputs == [{"uri": "file:docker/cuda13.built.lock", "digest": {"sha256": file_sha256(lock)}}]
    right.unlink()
    with pytest.raises(BadInput, match="has no wheel that docker/VARIANT"):
        list(script._kernels(folder, wrong.parent))
    assert list(script._kernels(folder, None)) == []


def test_a_release_is_made_by_the_documented_line(released: Released, tmp_path: Path) -> None:
    """Images and a kernel are stand-ins; the locks of this checkout name the kernel by its digest."""
    kernel = make_wheel(tmp_path, "flash_attn", {})
    lock = f"flash-attn==1.0 --hash=sha256:{file_sha256(kernel)}\n"
    files = {"docker/cuda13.built.lock": lock, "Makefile": (ROOT / "Makefile").read_text(encoding="utf-8")}
    source = checkout(tmp_path / "source", files)
    (source / ".git/info/exclude").write_text("*\n")
    for folder in ("out/images", ".cache/bench/images/wheels"):
        (source / folder).mkdir(parents=True)
    kernel.rename(source / ".cache/bench/images/wheels" / kernel.name)
    for variant in ("cpu", "cuda13"):
        image_of(source, variant, source / "out/images", f"bench-{variant}.tar")
    shutil.copy(released.key, source / "release-key")
    line = printed(
        'make release KEY=release-key IMAGES="out/images/bench-cpu.tar out/images/bench-cuda13.tar"'
        " KERNELS=~/.cache/bench/images/wheels"
    )
    own = {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    cache = {"XDG_CACHE_HOME": str(cache_path("images").parents[1])}
    reader = Reader(source, own | cache)
    reader.type(LINK_ENVIRONMENT)
    reader.type(line)
    made = contents(source / "out/release")
    assert {f"bench-{name}-{__version__}.tar" for name in ("cpu", "cuda13")} <= made.keys()
    assert f"kernels-cuda13/{kernel.name}" in made
    Reader(source / "out/release").type(SUMS)


# --- what is not released -----------------------------------------------------------------------------------


def test_what_is_not_released(released: Released, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["--key", released.key, "-o", out]
    strange = released.image_of("c" * 40, "strange.tar")
    assert (
        "was built from cccccccccccc, not from"
        in release(released.source, *words, "--image", strange, code=2).stderr
    )
    assert "exists" in release(released.source, "--key", released.key, "-o", released.files, code=2).stderr
    (released.source / "notes.txt").write_text("")
    assert "notes.txt differs from the commit" in release(released.source, *words, code=2).stderr
    (released.source / "notes.txt").unlink()
    assert not out.exists() and list(tmp_path.iterdir()) == []


# --- installing --------------------------------------------------------------------------------------------

DOWNLOAD = "pip download --only-binary=:all: --require-hashes --dest wheels --find-links . -r {lock}"
INSTALL = "pip install --no-index --find-links wheels --require-hashes -r {lock}"


def test_the_operators_side_installs_without_a_network_from_locked_wheels(
    released: Released, tmp_path: Path
) -> None:
    text, lock = (ROOT / "docs/release.md").read_text(), f"{NAME}.operator.lock"
    for name in (WHEEL, lock):
        (tmp_path / name).write_bytes((released.files / name).read_bytes())
    venv.create(tmp_path / "venv")

    def pip(command: str, *within: str, **options: str) -> subprocess.CompletedProcess[str]:
        """Run a documented command for the new environment, with this environment's pip."""
        assert command.format(lock="bench_appliance-VERSION.operator.lock") in text
        ours = [sys.executable, "-m", "pip", "--python", str(tmp_path / "venv/bin/python")]
        words = [*within, *ours, *command.format(lock=lock).split()[1:]]
        environment = os.environ | {"PIP_NO_COMPILE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"} | options
        return subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    done = pip(DOWNLOAD)
    assert done.returncode == 0, done.stderr
    done = pip(INSTALL, "unshare", "--net")
    assert done.returncode == 0, done.stderr
    calls = [
        ["verify", str(ROOT / "results/hour-h200/17-minutes.tar")],
        ["plan", "manifests/quickstart.json", "--gpu", "h100"],
    ]
    for words in calls:
        command = [str(tmp_path / "venv/bin/bench"), *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    wheel = next((tmp_path / "wheels").glob("attrs-*.whl"))
    wheel.write_bytes(wheel.read_bytes() + b"x")
    done = pip(INSTALL, PIP_DRY_RUN="1", PIP_IGNORE_INSTALLED="1")
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr


# Runs a command in a Debian whose files are this machine's, and whose changes are lost at the end.
INSIDE = """
set -e; mount -t tmpfs -o size=1g tmpfs "$0"; mkdir "$0/up" "$0/work" "$0/root"
mount -t overlay -o "lowerdir=/,upperdir=$0/up,workdir=$0/work" overlay "$0/root"
mount -t proc proc "$0/root/proc"; mount --rbind /dev "$0/root/dev"; cp "$1" "$0/root/tmp/one.deb"
exec chroot "$0/root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root sh -ec "$2"
"""


def test_the_debian_package_installs_without_a_network_and_leaves_nothing(
    released: Released, tmp_path: Path
) -> None:
    """A newer Python makes the environment again; an upgrade and a removal take the old one away."""
    require_root("an overlay of this machine's files")
    require("dpkg-deb")
    script = """
        dpkg --install /tmp/one.deb; bench --help; bench plan manifests/quickstart.json --gpu h100
        touch /opt/bench-appliance/environment/old
        dpkg-trigger --by-package=dpkg /usr/bin/python3; dpkg --triggers-only bench-appliance
        bench --version; ! test -e /opt/bench-appliance/environment/old
        dpkg --install /tmp/one.deb; bench --version
        dpkg --purge bench-appliance; ! ls -d /opt/bench-appliance; ! ls /usr/bin/bench
        echo nothing is left
    """
    words = ["unshare", "--mount", "--net", "sh", "-c", INSIDE, str(tmp_path), str(released.files / DEBIAN)]
    done = subprocess.run([*words, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("nothing is left\n")
    assert done.stdout.count(f"bench {__version__}\n") == 2


def test_lintian_finds_nothing_in_the_debian_package(released: Released) -> None:
    require("lintian")
    command = ["lintian", "--allow-root", "--fail-on", "error,warning", str(released.files / DEBIAN)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_the_list_of_the_operators_side_is_valid_cyclonedx(released: Released) -> None:
    text = (released.files / f"{NAME}.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    assert document["metadata"]["component"]["purl"] == f"pkg:pypi/bench-appliance@{__version__}"
    assert {"cryptography", "fabric", "docker"} <= {one["name"] for one in document["components"]}
