"""How figures look: colours for colour-blind readers, one look for a cell in every figure, text that follows the page."""

import io
import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#24292f"
"""Text, axes and grid. In the page it is replaced by the colour of the page's own text."""

# Okabe and Ito's palette (Color Universal Design, 2008) without its yellow, too pale on white; black is the ink.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", INK)
MARKERS = "os^DvPX*<>"
GLYPHS = "●■▲◆▼✚✖★◀▶"
DASHES = ("-", "--", ":", "-.")

RC = {
    "font.size": 10,
    "axes.labelsize": 10,
    "axes.titlesize": 10,
    "text.parse_math": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.12,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "svg.hashsalt": "mnemax",
}

WIDTH = 9.0
"""Inches of every figure, so that text has one size in all."""


class Look(NamedTuple):
    """How one cell is drawn."""

    color: str
    marker: str
    dashes: str
    glyph: str


def look(cell: int) -> Look:
    """By the cell's place in the sweep; colour, marker and dashes tell cells apart where the colours repeat."""
    return Look(
        COLORS[cell % len(COLORS)],
        MARKERS[cell % len(MARKERS)],
        DASHES[cell // len(COLORS) % len(DASHES)],
        GLYPHS[cell % len(MARKERS)],
    )


def new_figure(height: float) -> "Figure":
    """An empty figure of the common width; inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def png(figure: "Figure") -> bytes:
    """On white."""
    return _saved(figure, format="png", facecolor="white")


def svg(figure: "Figure") -> str:
    """Without a ground, and with ink that is dark on light screens and light on dark ones."""
    drawn = _saved(figure, format="svg", transparent=True, metadata={"Date": None}).decode()
    theme = "svg{color:%s}@media screen and (prefers-color-scheme:dark){svg{color:#e6e8eb}}"
    head, tail = drawn[drawn.index("<svg") :].replace(INK, "currentColor").split(">", 1)
    return f"{head}><style>{theme % INK}</style>{tail}"


def _saved(figure: "Figure", **options: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, **options)
    return file.getvalue()


def engineering(number: float | None, unit: str = "") -> str:
    """4096 bytes as '4.1 kB'; an unknown number as a dash."""
    from matplotlib.ticker import EngFormatter

    if number is None:
        return "–"
    return EngFormatter(unit=unit, places=None if abs(number) < 1000 else 1, sep="\N{NO-BREAK SPACE}")(number).strip()


def bytes_axis(axes: "Axes") -> None:
    """A logarithmic x axis of bytes, ticked at 1, 2 and 5 within few decades."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 3e3 else (1,), numticks=15))
    axes.xaxis.set_major_formatter(EngFormatter(unit="B", sep="\N{NO-BREAK SPACE}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def tokens_axis(axes: "Axes") -> None:
    """A logarithmic x axis of tokens, ticked at powers of two; 0 stands at 1/2."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{math.floor(x):,}" if x < 1e4 else f"{x / 1024:,g}k"))
    axes.xaxis.set_minor_locator(NullLocator())


def values_axis(axes: "Axes", values: Collection[float]) -> None:
    """An x axis of the values that a field was set to, logarithmic if they span a lot, ticked where they stand."""
    from matplotlib.ticker import NullLocator

    if min(values) > 0 and max(values) / min(values) >= 8:
        axes.set_xscale("log")
    ticks: list[float] = []
    for value in sorted(set(values)):
        if not ticks or _fraction(axes, value) - _fraction(axes, ticks[-1]) > 0.06:
            ticks.append(value)
    axes.set_xticks(ticks, [f"{value:,g}" for value in ticks])
    axes.xaxis.set_minor_locator(NullLocator())


def _fraction(axes: "Axes", x: float) -> float:
    """Of the axes' width."""
    return axes.transLimits.transform(axes.transScale.transform((x, 1)))[0]
