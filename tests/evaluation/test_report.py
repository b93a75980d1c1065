"""The report of a sweep: its numbers, its words, and how it looks."""

import csv
import itertools
import json
import random
import shutil
import statistics
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib import image, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from mnemax.errors import UserError
from mnemax.evaluation.report import report
from mnemax.evaluation.report.fields import differing, short_names, value_of
from mnemax.evaluation.report.figures import drawings
from mnemax.evaluation.report.labels import Label, beside_points, spread
from mnemax.evaluation.report.reading import read
from mnemax.evaluation.report.series import over_steps
from mnemax.evaluation.report.statistics import estimate, pareto
from mnemax.evaluation.report.style import COLORS, RC
from tests.evaluation.fake_sweep import write_sweep

# Student's t, 97.5%, by the number of values (any printed table has them by degrees of freedom, one less).
T_TABLE = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 10: 2.262}
CROWDED = (16, 18, 20, 22, 24, 28, 32, None)
VOID = {"meta", "img", "br", "hr", "link"}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    folder = write_sweep(tmp_path_factory.mktemp("sweeps") / "window_size")
    report(folder)
    return folder


@pytest.fixture(scope="module")
def rough(tmp_path_factory) -> Path:
    """Seeds that failed, are running, never began, and files that are cut off or hold something else."""
    folder = write_sweep(tmp_path_factory.mktemp("sweeps") / "rough", CROWDED)
    cells = folder / "cells"
    failed = cells / "memory.size=16/seed-0"
    (failed / "evaluation.json").unlink()
    (failed / "state.json").write_text(json.dumps({"state": "failed", "error": "The loss is <nan> at step 7.", "seconds": 3}))
    running = cells / "memory.size=18/seed-1"
    (running / "evaluation.json").unlink()
    (running / "state.json").write_text(json.dumps({"state": "running", "error": None, "seconds": None}))
    (running / "metrics.jsonl").write_text('{"split": "train", "step": 10, "accuracy": 0.5}\n{"split": "tra')
    shutil.rmtree(cells / "memory.size=20/seed-2")
    (cells / "memory.size=22/seed-0/evaluation.json").write_text('{"model": {"par')
    (cells / "memory.size=24/seed-0/metrics.jsonl").write_text('{"split": "train", "step": 10, "accuracy": 0.5}\n\x00\n3\n')
    (cells / "memory.size=24/seed-1/config.yaml").write_text("model: [")
    (cells / "memory.size=28/seed-0/state.json").write_text('{"state": "asleep"}')
    half = json.loads((path := cells / "memory.size=32/seed-0/evaluation.json").read_text())
    half["tasks"]["mqar"]["accuracy"] = "high"
    half["tasks"]["language"]["bits_per_byte"] = float("nan")
    path.write_text(json.dumps(half))
    report(folder)
    return folder


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("n", T_TABLE)
def test_intervals_are_those_of_the_table(n):
    values = [random.Random(i).gauss(3, 2) for i in range(n)]
    found = estimate(values)
    assert found is not None
    assert found.mean == pytest.approx(statistics.fmean(values))
    assert found.half == pytest.approx(T_TABLE[n] * statistics.stdev(values) / n**0.5, rel=1e-3)


def test_one_value_has_no_interval_and_none_has_no_mean():
    assert estimate([0.5]) == (0.5, None, 1)
    assert estimate([]) is None


def test_the_pareto_front_is_what_nobody_dominates():
    draw = random.Random(0)
    for _ in range(200):
        points = [(draw.randint(1, 6), draw.randint(1, 6)) for _ in range(draw.randint(1, 9))]
        best = [
            i
            for i, (cost, quality) in enumerate(points)
            if not any(c <= cost and q >= quality and (c, q) != (cost, quality) for c, q in points)
        ]
        front = pareto(*zip(*points, strict=True))
        assert sorted(front) == best
        assert [points[i][0] for i in front] == sorted(points[i][0] for i in front)


