"""Let a node assemble its image from package files that it downloads itself, if that is the faster way.

The node gets a program, each layer's skeleton, and those contents that it cannot find in any package file.
What it downloads is chosen by digest, and each layer is hashed on the node before its engine can load it.
"""

from __future__ import annotations

import json
import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.sizes import size_text
from bench.base.strict_json import from_json, strict_loads
from bench.images.archive import Blob
from bench.images.assemble import AssemblyPlan, LayerPlan
from bench.images.package_list import for_layers
from bench.packages.package_index import PackageFile
from bench.push.answers import short, understood
from bench.push.connection import Unreachable, plain
from bench.push.image_store import ImageStore, Shippable, Skeleton
from bench.push.line_rate import measured_rate
from bench.push.node_survey import Survey
from bench.push.remote import ANSWER_SECONDS, demand
from bench.push.send_blobs import Progress, check_written, send_all
from bench.push.shared_place import ClaimedNode
from bench.push.ship import Delivered, tag_of
from bench.records.text import seconds_text

SMALL_BYTES = 16 * 2**20  # of layers to send, below which no line is measured
_SOON_SECONDS = 20.0  # sending all layers within this time is not worth a comparison
_FIRST_ROUND_SECONDS = 3.0  # of downloads on the node, which measure its line
_SECOND_ROUND_SECONDS = 10.0  # if nothing arrived in the first one
_ROUND_SECONDS = 20.0  # of downloads between two answers
_PATIENCE_SECONDS = 60.0  # beyond the time that sending everything takes
_UNPACK_BYTES_PER_SECOND = 60e6  # of layers that a node assembles on one core
_UNPACKING_SECONDS = 600.0  # longest silence of a node that looks through its package files


@dataclass(frozen=True, slots=True)
class Ways:
    """The two ways to bring layers to a node: the bytes that each of them moves, and how fast."""

    send_bytes: int  # over SSH, if all layers are sent
    rest_bytes: int  # over SSH, if the node assembles layers
    download_bytes: int  # by the node, which it does not have yet
    unpacked_bytes: int  # of the layers that it assembles
    up_bytes_per_second: float
    down_bytes_per_second: float

    @property
    def send_seconds(self) -> float:
        """Expected seconds to send every layer whole."""
        return self.send_bytes / self.up_bytes_per_second

    @property
    def assemble_seconds(self) -> float:
        """Expected seconds to download, to send the rest and to unpack, one after the other."""
        downloading = self.download_bytes / self.down_bytes_per_second if self.download_bytes else 0.0
        sending = self.rest_bytes / self.up_bytes_per_second
        return downloading + sending + self.unpacked_bytes / _UNPACK_BYTES_PER_SECOND

    @property
    def assembles(self) -> bool:
        """Whether the node should assemble layers, because that is faster."""
        return self.assemble_seconds < self.send_seconds

    @property
    def sentence(self) -> str:
        """Say what each way takes, and which one is chosen."""
        downloaded, rest = size_text(self.download_bytes), size_text(self.rest_bytes)
        assembling = f"the node downloads {downloaded}, and gets {rest} over SSH"
        assembling += f": {seconds_text(self.assemble_seconds)}"
        sending = f"all layers over SSH, {size_text(self.send_bytes)}: {seconds_text(self.send_seconds)}"
        chosen, other = (assembling, sending) if self.assembles else (sending, assembling)
        return f"{chosen} (instead of {other})"


@dataclass(frozen=True, slots=True)
class Round:
    """A node's answer after a while of downloads."""

    arrived_bytes: int
    bytes_per_second: int
    done: bool
    nowhere: Mapping[str, str]  # why a file was not found, by its name


