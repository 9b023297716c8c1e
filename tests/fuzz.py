"""Damage and forge bundles at random: none may be accepted, and only a BenchError may be raised.

A bundle whose node signs odd content may be accepted, but never with days or utilisation that no machine has.

python -m tests.fuzz [MUTATIONS] [SEED]     a long run; the tests run a short one

There are three targets in turn: a bundle of an unknown signer; a bundle that an operator received, verified
by someone who trusts the operator; and a measured bundle whose node signs any content. The memory of the
process is limited. Before that, for every COMMANDS_SHARE attempts one case of tests.fuzz_commands is run: a
command is given what a stranger signed, wrote or answered.
"""

from __future__ import annotations

import json
import random
import re
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from bench.base.errors import BadInput, BenchError
from bench.base.strict_json import pretty_json
from bench.bundle.pack import pack, write_bundle
from bench.bundle.statement import PREDICATE_SCHEMA, parse_statement
from bench.bundle.tar_format import SIGNING, STATEMENT
from bench.bundle.verdict import RunContents
from bench.bundle.verify import TrustRules, verify_bundle
from bench.node_check.recompute_any import recompute
from bench.records.fastest import ranked
from bench.records.run_results import Results
from tests.authority import OPERATOR, RUN_KEY, UNTIL, contents, received, trusting
from tests.bundles import BLOCK, nothing, packed
from tests.fuzz_commands import run_cases
from tests.fuzz_values import follow, twist

COMMANDS_SHARE = 20
SPARE_BYTES = 256 << 20  # additional to the memory of the process at its start
NAMES = re.compile(r"'.*'|\S+[./]\S+|[0-9a-f]{12,}|\d+")  # to count reasons without names
REAL = Path(__file__).parents[1] / "results" / "proof-h200" / "pythia-160m.tar"
RECEIVED_RULES = TrustRules(trusting(OPERATOR), now=UNTIL + 1)


def _flip(data: bytearray, dice: random.Random) -> None:
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def _overwrite(data: bytearray, dice: random.Random) -> None:
    at = dice.randrange(len(data))
    data[at : at + dice.randrange(1, 40)] = dice.randbytes(dice.randrange(40))


def _truncate(data: bytearray, dice: random.Random) -> None:
    del data[dice.randrange(len(data)) :]


