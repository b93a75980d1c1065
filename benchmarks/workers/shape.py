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
