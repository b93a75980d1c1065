"""What a model costs, by formula: parameters, FLOPs, and the bytes of decode state."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax

from mnemax.layers.memories import entry_bytes
from mnemax.models.params import weights

if TYPE_CHECKING:
    from mnemax.configs.schema import LayerConfig, ModelConfig, StageConfig
    from mnemax.models.decoder import DecodeState

# Peak dense bf16 FLOP/s a device, from the makers' data sheets.
PEAK_FLOPS = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA B200": 2250e12,
}


@dataclass(frozen=True)
class LayerCost:
    """One layer at one context length.

    Attributes:
        entry_bytes: what a token writes; 0 for a reader.
        state_bytes: decode state of one row.
        read_bytes: what one decode step reads of it.
    """

    layer: "LayerConfig"
    entry_bytes: int
    state_bytes: int
    read_bytes: int


def parameters(config: "ModelConfig") -> int:
    """Trained numbers, embeddings included."""
    return sum(weight.size for weight in weights(config).values())


def layer_costs(config: "ModelConfig", context: int) -> list[LayerCost]:
    """Every layer's bytes for one row of `context` tokens."""
    costs = []
    for layer, number in zip(config.layers, config.sources, strict=True):
        attention, source = layer.attention, config.layers[number].attention
        reads = attention.read is not None
        entry, tail = source.entry(config), entry_bytes(attention.projection.tail(config, part=attention.part))
        written = 0 if reads else entry_bytes(entry)
        memory = 0 if reads else attention.memory.cache_bytes(1, context, entry)
        read = tail + (source.memory.read_bytes(context, entry) if attention.attends else 0)
        costs.append(LayerCost(layer, written, memory + tail, round(read)))
    return costs


def state_bytes(config: "ModelConfig", batch: int, context: int) -> int:
    """Bytes of the decode state by formula, the model's own length counter included."""
    return batch * sum(cost.state_bytes for cost in layer_costs(config, context)) + 4


def live_bytes(state: "DecodeState") -> int:
    """Bytes of a decode state's arrays, or of the shapes that `jax.eval_shape` gives of them."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


def forward_flops(config: "ModelConfig", length: int) -> float:
    """FLOPs of the forward pass for one token, averaged over a row of `length` tokens.

    Two for each multiply-add: every matrix once (the embedding only as the unembedding), and each query against the keys it sees;
    of a layer-condensed stage, all passes.
    """
    return _flops(config, length, 1, lambda stage: min(stage.passes or 1, length))


def train_flops(config: "ModelConfig", length: int) -> float:
    """FLOPs of a training step for one token: forward, and twice that backward (of a layer-condensed stage, through the trained
    passes); recomputation is not counted."""

    def times(stage: "StageConfig") -> int:
        passes = min(stage.passes or 1, length)
        return passes + 2 * min(passes, stage.trained_passes)

    return _flops(config, length, 3, times)


def _flops(config: "ModelConfig", length: int, ends: int, times: Callable[["StageConfig"], int]) -> float:
    """With the unembedding computed `ends` times, and each stage its own number of `times`."""
    described, sources = weights(config), iter([config.layers[number].attention for number in config.sources])
    sample = range(1, length + 1, max(1, length // 256))
    flops = 2.0 * ends * config.width * config.vocab_size
    for i, stage in enumerate(config.stages):
        matrices = sum(w.size for name, w in described.items() if w.contract and name.startswith(f"stages.{i}."))
        attended = sum(
            source.memory.flops(context, layer.attention.projection, config)
            for layer, source in zip(stage.layers * stage.repeat, sources, strict=False)
            if layer.attention.attends
            for context in sample
        )
        flops += times(stage) * (2.0 * matrices + attended / len(sample))
    return flops


def peak_flops(device: jax.Device) -> float | None:
    """Peak FLOP/s of a device, None where it is not known."""
    matches = [(len(name), flops) for name, flops in PEAK_FLOPS.items() if device.device_kind.startswith(name)]
    return max(matches)[1] if matches else None


def human(number: float, unit: str = "") -> str:
    """1234567 as '1.23 M'."""
    if number < 1000:
        return f"{number:.3g} {unit}".strip()
    power = min(int(math.log10(number) // 3), 6)
    return f"{number / 1000**power:.3g} {'_kMGTPE'[power]}{unit}"
