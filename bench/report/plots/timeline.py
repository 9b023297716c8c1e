"""Plot what a run did when: a lane for the machine, one for each model, one for the time without a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.records.text import count_text, seconds_text
from bench.report.compare.compared_rows import Row
from bench.report.compare.comparison import Comparison
from bench.report.compare.episodes import Episode, EpisodeKind
from bench.report.markup import Markup, el, fragment
from bench.report.plots.svg import Box, Linear, Plot, line, mark, text, tick_texts

WIDTH, LEFT, RIGHT = 520, 8, 512
LANE, BAR, TOP = 34, 13, 8  # pixels
LEAST_PIXELS = 1.5  # of an episode; shorter neighbours of one kind are drawn as one
MOST_OF_A_GAP = 0.1  # of the run's own time: longer interruptions are drawn shorter
MOST_PLOTS = 24  # a page of a hundred runs stays small
LEAST_WAITING = 2.0  # seconds: every job waits for the driver or the next process
MACHINE, NOBODY = "the machine", "no job"
# A kind has a colour and a shape: a height, an outline or a mark in the bar.
CLASSES: Mapping[EpisodeKind, str] = {
    "preparation": "s6 bar", "trial": "s0 bar", "no memory": "bad", "failed": "bad", "gradients": "s2 bar",
    "floor": "s3 bar", "proof": "s1 hollow", "waiting": "none",
}  # fmt: skip
MARKED: Mapping[EpisodeKind, int] = {"no memory": 4, "failed": 2}  # the shape of a mark, by its series
WORDS: Mapping[EpisodeKind, str] = {
    "preparation": "limits of the machine", "trial": "trial", "no memory": "out of memory",
    "failed": "failed otherwise", "gradients": "gradients", "floor": "floor", "proof": "real training",
    "waiting": "no job",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Drawn:
    """A bar of the time line: an episode, or several that are too short to be told apart."""

    kind: EpisodeKind
    lane: str
    begun: float  # seconds since the beginning, as they are drawn
    ended: float
    words: str
    count: int = 1


def plots(comparison: Comparison) -> Iterator[Plot]:
    """Yield one plot for each run, however many models it measured; of very many runs the first ones."""
    shown: set[str] = set()
    for part in comparison.parts:
        for row in part.rows:
            if row.episodes and row.run_id not in shown and len(shown) < MOST_PLOTS:
                shown.add(row.run_id)
                yield plot(row, row.episodes)


def plot(row: Row, episodes: Sequence[Episode]) -> Plot:
    """Draw the lanes of one run over its time."""
    drawn, shortened = _on_time(episodes)
    x = Linear(0, max(episode.ended for episode in drawn) or 1.0, LEFT, RIGHT)
    bars = list(_merged(drawn, (RIGHT - LEFT) / (x.high or 1.0)))
    lanes = [MACHINE, *dict.fromkeys(e.model for e in episodes if e.model), NOBODY]
    lanes = [lane for lane in lanes if any(bar.lane == lane for bar in bars)]
    parts = [part for i, lane in enumerate(lanes) for part in _lane(i, lane, bars, x)]
    box = Box(LEFT, TOP, RIGHT, TOP + LANE * len(lanes) + 4)
    legend, legend_height = _legend([bar.kind for bar in bars], box.bottom + (20 if shortened else 34))
    under = _shortened(box, shortened) if shortened else _minutes(x, box)
    whole = int(box.bottom + (20 if shortened else 34) + legend_height)
    title = f"run {row.run_id} on {row.machine.label}: what it did when"
    description = "; ".join(_counted(episodes))
    runs = (row.run_id,)
    return Plot(
        f"timeline-{row.run_id}", title, description, WIDTH, whole, fragment(under, *parts, legend), runs
    )


def _on_time(episodes: Sequence[Episode]) -> tuple[list[Drawn], float]:
    """Place episodes one behind the other; return them, and the seconds that were drawn shorter."""
    stopped = [episode.ended - episode.begun for episode in episodes if _is_gap(episode)]
    most = MOST_OF_A_GAP * max(1.0, episodes[-1].ended - episodes[0].begun - sum(stopped))
    at, drawn, shortened = 0.0, [], 0.0
    for episode in episodes:
        seconds = episode.ended - episode.begun
        words = f"{episode.label}, {seconds_text(seconds)}"
        if _is_gap(episode) and seconds > most:
            shortened, seconds = shortened + seconds, most
        lane = NOBODY if episode.kind == "waiting" else episode.model or MACHINE
        words = f"{episode.model}, {words}" if episode.model else words
        if episode.kind != "waiting" or seconds >= LEAST_WAITING:
            drawn.append(Drawn(episode.kind, lane, at, at + seconds, f"{WORDS[episode.kind]}: {words}"))
        at += seconds
    return drawn, shortened


def _is_gap(episode: Episode) -> bool:
    return episode.kind == "waiting" and episode.label == "not going on"


def _merged(drawn: Sequence[Drawn], pixels_a_second: float) -> Iterator[Drawn]:
    """Join neighbours of one kind in one lane that would be narrower than LEAST_PIXELS."""
    least = LEAST_PIXELS / pixels_a_second
    open_: dict[tuple[str, str], Drawn] = {}
    for episode in drawn:
        key, narrow = (episode.lane, episode.kind), episode.ended - episode.begun < least
        before = open_.get(key)
        if before is not None and narrow and episode.begun - before.ended < least:
            count = before.count + 1
            words = f"{WORDS[episode.kind]}: {count} short ones"
            open_[key] = Drawn(episode.kind, episode.lane, before.begun, episode.ended, words, count)
            continue
        if before is not None:
            yield before
        open_[key] = episode
    yield from open_.values()


def _lane(i: int, lane: str, bars: Sequence[Drawn], x: Linear) -> Iterator[Markup]:
    top = TOP + LANE * i
    own = [bar for bar in bars if bar.lane == lane]
    seconds = sum(bar.ended - bar.begun for bar in own)
    yield text(LEFT, top + 10, f"{lane[:48]}, {seconds_text(seconds)}", class_="small")
    yield line(LEFT, top + 15 + BAR, RIGHT, top + 15 + BAR, "grid")
    for bar in own:
        yield _bar(x(bar.begun), max(1.0, x(bar.ended) - x(bar.begun)), top + 15, bar.kind, bar.words)


def _bar(left: float, width: float, top: float, kind: EpisodeKind, words: str = "") -> Markup:
    height = BAR / 2 if kind in ("preparation", "waiting") else BAR
    inside = [el("title", words)] if words else []
    y = top + BAR - height
    box = el("rect", *inside, x=left, y=y, width=width, height=height, class_=CLASSES[kind])
    if kind not in MARKED or width < 6:
        return box
    return fragment(box, mark(left + width / 2, top + BAR / 2, MARKED[kind], 3.0, words))


def _minutes(x: Linear, box: Box) -> Markup:
    minutes = Linear(x.low / 60, x.high / 60, x.start, x.end)
    ticks = minutes.ticks(6)
    words = zip(ticks, tick_texts(ticks), strict=True)
    shown = [text(minutes(t), box.bottom + 14, w, anchor=_anchor(minutes(t)), class_="small muted")
             for t, w in words]  # fmt: skip
    lines = [line(minutes(t), box.top, minutes(t), box.bottom, "grid") for t in ticks]
    name = text(box.right, box.bottom + 27, "minutes", anchor="end", class_="small muted")
    return fragment(*lines, *shown, line(box.left, box.bottom, box.right, box.bottom, "axis"), name)


def _anchor(x: float) -> str:
    """Return the side on which a tick's text stays inside the picture."""
    return "start" if x < LEFT + 20 else "end" if x > RIGHT - 20 else "middle"


