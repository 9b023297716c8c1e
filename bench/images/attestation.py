"""Attest how an image was built and what is in it, as in-toto statements in DSSE envelopes; verify them.

The provenance is SLSA's v1, the list of contents is CycloneDX. Both name the image by the sha256 of its
configuration, which `bench image id` prints, its archive by the sha256 of the file, and, if the archive is
compressed, the digest that `bench image push` gives it in a registry. Pure, except for reading the locks and
asking git for the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bench import __version__
from bench.base.errors import BadInput, VerificationFailed
from bench.base.stamps import file_sha256, sha256
from bench.base.strict_json import DecodeError, canonical_json, strict_loads
from bench.images.archive import ImageFacts
from bench.images.build_image import BuildInputs
from bench.images.debian_packages import read_debs
from bench.images.locks import BUILDER, DEBIAN
from bench.images.revision import BUILD_FILES, REVISION, commit_of
from bench.images.variants import images
from bench.signing.dsse import seal, unseal
from bench.signing.ssh_keys import PublicKey, Signer

STATEMENT = "https://in-toto.io/Statement/v1"
PROVENANCE = "https://slsa.dev/provenance/v1"
CONTENTS = "https://cyclonedx.org/bom"
# Globally unique, as in-toto asks: the random UUID of bench's own predicates, and a name behind it.
URN = "urn:uuid:96ed7b46-ed52-4e43-99b8-c7ff1d48d57f#"
BUILD_TYPE = f"{URN}bench/image-build/v1"
_ITS_CHECKOUT = "attest in the checkout that the image was built from: --source"


@dataclass(frozen=True, slots=True)
class Attested:
    """The image that an attestation is about."""

    facts: ImageFacts
    sbom: bytes
    archive: tuple[str, str] | None  # its file's name and sha256; None: the image lies in an engine
    manifest: str | None = None  # its digest in a registry; None: not known before it is compressed

    def subjects(self) -> list[tuple[str, str]]:
        """Return name and sha256 of the image's configuration, of its archive and of its manifest."""
        name = (self.facts.tags or ("bench",))[0]
        named = [(name, _hex(self.facts.identity.config)), *([self.archive] if self.archive else [])]
        return [*named, *([(f"{name} in a registry", _hex(self.manifest))] if self.manifest else [])]


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")


def attest_contents(image: Attested, key: Signer) -> bytes:
    """Return the envelope that binds the image's SBOM to the image."""
    try:
        contents = strict_loads(image.sbom)
    except DecodeError as error:
        raise BadInput(f"the list of contents in the image is malformed: {error}") from None
    return sealed(image.subjects(), CONTENTS, contents, key)


def attest_provenance(image: Attested, inputs: BuildInputs, key: Signer, builder: str | None) -> bytes:
    """Return the envelope of the image's SLSA provenance; BadInput unless it has the locks of the source.

    `builder` is the URI of who built it; None: one made of the key.
    """
    for path in (*(inputs.root / name for name in (*BUILD_FILES, BUILDER)), *_locks(inputs).values()):
        if not path.exists():
            raise BadInput(
                f"lacks {path.relative_to(inputs.root)}", where=str(inputs.root), advice=_ITS_CHECKOUT
            )
    _require_same_locks(image.facts.labels, inputs)
    commit = commit_of(inputs.root)
    if image.facts.labels.get(REVISION, commit) != commit:
        raise BadInput(f"was built from another commit than {commit:.12}", advice=_ITS_CHECKOUT)
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"variant": inputs.variant.name, "without": sorted(inputs.without)},
            "internalParameters": {
                "epoch": images().epoch,
                "suite": images().suite,
                "python": images().python,
            },
            "resolvedDependencies": list(_dependencies(inputs, commit)),
        },
        "runDetails": {
            "builder": builder_of(key, builder),
            "byproducts": [{"name": "sbom.cdx.json", "digest": {"sha256": sha256(image.sbom)}}],
        },
    }
    return sealed(image.subjects(), PROVENANCE, predicate, key)


def sealed(subjects: Iterable[tuple[str, str]], kind: str, predicate: Any, key: Signer) -> bytes:
    """Return the signed envelope of an in-toto statement; each of its subjects is a name and a sha256."""
    statement = {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": value}} for name, value in subjects],
        "predicateType": kind,
        "predicate": predicate,
    }
    return seal(canonical_json(statement), key)


def builder_of(key: Signer, given: str | None) -> dict[str, Any]:
    """Return the builder of a provenance: the `given` URI, or one made of the key."""
    own = f"{URN}bench/builder/{PublicKey.of(key).fingerprint}"
    return {"id": given or own, "version": {"bench": __version__}}


def _locks(inputs: BuildInputs) -> Mapping[str, Path]:
    """Return the files whose digests are labels of the image, by label."""
    return {"bench.lock": inputs.lock, "bench.debian": inputs.root / DEBIAN}


