"""A node's answer becomes a typed value or one error of that node, in time proportional to its length."""

from __future__ import annotations

import dataclasses
import json
import string
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bench.base.errors import BenchError, EnvironmentCannot
from bench.images.variants import find_variant
from bench.operator.ssh_keygen import OperatorKey
from bench.planning.manifest import load_manifest
from bench.push import host_push, mirror, pull_image, send_blobs, slurm_job
from bench.push.connection import plain
from bench.push.hosts import Host
from bench.push.image_store import ImageStore
from bench.push.node_findings import Need, machine_text, resources_text
from bench.push.node_survey import Survey, read_survey, split_answers
from bench.push.push_record import Records
from bench.push.push_to_node import NodePush
from bench.push.request import HostPart, PushRequest, Shared
from bench.push.shared_place import ClaimedNode, PlaceClaim
from bench.signing.ssh_keys import PublicKey
from tests.push.judged import judge
from tests.push.strange_nodes import Answers
from tests.push.test_node_survey import ANSWERS, DOCKER
from tests.push.test_push_record import R
from tests.push.test_push_to_node import QUICKSTART, Silent

ENGINES = ("docker", "podman", "apptainer", "none")
KEY = OperatorKey(Path("key"), PublicKey(b"7" * 32), in_agent=False)
SEPARATORS = "\036\037\035"

# Words that look like those of a node, digits of other scripts and very long numbers among them.
words = st.sampled_from(
    ["exit", "alive", "bundle", "request", "file", "certified", "²", "٣", "9" * 5000, "-1", "1e999", "nan",
     "log.txt", "0.5", "7", "kB", "MemTotal:", "/x", "{", "[", "sha256:a", '["a"]', "\n", "whole", "a" * 300]
)  # fmt: skip
texts = st.one_of(
    st.text(max_size=60),
    st.lists(words, max_size=8).map(" ".join),
    st.lists(words, max_size=8).map("\n".join),
    st.text(alphabet=SEPARATORS + string.digits + "a\n ", max_size=60),
)
good = st.sampled_from(
    ["", "alive\nfile 50 log.txt\n", "alive\nrequest 1 2\n", "exit 0\nbundle 50\n", "gone", "dead",
     "0" * 64 + "  -\n50\n", "0" * 64 + "  -\n0\n", "exit 3\n"]
)  # fmt: skip
documents: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=10)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=10,
)


@st.composite
def engine_facts(draw: st.DrawFn) -> str:
    """The answer of `docker info` or `podman info`, with any value in any field."""
    info = json.loads(DOCKER) | {"version": {"Version": "5.0"}, "store": {"graphRoot": "/var/x"}}
    names = st.sampled_from([*info, "ServerErrors", "SecurityOptions", "DiscoveredDevices"])
    info |= draw(st.dictionaries(names, documents, max_size=3))
    return json.dumps(draw(st.one_of(st.just(info), documents)))


@st.composite
def surveys(draw: st.DrawFn) -> dict[str, tuple[int, str]]:
    """The recorded answers of a node, with another answer in place of any."""
    names = st.sampled_from([*ANSWERS, "podman", "podman images", "apptainer", "python", "uname -m"])
    said = st.tuples(st.integers(0, 255), st.one_of(texts, engine_facts()))
    return ANSWERS | draw(st.dictionaries(names, said, max_size=4))


def survey_or_none(answers: dict[str, tuple[int, str]]) -> Survey | None:
    try:
        return read_survey(answers, 0.0, ENGINES)
    except EnvironmentCannot:
        return None


@settings(max_examples=400, deadline=None)
@given(surveys())
def test_any_survey_is_judged_or_refused(answers: dict[str, tuple[int, str]]) -> None:
    survey = survey_or_none(answers)
    if survey is None:
        return
    for engine in ENGINES:
        variant = None if engine == "none" else find_variant("cuda12.8")
        judge(survey, Need(engine, variant, on_cpu=False, gpus=1))
        judge(survey, Need(engine, None, on_cpu=True, gpus=None, checks=True))
        shown = f"{machine_text(survey)}{resources_text(survey, engine)}"
        assert len(shown) < 2000


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("docker", '{"a":' + "[" * 200_000 + "]" * 200_000 + "}"),
        ("podman", '{"version": "x"}'),
        ("docker", '{"ServerErrors": 7}'),
        ("podman", '{"store": []}'),
        ("docker", '{"ServerVersion":"1","DiscoveredDevices":[1],"Runtimes":{}}'),
        ("docker", '{"ServerVersion":"²","Runtimes":{}}'),
        ("docker images", "abc [1\n"),
        ("docker images", "abc [1]\n"),
        ("apptainer", ""),
    ],
)
def test_an_engine_that_answers_nonsense_is_not_used(question: str, said: str) -> None:
    survey = read_survey(ANSWERS | {question: (0, said)}, 0.0, ENGINES)
    engine = question.split()[0]
    assert survey.engines[engine].facts is None
    assert survey.engines[engine].why == (
        f"it does not answer as {engine} does" if "ServerErrors" not in said else survey.engines[engine].why
    )


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("clock", "9" * 400 + ".1"),
        ("clock", "²"),
        ("memory", "MemTotal: " + "9" * 5000 + " kB"),
        ("gpus", "\n".join(f"{n}, N, 1, 1, 1, 1" for n in range(100_000))),
        ("place", "~/x\n/dev/x 9 1 8 1% /\n"),
        ("load", "8\nnan 1 1\n"),
        ("cat /proc/driver/nvidia/version", "Kernel Module  " + "9" * 5000 + ".1"),
    ],
)
def test_a_node_whose_answers_no_machine_gives_is_refused(question: str, said: str) -> None:
    with pytest.raises(EnvironmentCannot, match="does not answer as a Linux machine does"):
        read_survey(ANSWERS | {question: (0, said)}, 0.0, ENGINES)


