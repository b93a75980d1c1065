"""What is made for CPUs alone is made for the devices that a mesh names, not for those of the machine that compiles."""

import jax
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from mnemax.sharding import on_cpu


def test_a_mesh_elsewhere_is_asked_first():
    elsewhere = AbstractMesh((1,), ("data",), (AxisType.Explicit,), abstract_device=AbstractDevice("TPU v5 lite", 1, "tpu"))
    with jax.sharding.use_abstract_mesh(elsewhere):
        assert not on_cpu()
    with jax.set_mesh(jax.make_mesh((1,), ("data",), (AxisType.Explicit,))):
        assert on_cpu() == (jax.default_backend() == "cpu")
    assert on_cpu() == (jax.default_backend() == "cpu")
