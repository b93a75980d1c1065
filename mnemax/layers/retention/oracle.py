"""The oracle: it sees the attention that will come. No policy for use, but a mark on the wall for those that are."""

from typing import ClassVar, Literal, override

import jax
import jax.numpy as jnp

from mnemax.kernels.mask import Mask
from mnemax.layers.memories import Entry, Place, Reader, row_index
from mnemax.layers.retention import Ranking, RankingConfig, attention_to


class OracleConfig(RankingConfig):
    """Retention: the attention that later queries of the document would pay, were nothing forgotten. Whole rows only."""

    by_queries: ClassVar[bool] = True
    kind: Literal["oracle"] = "oracle"

    @override
    def build(self, model, projection, init) -> "Oracle":
        return Oracle()


class Oracle(Ranking):
    """The sum over all queries, less what a token pays to itself."""

    foresees = True

    @override
    def observe(self, entry: Entry, place: Place, reader: Reader) -> Entry:
        mask = Mask(place.index, place.start, row_index(place), aligned=True)
        weights, lse = attention_to(entry, mask, reader)
        alone = Mask(place.index, place.start, row_index(place), window=1, aligned=True)
        _, own = reader.projection.attend(reader.query, entry, alone, reader.implementation)  # the logit of a token with itself
        group = own.shape[2] // weights.shape[2]
        to_itself = jnp.sum(jnp.exp(own - lse).reshape(*weights.shape, group), axis=-1)
        return entry | {"retention": jax.lax.stop_gradient(weights - to_itself)}
