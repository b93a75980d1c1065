"""One picture of several sweeps over the same cells: accuracy against bytes of decode state, a panel a sweep; means and ranges.

uv run python scripts/draw_memories.py OUT.png runs/sweeps/memories_mqar runs/sweeps/memories_s3
"""

import sys
from pathlib import Path

from mnemax.evaluation.report.drawing import chance_line
from mnemax.evaluation.report.reading import read
from mnemax.evaluation.report.style import RC, bytes_axis, look, new_figure, png

TASK = "recall"


def main(out: Path, folders: list[Path]) -> None:
    import matplotlib

    with matplotlib.rc_context(RC):
        sweeps = [read(folder) for folder in folders]
        labels = list(dict.fromkeys(cell.label for sweep in sweeps for cell in sweep.cells if cell.scores(TASK, "accuracy")))
        looks = {label: look(i) for i, label in enumerate(labels)}
        rows = -(-len(sweeps) // 2)
        figure = new_figure(3.2 * rows + 1.2)
        panels = figure.subplots(rows, 2, squeeze=False).flat
        handles = {}
        for axes, sweep in zip(panels, sweeps, strict=False):
            axes.set(title=sweep.title, ylim=(-0.03, 1.05), ylabel="accuracy", xlabel="bytes of decode state")
            for cell in sweep.cells:
                scores = cell.scores(TASK, "accuracy")
                if not scores or not cell.model.state_bytes:
                    continue
                mean = sum(scores) / len(scores)
                style = looks[cell.label]
                handles[cell.label] = axes.errorbar(
                    cell.model.state_bytes, mean, [[mean - min(scores)], [max(scores) - mean]],
                    fmt=style.marker, color=style.color, ms=7, elinewidth=1, capsize=2,
                )  # fmt: skip
            axes.margins(x=0.12)
            bytes_axis(axes)
            if (chance := sweep.chance(TASK)) is not None:
                chance_line(axes, chance, at=0.995)
        for axes in panels:
            axes.set_visible(False)
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
        out.write_bytes(png(figure))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(folder) for folder in sys.argv[2:]])
