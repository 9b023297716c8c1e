"""Each step of letting a node assemble its image: what is compared, asked, sent and told."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import BadInput, EnvironmentCannot
from bench.images.archive import Blob, Identity, ImageFacts, Layer
from bench.images.assemble import AssemblyPlan, LayerPlan
from bench.images.engines import EngineFacts
from bench.images.skeleton import LayerParts
from bench.packages.package_index import PackageFile
from bench.push import assembly
from bench.push.assembly import Assembly, Round, Ways, refuse_login
from bench.push.connection import Unreachable
from bench.push.image_store import Shippable, Skeleton
from bench.push.node_survey import InstalledEngine
from bench.push.shared_place import ClaimedNode, PlaceClaim
from bench.push.ship import Delivered
from tests.push.test_node_survey import found
from tests.push.test_ship_steps import Says, failed

MB = 10**6
IDS = ("sha256:a", "sha256:b", "sha256:c")
FILES = (
    PackageFile("x-1-py3-none-any.whl", "1" * 64, 100 * MB),
    PackageFile("y-1-py3-none-any.whl", "2" * 64, 50 * MB),
    PackageFile("l/lib/lib_1_all.deb", "3" * 64, None),
)
PACKED = (60 * MB, 40 * MB, 10 * MB)  # of the layers, as they are sent
PARTS = (
    LayerParts(300 * MB, (100, 20, 5), ("x",), False),
    LayerParts(200 * MB, (50, 50), ("y",), False),
    LayerParts(90 * MB, (70,), (), True),
)


def blob(name: str, size: int, folder: Path) -> Blob:
    path = folder / name
    path.write_bytes(bytes(size))
    return Blob(path, "sha256:x", f"sha256:{name}", compressed=True)


class Store:
    """The layers, skeletons and contents of an image of three layers, as files of these sizes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.listed: tuple[PackageFile, ...] = FILES
        self.sent_contents: list[tuple[int, tuple[int, ...]]] = []

    def package_files(self, _image: object) -> tuple[PackageFile, ...]:
        return self.listed

    def packed_bytes(self, _image: object, number: int) -> int:
        return PACKED[number]

    def skeleton(self, _image: object, number: int) -> Skeleton:
        return Skeleton(blob(f"skeleton{number}", 10 * (number + 1), self.folder), PARTS[number])

    def layer(self, _image: object, number: int) -> Blob:
        return blob(f"layer{number}", 1, self.folder)

    def contents(self, _image: object, number: int, numbers: tuple[int, ...]) -> Blob:
        self.sent_contents.append((number, numbers))
        return blob(f"contents{number}", 1, self.folder)

    def configuration(self, _image: object) -> Blob:
        return blob("config", 1, self.folder)

    def assembler(self) -> bytes:
        return b"program"


def answer_of(**changes: Any) -> str:
    usual = {"arrived_bytes": 0, "bytes_per_second": 10 * MB, "done": False, "nowhere": []}
    return json.dumps(usual | changes)


@dataclasses.dataclass
class Case:
    """An assembly whose node answers rounds of downloads and the question for missing contents with these."""

    work: Assembly
    node: Says
    said: list[str]
    progress: list[tuple[int, int]]
    store: Store
    rounds: list[str] = dataclasses.field(default_factory=list)
    missing: str = "[[], [], []]"
    sent: list[list[str]] = dataclasses.field(default_factory=list)

    def plans(self) -> list[dict[str, Any]]:
        """Return the plans that were written to the node."""
        written = zip(self.node.asked, self.node.sent, strict=True)
        return [json.loads(data) for script, data in written if "plan.json" in script and data]

    def asked(self, verb: str) -> list[tuple[str, float]]:
        asked = zip(self.node.asked, self.node.seconds, strict=True)
        return [(script, seconds) for script, seconds in asked if f"assemble {verb} " in script]


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    said: list[str] = []
    progress: list[tuple[int, int]] = []
    store = Store(tmp_path)

    def answer(script: str) -> str:
        if "assemble fetch" in script:
            return made.rounds.pop(0)
        return made.missing if "assemble missing" in script else ""

    node = Says(answer)
    layers = tuple(Layer(each, 1, each, compressed=True) for each in IDS)
    image = Shippable(
        tmp_path / "x.tar", ImageFacts(Identity("sha256:" + "cd" * 32, IDS), {}, b"{}", layers, ())
    )  # type: ignore[arg-type]
    engine = InstalledEngine(EngineFacts("docker", "27", None, None), free_bytes=10**12)
    survey = dataclasses.replace(
        found(), place="/a place", place_free_bytes=10**13, engines={"docker": engine}
    )
    claimed = ClaimedNode(node, PlaceClaim("/a place", "p-0"))
    work = Assembly(
        claimed, survey, "docker", image, store, lambda done, total: progress.append((done, total)),  # type: ignore[arg-type]
        said.append, index="https://index", mirror="https://mirror", rate=MB,
    )  # fmt: skip
    made = Case(work, node, said, progress, store)

    def send_all(_node: object, place: str, blobs: list[Blob], _progress: object) -> int:
        assert place == "/a place"
        made.sent.append([each.path.name for each in blobs])
        return 1000 * len(blobs)

    monkeypatch.setattr(assembly, "send_all", send_all)
    return made


