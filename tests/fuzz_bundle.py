"""Random damage to a valid bundle: none may be accepted, and nothing but a BenchError may come out.

`python -m tests.fuzz_bundle [MUTATIONS] [SEED]` runs it for long; the tests run a short slice.
"""

from __future__ import annotations

import hashlib
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.bundle import pack, write_bundle
from bench.errors import BenchError
from bench.signing import Predicate
from bench.verify import Read, Verdict, verify_bundle

BLOCK = 512
NAMES = re.compile(r"'.*'|\S+[./]\S+")  # to count reasons, not names
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
FILES: Mapping[str, bytes] = {
    "manifest.json": b'{"schema":"bench/manifest/v1"}',
    "results.json": b'{"trials":["0123456789abcdef"]}',
    "samples.jsonl": b'{"trial":"0123456789abcdef","seconds":[0.5,0.25]}\n' * 3,
    "logs/0123456789abcdef.txt": b"",
}


def predicate(files: Mapping[str, bytes | Path] = FILES, **changes: object) -> Predicate:
    manifest = files["manifest.json"]
    data = manifest if isinstance(manifest, bytes) else manifest.read_bytes()
    facts: dict[str, object] = {
        "run_id": "7f3a2c",
        "manifest_sha256": hashlib.sha256(data).hexdigest(),
        "node": {"gpu_uuids": ["GPU-5a0c"], "driver": "570.124"},
        "started_at": "2026-12-03T10:00:00Z",
        "ended_at": "2026-12-03T10:55:12Z",
        "complete": True,
    }
    return Predicate(**(facts | changes))  # type: ignore[arg-type]


def packed(path: Path, files: Mapping[str, bytes | Path] = FILES, **changes: object) -> Path:
    """A valid bundle at this path, signed by KEY."""
    pack(path, files, predicate(files, **changes), KEY)
    return path


def nothing(read: Read) -> Mapping[str, object]:
    """In place of the recomputation of summaries, which is not what is tested here."""
    return {}


def check(path: Path) -> Verdict:
    return verify_bundle(path, None, nothing)


def member(name: str, data: bytes, folder: Path) -> bytes:
    """One member as our writer writes it, to build tars that it would not write."""
    path = folder / "one-member"
    write_bundle(path, {name: data})
    return path.read_bytes()[: -2 * BLOCK]


def _flip(data: bytearray, dice: random.Random) -> None:
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def _overwrite(data: bytearray, dice: random.Random) -> None:
    at = dice.randrange(len(data))
    data[at : at + dice.randrange(1, 40)] = dice.randbytes(dice.randrange(40))


def _truncate(data: bytearray, dice: random.Random) -> None:
    del data[dice.randrange(len(data)) :]


def _move_blocks(data: bytearray, dice: random.Random) -> None:
    """Deletes, repeats or moves whole blocks, which keeps the form of a tar."""
    start = dice.randrange(len(data) // BLOCK) * BLOCK
    blocks = data[start : start + dice.randrange(1, 4) * BLOCK]
    if dice.random() < 0.7:
        del data[start : start + len(blocks)]
    if dice.random() < 0.7:
        to = dice.randrange(len(data) // BLOCK + 1) * BLOCK
        data[to:to] = blocks


def _forge_header(data: bytearray, dice: random.Random) -> None:
    """Changes a header and makes its checksum right again."""
    start = dice.randrange(len(data) // BLOCK) * BLOCK
    for _ in range(dice.randrange(1, 4)):
        data[start + dice.randrange(BLOCK)] = dice.choice(b"\0 /.01234567axLKS")
    data[start + 148 : start + 156] = b" " * 8
    data[start + 148 : start + 156] = b"%06o\0 " % sum(data[start : start + BLOCK])


def _splice_text(data: bytearray, dice: random.Random) -> None:
    """Repeats a piece of the bundle somewhere else without changing the length."""
    length = dice.randrange(1, 100)
    source, target = (dice.randrange(len(data) - length) for _ in range(2))
    data[target : target + length] = data[source : source + length]


MUTATIONS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip,
    _overwrite,
    _truncate,
    _move_blocks,
    _forge_header,
    _splice_text,
)


def mutate(data: bytes, dice: random.Random) -> bytes:
    """The bundle with one or a few kinds of damage; never the bundle itself."""
    while True:
        damaged = bytearray(data)
        for _ in range(dice.choice((1, 1, 1, 2, 3))):
            if len(damaged) > BLOCK:
                dice.choice(MUTATIONS)(damaged, dice)
        if damaged != data:
            return bytes(damaged)


def main(count: int, seed: int) -> int:
    dice = random.Random(seed)
    reasons: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = packed(Path(folder) / "b.tar")
        whole = path.read_bytes()
        for number in range(count):
            damaged = mutate(whole, dice)
            path.write_bytes(damaged)
            try:
                check(path)
            except BenchError as error:
                reasons[NAMES.sub("…", error.message)] += 1
            else:
                Path(f"accepted-{seed}-{number}.tar").write_bytes(damaged)
                reasons["ACCEPTED"] += 1
    for reason, times in reasons.most_common():
        print(f"{times:>8}  {reason}")
    return 1 if reasons["ACCEPTED"] else 0


if __name__ == "__main__":
    sys.exit(main(*(int(a) for a in (*sys.argv[1:], *("100000", "0")[len(sys.argv) - 1 :]))))
