"""Labels that stand at what they name and overlap nothing: no legend, no looking to and fro.

Places are sought in pixels once the figure's layout is final, and kept in units that hold at any resolution.
"""

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.path import Path
    from matplotlib.transforms import Bbox


class Label(NamedTuple):
    """What is written, and the point in the axes' data that it names."""

    text: str
    x: float
    y: float
    color: str
    weight: str = "normal"


class Place(NamedTuple):
    """Where a text stands about its point: an offset in points, and its alignment."""

    right: float
    up: float
    ha: str
    va: str
    distance: float


class Candidate(NamedTuple):
    """A place with what it costs; its box and the line to it, in pixels."""

    cost: float
    place: Place
    box: "Bbox"
    leader: "Path"


# In degrees from the right, an equally free place is taken in this order.
ANGLES = (0, 40, -40, 90, -90, 180, 140, -140, 20, -20, 160, -160, 65, -65, 115, -115, 8, -8, 172, -172, 30, -30, 150, -150)
# Points between a marker and its label; from the second on a thin line leads there.
DISTANCES = (9, 16, 24, 34, 46, 60, 76, 94, 114, 136)
ROUNDS = 3
MARKER = 4
STEP = 0.35
"""What a place costs more than the one before it."""
LINE = 40
"""What it costs to cover a line of the figure."""
LEADER = 100
"""What it costs where a leader runs through another label."""
WRAP = 36
"""Letters a line."""
GAP = 3
"""Pixels kept free about a label."""
ALIGNED = {"left": 0, "center": 0.5, "right": 1, "bottom": 0, "top": 1}


def _places() -> list[Place]:
    """All places about a point, the most wanted first."""
    found = []
    for distance in DISTANCES:
        for angle in map(math.radians, ANGLES):
            right, up = math.cos(angle), math.sin(angle)
            ha = "center" if abs(right) < 0.3 else "left" if right > 0 else "right"
            va = "center" if abs(up) < 0.3 else "bottom" if up > 0 else "top"
            found.append(Place(distance * right, distance * up, ha, va, distance))
    return found


PLACES = _places()


def beside_points(axes: "Axes", labels: Sequence[Label], obstacles: Sequence["Bbox"] = (), lines: Sequence["Path"] = ()) -> None:
    """Writes each label next to its point, clear of the others, of markers and of the axes' rim.

    Args:
        obstacles: boxes in pixels to stay out of.
        lines: paths in pixels that a label had better not cover.
    """
    from matplotlib.path import Path
    from matplotlib.transforms import Bbox

    labels = _wrapped(labels)
    settle(axes)
    frame, scale = axes.get_window_extent(), _pixels_a_point(axes)
    sizes = [_size(axes, label) for label in labels]
    points = [axes.transData.transform((label.x, label.y)) for label in labels]
    rim = MARKER * scale
    closed = [*obstacles, *(Bbox.from_extents(x - rim, y - rim, x + rim, y + rim) for x, y in points)]
    chosen: dict[int, Candidate] = {}

    def candidate(order: int, place: Place, point: Any, size: tuple[float, float], rivals: list[Candidate]) -> Candidate:
        end = (point[0] + place.right * scale, point[1] + place.up * scale)
        box, leader = _box(end, size, place), Path([point, end])
        outside = not (frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1)
        cost = order * STEP + 1e7 * outside
        cost += 1e4 * sum(_overlap(box, other) for other in (*closed, *(rival.box for rival in rivals)))
        cost += LINE * sum(line.intersects_bbox(box, filled=False) for line in lines)
        cost += LEADER * sum(rival.leader.intersects_bbox(box, filled=False) for rival in rivals)
        cost += LEADER * sum(leader.intersects_bbox(rival.box, filled=False) for rival in rivals)
        return Candidate(cost, place, box, leader)

    def best(i: int) -> Candidate:
        rivals = [rival for j, rival in chosen.items() if j != i]
        found = None
        for order, place in enumerate(PLACES):
            if found is not None and found.cost <= order * STEP:
                break  # every later place costs more
            other = candidate(order, place, points[i], sizes[i], rivals)
            found = other if found is None or other.cost < found.cost else found
        assert found is not None
        return found

    # The first were placed when the others were not there yet, so each looks around again.
    for _ in range(ROUNDS):
        for i in sorted(range(len(labels)), key=lambda i: tuple(points[i])):
            chosen[i] = best(i)
    for i, found in chosen.items():
        _write(axes, labels[i], found.place)


