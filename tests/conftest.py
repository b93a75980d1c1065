"""Eight host devices, and array shapes checked at run time: both are set before jax and the package are imported."""

import os

from jaxtyping import install_import_hook

from tests import array_shapes

# Unoptimised code compiles several times as fast, and no test runs a program long enough to miss the rest.
FLAGS = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
install_import_hook("mnemax", f"{array_shapes.__name__}.check")