# --- the two ways ---------------------------------------------------------------------------------------


def ways(**changes: Any) -> Ways:
    return dataclasses.replace(Ways(300 * MB, 10 * MB, 200 * MB, 600 * MB, 2.0 * MB, 4.0 * MB), **changes)


def test_each_way_takes_the_time_of_its_bytes() -> None:
    assert (ways().send_seconds, ways().assemble_seconds) == (150.0, 50 + 5 + 10)
    assert ways(download_bytes=0, down_bytes_per_second=0).assemble_seconds == 15
    assert ways().assembles
    assert not ways(send_bytes=130 * MB).assembles  # as long as the other way
    assert ways(send_bytes=130 * MB + 2).assembles


def test_the_chosen_way_is_told_first() -> None:
    assembling = "the node downloads 200.0 MB, and gets 10.0 MB over SSH: 1 min"
    sending = "all layers over SSH, 300.0 MB: 2 min"
    assert ways().sentence == f"{assembling} (instead of {sending})"
    quick = ways(up_bytes_per_second=100 * MB)
    assert quick.sentence.startswith("all layers over SSH, 300.0 MB: 3 s (instead of the node downloads")


def skeletons(case: Case, *numbers: int) -> dict[int, Skeleton]:
    return {number: case.store.skeleton(None, number) for number in numbers}


def compared(case: Case, *numbers: int, nowhere: Mapping[str, str] | None = None, **first: Any) -> Ways:
    case.work._files = FILES
    usual = {"arrived_bytes": 0, "bytes_per_second": 10, "done": False, "nowhere": nowhere or {}}
    return case.work._ways(skeletons(case, *numbers), Round(**usual | first), 3.0)


def test_what_the_node_downloads_is_not_sent(case: Case) -> None:
    assert compared(case, 0, 1, arrived_bytes=30 * MB) == Ways(100 * MB, 10 + 20, 120 * MB, 500 * MB, 3.0, 10)


def test_a_file_of_unknown_size_counts_as_its_layer_is_sent(case: Case) -> None:
    assert compared(case, 2) == Ways(10 * MB, 30, 10 * MB, 90 * MB, 3.0, 10)


def test_files_without_a_place_are_sent_and_layers_that_lack_half_are_sent_whole(case: Case) -> None:
    case.work._files = ()
    parts = dataclasses.replace(PARTS[0], projects=("x", "y"))
    both = {0: dataclasses.replace(case.store.skeleton(None, 0), parts=parts)}
    case.work._files = FILES
    lacks_small = case.work._ways(both, Round(0, 10, False, {FILES[1].name: "x"}), 3.0)
    assert (lacks_small.rest_bytes, lacks_small.download_bytes) == (10 + 50 * MB, 100 * MB)
    lacks_large = case.work._ways(both, Round(0, 10, False, {FILES[0].name: "x"}), 3.0)
    assert (lacks_large.rest_bytes, lacks_large.download_bytes) == (10 + 60 * MB, 0)
    assert lacks_large.unpacked_bytes == 0
    half = FILES[1]._replace(size=100 * MB)
    case.work._files = (FILES[0], half)
    assert case.work._ways(both, Round(0, 10, False, {half.name: "x"}), 3.0).download_bytes == 0


