"""The configuration of a model and of a run. Unions over kinds are assembled from the registry."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from mnemax import registry
from mnemax.configs.base import Config, Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from mnemax.configs.merge import merge
from mnemax.data.config import DataConfig
from mnemax.layers.norm import NormConfig

if TYPE_CHECKING:
    from mnemax.layers.feedforward import FeedForwardConfig as FeedForward
    from mnemax.layers.memories import EntrySpec
    from mnemax.layers.memories import MemoryConfig as Memory
    from mnemax.layers.projections import Part
    from mnemax.layers.projections import ProjectionConfig as Projection
    from mnemax.layers.retention import RetentionConfig as Retention
    from mnemax.training.objectives import ObjectiveConfig as Objective
else:
    Projection = registry.union("projection")
    Memory = registry.union("memory")
    Retention = registry.union("retention")
    FeedForward = registry.union("feedforward")
    Objective = registry.union("objective")


class EntryResidualConfig(Config):
    """Parts of an entry are moved towards what another layer wrote of the same token (value residual, arXiv 2410.17897)."""

    of: str
    """The name that the other layer writes."""
    leaves: Annotated[tuple[str, ...], Field(min_length=1)] = ("v",)
    """Leaves of the entry; each head of each learns how far, from 1/2 on."""


class AttentionConfig(Config):
    """The choices of an attention layer (the kernel is chosen by the run)."""

    projection: Projection
    memory: Memory = Field(default_factory=lambda: registry.default("memory", "full"))
    retention: Retention | None = None
    write: str | None = None
    """Publishes this layer's memory under a name, for other layers to read."""
    read: str | None = None
    """Reads the memory that another layer published; this layer then keeps nothing of its own."""
    attends: bool = True
    """false: the layer only writes, has no queries, and adds nothing to the residual stream (YOCO's memory, arXiv 2405.05254)."""
    sink_logits: bool = False
    """A learned logit a head that joins the softmax and carries no value (gpt-oss)."""
    output_gate: Literal["none", "head", "element"] = "none"
    """What sigmoid(W x) multiplies before heads are joined: a head's output whole, or each number of it (arXiv 2505.06708)."""
    entry_residual: EntryResidualConfig | None = None

    @model_validator(mode="after")
    def _one_role(self) -> Self:
        if self.read is not None:
            for field in ("write", "retention", "entry_residual"):
                if getattr(self, field) is not None:
                    raise ValueError(f"'{field}' cannot stand beside 'read: {self.read}': a reader keeps nothing of its own")
            if not self.attends:
                raise ValueError(f"'attends: false' cannot stand beside 'read: {self.read}': such a layer would do nothing")
        elif not self.attends:
            self._check_writer()
        return self

    def _check_writer(self) -> None:
        if self.write is None:
            raise ValueError("attends: false leaves nothing to do for a layer that writes no name ('write')")
        for field in ("sink_logits", "output_gate"):
            if getattr(self, field) not in (False, "none"):
                raise ValueError(f"'{field}' cannot stand beside 'attends: false': it is of what is read")
        if self.retention is not None and self.retention.by_queries:
            kind = registry.kind_of(type(self.retention))
            raise ValueError(f"retention {kind} goes by the queries of its layer, which has none (attends: false)")
        if reason := self.projection.cannot_read(self.projection):
            raise ValueError(f"attends: false leaves its entries to other layers, and {reason}")

    @property
    def part(self) -> "Part":
        """What the layer has of its projection."""
        return "queries" if self.read is not None else "whole" if self.attends else "entries"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.output_gate != "none" and self.projection.gated:
            kind = registry.kind_of(type(self.projection))
            raise ValueError(f"output_gate: {self.output_gate} would gate what projection {kind} gates itself")
        if self.read is not None:
            return self
        makers = {"projection": self.projection, "retention": self.retention}
        named = [(f"{field} {registry.kind_of(type(maker))}", maker) for field, maker in makers.items() if maker is not None]
        made = {gate: name for name, maker in named for gate in maker.gates}
        memory = f"memory {registry.kind_of(type(self.memory))}"
        for gate, maker in sorted(made.items()):
            if gate not in self.memory.takes:
                raise ValueError(f"{maker} makes the gate '{gate}', for which {memory} has no use")
        if missing := sorted(self.memory.needs - made.keys()):
            raise ValueError(f"{memory} needs the gate '{missing[0]}', which neither projection nor retention makes")
        if self.sink_logits and not self.memory.normalised:
            raise ValueError(f"sink_logits join a softmax, and {memory} is read without one")
        if reason := self.memory.refuses(self):
            raise ValueError(f"{memory} {reason}")
        return self

    def entry(self, model: "ModelConfig") -> "EntrySpec":
        """What a token of this layer writes: the projection's entry and the retention's gates."""
        gates = {} if self.retention is None else self.retention.entry(model, self.projection)
        return self.projection.entry(model) | gates


