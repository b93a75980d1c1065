"""gqa to mla: keys and values become the nearest latent of a given width, some pairs of each key one rotated key for all heads.

A head's dimensions are shared out: pairs that turn as those of the new rotated part do go there, the others to the part that is not
rotated. Of those others and the values of all heads, with x the layer's input and M = E[x x^T]:

    W = [W_k | W_v]      W^T M W = Q L Q^T      W Q_r = O S (QR)      W_c = O / s      [U_k | U_v] = s S Q_r^T

W_c [U_k | U_v] = W Q_r Q_r^T is the product of rank r with the least E |x^T W - x^T W'|^2, as in TransMLA (Meng et al. 2025, arXiv
2502.07864). No weight can undo the latent's norm. But O is orthogonal, so |O^T x| is the length of a projection of x, and a norm
has made all x alike in length; thus the latent's norm divides every token by nearly the same, s in the mean square.

Of the rotated part, a pair of dimensions being a complex number and a logit Re q conj(k), with u the leading eigenvector of
E[k k^H] over heads:

    k_r = sum_h conj(u[h]) k[h]      q_r[n] = conj(u[g(n)]) q[n]

This is the one key a pair that is nearest to those of all heads: rotations commute with u.
"""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Complex, Float, Integer

from mnemax.layers.projections.gqa import GQAConfig
from mnemax.layers.projections.mla import MLAConfig
from mnemax.layers.rotary import RotaryConfig, frequencies
from mnemax.models.uptrain.layers import Layer, Unfit, Weights

if TYPE_CHECKING:
    from mnemax.layers.projections import ProjectionConfig

CARRIED = ("kind", "heads", "kv_heads", "head_width", "value_width", "rope", "scale")
"""Fields of gqa that mla has, or that the factorisation takes care of; of all others mla is gqa's default."""


def factorised(layer: Layer, readers: list[Layer], new: "ProjectionConfig", reads: bool) -> Weights:
    """The layer with a latent; what its heads' outputs are multiplied by is copied.

    Raises:
        Unfit: the layer has what mla has not, widths do not add up, or no pair of a head turns as the new rotation asks.
    """
    old = layer.projection
    assert isinstance(old, GQAConfig)
    assert isinstance(new, MLAConfig)
    if layer.reads or reads or readers:
        raise Unfit("its memory is shared with another layer, which is not carried over from gqa to mla")
    _check(old, new, len(layer.moment))
    pairs, own = turning_pairs(old, new)
    others = np.setdiff1d(np.arange(old.head_width), pairs)
    group = np.arange(old.heads) // (old.heads // old.kv_heads)  # the key and value head of each query head
    w_q, w_k, w_v = (layer.weights[name].astype(np.float64) for name in ("w_q", "w_k", "w_v"))

    w_c, up = _factored(np.concatenate([w_k[..., others], w_v], axis=-1), layer.moment, new.latent_width)
    up = up[:, group]  # [R, N, dn + dv]
    k_r, q_r = shared_key(_complex(w_k, pairs), _complex(w_q, pairs), group, layer.moment)
    scale = (old.scale or old.head_width**-0.5) / (new.scale or old.head_width**-0.5)
    queries: Weights = {"w_q": scale * np.concatenate([w_q[..., others], _real(q_r, own)], axis=-1)}
    if new.query_latent is not None:
        w_dq, w_uq = _factored(queries["w_q"], layer.moment, new.query_latent)
        queries = {"w_dq": w_dq, "w_q": w_uq, "q_norm.scale": np.full(new.query_latent, 1 - layer.offset)}
    u_k, u_v = np.split(up, [len(others)], axis=-1)
    entry = {"w_c": w_c, "c_norm.scale": np.full(new.latent_width, 1 - layer.offset), "w_kr": _real(k_r, own)}
    return queries | entry | {"u_k": u_k, "u_v": u_v, "w_o": layer.weights["w_o"]}


def factor(
    matrix: Float[np.ndarray, "D n"], moment: Float[np.ndarray, "D D"], rank: int
) -> tuple[Float[np.ndarray, "D r"], Float[np.ndarray, "r n"]]:
    """`down` and `up`, whose product is the nearest of its rank to the matrix for inputs of this second moment.

    The columns of `down` are orthogonal and of one length, with which the mean square of x^T down is 1.
    """
    directions = np.linalg.eigh(matrix.T @ moment @ matrix)[1][:, : -rank - 1 : -1]
    down, inner = np.linalg.qr(matrix @ directions)
    size = np.sqrt(np.einsum("dr,de,er->", down, moment, down) / rank)
    return down / size, size * inner @ directions.T


