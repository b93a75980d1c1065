"""AdamW and Muon from optax, on the flat parameter dictionary, with decay on matrices only and learning rates by group."""

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Literal

import jax
import optax

from mnemax.models.params import Params, Weight
from mnemax.sharding import on_explicit_mesh

if TYPE_CHECKING:
    from mnemax.configs.schema import OptimizerConfig, ScheduleConfig

type Group = Literal["embedding", "hidden", "readout", "vector"]


def group(name: str, weight: Weight) -> Group:
    """The parameter group of a parameter; biases, norms and gates are vectors, whose learning rate no multiplier touches."""
    if name in ("embedding", "unembedding"):
        return "embedding" if name == "embedding" else "readout"
    return "hidden" if weight.contract else "vector"


def make_schedule(config: "ScheduleConfig", peak: float, steps: int) -> optax.Schedule:
    """Learning rate by step: linear warm-up from 0 to `peak`, then the configured shape down to `final * peak` at `steps`."""
    warmup = config.warmup if isinstance(config.warmup, int) else round(config.warmup * steps)
    warmup = min(warmup, steps)
    rest, last = max(steps - warmup, 1), config.final * peak
    match config.kind:
        case "cosine":
            shape = optax.cosine_decay_schedule(peak, rest, alpha=config.final)
        case "linear":
            shape = optax.linear_schedule(peak, last, rest)
        case "wsd":
            decay = max(min(round(config.decay * steps), rest), 1)
            shape = optax.linear_schedule(peak, last, decay, transition_begin=rest - decay)
    return optax.join_schedules([optax.linear_schedule(0.0, peak, max(warmup, 1)), shape], [warmup])


def make_optimizer(
    config: "OptimizerConfig", steps: int, weights: dict[str, Weight], trains: Callable[[str], bool] = lambda name: True
) -> optax.GradientTransformation:
    """The gradient transformation of a run; clipping is the step's, which needs the norm anyway.

    Muon orthogonalises the hidden matrices (heads flattened against the model width, each layer on its own) at `muon_lr`; all
    the rest is AdamW's. What the objective does not train stays as it is, undecayed and without moments.
    """
    groups = {name: group(name, weight) for name, weight in weights.items()}
    schedule = make_schedule(config.schedule, config.peak_lr, steps)
    decay = {name: weight.contract > 0 for name, weight in weights.items()}
    method = optax.adamw(schedule, config.b1, config.b2, config.eps, weight_decay=config.weight_decay, mask=decay)
    by_method = {name: _method(config, trains(name), group) for name, group in groups.items()}
    methods: dict[Hashable, optax.GradientTransformation] = {"adamw": method, "frozen": optax.set_to_zero()}
    if config.kind == "muon":
        methods["muon"] = optax.contrib.muon(
            make_schedule(config.schedule, config.muon_lr, steps),
            weight_decay=config.weight_decay,
            eps=config.eps,
            muon_weight_dimension_numbers={
                name: _matrix_axes(weight) if by_method[name] == "muon" else optax.MaskedNode() for name, weight in weights.items()
            },
        )
    if set(by_method.values()) != {"adamw"}:
        method = optax.partition(methods, by_method)
    rates = {"embedding": config.embedding_lr, "hidden": config.hidden_lr, "readout": config.readout_lr, "vector": 1.0}
    if all(rate == 1.0 for rate in rates.values()):
        return method
    by_name = {name: rates[group] for name, group in groups.items()}
    scaled = optax.stateless(lambda updates, params: jax.tree.map(lambda rate, u: rate * u, by_name, updates))
    return optax.chain(method, scaled)


def _method(config: "OptimizerConfig", trained: bool, group: Group) -> str:
    if not trained:
        return "frozen"
    return "muon" if config.kind == "muon" and group == "hidden" else "adamw"


def _matrix_axes(weight: Weight) -> optax.contrib.MuonDimensionNumbers:
    first = int(weight.stacked)
    inputs = tuple(range(first, first + weight.contract))
    return optax.contrib.MuonDimensionNumbers(inputs, tuple(range(first + weight.contract, len(weight.shape))))


def update(
    method: optax.GradientTransformation, grads: Params, state: optax.OptState, params: Params
) -> tuple[Params, optax.OptState]:
    """New parameters and optimiser state. On an Explicit mesh the compiler lays out what happens inside the optimiser."""

    def step(grads: Params, state: optax.OptState, params: Params):
        updates, state = method.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    if not on_explicit_mesh():
        return step(grads, state, params)
    layout = jax.tree.map(lambda a: jax.typeof(a).sharding.spec, (params, state))
    laid_out: Any = jax.sharding.auto_axes(step, out_sharding=layout)
    return laid_out(grads, state, params)
