"""Next-token prediction: cross-entropy, and z-loss (Chowdhery et al. 2022, PaLM, arXiv 2204.02311, section 5)."""

from typing import TYPE_CHECKING, Literal, override

import jax.numpy as jnp

from mnemax.training.cross_entropy import cross_entropy
from mnemax.training.objectives import Batch, ObjectiveConfig, Sums

if TYPE_CHECKING:
    from mnemax.configs.schema import TrainingConfig
    from mnemax.models.decoder import Decoder


class NextTokenConfig(ObjectiveConfig):
    """Each position predicts the next token of its document."""

    kind: Literal["next_token"] = "next_token"

    @override
    def __call__(self, model: "Decoder", batch: Batch, training: "TrainingConfig") -> Sums:
        x, _, aux = model.hidden(batch["inputs"], batch["positions"], remat=training.remat, implementation=training.attention)
        matrix, scale, softcap = model.readout()
        loss, nll, z, hits = cross_entropy(
            x, matrix, batch["targets"], batch["weights"],
            scale=scale, softcap=softcap, z_loss=training.z_loss, chunk=training.loss_chunk,
        )  # fmt: skip
        tokens = jnp.sum(batch["weights"])
        loss = loss + tokens * sum(aux.values(), jnp.float32(0))
        sums = {"loss": loss, "nll": nll, "z": z, "hits": hits, "tokens": tokens}
        return sums | {name: tokens * value for name, value in aux.items()}
