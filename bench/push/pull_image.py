"""Let a node pull an image from a registry, and explain an engine's refusal."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection

from bench.base.errors import EnvironmentCannot
from bench.images.archive import Identity
from bench.push.answers import understood
from bench.push.node_survey import INSPECT, InstalledEngine, StoredImage, Survey, read_stored
from bench.push.shared_place import TAG, ClaimedNode, one_at_a_time
from bench.push.ship import LOAD_SECONDS, Shipped

_REFUSED = 76  # exit code of a script whose engine does not get an image


def pull(node: ClaimedNode, survey: Survey, engine: str, reference: str, required: str | None) -> Shipped:
    """Let the node pull an image from a registry; refuse it if its identity is not the `required` one.

    The image gets a tag that only bench uses; `reference` is reset to the image that it named before, if any.
    """
    state = survey.engines[engine]
    script = _pull_alone(engine, reference, _is_kept(state, required))
    # Another push to this node must not find or take away the name meanwhile. Other nodes have other engines.
    lock = f'{shlex.quote(f"{node.claim.place}/.pull-")}"$(uname -n)"'
    answer = node.ask(one_at_a_time(lock, script), seconds=LOAD_SECONDS)
    if answer.code == _REFUSED:
        raise refused_pull(engine, reference, answer.reason)
    if answer.code:
        raise EnvironmentCannot(f"tagging the image failed: {answer.reason}")
    with understood(f"{engine} does not answer as {engine} does"):
        stored = read_stored(answer.text.strip())
    return pulled(stored, state, reference, required)


def pulled(stored: StoredImage, state: InstalledEngine, reference: str, required: str | None) -> Shipped:
    """Describe the image that an engine pulled; EnvironmentCannot if it is not the `required` one. Pure.

    An engine that names images by their manifests does not tell their identity, so no image of it is known
    to be the required one.
    """
    identity = Identity(stored.id, stored.diff_ids) if state.named_by_configuration else None
    if required is not None and (identity is None or identity.config != required):
        message = f"{reference} is {stored.id}, the manifest asks for {required}"
        advice = "name the image by its digest in the registry, or change `image` in the manifest"
        raise EnvironmentCannot(message, advice=advice)
    return Shipped(stored.id, 0, stored.id not in _names(state), identity)


def _names(state: InstalledEngine) -> Collection[str]:
    """Return the names of the images that an engine had when the node was asked."""
    return {image.id for image in state.images}


def _is_kept(state: InstalledEngine, required: str | None) -> str:
    """Return a shell test of $id, a pulled image: it gets bench's tag if it is new and what was required."""
    if required is not None and not state.named_by_configuration:
        return "false"
    is_new = f"case ' {' '.join(sorted(_names(state)))} ' in *\" $id \"*) false;; esac"
    return is_new if required is None else f'[ "$id" = {shlex.quote(required)} ] && {is_new}'


def _pull_alone(engine: str, reference: str, is_kept: str) -> str:
    """Return shell commands that pull an image and print what it is; `is_kept` is a shell test of $id.

    Afterwards the reference names the image that it named before, or none.
    """
    name = shlex.quote(reference)
    return "; ".join(
        (
            f"before=$({engine} image inspect --format '{{{{.Id}}}}' {name} 2>/dev/null)",
            f"{engine} pull --quiet {name} >/dev/null || exit {_REFUSED}",
            f"line=$({engine} {INSPECT} {name}) || exit",
            'printf "%s\\n" "$line"',
            "id=${line%% *}; id=sha256:${id#sha256:}",
            "set -e",
            # `clean` removes images by this tag.
            f'if {is_kept}; then {engine} tag "$id" {TAG}:"$(printf %.16s "${{id#sha256:}}")"; fi',
            f"case sha256:${{before#sha256:}} in sha256:) {engine} image rm {name} >/dev/null;; "
            f'"$id") ;; *) {engine} tag "$before" {name};; esac',
        )
    )


# What Docker and Podman say when a registry refuses, and what to do.
_REFUSED_PULL = (
    (r"x509|certificate", "let the node trust the registry's authority: /etc/{certificates}/{host}/ca.crt"),
    (r"too ?many ?requests|rate limit", "wait some minutes, or log in there, on the node: {login}"),
    (r"unauthorized|no basic auth|authentication required|denied|forbidden", "log in on the node: {login}"),
    (r"unknown|not found", "the registry has no such image, or shows it only after a login: {login}"),
    (
        r"TLS handshake|HTTPS client",
        "{host} has no TLS: configure it as an insecure registry of {engine} on the node",
    ),
    (r"no such host|dial tcp|timeout", "the node does not reach the registry"),
)


def refused_pull(engine: str, reference: str, said: str) -> EnvironmentCannot:
    """Return the error for an image that an engine does not get from its registry. Pure."""
    host = reference.partition("/")[0]
    fields = {
        "login": f"{engine} login {host}",
        "host": host,
        "engine": engine,
        "certificates": "docker/certs.d" if engine == "docker" else "containers/certs.d",
    }
    found = (what for pattern, what in _REFUSED_PULL if re.search(pattern, said, re.IGNORECASE))
    advice = next(found, "look at {engine} pull on the node").format(**fields)
    advice += "; without --pull, the image is sent from here"
    return EnvironmentCannot(f"{engine} cannot pull {reference}: {said}", advice=advice)
