"""The coordinate check of muP (Yang et al. 2022, arXiv 2203.03466, appendix D.1): a step's changes must not grow with width."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnemax.layers.memories import Place
from mnemax.models.params import bind
from mnemax.training.step import init_state, make_train_step
from tests.training.runs import LENGTH, make_batch, tiny_run

BASE, WIDTHS, STEPS = 32, (32, 128, 512), 4


def changes(width: int, mup: bool) -> dict[str, float]:
    """Root mean square of what STEPS steps of Adam change in the residual stream and in the logits."""
    heads = width // 16
    shape = [f"width={width}", f"layer.feedforward.width={2 * width}", "tie_embeddings=false"]
    shape += [f"layer.attention.projection.{field}={heads}" for field in ("heads", "kv_heads")]
    init = ["init.kind=fan_in", "init.std=1", "init.depth_scaled=false", *(["init.readout_std=0"] if mup else [])]
    rates = {"hidden_lr": BASE / width, "readout_lr": BASE / width} if mup else {}
    optimizer = {"peak_lr": 1e-2, "weight_decay": 0.0, "clip_norm": None, "schedule": {"warmup": 0, "final": 1.0}, **rates}
    run = tiny_run("mha", (*shape, *init), optimizer=optimizer, training={"spike": None})
    batch = make_batch()

    @jax.jit
    def coordinates(params):
        model = bind(run.model, params)
        x = model.embed(jnp.asarray(batch["inputs"][0]))
        place = Place(jnp.arange(LENGTH), jnp.asarray(batch["positions"][0]))
        for stage in model.stages:
            x = stage(x, place, None, {})[0]
        return {"residual": x, "logits": model.logits(model.norm(x))}

    state, step = init_state(run), make_train_step(run)
    before = coordinates(state.params)
    for _ in range(STEPS):
        state, _ = step(state, batch)
    after = coordinates(state.params)
    return {name: float(np.sqrt(np.mean(np.square(after[name] - before[name])))) for name in before}


@pytest.mark.slow
def test_coordinate_check():
    mup, standard = ([changes(width, kind) for width in WIDTHS] for kind in (True, False))
    for name in ("residual", "logits"):
        sizes = [change[name] for change in mup]
        assert max(sizes) < 1.4 * min(sizes), name
        assert standard[-1][name] > 1.8 * standard[0][name], name
