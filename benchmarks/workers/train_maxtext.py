"""MaxText's own training loop, paused between steps: `train_loop` runs as shipped, and only waits here before each iteration.

    python benchmarks/workers/train_maxtext.py OUT dtype=float32 [more MaxText flags]
"""

import os
import sys
import time

import shape
from pipe import Pipe

FLAGS = f"""
    run_name=benchmark hardware=cpu dataset_type=synthetic model_name=default decoder_block=llama2
    base_emb_dim={shape.WIDTH} base_num_query_heads={shape.HEADS} base_num_kv_heads={shape.KV_HEADS} head_dim={shape.HEAD}
    base_mlp_dim={shape.MLP} base_num_decoder_layers={shape.LAYERS} vocab_size={shape.VOCABULARY}
    max_target_length={shape.LENGTH} per_device_batch_size={shape.BATCH} attention=dot_product
    enable_checkpointing=false log_config=false gcs_metrics=false save_config_to_gcs=false enable_goodput_recording=false
    monitor_goodput=false scan_layers=true remat_policy=full skip_jax_distributed_system=true
""".split()


def main(out: str, *flags: str) -> None:
    pipe = Pipe()
    os.environ |= {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}

    import importlib.metadata

    import jax
    from flax import nnx
    from maxtext.common import metric_logger
    from maxtext.trainers.pre_train import train
    from maxtext.utils import exceptions

    iterate = train.training_loop_iteration
    left, start, metrics = 0, 0.0, None

    def paused_iterate(device_state, *rest):
        nonlocal left, start, metrics
        if left == 0:
            if metrics is not None:
                jax.block_until_ready((device_state["state"], metrics))
                pipe.answer(
                    seconds=time.perf_counter() - start,
                    loss=float(metrics["scalar"]["learning/loss"]),
                    parameters=parameters(device_state["state"]),
                    versions={"maxtext": importlib.metadata.version("maxtext"), "jax": jax.__version__},
                )
            request = pipe.receive()
            if request is None:
                raise exceptions.StopTraining("the driver has closed the conversation")
            left, start = request["steps"], time.perf_counter()
        left -= 1
        metrics = iterate(device_state, *rest)
        return metrics

    def parameters(state) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(nnx.filter_state(state.model, nnx.Param)))

    train.training_loop_iteration = paused_iterate
    train.main(["train", *FLAGS, "steps=100000", f"base_output_directory={out}", *flags])


if __name__ == "__main__":
    main(*sys.argv[1:])
