"""A run that begins with the weights of another: `start_from`."""

from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from mnemax.errors import UserError
from mnemax.models.folder import open_model, read_config
from mnemax.models.params import Params, different, weights

if TYPE_CHECKING:
    from mnemax.configs.schema import RunConfig


def check_start(run: "RunConfig") -> None:
    """Refuses, before the run, a folder whose model's weights are not those of this one, but for memories' and retentions'.

    Raises:
        UserError: the first weight that is missing, left over, or of another shape.
    """
    if run.start_from is None:
        return
    folder = Path(run.start_from)
    if difference := different(weights(read_config(folder)), weights(run.model), str(folder)):
        raise UserError(f"start_from: {difference}.")


def start(run: "RunConfig", params: Params) -> Params:
    """Fresh parameters, over which the newest checkpoint of `run.start_from` is laid by name.

    Raises:
        UserError: the checkpoint cannot be read.
    """
    if run.start_from is None:
        return params
    source = open_model(Path(run.start_from)).params
    return {n: jax.device_put(np.asarray(source[n]), value.sharding) if n in source else value for n, value in params.items()}