def test_a_node_that_downloaded_more_than_it_needs_has_nothing_left_and_a_rate(case: Case) -> None:
    done = compared(case, 0, arrived_bytes=200 * MB, bytes_per_second=0)
    assert (done.download_bytes, done.down_bytes_per_second) == (0, 1)


# --- room -----------------------------------------------------------------------------------------------


def fits(case: Case, place: int, engine: int | None, *numbers: int) -> bool:
    state = InstalledEngine(EngineFacts("docker", "27", None, None), free_bytes=engine)
    case.work.survey = dataclasses.replace(
        case.work.survey, place_free_bytes=place, engines={"docker": state}
    )
    case.work._files = FILES[:2]
    return case.work._fits(skeletons(case, *numbers))


def test_on_two_disks_the_engine_holds_the_layers_twice_and_the_place_the_packages(case: Case) -> None:
    much = 10**13
    assert fits(case, 150 * MB, much, 0) and fits(case, much, 600 * MB, 0)
    assert case.said == []
    assert not fits(case, 150 * MB - 1, much, 0)
    assert not fits(case, much, 600 * MB - 1, 0)
    assert (
        case.said == ["assembling needs 750.0 MB on its disks for a while: all layers are sent instead"] * 2
    )


def test_debian_packages_are_unpacked_in_the_place(case: Case) -> None:
    assert fits(case, 150 * MB + 180 * MB, 10**13, 2)
    assert not fits(case, 150 * MB + 180 * MB - 1, 10**13, 2)


@pytest.mark.parametrize("engine", [None, 750 * MB])
def test_on_one_disk_all_of_it_needs_room_together(case: Case, engine: int | None) -> None:
    assert fits(case, 750 * MB, engine, 0)
    assert not fits(case, 750 * MB - 1, engine, 0)


# --- what is delivered ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"listed": ()}, "it lists no packages"),
        ({"small": 110 * MB + 1}, "little is sent"),
        ({"rate": 5.6 * MB}, "all of it is sent within twenty seconds"),
    ],
)
def test_an_image_is_sent_whole_where_nothing_can_be_saved(
    case: Case, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], why: str
) -> None:
    case.store.listed = changes.get("listed", FILES)
    case.work.rate = changes.get("rate", MB)
    monkeypatch.setattr(assembly, "SMALL_BYTES", changes.get("small", assembly.SMALL_BYTES))
    assert case.work.deliver(0) is None, why
    assert case.node.asked == []