def shared_key(
    keys: Complex[np.ndarray, "D K P"],
    queries: Complex[np.ndarray, "D N P"],
    group: Integer[np.ndarray, " N"],
    moment: Float[np.ndarray, "D D"],
) -> tuple[Complex[np.ndarray, "D P"], Complex[np.ndarray, "D N P"]]:
    """For each pair of dimensions the key that stands for those of all heads, and the queries that are to read it.

    Where all heads have one key, it is that one, and queries stay.
    """
    K = keys.shape[1]
    u = np.linalg.eigh(np.einsum("dhp,de,egp->phg", keys, moment, keys.conj()))[1][..., -1]  # [P, K]
    u = u * np.exp(-1j * np.angle(u.sum(-1, keepdims=True))) * K**0.5  # 1 for each head where all are alike
    return np.einsum("dhp,ph->dp", keys, u.conj()) / K, queries * u.conj().T[group]


def turning_pairs(old: GQAConfig, new: MLAConfig) -> tuple[Integer[np.ndarray, "2 P"], Integer[np.ndarray, "2 P"]]:
    """The pairs of a head's dimensions that turn as those of the rotated part do, and the latter's own.

    Raises:
        Unfit: a frequency is not there, or not often enough.
    """
    (turns, pairs), (wanted, own) = _pairs(old.rope, old.head_width), _pairs(new.rope, new.rope_width)
    found: list[int] = []
    for frequency in wanted:
        same = np.setdiff1d(np.flatnonzero(np.isclose(turns, frequency, rtol=1e-3, atol=0)), found)
        if not len(same):
            raise Unfit(
                f"projection.rope turns a pair by {frequency:.4g} radians a token after, and no pair that is left does before"
                + _hint(old, new)
            )
        found.append(int(same[0]))
    return pairs[:, found], own


def _hint(old: GQAConfig, new: MLAConfig) -> str:
    if old.rope is None:
        return "; rope.fraction 0 rotates none"
    width = int(old.head_width * old.rope.fraction)
    plain = old.rope.scaling is None and new.rope_width <= width
    return f"; rope.theta {old.rope.theta ** (new.rope_width / width):.6g} keeps the fastest" if plain else ""


def _pairs(rope: RotaryConfig | None, width: int) -> tuple[Float[np.ndarray, " P"], Integer[np.ndarray, "2 P"]]:
    """Radians a token of each pair of dimensions, 0 for those that are not rotated, and which two they are."""
    turns, factor = (np.zeros(0), 1.0) if rope is None else frequencies(rope, width)
    if factor != 1:
        raise Unfit("projection.rope.scaling changes the size of keys, which is not carried over from gqa to mla")
    rotated = 2 * len(turns)
    both = [np.arange(start, stop).reshape(2, -1) for start, stop in ((0, rotated), (rotated, width - width % 2))]
    return np.pad(turns, (0, both[1].shape[1])), np.concatenate(both, axis=1)


def _check(old: GQAConfig, new: MLAConfig, width: int) -> None:
    for field, info in GQAConfig.model_fields.items():
        if field not in CARRIED and (value := getattr(old, field)) != info.default:
            raise Unfit(f"projection.{field} is {value} before, and mla has none")
    for field, before, after in (
        ("heads", old.heads, new.heads),
        ("value_width", old.values, new.value_width),
        ("head_width", old.head_width, new.nope_width + new.rope_width),
    ):
        if before != after:
            of = " (nope_width + rope_width)" if field == "head_width" else ""
            raise Unfit(f"projection.{field} is {before} before and {after}{of} after")
    if new.rope_width % 2:
        raise Unfit(f"projection.rope_width is {new.rope_width} after, and pairs of dimensions are needed")
    for field, columns in (
        ("latent_width", old.kv_heads * (new.nope_width + new.value_width)),
        ("query_latent", old.heads * old.head_width),
    ):
        if (wanted := getattr(new, field)) is not None and wanted > (rank := min(width, columns)):
            raise Unfit(f"projection.{field} is {wanted} after, more than the rank {rank} of what it is to stand for")


def _factored(weight: Float[np.ndarray, "D heads H"], moment: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    down, up = factor(weight.reshape(len(weight), -1), moment, rank)
    return down, up.reshape(rank, *weight.shape[1:])


def _complex(weight: Float[np.ndarray, "D heads H"], pairs: Integer[np.ndarray, "2 P"]) -> Complex[np.ndarray, "D heads P"]:
    return weight[..., pairs[0]] + 1j * weight[..., pairs[1]]


def _real(weight: Complex[np.ndarray, "*lead P"], pairs: Integer[np.ndarray, "2 P"]) -> Float[np.ndarray, "*lead H"]:
    out = np.empty((*weight.shape[:-1], pairs.size))
    out[..., pairs[0]], out[..., pairs[1]] = weight.real, weight.imag
    return out
