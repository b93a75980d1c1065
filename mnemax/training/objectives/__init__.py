"""What is minimised. One file a kind; this one holds the contract."""

from typing import TYPE_CHECKING

import jax

from mnemax.configs.base import Config

if TYPE_CHECKING:
    from mnemax.configs.schema import TrainingConfig
    from mnemax.models.decoder import Decoder

type Batch = dict[str, jax.Array]
type Sums = dict[str, jax.Array]
"""Scalars that add up over micro-batches and devices: `loss` and `nll` in nats, `hits` (right answers), `tokens`, ..."""


class ObjectiveConfig(Config):
    """The base of every objective."""

    def __call__(self, model: "Decoder", batch: Batch, training: "TrainingConfig") -> Sums:
        """Sums over the batch: what is minimised is `loss / tokens`."""
        raise NotImplementedError

    def trains(self, name: str) -> bool:
        """Whether the weight of this name is trained; the others get no gradient and do not decay."""
        return True
