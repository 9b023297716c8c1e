"""Published vectors: Wycheproof, DSSE, ed25519-speccheck, sigstore conformance. See vectors/README.md."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from bench.base.errors import VerificationFailed
from bench.bundle.handshake import BUNDLE_NAMESPACE
from bench.bundle.statement import parse_statement
from bench.cli.main import main
from bench.signing.dsse import PAYLOAD_TYPE, pae, unseal
from bench.signing.ssh_keys import ED25519, FormatError, PublicKey, WrongSignature, wire_string
from bench.signing.sshsig import verify

VECTORS = Path(__file__).parents[1] / "vectors"


def vectors(name: str) -> Any:
    return json.loads((VECTORS / f"{name}.json").read_text())


def accepts(key: bytes, signature: bytes, message: bytes) -> bool:
    """Judge a signature as in a bundle: the key, the signature in SSH's encoding, the bytes."""
    try:
        PublicKey(key).check_wire(wire_string(ED25519) + wire_string(signature), message)
    except (FormatError, WrongSignature):
        return False
    return True


# --- Wycheproof -----------------------------------------------------------------------------------------

WYCHEPROOF = [
    pytest.param(group["publicKey"]["pk"], test, id=f"{test['tcId']}-{test['result']}")
    for group in vectors("wycheproof_ed25519")["testGroups"]
    for test in group["tests"]
]


def test_the_wycheproof_file_is_complete() -> None:
    assert len(WYCHEPROOF) == vectors("wycheproof_ed25519")["numberOfTests"] == 210


@pytest.mark.parametrize(("key", "test"), WYCHEPROOF)
def test_wycheproof(key: str, test: dict[str, Any]) -> None:
    found = accepts(bytes.fromhex(key), bytes.fromhex(test["sig"]), bytes.fromhex(test["msg"]))
    if "SmallOrderPublicKey" in test["flags"]:
        assert not found, "under a key of small order anything seems signed"
    elif test["result"] != "acceptable":
        assert found == (test["result"] == "valid"), test["comment"]
    else:
        assert test["flags"] == ["MixedOrderPublicKey"]  # left open by the source: verifiers disagree


# --- keys and signatures of low order -------------------------------------------------------------------

# The cases that satisfy the equation without cofactor, as in OpenSSH and OpenSSL. The keys of low order
# (0 and 1) must be refused whatever the equation gives.
FITS_SPECCHECK = {2: True, 3: True}


@pytest.mark.parametrize("number", range(10))
def test_speccheck(number: int) -> None:
    case = vectors("speccheck")["cases"][number]
    key, signature, message = (bytes.fromhex(case[part]) for part in ("pub_key", "signature", "message"))
    assert accepts(key, signature, message) == FITS_SPECCHECK.get(number, False), case["what"]


@pytest.mark.parametrize("number", [0, 1])
def test_speccheck_keys_of_low_order_are_refused_as_such(number: int) -> None:
    with pytest.raises(FormatError, match="of low order"):
        PublicKey(bytes.fromhex(vectors("speccheck")["cases"][number]["pub_key"]))


# --- DSSE -----------------------------------------------------------------------------------------------


def test_the_vector_of_the_dsse_specification() -> None:
    """Our encoding equals the specification's signed bytes; its key has another algorithm and is refused."""
    vector = vectors("dsse")["protocol_md"]
    signed = pae(vector["payloadType"], vector["payload_text"].encode())
    assert signed == vector["pae"].encode()
    raw = base64.b64decode(vector["envelope"]["signatures"][0]["sig"])
    signature = encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
    key = ec.EllipticCurvePublicNumbers(int(vector["x"]), int(vector["y"]), ec.SECP256R1()).public_key()
    key.verify(signature, signed, ec.ECDSA(hashes.SHA256()))
    with pytest.raises(VerificationFailed, match="is not signed by"):
        unseal(
            json.dumps(vector["envelope"]).encode(), PublicKey(bytes.fromhex(vectors("dsse")["keys"]["A"]))
        )


@pytest.mark.parametrize("vector", vectors("dsse")["vectors"], ids=lambda vector: vector["id"])
def test_dsse(vector: dict[str, Any]) -> None:
    envelope = json.dumps(vector["envelope"]).encode()
    keys = [PublicKey(bytes.fromhex(vectors("dsse")["keys"][name])) for name in vector["trustedKeys"]]
    accepted = set()
    for key in keys:
        for payload_type in vector["supportedPayloadTypes"]:
            try:
                payload = unseal(envelope, key, payload_type)
            except VerificationFailed:
                continue
            accepted.add(key)
            assert pae(payload_type, payload).hex() == vector["pae"]
    assert (len(accepted) >= vector["threshold"]) == (vector["expect"] == "accept")


# --- sigstore's conformance suite: managed keys ---------------------------------------------------------


