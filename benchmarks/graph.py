"""Draw the floors of bench/ and the imports between its folders, as SVG.

python benchmarks/graph.py OUT.svg              this tree, on the floors of tests/layers.py
python benchmarks/graph.py OUT.svg FOLDER       another tree: each module directly below FOLDER is a box,
                                                placed above the boxes that it imports

An import that runs upward, or between boxes that import each other, is red.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.report.plots.svg import FONT
from tests.layers import FLOORS, ROOT, arrows

WIDTH, MARGIN, BOX_HEIGHT, GAP, WIDEST_GAP = 1080, 24, 30, 14, 220
ROW_HEIGHT = 92
STYLE = (
    f"text{{font-family:{FONT};font-size:13px;fill:#222;text-anchor:middle}}"
    ".box{fill:#eaf1f8;stroke:#0072b2}.down{stroke:#8aa4b8;fill:none}.up{stroke:#d2342b;fill:none}"
)
Box = tuple[float, float, float]  # centre, top, width


def box_of(module: str) -> str:
    """Return the package that a module belongs to."""
    return module.partition(".")[0]


def between_boxes(root: Path) -> Counter[tuple[str, str]]:
    """Count the imports between each pair of boxes."""
    pairs = ((box_of(module), box_of(other)) for module, other in arrows(root))
    return Counter((a, b) for a, b in pairs if a != b and a and b and "data" not in (a, b))


def computed_floors(edges: Iterable[tuple[str, str]]) -> Sequence[Sequence[str]]:
    """Place each box one floor above the highest box that it imports; cycles are cut at their first box."""
    below: dict[str, set[str]] = {}
    for a, b in edges:
        below.setdefault(a, set()).add(b)
        below.setdefault(b, set())
    heights: dict[str, int] = {}

    def height(name: str, above: frozenset[str]) -> int:
        if name not in heights:
            lower = [height(other, above | {name}) for other in sorted(below[name]) if other not in above]
            heights[name] = 1 + max(lower, default=-1)
        return heights[name]

    for name in sorted(below):
        height(name, frozenset({name}))
    return [
        sorted(name for name, own in heights.items() if own == floor)
        for floor in range(1 + max(heights.values()))
    ]


def placed(floors: Sequence[Sequence[str]]) -> Mapping[str, Box]:
    """Return the place of each box; those of the highest floor are at the top."""
    boxes: dict[str, Box] = {}
    for number, names in enumerate(reversed(floors)):
        widths = [max(64.0, 9.0 * len(name) + 16) for name in names]
        squeeze = min(1.0, (WIDTH - 2 * MARGIN - GAP * len(names)) / sum(widths))
        spare = WIDTH - 2 * MARGIN - squeeze * sum(widths)
        gap = max(GAP, min(WIDEST_GAP, spare / (len(names) + 1)))
        left = (WIDTH - squeeze * sum(widths) - gap * (len(names) - 1)) / 2
        for name, width in zip(names, widths, strict=True):
            own = squeeze * width
            boxes[name] = (left + own / 2, MARGIN + number * ROW_HEIGHT, own)
            left += own + gap
    return boxes


def svg(floors: Sequence[Sequence[str]], edges: Counter[tuple[str, str]]) -> str:
    """Return the picture; a line is thicker the more imports there are between its boxes."""
    boxes = placed(floors)
    number = {name: floor for floor, names in enumerate(floors) for name in names}
    parts = []
    for (a, b), count in sorted(edges.items(), key=lambda edge: number[edge[0][0]] <= number[edge[0][1]]):
        wrong = number[a] <= number[b] or (b, a) in edges
        (x, y, _), (to_x, to_y, _) = boxes[a], boxes[b]
        start, end = y + (0 if wrong else BOX_HEIGHT), to_y + (BOX_HEIGHT if wrong else 0)
        bend = (start + end) / 2
        path = f"M{x:.0f} {start:.0f}C{x:.0f} {bend:.0f} {to_x:.0f} {bend:.0f} {to_x:.0f} {end:.0f}"
        thick = 0.6 + 0.35 * min(count, 12) ** 0.7
        title = f"<title>{a} imports {b}: {count}</title>"
        parts.append(
            f'<path class="{"up" if wrong else "down"}" stroke-width="{thick:.2f}" d="{path}">{title}</path>'
        )
    for name, (x, y, width) in boxes.items():
        corner = f'x="{x - width / 2:.1f}" y="{y:.0f}" width="{width:.1f}" height="{BOX_HEIGHT}" rx="4"'
        size = min(13.0, (width - 6) / max(1, len(name)) * 1.75)
        parts.append(f'<rect class="box" {corner}/><text x="{x:.1f}" y="{y + 20:.0f}" ')
        parts.append(f'style="font-size:{size:.1f}px">{name}</text>')
    height = 2 * MARGIN + ROW_HEIGHT * (len(floors) - 1) + BOX_HEIGHT
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}">'
    return (
        f'{head}<style>{STYLE}</style><rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def main() -> int:
    """Write the picture of the imports of this tree, or of the tree in the second argument."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("out", type=Path, metavar="OUT.svg", help="the picture to write")
    boxes = "another tree, whose modules are boxes; default: this tree, by folders"
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help=boxes)
    given = parser.parse_args()
    out, other = given.out, given.folder
    root = other or ROOT
    edges = between_boxes(root)
    if not other:
        edges = Counter({pair: count for pair, count in edges.items() if "__main__" not in pair})
    floors = computed_floors(edges) if other else FLOORS
    out.write_text(svg(floors, edges))
    print(f"{out}: {len(floors)} floors, {sum(map(len, floors))} boxes, {len(edges)} arrows between them")
    return 0


if __name__ == "__main__":
    sys.exit(main())
