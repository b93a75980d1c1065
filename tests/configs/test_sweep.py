"""What a sweep's file means: cells, labels, overrides, matching, and every mistake in one sentence."""

import pytest
import yaml

from mnemax.configs.load import shipped
from mnemax.configs.sweep import cells, load_sweep, quantity, seeds
from mnemax.errors import UserError

BASE = {
    "steps": 10,
    "model": {
        "width": 32,
        "vocab_size": 64,
        "max_length": 64,
        "dtype": "float32",
        "layer": {
            "attention": {"projection": {"kind": "gqa", "heads": 2, "kv_heads": 2, "head_width": 16}},
            "feedforward": {"kind": "glu", "width": "${mul:2,${model.width}}"},
        },
        "stages": [{"repeat": 2, "layers": [{}]}],
    },
    "data": {
        "tokenizer": {"kind": "symbols", "vocab_size": 64},
        "sources": [{"kind": "mqar", "vocab_size": 64, "length": 32, "pairs": 4}],
        "sequence_length": 32,
        "batch_size": 8,
    },
}
SIZE = "model.layer.attention.memory.size"
WINDOW = {"model.layer.attention.memory.kind": "window"}


@pytest.fixture
def sweep(tmp_path):
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(BASE))

    def read(*overrides: str, **fields):
        (tmp_path / "try.yaml").write_text(yaml.safe_dump({"base": "base.yaml", **fields}))
        return load_sweep(str(tmp_path / "try.yaml"), list(overrides))

    return read


def test_a_grid_of_axes_and_cells(sweep):
    read = sweep(cells=[{"label": "a"}, {"label": "b", "set": {"steps": 5}}], set=WINDOW, axes={SIZE: [4, 8]}, seeds=[3, 7])
    found = {cell.label: cell.run(read.base) for cell in cells(read)}
    assert list(found) == ["a, size=4", "b, size=4", "a, size=8", "b, size=8"]
    assert [run.steps for run in found.values()] == [10, 5, 10, 5]
    assert [run.model.layers[0].attention.memory.size for run in found.values()] == [4, 4, 8, 8]
    assert seeds(read) == (3, 7)
    assert read.name == "try"


def test_overrides_are_of_the_sweep_or_of_every_cell(sweep):
    read = sweep("seeds=2", "steps=3", "model.width=48", cells=[{"label": "a"}])
    assert seeds(read) == (0, 1)
    (cell,) = cells(read)
    assert (cell.run(read.base).steps, cell.run(read.base).model.width) == (3, 48)


@pytest.mark.parametrize(
    ("equal", "by", "multiple_of"),
    [("parameters", "model.width", 4), ("train_flops", "steps", 1), ("parameters", "model.stages[0].repeat", 1)],
)
def test_matching_comes_as_close_as_the_field_allows(sweep, equal, by, multiple_of):
    one_kv_head = {"model.layer.attention.projection.kv_heads": 1}
    read = sweep(
        cells=[{"label": "two"}, {"label": "one", "set": one_kv_head}],
        match={"equal": equal, "by": by, "multiple_of": multiple_of},
    )
    reference, solved = cells(read)
    assert reference.chosen == {}
    n = solved.chosen[by]
    assert n % multiple_of == 0
    target = quantity(reference.run(read.base), equal)

    def miss(n: int) -> float:
        return abs(quantity(type(solved)(solved.label, solved.overrides, {by: n}).run(read.base), equal) - target)

    assert all(miss(n) <= miss(n + d * multiple_of) for d in (-1, 1) if n + d * multiple_of > 0)


def test_matching_bytes_of_state_to_a_number(sweep):
    target = 6 * 32 * 2 * 2 * 2 * 16 * 4  # six layers of 32 tokens: keys and values of two heads of 16 in float32
    read = sweep(cells=[{"label": "a"}], match={"equal": "state_bytes", "by": "model.stages[0].repeat", "to": target // 2})
    assert cells(read)[0].chosen == {"model.stages[0].repeat": 6}


A, B = {"label": "a"}, {"label": "b", "set": {"model.width": 16}}
MISTAKES = {
    "no such field": (
        {"cells": [{"label": "a", "set": {"model.widht": 3}}]},
        r"cell 'a': .*widht: no such field; did you mean 'wid",
    ),
    "wrong value": ({"set": WINDOW, "axes": {SIZE: [4, 0]}}, r"cell 'size=0': .*size: .*greater than or equal to 1"),
    "equal labels": ({"cells": [A, {"label": "a", "set": {"steps": 3}}]}, r"'a' and 'a' collide: they are called alike"),
    "equal folders": ({"cells": [{"label": "a b"}, {"label": "a/b", "set": {"steps": 3}}]}, r"'a b' and 'a/b' collide"),
    "equal overrides": ({"cells": [A, {"label": "b"}]}, r"'a' and 'b' collide: they set the same"),
    "unknown label": (
        {"cells": [A], "match": {"equal": "parameters", "by": "steps", "to": "c"}},
        r"match.to is 'c', which is no cell's label",
    ),
    "cannot match": ({"cells": [A, B], "match": {"equal": "parameters", "by": "steps"}}, r"does not reach .* by steps alone"),
    "misspelt": ({"sedes": 3}, r"sedes: no such field; did you mean 'seeds'"),
    "unknown base": ({"base": "defalt", "cells": [A]}, r"did you mean 'default'"),
}


@pytest.mark.parametrize(("fields", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(sweep, fields, message):
    with pytest.raises(UserError, match=message) as error:
        cells(sweep(**fields))
    assert "\n" not in str(error.value)


def test_an_unknown_sweep():
    with pytest.raises(UserError, match=r"'nothing' is neither a file nor a shipped ablation; shipped: .*mqar_tiny"):
        load_sweep("nothing", [])


@pytest.mark.parametrize("name", shipped("ablations"))
def test_shipped_ablations_are_valid(name):
    assert cells(load_sweep(name, []))
