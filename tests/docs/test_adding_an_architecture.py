"""The example of docs/adding-an-architecture.md does what the page says: as a plugin, and as a part of the package."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/adding-an-architecture.md").read_text()


def run(*command: str, cwd: Path = ROOT, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", *command], cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_a_plugin_is_a_kind_and_has_its_bytes():
    plugins = {"MNEMAX_PLUGINS": "examples/plugins"}
    assert "| `chunk` | Chunked attention" in run("mnemax", "kinds", **plugins)
    fields = ["model.dtype=float32", *(f"model.layer.attention.projection.{field}" for field in ("kv_heads=2", "head_width=32"))]
    described = run("mnemax", "describe", "examples/chunk.yaml", *fields, "--context", "100", COLUMNS="200", **plugins)
    # 32 slots of 2 heads x 32 x (key and value) x 4 bytes and a row index, against 100 slots without one
    assert "chunk size=32" in described
    assert f"{32 * (2 * 32 * 2 * 4 + 4):,}" in described
    assert f"{100 * 2 * 32 * 2 * 4:,}" in described


@pytest.mark.slow
def test_in_the_package_every_law_holds_for_it(tmp_path):
    shutil.copytree(ROOT / "mnemax", tmp_path / "mnemax", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__", "golden"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copy(ROOT / "examples/plugins/chunk.py", tmp_path / "mnemax/layers/memories")
    (model,) = re.findall(r"^ +```yaml\n(.*?)^ +```$", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "mnemax/configs/models/local.yaml").write_text(textwrap.dedent(model))
    said = run("pytest", "-v", "-m", "not torch", "-k", "local", "tests/laws", cwd=tmp_path)
    for law in ("accounting", "causality", "decoding", "learning", "resume", "sharding"):
        assert re.search(rf"laws/test_{law}.py::.*local.*PASSED", said)
