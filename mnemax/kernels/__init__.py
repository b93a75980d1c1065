"""Attention kernels behind one entry, `attend`. This folder imports jax alone."""
