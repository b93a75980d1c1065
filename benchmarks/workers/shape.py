"""The model and batch that every contender of the training benchmark steps: 10,227,968 parameters, 4,096 tokens a step."""

BATCH = 8
LENGTH = 512
WIDTH = 256
LAYERS = 8
HEADS = 8
KV_HEADS = 2
HEAD = 32
MLP = 768
VOCABULARY = 8192
LEARNING_RATE = 3e-5
GRADIENT_CLIP = 1.0
PARAMETERS = 10_227_968

# The same, as MaxText spells it; what it would send to a cloud is off.
MAXTEXT_FLAGS = f"""
    run_name=benchmark hardware=cpu dataset_type=synthetic model_name=default decoder_block=llama2
    base_emb_dim={WIDTH} base_num_query_heads={HEADS} base_num_kv_heads={KV_HEADS} head_dim={HEAD}
    base_mlp_dim={MLP} base_num_decoder_layers={LAYERS} vocab_size={VOCABULARY}
    max_target_length={LENGTH} per_device_batch_size={BATCH} attention=dot_product
    enable_checkpointing=false log_config=false gcs_metrics=false save_config_to_gcs=false enable_goodput_recording=false
    monitor_goodput=false scan_layers=true remat_policy=full skip_jax_distributed_system=true
""".split()