class LayerConfig(Config):
    """One block: attention, then feed-forward."""

    attention: AttentionConfig
    feedforward: FeedForward | None
    """null: none."""


class StageConfig(Config):
    """A short list of layers, repeated. Parameters and states are stacked over `repeat` and scanned."""

    repeat: PositiveInt = 1
    layers: Annotated[tuple[LayerConfig, ...], Field(min_length=1)]
    passes: PositiveInt | None = None
    """Layer-condensed: layers may read what an upper layer of the stage writes, of earlier tokens. Rows and prompts run the stage
    this often, each time reading what the time before wrote; exact for as many tokens, and for decode steps."""
    trained_passes: PositiveInt = 2
    """The last passes, those that gradients flow through; 2 unless there are `passes`."""

    @property
    def condensed(self) -> dict[str, int]:
        """The names that a layer reads before they are written, and the layer that writes each."""
        writers = {layer.attention.write: i for i, layer in enumerate(self.layers) if layer.attention.write is not None}
        reads = [(layer.attention.read, i) for i, layer in enumerate(self.layers)]
        return {name: writers[name] for name, i in reads if name in writers and i < writers[name]}


class InitConfig(Config):
    """Initial weights. Truncated-normal deviations; `fan_in` makes them 1/sqrt(fan-in), which muP needs."""

    kind: Literal["normal", "fan_in"] = "normal"
    std: PositiveFloat = 0.02
    """Deviation of the matrices (`normal`) and of the embedding (both)."""
    depth_scaled: bool = True
    """Divides the two projections that write to the residual stream by sqrt(2 layers) (GPT-2)."""
    readout_std: NonNegativeFloat | None = None
    """Deviation of the unembedding where it is not tied; default: as any matrix. muP: 0."""