def test_the_csv_files_hold_what_the_runs_wrote(sweep):
    written = {tuple(row.values())[:4]: float(row["value"]) for row in rows(sweep / "report/scores.csv")}
    curves = rows(sweep / "report/curves.csv")
    grids = {tuple(row.values())[:5]: float(row["accuracy"]) for row in rows(sweep / "report/needles.csv")}
    distances = rows(sweep / "report/by_distance.csv")
    for cell in json.loads((sweep / "cells.json").read_text()):
        name, seed = cell["name"], str(cell["seed"])
        tasks = json.loads((sweep / cell["folder"] / "evaluation.json").read_text())["tasks"]
        assert written[name, seed, "mqar", "accuracy"] == tasks["mqar"]["accuracy"]
        assert written[name, seed, "language", "bits_per_byte"] == tasks["language"]["bits_per_byte"]
        assert written[name, seed, "language", "loss on repeated bigrams"] == tasks["language"]["repeated_bigrams"]["loss"]
        grid = tasks["needles"]["grid"]
        for (i, length), (j, depth) in itertools.product(enumerate(grid["lengths"]), enumerate(grid["depths"])):
            assert grids[name, seed, "needles", str(length), str(depth)] == grid["accuracy"][i][j]
        own = [row for row in distances if (row["cell"], row["seed"]) == (name, seed)]
        bins = tasks["mqar"]["by_distance"]
        assert [(int(r["from"]), int(r["to"]), float(r["accuracy"])) for r in own] == [tuple(b.values())[:3] for b in bins]
        records = [json.loads(line) for line in (sweep / cell["folder"] / "metrics.jsonl").read_text().splitlines()]
        own = [row for row in curves if (row["cell"], row["seed"]) == (name, seed)]
        assert [(r["split"], int(r["step"]), float(r["accuracy"]), float(r["loss"])) for r in own] == [
            (r["split"], r["step"], r["accuracy"], r["loss"]) for r in records
        ]


def test_the_summary_is_over_the_seeds(sweep):
    (row,) = (row for row in rows(sweep / "report/summary.csv") if row["label"] == "window 32")
    scores = [
        json.loads((sweep / f"cells/memory.size=32/seed-{seed}/evaluation.json").read_text())["tasks"]["mqar"]["accuracy"]
        for seed in range(3)
    ]
    assert float(row["mqar accuracy mean"]) == pytest.approx(statistics.fmean(scores))
    assert float(row["mqar accuracy half of 95% interval"]) == pytest.approx(4.303 * statistics.stdev(scores) / 3**0.5, rel=1e-3)
    assert (row["runs"], row["finished"], row["state_bytes"], row["seconds"]) == ("3", "3", "8192", "61.0")
    assert f"{statistics.fmean(scores):.3f} ± " in (sweep / "report/index.html").read_text()


def test_only_fields_that_differ_are_columns(sweep):
    cells = read(sweep).cells
    fields = [f"model.layer.attention.memory.{name}" for name in ("kind", "size")]
    assert set(differing(cells)) == {*fields, "model.width"}
    full = next(cell for cell in cells if cell.label == "full attention")
    assert [value_of(full, field) for field in fields] == ["full", None]
    # What a cell does not set is looked up in its resolved configuration, which has no `model.layer` left.
    silent = full._replace(overrides={}, chosen={})
    assert [value_of(silent, field) for field in (*fields, "model.width")] == ["full", None, 64]
    # As overrides write a place in a list, and with the type that all layers agree on.
    assert value_of(silent, "model.stages[0].layers[0].attention.memory.kind") == "full"
    window = next(cell for cell in cells if cell.label != "full attention")._replace(overrides={}, chosen={})
    assert isinstance(value_of(window, "model.layer.attention.memory.size"), int)
    assert short_names([*fields, "a.width", "b.a.width"]) == {
        **dict(zip(fields, ("memory.kind", "memory.size"), strict=True)),
        "a.width": "a.width",
        "b.a.width": "b.a.width",
    }


