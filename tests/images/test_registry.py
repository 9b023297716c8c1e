"""Images go to a registry with a signature and come back only if a given key signed exactly them."""

from __future__ import annotations

import base64
import email.message
import hashlib
import io
import json
import os
import random
import ssl
import threading
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import BadInput, VerificationFailed
from bench.base.strict_json import canonical_json
from bench.cli.main import main
from bench.images import cosign
from bench.images.archive import facts_of, manifest_digest
from bench.images.registry import ImageReference, Registry, is_loopback, parse_manifest, parse_reference
from bench.images.registry_logins import Login, find_login
from bench.signing.dsse import seal
from bench.signing.key_file import load_key
from bench.signing.ssh_keys import PublicKey, from_base64, to_base64
from tests.cli.test_keys import ssh_key
from tests.images.made_up_images import make_image
from tests.images.made_up_registry import MadeUpRegistry, made_up_registry
from tests.needs import needs

pytestmark = needs("ssh-keygen")
DIGEST = "sha256:" + "d" * 64


@pytest.fixture(autouse=True)
def _no_logins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    for name in ("REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def registry() -> Iterator[MadeUpRegistry]:
    with made_up_registry() as made:
        yield made


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return ssh_key(tmp_path / "release")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return make_image(tmp_path, [{"first": random.Random(0).randbytes(300_000)}, {"second": b"2"}])


class Pushed:
    """An image in a registry, and the values that a pull of it needs."""

    def __init__(self, registry: MadeUpRegistry, folder: Path, key: Path, ref: str) -> None:
        self.registry, self.folder, self.key, self.ref = registry, folder, key, ref
        self.digest = ref.partition("@")[2]
        self.tag = cosign.tag_of(self.digest, "sig")
        self.out = folder / "pulled.tar"

    def pull(self, ref: str | None = None, key: Path | None = None) -> int:
        public = f"{key or self.key}.pub"
        return main(["image", "pull", ref or self.ref, "--key", public, "-o", str(self.out)])

    def sign(self, payload: bytes, key: Path | None = None) -> None:
        """Replace the image's signature by one over another payload."""
        digest = f"sha256:{hashlib.sha256(payload).hexdigest()}"
        self.registry.blobs[digest] = payload
        signature = to_base64(load_key(key or self.key).private.sign(payload))
        layer = {"mediaType": cosign.SIMPLE_SIGNING, "digest": digest, "size": len(payload)}
        self.registry.manifests[self.tag], _ = cosign.manifest_of(
            [], [layer | {"annotations": {cosign.SIGNATURE: signature}}]
        )

    def refused(self, why: str, capsys: pytest.CaptureFixture[str], code: int = 4, **how: Any) -> None:
        capsys.readouterr()
        assert self.pull(**how) == code
        assert why in capsys.readouterr().err
        assert not self.out.exists()
        assert [path.name for path in self.folder.glob("pull-*")] == []


@pytest.fixture
def pushed(
    registry: MadeUpRegistry, tmp_path: Path, image: Path, key: Path, capsys: pytest.CaptureFixture[str]
) -> Pushed:
    name = f"{registry.address}/lab/bench"
    assert main(["image", "push", str(image), f"{name}:cpu", "--key", str(key)]) == 0
    ref = capsys.readouterr().out.strip()
    assert ref.startswith(f"{name}@sha256:")
    return Pushed(registry, tmp_path, key, ref)


def test_an_image_comes_back_with_its_identity(pushed: Pushed, image: Path) -> None:
    assert pushed.pull() == 0
    before, after = facts_of(image), facts_of(pushed.out)
    assert after.identity == before.identity
    assert after.tags == ("bench:cpu",)
    assert all(layer.compressed for layer in after.layers)
    assert manifest_digest(pushed.out, after) == pushed.digest


def test_its_tag_names_the_signed_manifest(pushed: Pushed) -> None:
    manifests = pushed.registry.manifests
    assert manifests["cpu"] == manifests[pushed.digest]
    document = json.loads(manifests[pushed.tag])
    (layer,) = document["layers"]
    payload = pushed.registry.blobs[layer["digest"]]
    assert json.loads(payload) == {
        "critical": {
            "identity": {"docker-reference": f"{pushed.registry.address}/lab/bench"},
            "image": {"docker-manifest-digest": pushed.digest},
            "type": "cosign container image signature",
        },
        "optional": None,
    }
    public = PublicKey.of(load_key(pushed.key).private)
    public.check(from_base64(layer["annotations"][cosign.SIGNATURE]), payload)


def test_pushing_again_uploads_no_layer_and_adds_no_signature(
    pushed: Pushed, image: Path, key: Path, tmp_path: Path
) -> None:
    before = dict(pushed.registry.manifests)
    pushed.registry.seen.clear()
    name = f"{pushed.registry.address}/lab/bench"
    assert main(["image", "push", str(image), name, "--key", str(key)]) == 0
    assert pushed.registry.manifests == before
    assert not [path for method, path, _ in pushed.registry.seen if method == "POST"]
    other = ssh_key(tmp_path / "other")
    assert main(["image", "push", str(image), name, "--key", str(other)]) == 0
    assert len(json.loads(pushed.registry.manifests[pushed.tag])["layers"]) == 2
    assert pushed.pull() == pushed.pull(key=other) == 0


def test_a_download_goes_on_where_it_broke_off(pushed: Pushed) -> None:
    pushed.registry.broken = 3
    assert pushed.pull() == 0
    assert pushed.registry.broken == 0


@pytest.mark.parametrize(
    ("whole", "ranges"),
    [
        (False, ["", "bytes=400000-", "bytes=600000-", "bytes=700000-"]),
        (True, ["", *["bytes=400000-"] * 3]),
    ],
)
def test_a_large_blob_goes_on_at_the_byte_where_it_broke_off_if_the_registry_can(
    registry: MadeUpRegistry, tmp_path: Path, whole: bool, ranges: list[str]
) -> None:
    data = random.Random(1).randbytes(800_000)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    registry.blobs[digest], registry.broken, registry.whole = data, 3, whole
    reader = Registry(parse_reference(f"{registry.address}/lab/bench"), None)
    reader.fetch(digest, len(data), tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == data
    assert registry.ranges == ranges


def test_a_manifest_has_at_most_four_mebibytes(registry: MadeUpRegistry) -> None:
    reader = Registry(parse_reference(f"{registry.address}/lab/bench"), None)
    registry.manifests |= {"most": b" " * 4_194_304, "more": b" " * 4_194_305}
    assert reader.manifest("most") == registry.manifests["most"]
    with pytest.raises(VerificationFailed, match="sends more than 4,194,304 bytes as manifests/more"):
        reader.manifest("more")
    assert reader.manifest("none") is None


def test_the_answer_that_asks_for_a_login_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that is not closed keeps its connection open as long as somebody holds the error."""
    body, asked = io.BytesIO(b"log in"), email.message.Message()
    asked["WWW-Authenticate"] = "Basic"
    error = urllib.error.HTTPError("https://r.example/v2/", 401, "no", asked, body)
    answers = iter((error, "the manifest"))

    def send(_registry: Registry, *given: object) -> object:
        answer = next(answers)
        if isinstance(answer, Exception):
            assert given[-1] is None
            raise answer
        return answer, given[-1]

    monkeypatch.setattr(Registry, "_send", send)
    login = Login("me", "secret")
    registry = Registry(parse_reference("r.example/bench:1"), login)
    assert registry._open("GET", "https://r.example/v2/", {}) == ("the manifest", login.basic)
    assert body.closed


def test_a_line_that_always_breaks_is_given_up(pushed: Pushed, capsys: pytest.CaptureFixture[str]) -> None:
    pushed.registry.broken = 99
    pushed.refused("the registry refused: the connection broke", capsys, code=3)


# --- what is not believed ---------------------------------------------------------------------------------


def test_a_tag_is_not_pulled(pushed: Pushed, capsys: pytest.CaptureFixture[str]) -> None:
    pushed.refused("a tag can be moved", capsys, code=2, ref=f"{pushed.registry.address}/lab/bench:cpu")


def test_an_image_that_nobody_signed(pushed: Pushed, capsys: pytest.CaptureFixture[str]) -> None:
    del pushed.registry.manifests[pushed.tag]
    pushed.refused("is not signed: the registry has no sha256-", capsys)


def test_an_image_that_another_key_signed(
    pushed: Pushed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pushed.refused("is not signed by SHA256:", capsys, key=ssh_key(tmp_path / "other"))
    reads = [path for method, path, _ in pushed.registry.seen if method == "GET" and "/blobs/" in path]
    layers = [layer["digest"] for layer in json.loads(pushed.registry.manifests["cpu"])["layers"]]
    assert not [path for path in reads if path.rpartition("/")[2] in layers]


def critical(digest: str, kind: str = "cosign container image signature") -> bytes:
    return canonical_json({"critical": {"image": {"docker-manifest-digest": digest}, "type": kind}})


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (critical(DIGEST), "its signature is about another image: 'sha256:dddd"),
        (critical(DIGEST, "atomic container signature"), "is not about an image: 'atomic container sign"),
        (b"{}", "is over a malformed document"),
        (b"[1]", "is over a malformed document"),
        (b"not json", "is over a malformed document"),
    ],
)
def test_a_signature_of_something_else_by_the_right_key(
    pushed: Pushed, payload: bytes, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pushed.sign(payload)
    pushed.refused(why, capsys)


def test_a_signature_of_the_wrong_kind_of_layer_does_not_count(
    pushed: Pushed, capsys: pytest.CaptureFixture[str]
) -> None:
    for changed in (
        pushed.registry.manifests[pushed.tag].replace(b"simplesigning", b"other"),
        pushed.registry.manifests[pushed.tag].replace(b'cosign/signature":"', b'cosign/signature":"!'),
    ):
        pushed.registry.manifests[pushed.tag] = changed
        pushed.refused("is not signed by SHA256:", capsys)


def test_a_changed_layer_configuration_manifest_or_payload(
    pushed: Pushed, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = json.loads(pushed.registry.manifests["cpu"])
    payload = json.loads(pushed.registry.manifests[pushed.tag])["layers"][0]["digest"]
    names = [manifest["layers"][0]["digest"], manifest["config"]["digest"], pushed.digest, payload]
    for name in names:
        right = {**pushed.registry.blobs, **pushed.registry.manifests}[name]
        pushed.registry.replaced = {name: right[:-1] + bytes([right[-1] ^ 1])}
        pushed.refused(f"sends other bytes than {name}", capsys)


def test_more_bytes_than_the_manifest_states_are_not_read(
    pushed: Pushed, capsys: pytest.CaptureFixture[str]
) -> None:
    layer = json.loads(pushed.registry.manifests["cpu"])["layers"][0]["digest"]
    pushed.registry.replaced = {layer: pushed.registry.blobs[layer] + b"more"}
    assert pushed.pull() == 0  # the rest is not asked for
    payload = json.loads(pushed.registry.manifests[pushed.tag])["layers"][0]["digest"]
    pushed.registry.replaced = {payload: b"x" * (cosign.MAX_PAYLOAD_BYTES + 1)}
    pushed.out.unlink()
    pushed.refused("sends more than 65,536 bytes", capsys)


def resigned(pushed: Pushed, manifest: Any) -> str:
    """Store another manifest that the right key signed; return its reference."""
    data = canonical_json(manifest)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    pushed.registry.manifests[digest] = data
    pushed.tag = cosign.tag_of(digest, "sig")
    pushed.sign(critical(digest))
    return f"{pushed.registry.address}/lab/bench@{digest}"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"mediaType": "application/vnd.oci.image.index.v1+json"}, "is not the manifest of one image"),
        ({"schemaVersion": 1}, "is not the manifest of one image"),
        ({"layers": None}, "its manifest is malformed"),
        ({"layers": [{"digest": "sha256:x", "size": 1}]}, "a blob has no digest or no size"),
        ({"layers": [{"digest": DIGEST, "size": "1"}]}, "a blob has no digest or no size"),
        ({"layers": ["x"]}, "its manifest is malformed"),
        ({"layers": [{"digest": DIGEST, "size": 1, "annotations": [1]}]}, "its manifest is malformed"),
        ({"layers": []}, "has 0 layers, its configuration names 2"),
        ({"layers": [{"digest": DIGEST, "size": 1}] * 128}, "has 128 layers, which no engine accepts"),
    ],
)
def test_a_signed_manifest_of_another_form(
    pushed: Pushed, change: dict[str, Any], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = json.loads(pushed.registry.manifests["cpu"])
    pushed.refused(why, capsys, ref=resigned(pushed, manifest | change))


def test_layers_that_do_not_fit_on_the_disk(pushed: Pushed, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = json.loads(pushed.registry.manifests["cpu"])
    manifest["layers"][0]["size"] = 10**15
    pushed.refused("the layers and the image file need 2000000.0", capsys, 3, ref=resigned(pushed, manifest))


def test_layers_other_than_those_of_the_configuration(
    pushed: Pushed, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = json.loads(pushed.registry.manifests["cpu"])
    manifest["layers"].reverse()
    pushed.refused("is not the one that its configuration names", capsys, ref=resigned(pushed, manifest))


def test_a_signed_image_that_is_not_benchs(
    registry: MadeUpRegistry, tmp_path: Path, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = make_image(tmp_path, [{"a": b"1"}], "other.tar", {"bench.variant": "..", "bench.lock": ""})
    name = f"{registry.address}/lab/bench"
    assert main(["image", "push", str(image), name, "--key", str(key)]) == 0
    other = Pushed(registry, tmp_path, key, capsys.readouterr().out.strip())
    other.refused("is not an image of bench", capsys)


# --- attestations ------------------------------------------------------------------------------------------


def test_attestations_lie_beside_the_signature_and_are_about_this_manifest(
    pushed: Pushed, image: Path, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = load_key(key).private
    statement = {"predicateType": "https://slsa.dev/provenance/v1", "predicate": {}}
    right, wrong = tmp_path / "right.json", tmp_path / "wrong.json"
    for path, digest in ((right, pushed.digest.removeprefix("sha256:")), (wrong, "e" * 64)):
        subject = [{"name": "x", "digest": {"sha256": digest}}]
        path.write_bytes(seal(canonical_json(statement | {"subject": subject}), private))
    command = ["image", "push", str(image), f"{pushed.registry.address}/lab/bench", "--key", str(key)]
    assert main([*command, "--attestation", str(right)]) == 0
    (layer,) = json.loads(pushed.registry.manifests[cosign.tag_of(pushed.digest, "att")])["layers"]
    assert pushed.registry.blobs[layer["digest"]] == right.read_bytes()
    assert layer["mediaType"] == "application/vnd.dsse.envelope.v1+json"
    assert layer["annotations"]["predicateType"] == "https://slsa.dev/provenance/v1"
    capsys.readouterr()
    assert main([*command, "--attestation", str(wrong)]) == 2
    assert f"{wrong}: does not name the image as the registry has it" in capsys.readouterr().err
    wrong.write_text("{}")
    assert main([*command, "--attestation", str(wrong)]) == 2
    assert "is not an attestation" in capsys.readouterr().err


def of_registry(code: int, **headers: str) -> urllib.error.HTTPError:
    message = email.message.Message()
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    return urllib.error.HTTPError("https://r.example/v2/", code, "no", message, None)


LOGIN = "docker login r.example"
TLS = "if this is your registry, let this machine trust its authority: SSL_CERT_FILE=CA.pem"


@pytest.mark.parametrize(
    ("error", "plain_http", "advice"),
    [
        (of_registry(401), False, f"store a login that may pull: {LOGIN}"),
        (of_registry(403), False, f"store a login that may pull: {LOGIN}"),
        (of_registry(404), False, "the registry has no such image, or shows it only after a login"),
        (of_registry(429), False, f"wait some minutes, or store a login, whose limit is higher: {LOGIN}"),
        (
            of_registry(429, Retry_After="30"),
            False,
            f"wait 30 s, or store a login, whose limit is higher: {LOGIN}",
        ),
        (of_registry(500), False, None),
        (urllib.error.URLError(ssl.SSLCertVerificationError("self-signed")), False, TLS),
        (ssl.SSLCertVerificationError("self-signed"), False, TLS),
        (ConnectionRefusedError("refused"), False, "if the registry has no TLS: --plain-http"),
        (ConnectionRefusedError("refused"), True, None),
    ],
)
def test_each_error_of_a_registry_has_its_own_advice(
    error: Exception, plain_http: bool, advice: str | None
) -> None:
    registry = Registry(parse_reference("r.example/bench:1"), None, plain_http=plain_http)
    refused = registry._refused(error, "pull")
    assert refused.where == "r.example/bench"
    assert refused.message.startswith("the registry refused: ")
    assert refused.advice == advice


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (403, "store a login that may pull: docker login {host}"),
        (404, "check its name and digest; some registries show images only after a login: docker login"),
        (429, "wait 120 s, or store a login, whose limit is higher: docker login {host}"),
    ],
)
def test_a_registry_that_refuses_says_what_to_do(
    pushed: Pushed, code: int, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pushed.registry.refuses = code
    pushed.refused(advice.format(host=pushed.registry.address), capsys, code=3)


def test_a_certificate_that_this_machine_does_not_trust_is_no_reason_to_go_without_tls() -> None:
    registry = Registry(parse_reference("example.org/lab/bench:cpu"), None)
    why = ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed certificate")
    error = registry._refused(urllib.error.URLError(why), "pull")
    assert "self-signed certificate" in error.message
    assert error.advice and "SSL_CERT_FILE=CA.pem" in error.advice


# --- logins ------------------------------------------------------------------------------------------------


def stored(folder: Path, host: str, user: str, password: str) -> None:
    auth = base64.b64encode(f"{user}:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))


@pytest.mark.parametrize("asks", ["Bearer", "Basic"])
def test_a_registry_that_asks_for_a_login_gets_the_stored_one(
    pushed: Pushed, asks: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pushed.registry.login, pushed.registry.asks = ("me", "secret"), asks
    pushed.refused(f"store a login that may pull: docker login {pushed.registry.address}", capsys, code=3)
    stored(tmp_path, pushed.registry.address, "me", "secret")
    assert pushed.pull() == 0
    stored(tmp_path, pushed.registry.address, "me", "wrong")
    pushed.out.unlink()
    pushed.refused("401 Unauthorized", capsys, code=3)


def test_a_login_is_not_sent_before_it_is_asked_for(pushed: Pushed, tmp_path: Path) -> None:
    stored(tmp_path, pushed.registry.address, "me", "secret")
    assert pushed.pull() == 0
    assert {authorization for _, _, authorization in pushed.registry.seen} == {""}


@pytest.mark.parametrize("asks", ["Bearer", "Basic"])
def test_threads_that_are_asked_for_a_login_together_log_in_once(registry: MadeUpRegistry, asks: str) -> None:
    registry.login, registry.asks = ("me", "secret"), asks
    registry.unknown = threading.Barrier(4, timeout=30)
    repository = Registry(parse_reference(f"{registry.address}/lab/bench"), Login("me", "secret"))
    blobs = {f"sha256:{hashlib.sha256(blob).hexdigest()}": blob for blob in (b"1", b"2", b"3", b"4")}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda digest: repository.upload(blobs[digest], digest), blobs))
    assert registry.blobs == blobs
    assert [path for _, path, _ in registry.seen if path.startswith("/token")] == (
        ["/token?service=here&scope=pull%2Cpush"] if asks == "Bearer" else []
    )


@pytest.mark.parametrize("answer", [b"[]", b"{}", b"not json", b"[" * 100_000, b'{"token": "a\\r\\nb"}'])
def test_a_token_of_another_form_is_none(
    pushed: Pushed, answer: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    pushed.registry.login, pushed.registry.given = ("me", "secret"), answer
    pushed.refused("the registry refused: ", capsys, code=3)


def test_an_upload_goes_nowhere_but_to_a_web_server(
    registry: MadeUpRegistry, image: Path, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.uploads = "file:///etc/passwd"
    assert main(["image", "push", str(image), f"{registry.address}/lab/bench", "--key", str(key)]) == 3
    assert "it sends to 'file:///etc/passwd" in capsys.readouterr().err


@pytest.mark.parametrize("realm", ["http://tokens.example/token", "file:///etc/passwd", ""])
def test_a_login_is_not_sent_for_a_token_over_an_open_line(
    pushed: Pushed, realm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path, pushed.registry.address, "me", "secret")
    pushed.registry.login, pushed.registry.realm = ("me", "secret"), realm
    pushed.refused(f"it sends for a token to {realm!r}", capsys, code=3)


def test_an_upload_that_goes_to_another_host_goes_without_the_login(
    registry: MadeUpRegistry, image: Path, key: Path, tmp_path: Path
) -> None:
    stored(tmp_path, registry.address, "me", "secret")
    registry.login = ("me", "secret")
    with made_up_registry() as storage:
        registry.uploads = f"http://{storage.address}/v2/lab/bench/blobs/uploads/1"
        assert main(["image", "push", str(image), f"{registry.address}/lab/bench", "--key", str(key)]) == 0
        assert {authorization for _, _, authorization in storage.seen} == {""}
        assert len(storage.blobs) == 5  # two layers, a payload, two configurations
    assert {authorization for _, _, authorization in registry.seen} > {"Bearer a-token"}


def test_where_logins_are_stored(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for folder, user in ((home / ".docker", "docker"), (tmp_path / "run/containers", "podman")):
        folder.mkdir(parents=True)
        stored(folder, "one.example", user, "a:b")
    (tmp_path / "run/containers/config.json").rename(tmp_path / "run/containers/auth.json")
    assert find_login("one.example", {}, home) == Login("docker", "a:b")
    assert find_login("two.example", {}, home) is None
    assert find_login("one.example", {"XDG_RUNTIME_DIR": str(tmp_path / "run")}, home) == Login(
        "podman", "a:b"
    )
    (home / ".docker/config.json").write_text("not json")
    assert find_login("one.example", {}, home) is None


def test_a_program_that_keeps_logins_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = tmp_path / "docker-credential-safe"
    helper.write_text('#!/bin/sh\nread host\nprintf \'{"Username": "me", "Secret": "for-%s"}\' "$host"\n')
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "config.json").write_text(json.dumps({"credsStore": "safe"}))
    assert find_login("one.example", {"DOCKER_CONFIG": str(tmp_path)}, tmp_path) == Login(
        "me", "for-one.example"
    )
    assert "for-" not in repr(Login("me", "for-one.example"))


# --- names -------------------------------------------------------------------------------------------------


def test_a_reference_has_a_host_a_name_and_a_tag_or_digest() -> None:
    assert parse_reference(f"r.example:5000/a/b_c:v1@{DIGEST}") == ImageReference(
        "r.example:5000", "a/b_c", "v1", DIGEST
    )
    assert parse_reference("localhost/bench") == ImageReference("localhost", "bench", None, None)
    assert parse_reference("[::1]:5000/bench").host == "[::1]:5000"


@pytest.mark.parametrize(
    "text",
    ["bench", "bench:cpu", "lab/bench", "r.example/", "r.example/A", "r.example/a//b", "r.example/a:b:c",
     "r.example/a@sha256:1", "r.example/a@md5:1", "https://r.example/a", "r.example/../a", "r.example/a b",
     "u:p@r.example/a", "r.example:99999/a", "r.example:0/a", "r.example/" + "a" * 400],
)  # fmt: skip
def test_what_is_no_reference(text: str) -> None:
    with pytest.raises(BadInput, match=r"names no registry|is not an image in a registry|is not a port"):
        parse_reference(text)


def test_a_digest_is_not_pushed_to(image: Path, key: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["image", "push", str(image), f"r.example/a@{DIGEST}", "--key", str(key)]) == 2
    assert "a digest follows from the image" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "local"),
    [("localhost:5000", True), ("127.0.0.1", True), ("[::1]:5000", True), ("127.9.9.9:1", True),
     ("localhost.example", False), ("10.0.0.1:5000", False), ("r.example", False)],
)  # fmt: skip
def test_only_this_machine_is_spoken_to_without_tls(host: str, local: bool) -> None:
    assert is_loopback(host) == local


def test_a_manifest_is_that_of_one_image() -> None:
    with pytest.raises(VerificationFailed, match="its manifest is malformed"):
        parse_manifest(b"[]", "here")
