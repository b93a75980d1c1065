"""Optimiser, step, loop, checkpoints and metrics."""
