"""What a sweep found, as one page: figures, numbers, and what went wrong."""

from pathlib import Path


def report(sweep: Path, out: Path | None = None) -> Path:
    """Writes index.html with every figure inside, each figure as PNG, and the data as CSV, into SWEEP/report or `out`.

    Cells that failed, have not finished or are partly unreadable are listed, and drawn as far as they have come.

    Returns:
        The page.

    Raises:
        UserError: the folder is no sweep's, or `out` cannot be written.
    """
    from matplotlib import rc_context

    from mnemax.evaluation.report.figures import drawings
    from mnemax.evaluation.report.page import page
    from mnemax.evaluation.report.reading import read
    from mnemax.evaluation.report.style import RC, png, svg
    from mnemax.evaluation.report.tables import tables
    from mnemax.files import writing

    found = read(sweep)
    folder = sweep / "report" if out is None else out
    with writing(folder), rc_context(RC):
        folder.mkdir(parents=True, exist_ok=True)
        drawn = []
        for drawing in drawings(found):
            (folder / f"{drawing.name}.png").write_bytes(png(drawing.figure))
            drawn.append((drawing, svg(drawing.figure)))
        for table in tables(found):
            table.write(folder)
        (folder / "index.html").write_text(page(found, drawn), encoding="utf-8")
    return folder / "index.html"
