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
        if resume and not (out / "config.yaml").is_file():
            raise UserError(f"There is nothing to resume in {out}: it has no config.yaml.")
        if not resume and _occupied(out):
            raise UserError(f"--out {out} exists and is not empty; add --resume to continue it, or name another.")
        return out
    existing = numbered(name)
    if resume:
        runs = [path for _, path in existing if (path / "config.yaml").is_file()]
        if not runs:
            raise UserError(f"There is no run named '{name}' in {ROOT}/ to resume.")
        return runs[-1]
    # Whatever lies there is left alone: imports and converted models have no config.yaml.
    taken = [number for number, path in existing if _occupied(path)]
    return ROOT / (f"{name}-{taken[-1] + 1}" if taken else name)


def numbered(name: str) -> list[tuple[int, Path]]:
    """What there is in ROOT under a name, NAME being number 1 and NAME-2 number 2, in order."""
    found = []
    for path in ROOT.iterdir() if ROOT.is_dir() else ():
        number = path.name.removeprefix(name)
        if path.name.startswith(name) and (number == "" or (number[0] == "-" and number[1:].isdigit())):
            found.append((int(number[1:] or 1), path))
    return sorted(found)


def _occupied(path: Path) -> bool:
    """Whether anything but a sweep's own notes lies there."""
    if not path.is_dir():
        return path.exists()
    return bool({found.name for found in path.iterdir()} - {SWEEP_STATE, SWEEP_LOG})