@pytest.mark.parametrize("form", ["\036", "\036a\037", "\037", "\036a" + "\037" * 50, "\036a\037b\037"])
def test_answers_are_split_in_time_proportional_to_their_length(form: str) -> None:
    """Two million characters of each form took hours with a backtracking expression."""
    assert split_answers(form * (2_000_000 // len(form))) == {}


def test_memory_is_read_in_time_proportional_to_its_length() -> None:
    """A backtracking expression took hours for this number of letters without a colon."""
    long = ANSWERS["memory"][1] + "a" * 2_000_000
    assert read_survey(ANSWERS | {"memory": (0, long)}, 0.0, ()).memory_bytes == 2113492236 * 1024


@given(texts)
def test_split_answers_are_those_between_whole_marks(text: str) -> None:
    assume(text.count("\036") < 50)  # of many, the last are not read
    framed = f"{text}\036name\037out\0370\035"
    assert split_answers(framed)["name"] == (0, "out")
    for code, out in split_answers(text).values():
        assert 0 <= code <= 999 and plain(out.replace("\n", "")) == out.replace("\n", "")


@given(texts)
def test_any_state_of_a_run_is_read_or_refused(text: str) -> None:
    try:
        status = mirror.read_status(text)
    except EnvironmentCannot:
        return
    assert status.state in ("alive", "waiting", "exit", "dead", "gone")
    assert (status.code is None) == (status.state != "exit")


@pytest.mark.parametrize(
    "said",
    ["exit ²", "exit " + "9" * 5000, "x\x1b]0;owned\x07\x1b[31mFAKE", "alive\nbundle abc", "alive\nbundle ²",
     "alive\nbundle " + "9" * 5000, "alive\nrequest x", "alive\nsomething else", "alive 7", "exit 0 0"],
)  # fmt: skip
def test_a_state_that_the_script_never_prints_is_refused(said: str) -> None:
    with pytest.raises(EnvironmentCannot, match="a form that bench's script never prints"):
        mirror.read_status(said)


@pytest.mark.parametrize("name", ["a" * 300, "²" * 3, "é"])
def test_a_log_with_a_name_that_bench_never_gives_is_left_on_the_node(name: str) -> None:
    assert mirror.read_status(f"alive\nfile 100 out/aaaa00000000/logs/{name}.txt\n").files == {}


def test_files_of_another_run_are_left_on_the_node() -> None:
    said = "alive\nfile 5 out/deadbeef0000/journal.jsonl\nfile 6 out/aaaa00000000/journal.jsonl\n"
    assert mirror.look(Answers(lambda _: said), R).files == {"out/aaaa00000000/journal.jsonl": 6}


def parsed(kind: str, text: str, folder: Path) -> object:
    """Let one part of bench ask a node that answers `text`."""
    record = dataclasses.replace(R, local=True, out=str(folder), ledger=str(folder / "ledger.jsonl"))
    record.mirror.mkdir(exist_ok=True)
    node = Answers(lambda _: text)
    claimed = ClaimedNode(node, PlaceClaim("/x", "p-0"))
    survey = read_survey(ANSWERS, 0.0, ("docker",))
    asks: dict[str, Callable[[], object]] = {
        "look": lambda: mirror.look(node, record),
        "last line": lambda: mirror.last_line(node, record),
        "mirror": lambda: mirror.mirror(node, record, {"log.txt": 50, "slurm.txt": 7}),
        "certify": lambda: mirror.certify(node, record, KEY),
        "fetch": lambda: mirror._download(node, record, folder / "part", lambda done, total: None),
        "slurm": lambda: slurm_job.job_number(text),
        "layers": lambda: send_blobs._arrived_bytes(node, "/x", "0" * 64),
        "pull": lambda: pull_image.pull(claimed, survey, "docker", "an/image", None),
    }
    return asks[kind]()


@pytest.mark.parametrize(
    "kind", ["look", "last line", "mirror", "certify", "fetch", "slurm", "layers", "pull"]
)
@settings(max_examples=60, deadline=None)
@given(text=st.one_of(texts, documents.map(json.dumps)))
def test_any_answer_gives_a_value_or_an_error_of_the_node(kind: str, text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            parsed(kind, text, Path(folder))
        except BenchError:
            return


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_answer_looks_like_a_defect_of_bench(data: st.DataObject) -> None:
    """The node passes its survey, and then answers each question as it likes."""
    recorded = {**ANSWERS, "python": (0, "3.12\n\n"), "programs": (0, "")}
    survey = "".join(f"\036{name}\037{out}\037{code}\035" for name, (code, out) in recorded.items())

    def answer(script: str) -> str:
        return survey if "\036who\037" in script else data.draw(st.one_of(good, texts))

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(host_push, "_LOOK_SECONDS", 0.0)
        patch.setattr(host_push, "_LONGEST_LOOK_SECONDS", 0.0)
        patch.setattr(ImageStore, "code", lambda _: ("0" * 64, b"code"))
        request = PushRequest(
            manifest=load_manifest(QUICKSTART), engine="none", out=Path(folder), key=KEY, on_cpu=True,
            ledger=Path(folder) / "ledger.jsonl", despite_findings=True, patience_seconds=0.0,
        )  # fmt: skip
        shared = Shared(Records(Path(folder) / "runs"), ImageStore(lambda _: None), Silent())
        push = NodePush(HostPart(Host("n", "n"), local=True), request, shared)
        push.node = Answers(answer)
        result = push.run()
        assert result.error is None or "defect" not in (result.error.advice or "")
