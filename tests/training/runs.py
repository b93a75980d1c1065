"""Tiny runs and batches."""

from typing import Any

import numpy as np

from mnemax.configs.load import load_model
from mnemax.configs.schema import RunConfig

ROWS, LENGTH = 8, 24


def tiny_run(model: str = "gemma3", overrides: tuple[str, ...] = (), **fields: Any) -> RunConfig:
    given = {"name": "tiny", "steps": 100, "model": load_model(model, overrides), "data": {"sequence_length": LENGTH}}
    return RunConfig.model_validate({**given, **fields})


def make_batch(accumulate: int = 1, seed: int = 0) -> dict[str, np.ndarray]:
    """Packed rows, some of whose positions do not count, as [accumulate, rows, T]."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 264, (ROWS, LENGTH + 1), np.int32)
    positions = np.tile(np.r_[np.arange(9), np.arange(LENGTH - 9)].astype(np.int32), (ROWS, 1))
    weights = (rng.random((ROWS, LENGTH)) > 0.3).astype(np.float32)
    rows = {"inputs": tokens[:, :-1], "targets": tokens[:, 1:], "positions": positions, "weights": weights}
    return {name: values.reshape(accumulate, -1, LENGTH) for name, values in rows.items()}
