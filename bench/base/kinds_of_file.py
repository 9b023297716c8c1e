"""Recognise a file that was given in place of another: a bundle as a manifest, a manifest as a bundle. Pure.

Each reader says which kind it wants. A file of another kind is refused by name, with the command that takes
it. A file of no known kind is left to the reader, which knows what is wrong with it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from bench.base.errors import BadInput
from bench.base.frozen import dataclass
from bench.base.strict_json import DecodeError, strict_loads

# A tar and a key are recognised by their first bytes, a JSON document by all of it.
LEAST_BYTES, MOST_BYTES = 512, 1 << 20


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file that commands read or write."""

    words: str  # with its article
    command: str | None = None  # takes such a file; FILE stands for its path

    def use(self, file: str) -> str | None:
        """Return the command for a file of this kind, as it is typed."""
        return self.command and self.command.replace("FILE", shlex.quote(file))


BUNDLE = Kind("a bundle", "bench verify FILE")
MANIFEST = Kind("a manifest of models", "bench run FILE")
NODE_CHECK = Kind("a manifest of a node check", "bench check FILE")
MODEL_CONFIG = Kind("the configuration of a model", "bench init mine.json --model FILE")
PRICES = Kind("a file of prices", "bench prices --prices FILE")
PUBLISHED_ROWS = Kind("a file of published measurements")
CARD = Kind("a description of a card", "bench predict MANIFEST --gpu-spec FILE")
CHALLENGE = Kind("a challenge", "bench run MANIFEST --challenge FILE")
REQUEST = Kind("a request for a certificate", "bench certify FILE")
KEYS = Kind("a public key", "bench keys trust FILE")
PRIVATE_KEY = Kind("a private key")
IMAGE = Kind("a saved image", "bench image id FILE")

OF_SCHEMA: Mapping[str, Kind] = {
    "bench/manifest/": MANIFEST,
    "bench/node-check/": NODE_CHECK,
    "bench/prices/": PRICES,
    "bench/published-rows/": PUBLISHED_ROWS,
    "bench/challenge/": CHALLENGE,
    "bench/request/": REQUEST,
}
_SCHEMA = re.compile(r"bench/[a-z-]{1,40}/v\d{1,3}", re.ASCII)
_KEY = re.compile(rb"(ssh-|sk-ssh-|ecdsa-)[a-z0-9@.-]+ AAAA")
# Names of the first member of a tar that bench, docker, podman or buildah writes. A manifest.json can be the
# first one of either kind.
_FIRST_OF_BUNDLE = b"env.json"
_FIRST_OF_IMAGE = re.compile(rb"(\./)?(blobs|oci-layout|index\.json|repositories|[0-9a-f]{64})\b")


def kind_of(data: bytes) -> Kind | None:
    """Return the kind of a file by its first bytes, or by its JSON; None if it is none that bench knows."""
    if data[257:262] == b"ustar":
        name = data[:100].partition(b"\0")[0]
        return BUNDLE if name == _FIRST_OF_BUNDLE else IMAGE if _FIRST_OF_IMAGE.match(name) else None
    if data.startswith(b"-----BEGIN") and b"PRIVATE KEY-----" in data[:64]:
        return PRIVATE_KEY
    if _KEY.match(data):
        return KEYS
    if data[:64].lstrip()[:1] != b"{" or len(data) > MOST_BYTES:
        return None
    try:
        return kind_of_document(strict_loads(data, lambda _: None))
    except DecodeError:
        return None


def kind_of_document(document: Any) -> Kind | None:
    """Return the kind of a file that holds this JSON; None if it is none that bench knows."""
    if not isinstance(document, dict):
        return None
    schema = document.get("schema")
    if isinstance(schema, str) and _SCHEMA.fullmatch(schema):
        known = (kind for prefix, kind in OF_SCHEMA.items() if schema.startswith(prefix))
        return next(known, Kind(f"a document of the form {schema}"))
    return MODEL_CONFIG if isinstance(document.get("model_type"), str) else None


def require_kind(wanted: Kind, found: Kind | None, where: str) -> None:
    """Raise BadInput for a file of a known kind that is not the wanted one."""
    if found not in (None, wanted):
        raise BadInput(f"is {found.words}, not {wanted.words}", where=where, advice=found.use(where))