@dataclass(slots=True)
class Assembly:
    """One image on its way to one node."""

    node: ClaimedNode
    survey: Survey
    engine: str
    image: Shippable
    store: ImageStore
    progress: Progress
    say: Callable[[str], None]
    index: str = ""
    mirror: str = ""
    rate: float | None = None  # bytes per second of the line to the node; None: not measured yet
    _files: tuple[PackageFile, ...] = field(default=(), init=False)

    def deliver(self, held: int) -> Delivered | None:
        """Deliver the layers above the `held` ones in pieces; None if sending them whole is better."""
        numbers = range(held, len(self.image.facts.layers))
        listed = self.store.package_files(self.image)
        send_bytes = sum(self.store.packed_bytes(self.image, number) for number in numbers)
        if not listed or send_bytes < SMALL_BYTES:
            return None
        up = self.rate or measured_rate(self.node)
        if send_bytes < up * _SOON_SECONDS:
            return None
        skeletons = {number: self.store.skeleton(self.image, number) for number in numbers}
        projects = [project for skeleton in skeletons.values() for project in skeleton.parts.projects]
        with_debs = any(skeleton.parts.has_debs for skeleton in skeletons.values())
        self._files = for_layers(listed, projects, with_debs=with_debs)
        first = self._begin()
        if first is None:
            return None
        ways = self._ways(skeletons, first, up)
        self.say(ways.sentence)
        if not ways.assembles or not self._fits(skeletons):
            self._give_up()
            return None
        self._download(first, ways)
        return self._complete(skeletons)

    def _begin(self) -> Round | None:
        """Bring the program to the node and let it download for a moment; None if the node cannot run it."""
        place, staging = shlex.quote(self._place), shlex.quote(self._staging)
        script = (
            f"set -e; umask 077; cd {place}; rm -rf {staging}; mkdir -p packages {staging}/code; "
            f"tar -xzf - -C {staging}/code"
        )
        check_written(self.node.ask(script, [self.store.assembler()]), self._place)
        self._write_plan(self._plan((), ()))
        try:
            first = self._round(_FIRST_ROUND_SECONDS)
            return first if first.bytes_per_second or first.done else self._round(_SECOND_ROUND_SECONDS)
        except Unreachable:
            raise
        except EnvironmentCannot as error:
            self.say(f"the node assembles no layers: {error.message}")
            self._give_up()
            return None

    def _ways(self, skeletons: Mapping[int, Skeleton], first: Round, up: float) -> Ways:
        """Compare the ways. Files without a place, and layers that lack most files, count as sent."""
        send = {number: self.store.packed_bytes(self.image, number) for number in skeletons}
        rest = sum(skeleton.blob.path.stat().st_size for skeleton in skeletons.values())
        download = unpacked = 0
        for number, skeleton in skeletons.items():
            parts = skeleton.parts
            files = for_layers(self._files, parts.projects, with_debs=parts.has_debs)
            unknown = sum(file.size is None for file in files)
            sizes = {file: file.size or send[number] // unknown for file in files}
            found = sum(size for file, size in sizes.items() if file.name not in first.nowhere)
            if 2 * found <= sum(sizes.values()):
                rest += send[number]
                continue
            rest += sum(sizes.values()) - found
            download += found
            unpacked += parts.size
        return Ways(
            send_bytes=sum(send.values()),
            rest_bytes=rest,
            download_bytes=max(0, download - first.arrived_bytes),
            unpacked_bytes=unpacked,
            up_bytes_per_second=up,
            down_bytes_per_second=max(first.bytes_per_second, 1),
        )

    def _fits(self, skeletons: Mapping[int, Skeleton]) -> bool:
        """Whether the node has room for this way, in which the engine for a moment holds the layers twice."""
        unpacked = sum(skeleton.parts.size for skeleton in skeletons.values())
        debian = sum(skeleton.parts.size for skeleton in skeletons.values() if skeleton.parts.has_debs)
        packages = sum(file.size or 0 for file in self._files) + 2 * debian
        engine, place = self.survey.engines[self.engine].free_bytes, self.survey.place_free_bytes
        one_disk = self.survey.on_one_disk(self.engine)
        in_place = packages + 2 * unpacked if one_disk else packages
        fits = in_place <= place and (one_disk or 2 * unpacked <= (engine or 0))
        if not fits:
            what = f"assembling needs {size_text(packages + 2 * unpacked)} on its disks for a while"
            self.say(f"{what}: all layers are sent instead")
        return fits

    def _download(self, last: Round, ways: Ways) -> None:
        """Let the node download until all is there, or until it would be faster to send what lacks."""
        total = last.arrived_bytes + ways.download_bytes
        until = time.monotonic() + ways.send_seconds + _PATIENCE_SECONDS
        while not last.done:
            self.progress(min(last.arrived_bytes, total), total)
            last = self._round(_ROUND_SECONDS)
            left_bytes = total - last.arrived_bytes
            too_slow = left_bytes > last.bytes_per_second * ways.send_seconds
            if not last.done and (too_slow or time.monotonic() > until):
                self.say(f"the node's index brings {size_text(last.bytes_per_second)}/s: what lacks is sent")
                break
        self.progress(total, total)
        for why, count in Counter(last.nowhere.values()).items():
            first = min(name for name, other in last.nowhere.items() if other == why)
            more = f" and {count - 1} more" if count > 1 else ""
            self.say(f"sent instead: {first.rpartition('/')[2]}{more} ({why})")

    def _complete(self, skeletons: Mapping[int, Skeleton]) -> Delivered:
        """Send the skeletons and all that the node lacks; return how its archive is written."""
        config = self.store.configuration(self.image)
        sent = [config, *(skeleton.blob for skeleton in skeletons.values())]
        sent_bytes = send_all(self.node, self._place, sent, self.progress)
        layers = [self._layer_plan(number, skeletons.get(number)) for number in range(len(self._diff_ids))]
        self._write_plan(self._plan(layers, ()))
        more: list[Blob] = []
        for number, lacking in zip(range(len(layers)), self._missing(skeletons), strict=True):
            if not lacking:
                continue
            contents = skeletons[number].parts.contents
            if 2 * sum(contents[n] for n in lacking) > sum(contents):
                blob = self.store.layer(self.image, number)
                layers[number] = layers[number]._replace(blob=blob.name, skeleton=None)
                sent.append(blob)
            else:
                more.append(self.store.contents(self.image, number, lacking))
        sent_bytes += send_all(self.node, self._place, [*sent[1 + len(skeletons) :], *more], self.progress)
        self._write_plan(self._plan(layers, [blob.name for blob in more]))
        surplus = (*(f"blobs/{blob.name}" for blob in [*sent, *more]), "packages")
        trouble = shlex.quote(f"{self._staging}/trouble")
        return Delivered(f"( cd .. && {self._program('archive')} 2>{trouble} )", sent_bytes, surplus)

    def _missing(self, skeletons: Mapping[int, Skeleton]) -> list[tuple[int, ...]]:
        """Ask for each layer which of its contents the node has nowhere."""
        text = self._run("missing", (), "looking through package files", _UNPACKING_SECONDS)
        with understood("the node's answer about missing contents has a form that its program never prints"):
            missing = from_json(tuple[tuple[int, ...], ...], strict_loads(text))
            if len(missing) != len(self._diff_ids):
                raise ValueError("not an answer for each layer")
            for number, lacking in enumerate(missing):
                count = len(skeletons[number].parts.contents) if number in skeletons else 0
                if not all(0 <= each < count for each in lacking):
                    raise ValueError("not a content of this layer")
        return list(missing)

    def _round(self, seconds: float) -> Round:
        text = self._run("fetch", (f"{seconds:.0f}",), "downloading package files", ANSWER_SECONDS + seconds)
        with understood("the node's answer about its downloads has a form that its program never prints"):
            fields = from_json(dict[str, Any], strict_loads(text))
            nowhere = from_json(tuple[tuple[str, str], ...], fields["nowhere"])
            return Round(
                arrived_bytes=from_json(int, fields["arrived_bytes"]),
                bytes_per_second=from_json(int, fields["bytes_per_second"]),
                done=from_json(bool, fields["done"]),
                nowhere={file: short(plain(why)) for file, why in nowhere if file in self._names},
            )

    @property
    def _names(self) -> frozenset[str]:
        return frozenset(file.name for file in self._files)

    @property
    def _diff_ids(self) -> tuple[str, ...]:
        return self.image.facts.identity.diff_ids

    @property
    def _place(self) -> str:
        return self.node.claim.place

    @property
    def _staging(self) -> str:
        return self.node.claim.staging

    def _program(self, verb: str, *words: str) -> str:
        plan, code = shlex.quote(f"{self._staging}/plan.json"), shlex.quote(f"{self._staging}/code")
        return " ".join([f"PYTHONPATH={code} python3 -B -m bench.images.assemble {verb} {plan}", *words])

    def _run(self, verb: str, words: Sequence[str], what: str, seconds: float) -> str:
        script = f"cd {shlex.quote(self._place)} && {self._program(verb, *words)}"
        return demand(self.node, script, what, seconds)

    def _plan(self, layers: Sequence[LayerPlan], contents: Sequence[str]) -> AssemblyPlan:
        config = self.image.config.removeprefix("sha256:")
        return AssemblyPlan(
            tag=tag_of(self.image),
            config=config,
            layers=tuple(layers),
            files=self._files,
            contents=tuple(contents),
            index_url=self.index,
            mirror_url=self.mirror,
        )

    def _layer_plan(self, number: int, skeleton: Skeleton | None) -> LayerPlan:
        diff_id = self._diff_ids[number].removeprefix("sha256:")
        if skeleton is None:
            return LayerPlan(diff_id, 0, None, None)
        return LayerPlan(diff_id, skeleton.parts.size, skeleton.blob.name, None)

    def _write_plan(self, plan: AssemblyPlan) -> None:
        script = f"cd {shlex.quote(self._place)} && cat >{shlex.quote(f'{self._staging}/plan.json')}"
        check_written(self.node.ask(script, [json.dumps(plan._asdict()).encode()]), self._place)

    def _give_up(self) -> None:
        """Remove what only this way needs."""
        staging = shlex.quote(f"{self._place}/{self._staging}")
        self.node.ask(f"rm -rf {staging}; {self.node.claim.discard(['packages'])}")


def refuse_login(url: str | None, option: str) -> None:
    """Refuse the URL of an option with a login, which would be copied to nodes."""
    if url is not None and "@" in urlsplit(url).netloc:
        advice = "a login belongs into the node's own pip configuration, or into its ~/.netrc"
        raise BadInput(f"{option} has a login, which bench sends to no node", advice=advice)
