"""A command as one line of shell, completed by the node that runs it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from bench.images.container import RDMA

_PLACEHOLDER = re.compile(r"\{(\w+)\}")  # of a variable of run.sh's, inside a word
_OF_THE_NODE = re.compile(r"--env=(\w+)=\{\1\}")  # a variable that is handed on where it is set


def words(command: Sequence[str]) -> str:
    """As one line of shell: everything is quoted but our own variables."""
    return " ".join(_word(word) for word in command)


def _word(word: str) -> str:
    # An engine fails where it is told of what is not there, and some where it is to raise a limit.
    if word.endswith(f"={RDMA}") or word.startswith("--ulimit="):
        return f"$([ -d {RDMA} ] && echo {word})"
    if found := _OF_THE_NODE.fullmatch(word):
        return f'${{{found[1]}+--env={found[1]}="${found[1]}"}}'
    parts = _PLACEHOLDER.split(word)  # text, name, text, name, text
    if not any(name.startswith("BENCH_") for name in parts[1::2]):
        return shlex.quote(word)
    parts[1::2] = ['"$SLURM_NODEID"' if name == "BENCH_NODE" else f'"${name}"' for name in parts[1::2]]
    parts[0::2] = [shlex.quote(text) if text else "" for text in parts[0::2]]
    return "".join(parts)
