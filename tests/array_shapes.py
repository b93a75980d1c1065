"""The runtime check of array annotations that the import hook of conftest.py puts on every function of the package."""

import inspect
from collections.abc import Callable
from typing import Any, TypeAliasType, get_args

from beartype import beartype
from jaxtyping import AbstractArray


def check(function: Callable) -> Callable:
    """Checks what a function's annotations say of arrays, and nothing else.

    The rest is the static checker's, which knows names that exist only while types are checked. Constructors are left out:
    a dataclass of arrays also carries layouts and abstract values through jax's tree functions.
    """
    if function.__name__ == "__init__" or inspect.isgeneratorfunction(function):
        return function
    function.__annotations__ = {name: hint if _of_arrays(hint) else Any for name, hint in function.__annotations__.items()}
    return beartype(function)


def _of_arrays(hint: Any) -> bool:
    if isinstance(hint, TypeAliasType):
        return _of_arrays(hint.__value__)
    return (isinstance(hint, type) and issubclass(hint, AbstractArray)) or any(map(_of_arrays, get_args(hint)))
