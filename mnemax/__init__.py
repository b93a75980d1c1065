"""Pretrain, distil and measure language models whose attention remembers less.

The names below are imported when they are first used, so that `import mnemax` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mnemax.configs.load import load_model, load_run
    from mnemax.configs.schema import ModelConfig, RunConfig
    from mnemax.errors import UserError
    from mnemax.models.folder import open_model
    from mnemax.models.generate import Generator, Sampling
    from mnemax.models.params import bind, init_params
    from mnemax.training.trainer import train

    __version__: str

_HOMES = {
    "load_model": "configs.load",
    "load_run": "configs.load",
    "ModelConfig": "configs.schema",
    "RunConfig": "configs.schema",
    "UserError": "errors",
    "open_model": "models.folder",
    "Generator": "models.generate",
    "Sampling": "models.generate",
    "bind": "models.params",
    "init_params": "models.params",
    "train": "training.trainer",
}

__all__ = [
    "Generator",
    "ModelConfig",
    "RunConfig",
    "Sampling",
    "UserError",
    "bind",
    "init_params",
    "load_model",
    "load_run",
    "open_model",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("mnemax")
    if name in _HOMES:
        return getattr(import_module(f"mnemax.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'mnemax' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