def _shortened(box: Box, seconds: float) -> Markup:
    words = f"{seconds_text(seconds)} in which the run was not going on are drawn shorter: no axis of minutes"
    return text(box.left, box.bottom + 12, words, class_="small muted")


def _legend(kinds: Sequence[EpisodeKind], top: float) -> tuple[Markup, float]:
    """Draw each kind with its words, in as many rows as are needed; return them, and their height."""
    parts: list[Markup] = []
    x, y = float(LEFT), top
    for kind in (kind for kind in WORDS if kind in kinds):
        width = 26 + 7.0 * len(WORDS[kind])
        if x + width > RIGHT and x > LEFT:
            x, y = float(LEFT), y + 18
        parts += [_bar(x, 14.0, y, kind), text(x + 18, y + 10, WORDS[kind], class_="small")]
        x += width
    return fragment(*parts), y - top + 22


def _counted(episodes: Sequence[Episode]) -> Iterator[str]:
    """Yield for each kind how many episodes there were, and how long they took together."""
    counts = Counter(episode.kind for episode in episodes)
    for kind, words in WORDS.items():
        if counts[kind]:
            seconds = sum(episode.ended - episode.begun for episode in episodes if episode.kind == kind)
            yield f"{words}: {count_text(counts[kind], 'time')}, {seconds_text(seconds)}"
