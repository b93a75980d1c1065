"""How one configuration lies over another."""

from typing import Any


def merge(base: Any, over: Any) -> Any:
    """`over` laid on `base`: mappings merge key by key, anything else is replaced.

    A mapping that names another `kind` replaces the base whole, since the fields of two kinds do not mix.
    """
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    if "kind" in over and over["kind"] != base.get("kind", over["kind"]):
        return over
    return {**base, **{key: merge(base.get(key), value) for key, value in over.items()}}