def beside_ends(axes: "Axes", labels: Sequence[Label]) -> None:
    """Writes each line's label at the right of the axes, at the height of its end or as near as the others let it."""
    labels = _wrapped(labels)
    notes = [
        axes.annotate(
            label.text,
            (label.x, label.y),
            (1.03, 0.5),
            textcoords="axes fraction",
            va="center",
            annotation_clip=False,
            arrowprops=_leader(label.color, (0, 0.5)) | {"linestyle": "-" if _near_rim(axes, label) else ":"},
        )
        for label in labels
    ]
    settle(axes)
    frame = axes.get_window_extent()
    height = max((_size(axes, label)[1] for label in labels), default=0)
    # A label may stand out of the frame by a little, not by half of two lines.
    rim = max(0.0, height / 2 - 3 * _pixels_a_point(axes))
    wanted = [float(axes.transData.transform((label.x, label.y))[1]) for label in labels]
    for note, y in zip(notes, spread(wanted, height + _pixels_a_point(axes), frame.y0 + rim, frame.y1 - rim), strict=True):
        note.set_position((1.03, (y - frame.y0) / frame.height))


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Heights at least `gap` apart, in the order wanted and near it, between low and high as far as they fit."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    # Labels that touch are moved as one group, which is centred on what its members want.
    groups: list[list[float]] = []
    for i in order:
        groups.append([wanted[i]])
        while len(groups) > 1 and _start(groups[-2], gap, low, high) + gap * len(groups[-2]) > _start(groups[-1], gap, low, high):
            last = groups.pop()
            groups[-1].extend(last)
    heights = [_start(group, gap, low, high) + gap * n for group in groups for n in range(len(group))]
    return [height for _, height in sorted(zip(order, heights, strict=True))]


def settle(axes: "Axes") -> None:
    """Lays the figure out once and for all, so that pixels stay where they are."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def lines_of(text: str) -> list[str]:
    """A label's text as it is broken."""
    return textwrap.wrap(text, WRAP)


def _wrapped(labels: Sequence[Label]) -> list[Label]:
    return [label._replace(text="\n".join(lines_of(label.text))) for label in labels]


def _near_rim(axes: "Axes", label: Label) -> bool:
    """Whether a line ends where the axes do; a long solid leader would look like more of it."""
    return axes.transAxes.inverted().transform(axes.transData.transform((label.x, label.y)))[0] > 0.9


def _start(group: list[float], gap: float, low: float, high: float) -> float:
    centred = sum(y - gap * n for n, y in enumerate(group)) / len(group)
    return max(low, min(centred, high - gap * (len(group) - 1)))


def _write(axes: "Axes", label: Label, place: Place) -> None:
    towards = (ALIGNED[place.ha], ALIGNED[place.va])
    axes.annotate(
        label.text,
        (label.x, label.y),
        (place.right, place.up),
        textcoords="offset points",
        ha=place.ha,
        va=place.va,
        weight=label.weight,
        arrowprops=_leader(label.color, towards) if place.distance > DISTANCES[0] else None,
    )


def _leader(color: str, towards: tuple[float, float]) -> dict[str, Any]:
    """A thin line between a label's edge and its point."""
    return {"arrowstyle": "-", "color": color, "lw": 0.8, "alpha": 0.7, "shrinkB": MARKER, "relpos": towards, "patchA": None}


def _size(axes: "Axes", label: Label) -> tuple[float, float]:
    text = axes.text(0, 0, label.text, weight=label.weight)
    box = text.get_window_extent()
    text.remove()
    return box.width, box.height


def _box(at: tuple[float, float], size: tuple[float, float], place: Place) -> "Bbox":
    from matplotlib.transforms import Bbox

    return Bbox.from_bounds(at[0] - size[0] * ALIGNED[place.ha], at[1] - size[1] * ALIGNED[place.va], *size).padded(GAP)


def _pixels_a_point(axes: "Axes") -> float:
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure.dpi / 72


def _overlap(a: "Bbox", b: "Bbox") -> float:
    width = min(a.x1, b.x1) - max(a.x0, b.x0)
    height = min(a.y1, b.y1) - max(a.y0, b.y0)
    return max(width, 0) * max(height, 0)
