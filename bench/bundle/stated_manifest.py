"""The manifest of a bundle as its author stated it: parsed once a verification, then handed on.

In: the bytes of manifest.json. Out: a `StatedManifest`, or VerificationFailed. Pure.
No schema is checked and no known model filled in: a bundle by another version of bench may name methods that
this version lacks. `bench.planning.manifest` reads manifests that are to be run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any

from bench.base.errors import VerificationFailed
from bench.base.frozen import dataclass
from bench.base.stamps import sha256
from bench.base.strict_json import DecodeError, canonical_json, from_json, strict_loads, tagged_infinity
from bench.records.text import count_text
from bench.records.trial import NodeFacts

MOST_SETTING = 60  # characters of a listed setting that is named in place of its digest


@dataclass(frozen=True, slots=True)
class SearchScope:
    """The settings and micro-batches among which a run looked for a model's fastest setting."""

    methods: str
    micro_batch: str

    @property
    def limits(self) -> str:
        """The settings and micro-batches to which the manifest limits the search; empty without a limit."""
        methods = [] if self.methods in ("guided", "exhaustive") else [f"methods {self.methods}"]
        micro_batch = [] if self.micro_batch == "auto" else [f"micro-batch {self.micro_batch}"]
        return ", ".join(methods + micro_batch)

    def __str__(self) -> str:
        return f"methods {self.methods}, micro-batch {self.micro_batch}"


@dataclass(frozen=True, slots=True)
class StatedManifest:
    """The fields of a manifest that results can contradict, and the whole document."""

    data: bytes
    document: Mapping[str, Any]
    models: tuple[Any, ...]
    entries: Mapping[str, Mapping[str, Any]]  # the items of "models" as objects, by name
    gpus: int | None = None
    micro_batch: int | str = "auto"
    memory_cap_gib: float | None = None
    seed: int = 0
    timing: Mapping[str, Any] = field(default_factory=dict)  # as stated: without defaults
    methods: Any = "guided"
    prove: Any = None  # the least real training that proves an estimate; None: nothing is proven

    @property
    def memory_cap_bytes(self) -> int | None:
        """The cap on each device's memory, rounded down; None without one."""
        return None if self.memory_cap_gib is None else int(self.memory_cap_gib * 2**30)

    def methods_of(self, model: str) -> Any:
        """Return a model's own "methods", else the manifest's."""
        return self.entries.get(model, {}).get("methods", self.methods)

    def micro_batch_of(self, model: str) -> Any:
        """Return a model's own "micro_batch", else the manifest's: a number, or "auto" for a search."""
        return self.entries.get(model, {}).get("micro_batch", self.micro_batch)

    def data_of(self, model: str) -> Any:
        """Return the folder of a model's data; None if its data are made up."""
        return self.entries.get(model, {}).get("data")

    def scope_of(self, model: str) -> SearchScope:
        """Return what the search for a model's fastest setting covers.

        Raises TypeError if "methods" is neither a text nor a list.
        """
        return SearchScope(_methods_text(self.methods_of(model)), str(self.micro_batch_of(model)))

    def gpus_of(self, node: NodeFacts) -> int:
        """Count the GPUs of a node that train: all of them, unless the manifest asks for fewer."""
        installed, asked = len(node.gpus), self.gpus or 0
        return min(asked, installed) if asked > 0 else installed


def read_document(data: bytes) -> Mapping[str, Any]:
    """Parse the manifest of a run or of a node check as a JSON object."""
    try:
        document = strict_loads(data, tagged_infinity)
    except DecodeError as error:
        raise _no_manifest(error) from None
    if not isinstance(document, dict):
        raise _no_manifest("expected an object")
    return document


def read_stated(data: bytes) -> StatedManifest:
    """Parse the manifest of a run that trained models."""
    document = read_document(data)
    derived = {"data": data, "document": document, "entries": _entries(document.get("models"))}
    names = {field.name for field in fields(StatedManifest)} - derived.keys()
    stated = {name: value for name, value in document.items() if name in names}
    try:
        return from_json(StatedManifest, stated | derived)
    except DecodeError as error:
        raise _no_manifest(error) from None


def check_software(manifest: Mapping[str, Any], node: NodeFacts) -> None:
    """Refuse results from another image or environment than the manifest names, or from both at once."""
    if node.image is not None and node.environment is not None:
        raise VerificationFailed("states both an image and an environment that it ran in")
    actual = {
        "image": node.image.config if node.image else None,
        "environment": node.environment.digest if node.environment else None,
    }
    for kind, digest in actual.items():
        stated = manifest.get(kind)
        if stated not in (None, digest):
            raise VerificationFailed(f"ran in {digest or f'no known {kind}'}, the manifest asks for {stated}")


def _entries(models: Any) -> dict[str, dict[str, Any]]:
    listed = models if isinstance(models, list) else []
    entries = [entry if isinstance(entry, dict) else {"name": entry} for entry in listed]
    return {str(entry.get("name")): entry for entry in entries}


def _no_manifest(reason: object) -> VerificationFailed:
    return VerificationFailed(f"is no manifest: {reason}", where="manifest.json")


def _methods_text(methods: Any) -> str:
    """Return a short text that differs whenever the methods differ."""
    entries = [methods] if isinstance(methods, str) else list(methods)
    if all(isinstance(entry, str) for entry in entries):
        return ", ".join(entries)
    if len(entries) == 1 and (text := _setting_text(entries[0])):
        return text
    digest = sha256(canonical_json(entries))
    return f"{count_text(len(entries), 'listed setting')} ({digest[:8]})"


def _setting_text(methods: Any) -> str | None:
    """Return the only listed setting as tables label it; None if that would be long."""
    if not isinstance(methods, list) or not all(isinstance(method, str) for method in methods):
        return None
    text = " + ".join(methods) if len(methods) > 1 else f"{''.join(methods) or 'nothing'} alone"
    return text if len(text) <= MOST_SETTING else None
