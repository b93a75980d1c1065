"""A decode step of multi-head latent attention, absorbed and expanded in turn, by context (docs/benchmarks.md).

uv run python benchmarks/latent.py
"""

import statistics
import time
from typing import Annotated

import jax
import jax.numpy as jnp
import typer

from mnemax.configs.load import load_model
from mnemax.kernels.mask import Mask
from mnemax.layers.attention import Attention
from mnemax.layers.param import Init
from mnemax.layers.projections import Projection
from mnemax.layers.projections.mla import MLA

SIZES = "heads: 16, latent_width: 256, nope_width: 64, rope_width: 32, value_width: 64"


def main(
    contexts: Annotated[list[int], typer.Option("--context")] = [512, 1024, 2048, 4096, 8192],  # noqa: B006
    rounds: int = 15,
) -> None:
    """Print a line a context: median milliseconds of both forms, and the median and range of their ratio."""
    config = load_model("mla", [f"layer.attention.projection={{{SIZES}}}", "width=1024", "max_length=8192"])
    mla = Attention(config.layers[0].attention, config, Init(config, jax.random.key(0))).projection
    assert isinstance(mla, MLA)
    typer.echo(f"{'context':>8}{'absorbed ms':>14}{'expanded ms':>14}{'times as fast':>16}")
    for context in contexts:
        times = [(seconds(MLA.absorbed, mla, context), seconds(Projection.attend, mla, context)) for _ in range(rounds)]
        absorbed, expanded = (1000 * statistics.median(column) for column in zip(*times, strict=True))
        ratios = [b / a for a, b in times]
        faster = f"{statistics.median(ratios):>9.1f} ({min(ratios):.1f}..{max(ratios):.1f})"
        typer.echo(f"{context:>8}{absorbed:>14.2f}{expanded:>14.2f}{faster}")


@jax.jit(static_argnums=0)
def step(form, mla: MLA, query: jax.Array, k: jax.Array) -> jax.Array:
    last = k.shape[1] - 1
    mask = Mask(jnp.array([last]), jnp.zeros((1, 1), jnp.int32), jnp.arange(last + 1)[None])
    return form(mla, query, {"k": k}, mask, "auto")[0]


def seconds(form, mla: MLA, context: int) -> float:
    query, k = (jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(1, 1, 16, 96), (1, context, 1, 288)]))
    jax.block_until_ready(step(form, mla, query, k))
    begin = time.perf_counter()
    jax.block_until_ready(step(form, mla, query, k))
    return time.perf_counter() - begin


if __name__ == "__main__":
    typer.run(main)
