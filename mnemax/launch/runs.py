"""Where runs live: runs/NAME, runs/NAME-2, ..."""

from pathlib import Path

from mnemax.errors import UserError

ROOT = Path("runs")
SWEEP_STATE, SWEEP_LOG = "state.json", "log.txt"  # what a sweep keeps in a run's folder, and may lie there before the run


def choose_folder(name: str, out: Path | None, resume: bool) -> Path:
    """The folder of a new run, or of the newest one of that name when resuming.

    Raises:
        UserError: a new run's folder is taken, or there is nothing to resume.
    """
    if out is not None:
        taken = (out / "config.yaml").is_file()
        if resume and not taken:
            raise UserError(f"There is nothing to resume in {out}: it has no config.yaml.")
        if not resume and out.exists() and (not out.is_dir() or {p.name for p in out.iterdir()} - {SWEEP_STATE, SWEEP_LOG}):
            raise UserError(f"--out {out} exists and is not empty; add --resume to continue it, or name another.")
        return out
    existing = numbered(name)
    if resume:
        if not existing:
            raise UserError(f"There is no run named '{name}' in {ROOT}/ to resume.")
        return existing[-1]
    if not existing:
        return ROOT / name
    last = existing[-1].name.removeprefix(name).lstrip("-")
    return ROOT / f"{name}-{int(last or 1) + 1}"


def numbered(name: str) -> list[Path]:
    """The existing folders of runs of one name, oldest first."""
    found = []
    for path in ROOT.glob(f"{name}*"):
        number = path.name.removeprefix(name)
        if (path / "config.yaml").is_file() and (number == "" or (number[0] == "-" and number[1:].isdigit())):
            found.append((int(number[1:] or 1), path))
    return [path for _, path in sorted(found)]