@pytest.mark.parametrize("name", vectors("sigstore")["cases"])
def test_sigstore_envelopes_under_managed_keys(name: str) -> None:
    """Each envelope is validly signed over our encoding; the invalid ones fail by their statement."""
    case = vectors("sigstore")["cases"][name]
    envelope = case["dsseEnvelope"]
    key = load_pem_public_key(case["key"].encode())
    assert isinstance(key, ec.EllipticCurvePublicKey)
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert base64.b64encode(hashlib.sha256(der).digest()).decode() == case["hint"]
    payload = base64.b64decode(envelope["payload"])
    assert envelope["payloadType"] == PAYLOAD_TYPE
    signature = base64.b64decode(envelope["signatures"][0]["sig"])
    key.verify(signature, pae(PAYLOAD_TYPE, payload), ec.ECDSA(hashes.SHA256()))
    # An accepted case is a valid statement of another type.
    why = "_type is" if case["expect"] == "reject" else "predicateType is"
    with pytest.raises(VerificationFailed, match=f"the statement's {why}"):
        parse_statement(payload)


@pytest.mark.parametrize("name", vectors("sigstore")["cases"])
def test_sigstore_envelopes_under_the_wrong_key_or_algorithm(name: str) -> None:
    """An Ed25519 key refuses an ECDSA signature, and so does a P-256 key that did not sign."""
    cases = vectors("sigstore")["cases"]
    envelope = cases[name]["dsseEnvelope"]
    with pytest.raises(VerificationFailed, match="is not signed by"):
        unseal(json.dumps(envelope).encode(), PublicKey(bytes.fromhex(vectors("dsse")["keys"]["A"])))
    signature = base64.b64decode(envelope["signatures"][0]["sig"])
    signed = pae(PAYLOAD_TYPE, base64.b64decode(envelope["payload"]))
    for other in cases.keys() - {name}:
        key = load_pem_public_key(cases[other]["key"].encode())
        assert isinstance(key, ec.EllipticCurvePublicKey)
        with pytest.raises(InvalidSignature):
            key.verify(signature, signed, ec.ECDSA(hashes.SHA256()))


# The cases named managed-key-* have an ECDSA signature over an artifact's digest; bundles have none.
MANAGED = vectors("sigstore")["message_signatures"]["cases"]
ARTIFACT = base64.b64decode(vectors("sigstore")["message_signatures"]["artifact"])


@pytest.mark.parametrize("name", MANAGED)
def test_sigstore_managed_key_data_are_sound(name: str) -> None:
    """The data are intact: signatures that sigstore accepts match their key, and those it refuses do not."""
    case = MANAGED[name]
    digest = case["messageSignature"]["messageDigest"]
    assert digest["algorithm"] == "SHA2_256"
    assert base64.b64decode(digest["digest"]) == hashlib.sha256(ARTIFACT).digest()
    signature = base64.b64decode(case["messageSignature"]["signature"])
    if name == "managed-key-no-key_fail":
        assert case["key"] is None
        assert case["hint"] == MANAGED["managed-key-happy-path"]["hint"]
    elif case["expect"] == "reject":
        with pytest.raises(ValueError):  # its key.pub is not a point on the curve
            load_pem_public_key(case["key"].encode())
    else:
        key = load_pem_public_key(case["key"].encode())
        assert isinstance(key, ec.EllipticCurvePublicKey)
        der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        assert base64.b64encode(hashlib.sha256(der).digest()).decode() == case["hint"]
        key.verify(signature, ARTIFACT, ec.ECDSA(hashes.SHA256()))
        with pytest.raises(InvalidSignature):
            key.verify(signature, ARTIFACT + b"\n", ec.ECDSA(hashes.SHA256()))


@pytest.mark.parametrize("name", MANAGED)
def test_sigstore_managed_key_bundles_are_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """sigstore's bundles are refused as signature, envelope and file; no trust list takes their keys."""
    case = MANAGED[name]
    document = {"mediaType": case["mediaType"], "messageSignature": case["messageSignature"]}
    file = tmp_path / "bundle.sigstore.json"
    file.write_text(json.dumps(document))
    with pytest.raises(VerificationFailed, match="not a DSSE envelope"):
        unseal(file.read_bytes(), PublicKey(bytes.fromhex(vectors("dsse")["keys"]["A"])))
    with pytest.raises(VerificationFailed, match="is not an SSH signature"):
        verify(ARTIFACT, file.read_bytes(), BUNDLE_NAMESPACE)
    assert not accepts(
        bytes.fromhex(vectors("dsse")["keys"]["A"]),
        base64.b64decode(case["messageSignature"]["signature"]),
        ARTIFACT,
    )
    assert main(["verify", str(file)]) == 4
    assert capsys.readouterr().err.count("\n") == 1
    if case["key"] is not None:
        key = tmp_path / "key.pub"
        key.write_text(case["key"])
        assert main(["verify", str(file), "--trust", str(key)]) == 2
        assert str(key) in capsys.readouterr().err