def test_what_is_missing_is_listed_and_the_rest_is_drawn(rough):
    found = read(rough)
    said = {problem.where: problem.said for problem in found.problems}
    assert set(said) == {
        f"cells/memory.size={place}"
        for place in (
            "22/seed-0/evaluation.json",
            "24/seed-0/metrics.jsonl",
            "24/seed-1/config.yaml",
            "28/seed-0/state.json",
            "32/seed-0/evaluation.json",
        )
    }
    assert "line 2 of 3" in said["cells/memory.size=24/seed-0/metrics.jsonl"]
    text = (rough / "report/index.html").read_text()
    assert "<b>20 of 24</b> runs finished" in text
    for part in ("1 failed", "1</b> unfinished", "1</b> not started", "1</b> in an unreadable state", "6 parts unreadable"):
        assert part in text
    assert "<dt>window 16, seed 0</dt><dd>The loss is &lt;nan&gt; at step 7.</dd>" in text
    for place in said:
        assert f"<dt>{place}</dt>" in text
    (row,) = (row for row in rows(rough / "report/summary.csv") if row["label"] == "window 32")
    assert row["mqar accuracy seeds"] == row["language bits_per_byte seeds"] == "2"
    assert row["needles accuracy seeds"] == "3"
    for name in ("quality_mqar", "quality_language", "learning_curves", "distance_mqar", "needles_needles", "position_language"):
        assert (rough / f"report/{name}.png").stat().st_size > 10_000


def test_curves_are_means_over_seeds_within_bands(sweep):
    (cell,) = (cell for cell in read(sweep).cells if cell.label == "window 64")
    values = np.array([[r["accuracy"] for r in run.records if r["split"] == "train"] for run in cell.runs])
    every = over_steps(cell.runs, "train", "accuracy", 1)
    assert every is not None
    np.testing.assert_array_equal(every.x, np.arange(10, 2001, 10))
    np.testing.assert_allclose(every.mean, values.mean(0))
    np.testing.assert_array_equal((every.low, every.high), (values.min(0), values.max(0)))
    binned = over_steps(cell.runs, "train", "accuracy", 40)
    assert binned is not None
    np.testing.assert_allclose(binned.x, np.arange(10, 2001, 10).reshape(50, 4).mean(1))
    np.testing.assert_allclose(binned.mean, values.mean(0).reshape(50, 4).mean(1))


def test_a_sweep_that_has_just_begun_has_a_page(tmp_path):
    folder = write_sweep(tmp_path / "begun", (16, None), seeds=1)
    shutil.rmtree(folder / "cells")
    text = report(folder).read_text()
    assert "<b>2</b> not started" in text
    assert "<img" not in text


def test_one_seed_says_that_it_has_no_interval(tmp_path):
    folder = write_sweep(tmp_path / "one", (16, 32), seeds=1, tasks=("mqar",), x=None)
    page = report(folder, tmp_path / "elsewhere")
    assert page == tmp_path / "elsewhere/index.html"
    assert "1 seed: no interval" in page.read_text()
    assert not (folder / "report").exists()


@pytest.mark.parametrize("cells", [None, "[{", '[{"name": "a"}]'])
def test_no_sweep_is_a_sentence(tmp_path, cells):
    if cells is not None:
        (tmp_path / "cells.json").write_text(cells)
    with pytest.raises(UserError, match=r"cells\.json"):
        report(tmp_path)


def test_names_are_text_whatever_they_hold(tmp_path):
    about = {"x": None, "title": "<script>1</script> & $x^", "description": None}
    folder = write_sweep(tmp_path / "odd", (16, 32), seeds=1, tasks=("mqar",), **about)
    cells = json.loads((folder / "cells.json").read_text())
    for cell in cells:
        cell["label"] = f"$\\frac <b>{cell['label']}</b> & {'a very long name ' * 5}"
    (folder / "cells.json").write_text(json.dumps(cells))
    text = report(folder).read_text()
    assert "<script" not in text
    assert "<h1>&lt;script&gt;1&lt;/script&gt; &amp; $x^</h1>" in text


