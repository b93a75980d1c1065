"""Logical axis names to mesh axes, in one table, and the few operations that use it.

Written for an Explicit mesh (`jax.make_mesh`, `jax.set_mesh`), where every array's type says how it is laid out; the same calls
work on an Auto mesh, and without a mesh they are plain array operations.
"""

import math

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

# Weights are split over `fsdp` by their model-width axis and gathered where they are used; activations are split by batch.
RULES: dict[str, tuple[str, ...]] = {
    "batch": ("data", "fsdp"),
    "embed": ("fsdp",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "ffn": ("tensor",),
    "vocab": ("tensor",),
    # Replicated: positions, the residual stream's width, head width, latents, memory slots, taps of convolutions, stacked layers.
    "seq": (),
    "residual": (),
    "head": (),
    "latent": (),
    "slots": (),
    "taps": (),
    "layers": (),
}

type Axes = tuple[str, ...]


def partition(axes: Axes, shape: tuple[int, ...], mesh) -> P:
    """The layout of an array whose dimensions carry these logical names; a dimension that does not divide stays whole.

    Raises:
        ValueError: a name is unknown, or two dimensions ask for one mesh axis.
    """
    if len(axes) != len(shape):
        raise ValueError(f"axes {axes} do not fit shape {shape}")
    used: dict[str, str] = {}
    spec: list[tuple[str, ...] | str | None] = []
    for name, size in zip(axes, shape, strict=True):
        if name not in RULES:
            raise ValueError(f"unknown logical axis '{name}'; known: {', '.join(RULES)}")
        wanted = tuple(a for a in RULES[name] if mesh.shape.get(a, 1) > 1)
        if size % math.prod(mesh.shape[a] for a in wanted):
            wanted = ()
        for a in wanted:
            if a in used:
                raise ValueError(f"logical axes '{used[a]}' and '{name}' of {axes} both ask for the mesh axis '{a}'")
            used[a] = name
        spec.append(wanted if len(wanted) > 1 else wanted[0] if wanted else None)
    return P(*spec)


def named(mesh, axes: Axes, shape: tuple[int, ...]) -> NamedSharding:
    """`partition` on a mesh of real devices, as `jax.jit` and `jax.device_put` take it."""
    return NamedSharding(mesh, partition(axes, shape, mesh))


def _mesh():
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty or mesh.size == 1 else mesh


def _explicit(mesh) -> bool:
    return all(kind == AxisType.Explicit for kind in mesh.axis_types)


def on_explicit_mesh() -> bool:
    """Whether the current mesh splits arrays over several devices and their types say how."""
    mesh = _mesh()
    return mesh is not None and _explicit(mesh)


def on_cpu() -> bool:
    """Whether what is traced here will run on a CPU: the current mesh's devices tell, which may be those of a machine elsewhere."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return (jax.default_backend() if device is None else device.platform) == "cpu"


def _lay_out(x: jax.Array, mesh, spec: P) -> jax.Array:
    return jax.sharding.reshard(x, spec) if _explicit(mesh) else jax.lax.with_sharding_constraint(x, spec)


def shard(x: jax.Array, *axes: str) -> jax.Array:
    """Lays an activation out by its logical axes."""
    mesh = _mesh()
    return x if mesh is None else _lay_out(x, mesh, partition(axes, x.shape, mesh))


def use(weight, dtype) -> jax.Array:
    """A weight as a layer uses it: in the activations' dtype and gathered over `fsdp`."""
    return gathered(weight[...], dtype, weight.axes)


def gathered(w: jax.Array, dtype, axes: Axes) -> jax.Array:
    """A weight's array cast, then gathered over `fsdp`; its `tensor` split stays."""
    w = w.astype(dtype)
    mesh = _mesh()
    if mesh is None:
        return w
    return _lay_out(w, mesh, P(*(None if s == "fsdp" else s for s in partition(axes, w.shape, mesh))))


def einsum(equation: str, *operands: jax.Array, axes: Axes, dtype=None) -> jax.Array:
    """`jnp.einsum` whose result is laid out by `axes`; a contraction over a split axis becomes a sum over devices.

    `dtype` is that of the result and of the accumulation; default: the operands'.
    """
    mesh = _mesh()
    letters, result = equation.split("->")
    if mesh is None:
        return jnp.einsum(*_merged(letters, result, *operands), preferred_element_type=dtype)
    size = {c: n for term, o in zip(letters.split(","), operands, strict=True) for c, n in zip(term, o.shape, strict=True)}
    spec = partition(axes, tuple(size[c] for c in result), mesh)
    if _explicit(mesh):
        return jnp.einsum(equation, *operands, preferred_element_type=dtype, out_sharding=spec)
    return jax.lax.with_sharding_constraint(jnp.einsum(equation, *operands, preferred_element_type=dtype), spec)


def _merged(letters: str, result: str, *operands: jax.Array):
    """The same product with the two letters that end the first operand and begin the second as one: "btnh,nhd" as "btn,nd".

    XLA's CPU backend copies a weight that is contracted over two axes. Only for arrays on one device: a split axis cannot merge.
    """
    first, second = letters.split(",")
    pair = first[-2:]
    if len(first) > 2 and second.startswith(pair) and not set(pair) & set(result):
        x, w = operands
        operands = (x.reshape(*x.shape[:-2], -1), w.reshape(-1, *w.shape[2:]))
        letters = f"{first[:-1]},{second[0]}{second[2:]}"
    return (f"{letters}->{result}", *operands)


def rows(table: jax.Array, indices: jax.Array, axes: Axes) -> jax.Array:
    """`table[indices]` laid out by `axes`, whatever the layout of the table."""
    mesh = _mesh()
    if mesh is None or not _explicit(mesh):
        return table[indices]
    return table.at[indices].get(out_sharding=partition(axes, (*indices.shape, *table.shape[1:]), mesh))
