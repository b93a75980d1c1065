"""The pictures that a script alone makes are made again."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["draw_growth", "draw_kept"])
def test_a_script_draws(name, tmp_path):
    out = tmp_path / "picture.png"
    subprocess.run([sys.executable, str(SCRIPTS / f"{name}.py"), str(out)], check=True)
    assert out.read_bytes().startswith(b"\x89PNG")