class Page(HTMLParser):
    """Checks that elements close in order, and gathers what they refer to."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        given = dict(attrs)
        self.sources += [given[name] for name in ("src", "srcset", "data", "poster") if name in given]
        self.links += [given["href"]] if "href" in given else []

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_needs_nothing_else(rough):
    text = (rough / "report/index.html").read_text()
    page = Page(text)
    assert {"table", "figure", "img"} <= page.tags
    assert not {"script", "link", "iframe", "object"} & page.tags
    assert page.sources
    assert all(source.startswith("data:image/svg+xml;base64,") for source in page.sources)
    assert all((rough / "report" / link).is_file() for link in page.links)
    assert "@import" not in text
    assert "url(" not in text


def test_no_label_overlaps_another(rough):
    names = []
    with rc_context(RC):
        for drawing in drawings(read(rough)):
            assert_apart(drawing.figure, drawing.name)
            names.append(drawing.name)
    assert {"quality_mqar", "field_mqar", "learning_curves", "distance_mqar", "needles_needles", "position_language"} <= set(names)


def test_labels_find_room_among_scattered_points():
    draw = random.Random(1)
    for trial in range(5):
        figure = Figure(figsize=(9, 5), dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        points = [(draw.uniform(0.4, 0.6), draw.uniform(0.4, 0.6)) for _ in range(10)]
        axes.set(xlim=(0, 1), ylim=(0, 1))
        beside_points(axes, [Label(f"a rather long label {i}", *point, "black") for i, point in enumerate(points)])
        assert_apart(figure, f"trial {trial}")


def assert_apart(figure: Figure, name: str) -> None:
    figure.draw_without_rendering()
    boxes = [(text.get_text(), extent(text)) for axes in figure.axes for text in texts(axes) if text.get_text()]
    for (a, box), (b, other) in itertools.combinations(boxes, 2):
        assert not box.overlaps(other), f"{name}: '{a}' overlaps '{b}'"
    for text, box in boxes:
        inside = figure.bbox.padded(1)
        assert inside.contains(*box.min) and inside.contains(*box.max), f"{name}: '{text}' is cut"


def texts(axes: Axes) -> Iterator[Text]:
    """All that is written in and about the axes."""
    yield from (*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label)
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        ticks = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
        yield from (label for place, label in ticks if low <= place <= high)


def extent(text: Text) -> Bbox:
    """Of the text alone; an annotation's own extent has its leader in it."""
    return super(Annotation, text).get_window_extent() if isinstance(text, Annotation) else text.get_window_extent()


def test_spread_keeps_order_and_distance():
    draw = random.Random(2)
    for _ in range(100):
        wanted = [draw.uniform(-5, 105) for _ in range(draw.randint(1, 9))]
        got = spread(wanted, 10, 0, 100)
        ranked = sorted(range(len(wanted)), key=lambda i: wanted[i])
        heights = [got[i] for i in ranked]
        assert all(high - low >= 10 - 1e-9 for low, high in itertools.pairwise(heights))
        assert min(got) >= 0
        assert max(got) <= 100 + 1e-9
    assert spread([50, 20], 10, 0, 100) == [50, 20]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium on the PATH (Debian: apt-get install chromium)")
def test_chromium_shows_the_page(sweep, tmp_path):
    def chromium(*options: str) -> str:
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile", *options]
        page = (sweep / "report/index.html").as_uri()
        return subprocess.run([*command, page], capture_output=True, text=True, check=True, timeout=120).stdout

    shown = Page(chromium("--dump-dom"))
    assert {"table", "figure", "img"} <= shown.tags
    chromium("--window-size=1280,1600", f"--screenshot={tmp_path}/page.png")
    pixels = (image.imread(tmp_path / "page.png")[..., :3] * 255).round().astype(int)
    assert pixels.shape == (1600, 1280, 3)
    assert 0.02 < (pixels.min(-1) < 200).mean() < 0.5
    # The first figure shows each of the five cells in its colour.
    for color in COLORS[:5]:
        rgb = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
        assert (abs(pixels - rgb).max(-1) <= 2).sum() > 30, color