def _move_blocks(data: bytearray, dice: random.Random) -> None:
    """Delete, repeat or move whole blocks; the result keeps the form of a tar."""
    start = dice.randrange(len(data) // BLOCK) * BLOCK
    blocks = data[start : start + dice.randrange(1, 4) * BLOCK]
    if dice.random() < 0.7:
        del data[start : start + len(blocks)]
    if dice.random() < 0.7:
        to = dice.randrange(len(data) // BLOCK + 1) * BLOCK
        data[to:to] = blocks


def _forge_header(data: bytearray, dice: random.Random) -> None:
    """Change a header and correct its checksum."""
    start = dice.randrange(len(data) // BLOCK) * BLOCK
    for _ in range(dice.randrange(1, 4)):
        data[start + dice.randrange(BLOCK)] = dice.choice(b"\0 /.01234567axLKS")
    data[start + 148 : start + 156] = b" " * 8
    data[start + 148 : start + 156] = b"%06o\0 " % sum(data[start : start + BLOCK])


def _splice_text(data: bytearray, dice: random.Random) -> None:
    """Copy a piece of the bundle over another place; the length stays the same."""
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
    """Apply one or a few kinds of damage to a bundle; never return the bundle unchanged."""
    while True:
        damaged = bytearray(data)
        for _ in range(dice.choice((1, 1, 1, 2, 3))):
            if len(damaged) > BLOCK:
                dice.choice(MUTATIONS)(damaged, dice)
        if damaged != data:
            return bytes(damaged)


# --- members: the tar is valid, its contents are not ----------------------------------------------------


def rearrange(members: dict[str, bytes], dice: random.Random) -> dict[str, bytes]:
    """Damage, exchange, rename, remove or add one or a few members; never return the same members."""
    while True:
        changed = dict(members)
        for _ in range(dice.choice((1, 1, 2))):
            _rearrange_once(changed, dice)
        if changed != members:
            return changed


def _rearrange_once(members: dict[str, bytes], dice: random.Random) -> None:
    name, other = dice.choice(sorted(members)), dice.choice(sorted(members))
    match dice.randrange(6):
        case 0 | 1 | 2:
            damaged = bytearray(members[name] or b"x")
            dice.choice((_flip, _overwrite, _truncate))(damaged, dice)
            members[name] = bytes(damaged)
        case 3:
            members[name], members[other] = members[other], members[name]
        case 4:
            del members[name]
        case _:
            members[f"logs/{dice.randrange(100)}.txt"] = members[name]


# --- the node: it can sign any content, which must never crash a reader ----------------------------------


def retime(line: bytes, dice: random.Random) -> bytes:
    """Change the steps of a measurement: their passes, their times, and the time to save."""
    document = json.loads(line)
    measurement, factor = document["measurement"], 10 ** dice.uniform(-4, 1)
    low, high = sorted(dice.sample(range(1, 65), 2))
    times = {low: factor, high: factor * 10 ** dice.uniform(-0.5, 3)}
    measurement["steps"] = [
        {"accumulation": n, "seconds": s * dice.uniform(0.999, 1.001)}
        for _ in range(3)
        for n, s in times.items()
    ]
    measurement["save_seconds"] = 10 ** dice.uniform(-3, 9)
    if dice.random() < 0.3:
        measurement["flops"] = twist(measurement["flops"], dice)
    return json.dumps(document).encode()


def lie(path: Path, members: dict[str, bytes], dice: random.Random) -> None:
    """Make a bundle with odd results or samples and a valid signature; its summaries may follow from them."""
    run = replace(parse_statement(members[STATEMENT]).predicate, schema=PREDICATE_SCHEMA)
    files = {n: d for n, d in members.items() if n not in SIGNING}
    kind = dice.random()
    if kind < 0.4:
        files["results.json"] = pretty_json(twist(json.loads(members["results.json"]), dice))
    else:
        lines = members["samples.jsonl"].splitlines()
        at = dice.randrange(len(lines))
        lines[at] = (
            retime(lines[at], dice) if kind < 0.7 else json.dumps(twist(json.loads(lines[at]), dice)).encode()
        )
        files["samples.jsonl"] = b"\n".join(lines)
    if dice.random() < 0.7:
        with suppress(Exception):  # nothing follows from what is no measurement, or from no time
            follow(files)
    pack(path, files, run, RUN_KEY)


def breaks_physics(results: Results) -> bool:
    """Whether the results of an accepted bundle have an estimate or a ranked trial that no machine has."""
    trials = results.trials
    estimates = [trial.estimate for trial in trials if trial.estimate is not None]
    shares = [t.estimate.utilisation for _, t in ranked(trials) if t.estimate is not None]
    return not all(
        e.days.value > 0 and (e.utilisation is None or e.utilisation > 0) for e in estimates
    ) or any(share is not None and not 0 < share <= 1 for share in shares)


# --- the targets ----------------------------------------------------------------------------------------


class Targets:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "b.tar"
        self.plain = packed(self.path).read_bytes()
        self.received = received(self.path).read_bytes()
        self.members = contents(self.path)
        self.real = contents(REAL)

    def attempt(self, number: int, dice: random.Random) -> bool:
        """Make one attempt; return True if a forgery or an impossible figure was accepted.

        A refused bundle raises BenchError.
        """
        match number % 4:
            case 0:
                self.path.write_bytes(mutate(self.plain, dice))
                verify_bundle(self.path, nothing)
            case 1:
                self.path.write_bytes(mutate(self.received, dice))
                verify_bundle(self.path, nothing, RECEIVED_RULES)
            case 2:
                self._rearranged(dice)
                verify_bundle(self.path, nothing, RECEIVED_RULES)
            case _:
                lie(self.path, self.real, dice)
                # Some odd values of a node contradict nothing and are accepted; none may contradict physics.
                verdict = verify_bundle(self.path, recompute)
                return isinstance(verdict.contents, RunContents) and breaks_physics(verdict.contents.results)
        return True

    def _rearranged(self, dice: random.Random) -> None:
        try:
            write_bundle(self.path, rearrange(self.members, dice))
        except BadInput:  # these members cannot be written to a tar
            self.path.write_bytes(b"")


def limit_memory() -> None:
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + SPARE_BYTES, resource.RLIM_INFINITY))


def main(count: int, seed: int) -> int:
    wrong = run_cases(count // COMMANDS_SHARE, seed)  # before the memory of this process is limited
    dice = random.Random(seed)
    reasons: Counter[str] = Counter()
    bad = 0
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        targets = Targets(Path(folder))
        limit_memory()
        for number in range(count):
            try:
                accepted = targets.attempt(number, dice)
                reasons["ACCEPTED" if accepted else "the node's own word"] += 1
            except BenchError as error:
                accepted = False
                reasons[NAMES.sub("…", error.message)[:90]] += 1
            except Exception:
                accepted = True
                reasons["TRACEBACK"] += 1
                traceback.print_exc()
            if accepted:
                bad += 1
                Path(f"accepted-{seed}-{number}.tar").write_bytes(targets.path.read_bytes())
    for reason, times in reasons.most_common(40):
        print(f"{times:>8}  {reason}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{count:,} attempts in {time.monotonic() - started:.0f} s, peak memory {peak} MiB: {bad} accepted")
    return 1 if bad or wrong else 0


if __name__ == "__main__":
    sys.exit(main(*(int(a) for a in (*sys.argv[1:], *("100000", "0")[len(sys.argv) - 1 :]))))
