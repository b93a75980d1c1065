"""Distils a retention into a model that stays as it is (TRIM-KV, arXiv 2512.03324): what is forgotten should not show.

The teacher is the model itself with nothing forgotten: the same weights, full memory in place of what its retentions rank.
"""

from typing import TYPE_CHECKING, Literal, override

import jax
import jax.numpy as jnp
from flax import nnx

from mnemax.configs.base import NonNegativeFloat
from mnemax.errors import UserError
from mnemax.layers.memories.full import FullConfig
from mnemax.layers.retention import RankingConfig
from mnemax.models.params import bind, weights
from mnemax.training.cross_entropy import cross_entropy
from mnemax.training.divergence import divergence
from mnemax.training.objectives import Batch, ObjectiveConfig, Sums

if TYPE_CHECKING:
    from mnemax.configs.schema import LayerConfig, ModelConfig, TrainingConfig
    from mnemax.models.decoder import Decoder


class DistillationConfig(ObjectiveConfig):
    """KL(teacher || student) + cross-entropy + what the retentions add. Only the weights of retentions are trained."""

    kind: Literal["distillation"] = "distillation"
    divergence: NonNegativeFloat = 1.0
    """Weight of the divergence from the teacher's next-token distribution."""
    cross_entropy: NonNegativeFloat = 1.0
    """Weight of the next token's cross-entropy."""

    @override
    def trains(self, name: str) -> bool:
        return ".retention." in name

    @override
    def __call__(self, model: "Decoder", batch: Batch, training: "TrainingConfig") -> Sums:
        params = {".".join(map(str, path)): value[...] for path, value in nnx.to_flat_state(nnx.state(model, nnx.Param))}
        frozen = {name: value if self.trains(name) else jax.lax.stop_gradient(value) for name, value in params.items()}
        whole = without_retentions(model.config)
        teacher = bind(whole, jax.lax.stop_gradient({name: params[name] for name in weights(whole)}))
        student = bind(model.config, frozen)
        run = {"remat": training.remat, "implementation": training.attention}
        x, _, aux = student.hidden(batch["inputs"], batch["positions"], **run)
        target, _, _ = teacher.hidden(batch["inputs"], batch["positions"], **run)
        matrix, scale, softcap = student.readout()
        options = {"scale": scale, "softcap": softcap, "chunk": training.loss_chunk}
        _, nll, z, hits = cross_entropy(x, matrix, batch["targets"], batch["weights"], **options)
        kl = divergence(target, x, matrix, batch["weights"], **options)
        tokens = jnp.sum(batch["weights"])
        loss = self.divergence * kl + self.cross_entropy * nll + tokens * sum(aux.values(), jnp.float32(0))
        sums = {"loss": loss, "nll": nll, "z": z, "hits": hits, "tokens": tokens, "divergence": kl}
        return sums | {name: tokens * value for name, value in aux.items()}


def without_retentions(config: "ModelConfig") -> "ModelConfig":
    """The model that keeps all of what the retentions of this one choose from.

    Raises:
        UserError: no layer has a retention that ranks tokens.
    """
    if not any(isinstance(layer.attention.retention, RankingConfig) for layer in config.layers):
        raise UserError("The objective 'distillation' trains retentions, and no layer of the model has one that ranks tokens.")

    def whole(layer: "LayerConfig") -> "LayerConfig":
        if not isinstance(layer.attention.retention, RankingConfig):
            return layer
        attention = layer.attention.model_copy(update={"memory": FullConfig(), "retention": None})
        return layer.model_copy(update={"attention": attention})

    stages = tuple(stage.model_copy(update={"layers": tuple(map(whole, stage.layers))}) for stage in config.stages)
    return config.model_copy(update={"stages": stages})