def _require_same_locks(labels: Mapping[str, str], inputs: BuildInputs) -> None:
    for label, path in _locks(inputs).items():
        if labels.get(label) != f"sha256:{file_sha256(path)}":
            what = f"was not built with {path.relative_to(inputs.root)} as it is here"
            raise BadInput(what, advice=_ITS_CHECKOUT)


def _dependencies(inputs: BuildInputs, commit: str) -> Iterator[dict[str, Any]]:
    """Yield all that the image is made of: the source's commit, the build's files, and the locked packages.

    A package with several accepted files is listed with each, as the lock does not say which was installed.
    """
    yield {"uri": "git+file:.", "digest": {"gitCommit": commit}}
    files = [*BUILD_FILES, *(str(path.relative_to(inputs.root)) for path in _locks(inputs).values())]
    for name in (*files, BUILDER):
        yield {"uri": f"file:{name}", "name": name, "digest": {"sha256": file_sha256(inputs.root / name)}}
    for deb in read_debs(inputs.root / DEBIAN):
        purl = f"pkg:deb/debian/{quote(deb.name, safe='')}@{quote(deb.version, safe='')}"
        yield {"uri": purl, "digest": {"sha256": deb.sha256}}
    for pin in inputs.pins().values():
        for value in sorted(pin.sha256):
            uri = f"pkg:pypi/{pin.name}@{quote(pin.version, safe='')}"
            yield {"uri": uri, "digest": {"sha256": value}}


def verify_attestation(envelope: bytes, image: Attested, keys: Sequence[PublicKey]) -> str:
    """Return what an envelope proves about the image, on one line.

    VerificationFailed if none of the keys signed it, if it is about another image, or if the image itself
    says otherwise: its labels of the variant and the locks, and its SBOM.
    """
    payload, signer = _opened(envelope, keys)
    try:
        statement = strict_loads(payload)
        if statement["_type"] != STATEMENT:
            raise VerificationFailed(f"is not an in-toto statement of v1: {statement['_type']!r:.60}")
        _require_subject(statement["subject"], image)
        kind, predicate = statement["predicateType"], statement["predicate"]
        if kind == CONTENTS:
            return f"contents   {_verify_contents(predicate, image)}, signed by {signer.fingerprint}"
        if kind == PROVENANCE:
            return f"provenance {_verify_provenance(predicate, image)}, signed by {signer.fingerprint}"
    except DecodeError as error:
        raise VerificationFailed(f"its statement is malformed: {error}") from None
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise VerificationFailed(f"its statement is malformed: {error!r:.80}") from None
    raise VerificationFailed(f"attests {kind!r:.80}, which bench does not know")


def _opened(envelope: bytes, keys: Sequence[PublicKey]) -> tuple[bytes, PublicKey]:
    """Return the payload, and the first of the keys that signed it."""
    refusals = []
    for key in keys:
        try:
            return unseal(envelope, key), key
        except VerificationFailed as error:
            refusals.append(error)
    raise refusals[-1]


def _require_subject(subjects: Sequence[Mapping[str, Any]], image: Attested) -> None:
    digests = {subject["digest"]["sha256"] for subject in subjects}
    if _hex(image.facts.identity.config) not in digests:
        other = next(iter(subjects), {"name": "nothing"})["name"]
        raise VerificationFailed(f"is about another image: {other!r:.80}")


def _verify_contents(predicate: Any, image: Attested) -> str:
    if predicate != strict_loads(image.sbom):
        raise VerificationFailed("lists other contents than the image's own SBOM")
    return f"{len(predicate['components'])} components, as the image's own SBOM lists them"


def _verify_provenance(predicate: Any, image: Attested) -> str:
    definition, labels = predicate["buildDefinition"], image.facts.labels
    if definition["buildType"] != BUILD_TYPE:
        raise VerificationFailed(
            f"was built in a way that bench does not know: {definition['buildType']!r:.80}"
        )
    parameters, dependencies = definition["externalParameters"], definition["resolvedDependencies"]
    without = " ".join(parameters["without"])
    if (parameters["variant"], without) != (labels.get("bench.variant"), labels.get("bench.without", "")):
        raise VerificationFailed("states other parameters of the build than the image's labels")
    digests = {value for entry in dependencies for value in entry["digest"].values()}
    for label in ("bench.lock", "bench.debian"):
        if _hex(labels.get(label, "")) not in digests:
            raise VerificationFailed(f"names other locks than the image's label {label}")
    if sha256(image.sbom) not in {
        entry["digest"]["sha256"] for entry in predicate["runDetails"]["byproducts"]
    }:
        raise VerificationFailed("names another SBOM than the image's own")
    commits = [entry["digest"]["gitCommit"] for entry in dependencies if "gitCommit" in entry["digest"]]
    if labels.get(REVISION, commits[0]) != commits[0]:
        raise VerificationFailed("names another commit than the image's label")
    inputs, builder = f"{len(dependencies)} inputs", predicate["runDetails"]["builder"]["id"]
    return f"variant {parameters['variant']} of commit {commits[0]:.12}, {inputs}, by {builder:.120}"
