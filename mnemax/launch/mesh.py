"""The device mesh of a run, and batches laid out on it."""

from typing import TYPE_CHECKING

import jax
import numpy as np

from mnemax.errors import UserError
from mnemax.sharding import named

if TYPE_CHECKING:
    from mnemax.configs.schema import MeshConfig

AXES = ("data", "fsdp", "tensor")


def make_mesh(config: "MeshConfig", devices: int | None = None) -> jax.sharding.Mesh:
    """An Explicit mesh over all devices.

    Raises:
        UserError: the sizes do not multiply to the number of devices.
    """
    count = len(jax.devices()) if devices is None else devices
    sizes = [config.data, config.fsdp, config.tensor]
    fixed = int(np.prod([size for size in sizes if size > 0]))
    if -1 in sizes and count % fixed == 0:
        sizes[sizes.index(-1)] = count // fixed
    if int(np.prod(sizes)) != count:
        shape = ", ".join(f"mesh.{name}={size}" for name, size in zip(AXES, (config.data, config.fsdp, config.tensor), strict=True))
        there_are = f"{count} devices there are" if count > 1 else "1 device there is"
        raise UserError(f"{shape} do not multiply to the {there_are} (-1 takes the rest).")
    return jax.make_mesh(tuple(sizes), AXES)


def check_batch(rows: int, mesh: jax.sharding.Mesh) -> None:
    """Refuses a micro-batch that does not divide by the devices that share it.

    Raises:
        UserError: naming both numbers.
    """
    shards = mesh.shape["data"] * mesh.shape["fsdp"]
    if rows % shards:
        raise UserError(
            f"data.batch_size / training.accumulate ({rows} rows) does not divide by the {shards} devices of mesh.data x mesh.fsdp."
        )


def put_batch(batch: dict[str, np.ndarray], mesh: jax.sharding.Mesh, micro: int | None = None) -> dict[str, jax.Array]:
    """This process's rows as global arrays: [rows, T], or [micro, rows / micro, T]."""
    out = {}
    for name, rows in batch.items():
        axes = ("batch", "seq")
        if micro is not None:
            rows, axes = rows.reshape(micro, -1, *rows.shape[1:]), ("layers", *axes)
        shape = list(rows.shape)
        shape[-2] *= jax.process_count()
        out[name] = jax.make_array_from_process_local_data(named(mesh, axes, tuple(shape)), rows)
    return out
