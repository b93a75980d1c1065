"""Gives lm-eval the name `mnemax`: `lm_eval --model mnemax --model_args path=RUN`.

lm-eval 0.4.13 and older look for models in a table of their own and read no entry points. So Python imports this file when it
starts (`mnemax_lm_eval.pth`), which costs nothing until lm-eval is imported. To be deleted, with the .pth, once the oldest lm-eval
that we accept reads the entry point group `lm_eval.models`, where the package announces the same class.
"""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

MODULE, CLASS = "lm_eval.models", "mnemax.evaluation.lm_eval:MnemaxLM"


class Finder:
    """Finds `lm_eval.models` where it is, and adds a name to the table that it fills."""

    @staticmethod
    def find_spec(name: str, path=None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The specification of `lm_eval.models`; None of every other module, which Python then finds by itself."""
        spec = PathFinder.find_spec(name, path, target) if name == MODULE else None
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _naming(spec.loader.exec_module)
        return spec


def _naming(fill):
    def filled(module: ModuleType) -> None:
        fill(module)
        from lm_eval.api.registry import model_registry

        if "mnemax" not in model_registry:
            model_registry.register("mnemax", target=CLASS)

    return filled


sys.meta_path.insert(0, Finder)
