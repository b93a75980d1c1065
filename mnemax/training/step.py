"""The training step and the evaluation step: pure functions, jitted once."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from mnemax.models.params import Params, bind, init_params, weights
from mnemax.training.objectives import Batch, Sums
from mnemax.training.optimizer import make_optimizer, make_schedule, update

if TYPE_CHECKING:
    from mnemax.configs.schema import RunConfig

NORM_DECAY = 0.98  # of the running mean gradient norm that a spike is measured against
NORM_SETTLES = 20  # steps before a norm can be called a spike

_data = partial(jax.tree_util.register_dataclass, meta_fields=[])


@partial(_data, data_fields=["mean_norm", "skipped", "in_a_row"])
@dataclass(frozen=True)
class Guard:
    """Watches for gradients that would harm: non-finite, or far above their running mean.

    Attributes:
        mean_norm: running mean of the accepted gradient norms.
        skipped: updates skipped so far.
        in_a_row: updates skipped since the last accepted one.
    """

    mean_norm: Float[Array, ""]
    skipped: Int[Array, ""]
    in_a_row: Int[Array, ""]


@partial(_data, data_fields=["step", "params", "optimizer", "guard"])
@dataclass(frozen=True)
class TrainState:
    """All that a step changes."""

    step: Int[Array, ""]
    params: Params
    optimizer: optax.OptState
    guard: Guard


def init_state(run: "RunConfig") -> TrainState:
    """The state before the first step, laid out on the current mesh."""
    params = init_params(run.model, jax.random.key(run.seed))
    optimizer = jax.jit(_optimizer(run).init)(params)
    return TrainState(jnp.int32(0), params, optimizer, Guard(jnp.float32(0), jnp.int32(0), jnp.int32(0)))


def _optimizer(run: "RunConfig") -> optax.GradientTransformation:
    return make_optimizer(run.optimizer, run.steps, weights(run.model), run.objective.trains)


def make_train_step(run: "RunConfig"):
    """`step(state, batch) -> (state, metrics)`, jitted, with the state donated.

    The batch's leaves are [accumulate, rows, T]; metrics are float32 scalars: the objective's sums, and `grad_norm`, `lr`,
    `skipped`, `in_a_row`.
    """
    method = _optimizer(run)
    schedule = make_schedule(run.optimizer.schedule, run.optimizer.peak_lr, run.steps)

    @partial(jax.jit, donate_argnums=0)
    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Sums]:
        grads, sums = gradients(run, state.params, batch)
        norm = jnp.asarray(optax.tree.norm(grads)) / sums["tokens"]
        clip = run.optimizer.clip_norm
        factor = 1.0 if clip is None else jnp.minimum(1.0, clip / (norm + 1e-12))
        accepted = _acceptable(run, state, norm)

        def accept():
            scaled = jax.tree.map(lambda g: g * (factor / sums["tokens"]), grads)
            return update(method, scaled, state.optimizer, state.params)

        params, optimizer = jax.lax.cond(accepted, accept, lambda: (state.params, state.optimizer))
        guard = _advance(state, norm, accepted)
        metrics = {
            **sums,
            "grad_norm": norm,
            "lr": jnp.asarray(schedule(state.step)),
            "skipped": guard.skipped,
            "in_a_row": guard.in_a_row,
        }
        return TrainState(state.step + 1, params, optimizer, guard), metrics

    return step


def gradients(run: "RunConfig", params: Params, batch: Batch) -> tuple[Params, Sums]:
    """Gradients and sums of the objective over all micro-batches, not yet divided by the tokens."""

    def loss(params: Params, batch: Batch) -> tuple[Float[Array, ""], Sums]:
        sums = run.objective(bind(run.model, params), batch, run.training)
        return sums["loss"], sums

    def one(batch: Batch) -> tuple[Params, Sums]:
        (_, sums), grads = jax.value_and_grad(loss, has_aux=True)(params, batch)
        return grads, sums

    if run.training.accumulate == 1:
        return one(jax.tree.map(lambda a: a[0], batch))
    zero = jax.tree.map(lambda a: jnp.zeros_like(a, jnp.float32), jax.eval_shape(one, jax.tree.map(lambda a: a[0], batch)))
    add = lambda total, batch: (jax.tree.map(jnp.add, total, one(batch)), None)  # noqa: E731
    return jax.lax.scan(add, zero, batch)[0]


def _acceptable(run: "RunConfig", state: TrainState, norm: Float[Array, ""]):
    finite = jnp.isfinite(norm)
    if run.training.spike is None:
        return finite
    return finite & ((state.step < NORM_SETTLES) | (norm <= run.training.spike * state.guard.mean_norm))


def _advance(state: TrainState, norm: Float[Array, ""], accepted) -> Guard:
    guard = state.guard
    # The mean follows from the first step on: its decay is shorter while it has seen little.
    decay = jnp.minimum(NORM_DECAY, state.step / (state.step + 1.0))
    mean = jnp.where(accepted, decay * guard.mean_norm + (1 - decay) * norm, guard.mean_norm)
    return Guard(mean, guard.skipped + ~accepted, jnp.where(accepted, 0, guard.in_a_row + 1))


def make_eval_step(run: "RunConfig"):
    """`step(params, batch) -> sums` of the objective, jitted; the batch's leaves are [rows, T]."""
    return jax.jit(lambda params, batch: run.objective(bind(run.model, params), batch, run.training))