class ModelConfig(Config):
    """A decoder: embedding, stages of blocks, final norm, unembedding."""

    width: PositiveInt
    vocab_size: PositiveInt
    max_length: PositiveInt = 2048
    """The longest context the positions are meant for; decoding refuses to go past it."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Of activations and of the decode state. Parameters and reductions are float32."""
    tie_embeddings: bool = True
    embed_scale: PositiveFloat | Literal["sqrt_width"] = 1.0
    """Multiplies the embeddings (Gemma: sqrt_width)."""
    logit_scale: PositiveFloat = 1.0
    """Multiplies the final logits (muP: base width / width)."""
    logit_softcap: PositiveFloat | None = None
    norm: NormConfig = NormConfig()
    init: InitConfig = InitConfig()
    layer: dict[str, Any] | None = None
    """Defaults for every layer, merged under each entry of `stages` (a field that names another `kind` replaces them)."""
    stages: Annotated[tuple[StageConfig, ...], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _spread_layer_defaults(cls, data: Any) -> Any:
        # What is no mapping or list where one should be is left for the fields' own checks to refuse.
        if not isinstance(data, dict) or not isinstance(data.get("layer"), dict):
            return data
        if not isinstance(data.get("stages"), list | tuple):
            return data

        def spread(stage: Any) -> Any:
            layers = stage.get("layers", [{}]) if isinstance(stage, dict) else None
            return {**stage, "layers": [merge(data["layer"], one) for one in layers]} if isinstance(layers, list | tuple) else stage

        return {**data, "layer": None, "stages": [spread(stage) for stage in data["stages"]]}

    @model_validator(mode="after")
    def _check_layers(self) -> Self:
        published: dict[str, AttentionConfig] = {}
        for s, stage in enumerate(self.stages):
            names = dict(published)
            upper = self._upper(stage, f"stages[{s}]")
            for i, layer in enumerate(stage.layers):
                where, attention = f"stages[{s}].layers[{i}].attention", layer.attention
                if attention.read is None and (reason := attention.memory.refuses_length(self.max_length)):
                    raise ValueError(f"{where}.memory: {reason}")
                self._check_reads(attention, names, upper, where)
                if (name := attention.write) is not None:
                    if name in names:
                        raise ValueError(f"{where}.write: the name '{name}' is written twice")
                    names[name] = attention
            if stage.repeat == 1:
                published = names
        return self

    def _upper(self, stage: StageConfig, where: str) -> dict[str, AttentionConfig]:
        """What layers of a stage may read of upper ones."""
        if stage.passes is None:
            if stage.trained_passes != 2:
                raise ValueError(f"{where}.trained_passes ({stage.trained_passes}) are the last of 'passes', which is not set")
            return {}
        upper = {name: stage.layers[i].attention for name, i in stage.condensed.items()}
        if not upper:
            raise ValueError(f"{where}.passes ({stage.passes}) has no use: no layer of the stage reads what an upper one writes")
        for name, writer in upper.items():
            if not writer.memory.plain_slots or writer.retention is not None:
                kind = registry.kind_of(type(writer.memory))
                raise ValueError(
                    f"{where}.passes: '{name}' is read before it is written, which takes a memory of plain slots (full, window) "
                    f"and no retention, not memory {kind}"
                )
        return upper

    def _check_reads(
        self, attention: AttentionConfig, names: dict[str, AttentionConfig], upper: dict[str, AttentionConfig], where: str
    ) -> None:
        if (name := attention.read) is not None:
            if (writer := (names | upper).get(name)) is None:
                raise ValueError(f"{where}.read: {_not_written(name, names)}")
            if reason := attention.projection.cannot_read(writer.projection):
                raise ValueError(f"{where}.projection cannot read '{name}': {reason}")
            if not writer.memory.normalised and (attention.sink_logits or getattr(attention.projection, "softcap", None)):
                kind = registry.kind_of(type(writer.memory))
                raise ValueError(f"{where}: sink_logits and softcap are of logits, of which memory {kind} of '{name}' has none")
        elif (name := attention.memory.below) is not None:
            if name not in names:
                raise ValueError(f"{where}.memory.of: {_not_written(name, names)}")
            if reason := attention.memory.refuses_below(attention, names[name], self):
                raise ValueError(f"{where}.memory.of: '{name}' {reason}")
        if (residual := attention.entry_residual) is not None:
            if residual.of not in names:
                raise ValueError(f"{where}.entry_residual.of: {_not_written(residual.of, names)}")
            mine, theirs = attention.projection.entry(self), names[residual.of].projection.entry(self)
            for leaf in residual.leaves:
                here, there = (str(spec[leaf].shape) if leaf in spec else "none" for spec in (mine, theirs))
                if here != there or leaf not in mine or len(mine[leaf].shape) != 2:
                    raise ValueError(
                        f"{where}.entry_residual.leaves: '{leaf}' has shape {here} here and {there} where '{residual.of}' is "
                        "written; it takes equal ones, of heads and their width"
                    )

    @property
    def sources(self) -> list[int]:
        """For each layer, the number of that whose memory it reads: its own, or that of the layer that writes the name it reads."""
        found: list[int] = []
        published: dict[str, int] = {}
        for stage in self.stages:
            names = published
            for start in range(len(found), len(found) + stage.repeat * len(stage.layers), len(stage.layers)):
                numbered = list(enumerate([layer.attention for layer in stage.layers], start))
                names = published | {attention.write: i for i, attention in numbered if attention.write is not None}
                found += [i if attention.read is None else names[attention.read] for i, attention in numbered]
            published = names if stage.repeat == 1 else published
        return found

    @property
    def last_kept(self) -> tuple[int, int | None]:
        """The last stage that needs all tokens of a prompt, and its layer from whose output on only the last token is needed.

        None for the layer: the whole stage is computed for all tokens.
        """
        places = [(s, i) for s, stage in enumerate(self.stages) for _ in range(stage.repeat) for i in range(len(stage.layers))]
        s, i = max(
            place for place, layer, source in zip(places, self.layers, self.sources, strict=True) if self._keeps(layer, source)
        )
        stage, attention = self.stages[s], self.stages[s].layers[i].attention
        plain = attention.read is None and attention.memory.plain_slots and attention.retention is None
        tail = attention.projection.tail(self, part=attention.part)
        return s, i if plain and not tail and stage.repeat == 1 and stage.passes is None else None

    def _keeps(self, layer: LayerConfig, source: int) -> bool:
        """Whether a layer remembers anything, or reads what only all of its tokens' queries together may read."""
        if layer.attention.read is None:
            return True
        return not self.layers[source].attention.memory.any_query or bool(layer.attention.projection.tail(self, part="queries"))

    @property
    def layers(self) -> list[LayerConfig]:
        """Every layer from first to last, repeats spelled out."""
        return [layer for stage in self.stages for _ in range(stage.repeat) for layer in stage.layers]


def _not_written(name: str, names: dict[str, AttentionConfig]) -> str:
    return f"no layer before it writes '{name}' (written so far: {', '.join(sorted(names)) or 'none'})"


class ScheduleConfig(Config):
    """Linear warm-up, then a shape: cosine, linear, or constant with a final decay (WSD)."""

    kind: Literal["cosine", "linear", "wsd"] = "cosine"
    warmup: NonNegativeInt | Fraction = 0.02
    """Steps (an integer) or a fraction of the run."""
    final: Fraction = 0.1
    """The last learning rate over the peak."""
    decay: Fraction = 0.2
    """wsd: the part of the run that decays, linearly."""


class OptimizerConfig(Config):
    """AdamW or Muon, with decoupled weight decay on matrices only."""

    kind: Literal["adamw", "muon"] = "adamw"
    peak_lr: PositiveFloat = 1e-3
    schedule: ScheduleConfig = ScheduleConfig()
    b1: Fraction = 0.9
    b2: Fraction = 0.95
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.1
    clip_norm: PositiveFloat | None = 1.0
    muon_lr: PositiveFloat = 0.02
    """muon: peak learning rate of the hidden matrices; the rest is trained by AdamW at `peak_lr`."""
    embedding_lr: PositiveFloat = 1.0
    """Learning-rate multiplier of the embedding."""
    hidden_lr: PositiveFloat = 1.0
    """Learning-rate multiplier of the blocks' matrices (muP under AdamW: base width / width)."""
    readout_lr: PositiveFloat = 1.0
    """Learning-rate multiplier of an untied unembedding."""


class TrainingConfig(Config):
    """How a step is computed."""

    accumulate: PositiveInt = 1
    """Micro-batches a step; the batch is split evenly."""
    z_loss: NonNegativeFloat = 0.0
    """Weight of log(Z)^2, which keeps the logits' normaliser near 1."""
    loss_chunk: PositiveInt = 512
    """Positions a row whose logits exist at one time; of those in which nothing is asked, none are made."""
    remat: Literal["none", "dots", "full"] = "dots"
    """What the backward pass computes again, beside attention's probabilities: nothing; all but products and attention; or all."""
    attention: Literal["auto", "reference", "xla"] = "auto"
    """The implementation of `attend`."""
    max_skipped: NonNegativeInt = 10
    """Consecutive updates skipped for a non-finite or spiking gradient before the run stops."""
    spike: PositiveFloat | None = 20.0
    """A gradient norm above this multiple of its running mean is skipped; null: only non-finite ones."""


class CheckpointConfig(Config):
    """When checkpoints are written, and which are kept."""

    every: PositiveInt = 100
    keep_last: PositiveInt = 2
    keep_best: NonNegativeInt = 1
    """By validation loss."""
    keep_every: PositiveInt | None = None
    """Steps at whose multiples a checkpoint is kept for good."""


class EvaluationConfig(Config):
    """Validation loss during training, and samples at its end."""

    every: PositiveInt = 100
    batches: PositiveInt = 16
    samples: NonNegativeInt = 3
    sample_tokens: PositiveInt = 200
    sample_prompt: str = ""


class LogConfig(Config):
    """Where metrics go; `metrics.jsonl` in the run's folder is always written."""

    every: PositiveInt = 10
    tensorboard: bool = True
    wandb: str | None = None
    """A Weights & Biases project (needs the extra `wandb`)."""


class MeshConfig(Config):
    """Devices along each axis; -1 (one axis at most) takes the rest."""

    data: int = Field(default=-1, ge=-1)
    fsdp: int = Field(default=1, ge=-1)
    tensor: int = Field(default=1, ge=-1)

    @model_validator(mode="after")
    def _sizes(self) -> Self:
        sizes = (self.data, self.fsdp, self.tensor)
        if 0 in sizes or sizes.count(-1) > 1:
            raise ValueError(f"sizes {sizes}: each is at least 1, and one at most is -1")
        return self


class RunConfig(Config):
    """A training run."""

    name: str
    """Also that of its folder, runs/NAME."""
    steps: PositiveInt
    seed: int = 0
    start_from: str | None = None
    """The folder of a run or an import with whose weights this run begins; those of memories and retentions may be lacking."""
    model: ModelConfig
    data: DataConfig
    objective: Objective = Field(default_factory=lambda: registry.default("objective", "next_token"))
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()
    mesh: MeshConfig = MeshConfig()

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, name: str) -> str:
        if not name.strip() or name.startswith(".") or "/" in name or "\\" in name:
            raise ValueError(f"'{name}' cannot name the run's folder: no slashes, and no dot at its start (--out takes any path)")
        return name

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.data.sequence_length > self.model.max_length:
            raise ValueError(
                f"data.sequence_length ({self.data.sequence_length}) exceeds model.max_length ({self.model.max_length})"
            )
        if self.data.batch_size % self.training.accumulate:
            raise ValueError(
                f"data.batch_size ({self.data.batch_size}) is not divisible by training.accumulate ({self.training.accumulate})"
            )
        return self