def test_a_line_is_measured_if_nobody_has(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.work.rate = None
    measured: list[object] = []
    monkeypatch.setattr(assembly, "measured_rate", lambda node: measured.append(node) or 10**9)
    assert case.work.deliver(0) is None
    assert measured == [case.work.node]


DONE = answer_of(done=True, arrived_bytes=150 * MB)


def test_a_node_gets_the_program_the_skeletons_and_nothing_that_it_has(case: Case) -> None:
    case.rounds = [answer_of(), DONE]
    delivered = case.work.deliver(1)
    assert delivered == Delivered(
        "( cd .. && PYTHONPATH=.load-p-0/code python3 -B -m bench.images.assemble archive "
        ".load-p-0/plan.json 2>.load-p-0/trouble )",
        3000, ("blobs/config", "blobs/skeleton1", "blobs/skeleton2", "packages"),
    )  # fmt: skip
    assert case.sent == [["config", "skeleton1", "skeleton2"], []]
    begin = case.node.asked[0]
    assert "cd '/a place'; rm -rf .load-p-0; mkdir -p packages .load-p-0/code" in begin
    assert case.node.sent[0] == b"program"
    plans = case.plans()
    assert plans[0]["layers"] == [] and plans[0]["files"] == [list(FILES[1]), list(FILES[2])]
    assert (plans[0]["index_url"], plans[0]["mirror_url"], plans[0]["tag"]) == (
        "https://index", "https://mirror", "bench-push:" + "cd" * 8,
    )  # fmt: skip
    assert plans[-1]["layers"] == [
        ["a", 0, None, None], ["b", 200 * MB, "skeleton1", None], ["c", 90 * MB, "skeleton2", None],
    ]  # fmt: skip
    assert plans[-1]["config"] == "cd" * 32 and plans[-1]["contents"] == []
    fetches, ((missing, patience),) = case.asked("fetch"), case.asked("missing")
    assert [(script.rpartition(" ")[2], seconds) for script, seconds in fetches] == [("3", 63), ("20", 80)]
    assert missing.endswith(
        "cd '/a place' && PYTHONPATH=.load-p-0/code python3 -B -m bench.images.assemble missing "
        ".load-p-0/plan.json"
    )
    assert patience == 600


def test_contents_that_the_node_lacks_are_sent_and_more_than_half_as_the_whole_layer(case: Case) -> None:
    case.rounds, case.missing = [DONE], "[[1, 2], [0], [0]]"
    delivered = case.work.deliver(0)
    assert delivered is not None and delivered.sent_bytes == 4000 + 3000
    # 25 of 125 bytes; 50 of 100, which is not more than half; all of 70.
    assert case.store.sent_contents == [(0, (1, 2)), (1, (0,))]
    assert case.sent[1] == ["layer2", "contents0", "contents1"]
    last = case.plans()[-1]
    assert last["layers"][2] == ["c", 90 * MB, None, "layer2"]
    assert last["contents"] == ["contents0", "contents1"]
    assert delivered.surplus[4:] == ("blobs/layer2", "blobs/contents0", "blobs/contents1", "packages")


def test_a_node_that_downloads_nothing_at_first_gets_more_time(case: Case) -> None:
    case.rounds = [answer_of(bytes_per_second=0), DONE]
    assert case.work.deliver(0)
    assert [seconds for _, seconds in case.asked("fetch")] == [63, 70]


def test_a_node_that_cannot_run_the_program_gets_the_layers(case: Case) -> None:
    case.rounds = ["Segmentation fault"]
    assert case.work.deliver(0) is None
    assert case.said == [
        "the node assembles no layers: "
        "the node's answer about its downloads has a form that its program never prints"
    ]
    assert (
        "rm -rf '/a place/.load-p-0'; " in case.node.asked[-1] and "for f in packages" in case.node.asked[-1]
    )


def test_a_lost_node_is_not_one_that_cannot_assemble(case: Case) -> None:
    def answer(script: str) -> str:
        if "assemble fetch" in script:
            raise Unreachable("the connection broke")
        return ""

    case.node._answer = answer
    with pytest.raises(Unreachable):
        case.work.deliver(0)
    assert case.said == []


@pytest.mark.parametrize("slow", [True, False])
def test_the_way_that_is_not_taken_leaves_nothing(case: Case, slow: bool) -> None:
    case.rounds = [answer_of(bytes_per_second=1 if slow else 10 * MB)]
    if not slow:
        case.work.survey = dataclasses.replace(case.work.survey, place_free_bytes=0)
    assert case.work.deliver(0) is None
    assert case.said[0].startswith("all layers over SSH" if slow else "the node downloads")
    assert len(case.said) == (1 if slow else 2)
    assert "rm -rf '/a place/.load-p-0'" in case.node.asked[-1]


@pytest.mark.parametrize("at", ["tar -xzf", "plan.json"])
def test_a_full_disk_is_told(case: Case, at: str) -> None:
    case.node._answer = lambda script: failed(1, "No space left on device") if at in script else ""
    with pytest.raises(EnvironmentCannot, match="/a place: its disk is full"):
        case.work.deliver(0)


# --- downloading ------------------------------------------------------------------------------------------


def download(case: Case, first: Round, **changes: Any) -> None:
    case.work._download(first, ways(download_bytes=100 * MB, **changes))


def test_downloads_go_on_until_all_is_there(case: Case) -> None:
    case.rounds = [answer_of(arrived_bytes=50 * MB), answer_of(arrived_bytes=200 * MB, done=True)]
    download(case, Round(10 * MB, 1, False, {}))
    total = 110 * MB
    assert case.progress == [(10 * MB, total), (50 * MB, total), (total, total)]
    assert case.said == []
    download(case, Round(100 * MB, 1, True, {}))
    assert case.progress[3:] == [(200 * MB, 200 * MB)]


@pytest.mark.parametrize(("rate", "is_left"), [(600_000, False), (599_999, True)])
def test_an_index_that_takes_longer_than_sending_everything_is_left(
    case: Case, rate: int, is_left: bool
) -> None:
    """90 MB are left, and everything is sent in 150 s."""
    case.rounds = [answer_of(arrived_bytes=10 * MB, bytes_per_second=rate), DONE]
    download(case, Round(0, 1, False, {}))
    assert (len(case.rounds) == 1) == is_left
    assert case.said == (["the node's index brings 600.0 kB/s: what lacks is sent"] if is_left else [])


def test_downloads_end_a_minute_after_everything_could_have_been_sent(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(assembly.time, "monotonic", lambda: clock[0])
    answers = iter([1210.0, 1210.1])

    def answer(_script: str) -> str:
        clock[0] = next(answers)
        return answer_of(arrived_bytes=50 * MB)

    case.node._answer = answer
    download(case, Round(0, 1, False, {}))
    assert [*answers] == []
    assert case.said == ["the node's index brings 10.0 MB/s: what lacks is sent"]


def test_what_is_nowhere_is_told_by_its_reason(case: Case) -> None:
    nowhere = {
        "p/b.deb": "no mirror has it",
        "a.whl": "no index has it",
        "p/a.deb": "no mirror has it",
        "c.deb": "no mirror has it",
    }
    download(case, Round(0, 1, True, nowhere))
    assert case.said == [
        "sent instead: c.deb and 2 more (no mirror has it)", "sent instead: a.whl (no index has it)",
    ]  # fmt: skip


# --- answers ----------------------------------------------------------------------------------------------


def test_a_round_is_read_and_names_only_files_of_the_image(case: Case) -> None:
    case.work._files = FILES
    case.rounds = [
        answer_of(arrived_bytes=7, done=True, nowhere=[[FILES[0].name, "w\x07" * 200], ["other", "x"]])
    ]
    read = case.work._round(3.0)
    assert (read.arrived_bytes, read.bytes_per_second, read.done) == (7, 10 * MB, True)
    assert read.nowhere == {FILES[0].name: ("w?" * 200)[:199] + "…"}


@pytest.mark.parametrize(
    "changes",
    [{"arrived_bytes": 1.5}, {"bytes_per_second": "x"}, {"done": 1}, {"nowhere": {}}, {"nowhere": [["a"]]}],
)
def test_a_round_of_another_form_is_refused(case: Case, changes: dict[str, Any]) -> None:
    case.rounds = [answer_of(**changes)]
    with pytest.raises(EnvironmentCannot, match="the node's answer about its downloads has a form"):
        case.work._round(3.0)


@pytest.mark.parametrize(
    "said",
    ["[[], []]", "[[], [], [], []]", "[[3], [], []]", "[[-1], [], []]", "[[], [2], []]", "[[], [], [0]]",
     "{}"],
)  # fmt: skip
def test_contents_that_no_skeleton_has_are_none(case: Case, said: str) -> None:
    """The first layers have skeletons with three and two contents; the engine has the third layer."""
    case.missing = said
    with pytest.raises(EnvironmentCannot, match="the node's answer about missing contents has a form"):
        case.work._missing(skeletons(case, 0, 1))


def test_each_content_of_a_skeleton_may_be_missing(case: Case) -> None:
    case.missing = "[[0, 2], [1], []]"
    assert case.work._missing(skeletons(case, 0, 1)) == [(0, 2), (1,), ()]


def test_a_plan_has_what_the_node_needs_and_can_be_read_again(case: Case) -> None:
    case.work._files = FILES
    plan = case.work._plan([LayerPlan("a", 1, "s", None)], ["c"])
    assert plan == AssemblyPlan(
        "bench-push:" + "cd" * 8, "cd" * 32, (LayerPlan("a", 1, "s", None),), FILES, ("c",),
        "https://index", "https://mirror",
    )  # fmt: skip


@pytest.mark.parametrize("url", ["https://me:secret@i/simple", "https://me@i", "ssh://@i"])
def test_a_login_for_an_index_stays_here(url: str) -> None:
    with pytest.raises(BadInput) as caught:
        refuse_login(url, "--index")
    assert caught.value.message == "--index has a login, which bench sends to no node"
    assert caught.value.advice is not None and "~/.netrc" in caught.value.advice
    refuse_login("https://i/simple/@scope", "--index")
