"""What every figure has: its words, and an axis for scores."""

from typing import TYPE_CHECKING, NamedTuple

from mnemax.evaluation.report.style import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {"accuracy": "accuracy", "bits_per_byte": "bits a byte", "loss": "loss"}


class Drawing(NamedTuple):
    """A figure with its words.

    Attributes:
        name: stem of the PNG file.
        summary: what is to be seen, for those who cannot see it.
        data: the CSV file that holds what is drawn.
    """

    name: str
    heading: str
    caption: str
    summary: str
    data: str
    figure: "Figure"


def score_axis(axes: "Axes", of: str, measure: str) -> None:
    """The y axis of a task or of training. Accuracy is shown whole, from 0 to 1: what looks small is small."""
    hints = {"accuracy": "accuracy", "bits_per_byte": "bits a byte (less is better)", "loss": "nats a token (less is better)"}
    axes.set_ylabel(f"{of}: {hints[measure]}")
    if measure == "accuracy":
        axes.set_ylim(-0.03, 1.05)


def chance_line(axes: "Axes", chance: float, at: float) -> None:
    """A thin line where guessing stands, named at a fraction of the axes' width."""
    axes.axhline(chance, color=INK, lw=0.8, ls=(0, (1, 2)), zorder=1)
    axes.annotate(
        f"chance {chance:.2g}",
        (at, chance),
        (0, 3),
        xycoords=axes.get_yaxis_transform(),
        textcoords="offset points",
        ha="right" if at > 0.5 else "left",
        size=8.5,
    )


def file_name(task: str) -> str:
    """A task's name as a part of a file's."""
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in task)
