"""Short causal convolution: each channel mixes its latest tokens (Fu et al. 2023, arXiv 2212.14052; Mamba, arXiv 2312.00752)."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from mnemax.layers.linear import linear
from mnemax.layers.memories import Place, laid_out_as
from mnemax.layers.param import Init
from mnemax.sharding import Axes, use


class ShortConvolution(nnx.Module):
    """y_t = b + sum_w taps_w x_{t-w} over the latest W tokens of the document, for each channel alone.

    What a token needs of before a call is the tail: the latest W - 1 inputs [B, W - 1, *channels].
    """

    def __init__(self, taps: int, channels: tuple[int, ...], axes: Axes, init: Init, *, bias: bool = False):
        self.taps = init.sampled((taps, *channels), ("taps", *axes), -(taps**-0.5), taps**-0.5)
        self.bias = init.vector(channels, axes) if bias else None

    def __call__(
        self,
        x: Float[Array, "B T *channels"],
        place: Place,
        tail: Float[Array, "B W1 *channels"] | None,
        dynamic: Float[Array, "B T W *channels"] | None = None,
    ) -> tuple[Float[Array, "B T *channels"], Float[Array, "B W1 *channels"]]:
        """The mixed tokens, and the new tail of W1 = W - 1 tokens; `tail` None: x is whole rows; `dynamic`: each token's own taps,
        which are added."""
        taps = use(self.taps, x.dtype)
        taps = taps if dynamic is None else jnp.moveaxis(taps + dynamic, 2, 0)
        W, T = taps.shape[0], x.shape[1]
        before = jnp.zeros_like(x[:, :1]).repeat(W - 1, axis=1) if tail is None else laid_out_as(tail, x)
        both = jnp.concatenate([before, x], axis=1)
        position = place.positions.reshape(*place.positions.shape, *(1,) * (x.ndim - 2))
        y = x * taps[0]
        for w in range(1, W):  # a document's first tokens see no further than its beginning
            y += jnp.where(position >= w, both[:, W - 1 - w : W - 1 - w + T], 0) * taps[w]
        return y if self.bias is None else y + use(self.bias, x.dtype), both[:, T:]


class DynamicTaps(nnx.Module):
    """Taps of each token's own, of low rank: D_t = U z_t, z_t = Z x_t (dynamic short convolutions, arXiv 2606.03825)."""

    def __init__(self, taps: int, rank: int, channels: tuple[int, ...], axes: Axes, init: Init):
        self.z = init.matrix((init.model.width, rank), ("embed", "latent"))
        self.u = init.matrix((rank, taps, *channels), ("latent", "taps", *axes))

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T W N H"]:
        z = linear("btd,dr->btr", x, self.z, axes=("batch", "seq", "latent"))
        return linear("btr,rwnh->btwnh", z, self.u, axes=("batch", "seq", *self.u.axes[1:]))
