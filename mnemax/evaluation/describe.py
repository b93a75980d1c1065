"""What a configuration is and costs, as tables for the console."""

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from mnemax.configs.base import Config
from mnemax.configs.schema import LayerConfig, ModelConfig, StageConfig
from mnemax.evaluation.accounting import LayerCost, forward_flops, human, layer_costs, parameters, state_bytes, train_flops


def describe(model: ModelConfig, name: str, console: Console, context: int | None = None) -> None:
    """Prints parameters, FLOPs a token, the layer plan, and decode bytes by layer at a context (default: the model's longest)."""
    context = model.max_length if context is None else context
    costs = layer_costs(model, context)
    total = state_bytes(model, 1, context)
    forward, trained = (human(flops(model, context), "FLOPs") for flops in (forward_flops, train_flops))
    lines = (
        f"[bold]{name}[/]: {human(parameters(model))} parameters, {len(model.layers)} layers of width {model.width}",
        f"a token costs {forward} forward, {trained} trained (mean over {context:,} tokens)",
        _plan(model, costs),
        f"decode state after {context:,} tokens ({model.dtype}): {human(total, 'B')}, {human(total / context, 'B')} a token",
        f"a decode step reads {human(sum(cost.read_bytes for cost in costs), 'B')} of it",
    )
    for line in lines:
        console.print(line, highlight=False)


def _plan(model: ModelConfig, costs: list[LayerCost]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, leading=1)
    table.add_column("layers", no_wrap=True)
    table.add_column("attention, memory, feed-forward", ratio=1)
    for column in ("B written\na token", "B of state\na layer", "B read\na step"):
        table.add_column(column, justify="right", no_wrap=True)
    first = 0
    for stage in model.stages:
        for position, layer in enumerate(stage.layers):
            cost = costs[first + position]
            table.add_row(
                _numbers(first + position, len(stage.layers), stage.repeat),
                "\n".join(_lines(layer, position, stage)),
                *(f"{value:,}" for value in (cost.entry_bytes, cost.state_bytes, cost.read_bytes)),
            )
        first += len(stage.layers) * stage.repeat
    return table


def _numbers(first: int, stride: int, repeat: int) -> str:
    if repeat == 1:
        return str(first)
    numbers = [str(first + i * stride) for i in range(repeat)]
    return f"{numbers[0]}-{numbers[-1]}" if stride == 1 else ", ".join(numbers if repeat <= 4 else [*numbers[:2], "…", numbers[-1]])


def _lines(layer: LayerConfig, position: int, stage: StageConfig) -> list[str]:
    attention = layer.attention
    lines = [_short(attention.projection), _memory(layer, position, stage)]
    if attention.retention is not None:
        lines.append(f"kept by {_short(attention.retention)}")
    if (residual := attention.entry_residual) is not None:
        lines.append(f"{', '.join(residual.leaves)} mixed with those of {residual.of}")
    if attention.sink_logits:
        lines.append("a sink logit a head")
    if attention.output_gate != "none":
        lines.append(f"output gate: one {'a head' if attention.output_gate == 'head' else 'an element'}")
    return lines if layer.feedforward is None else [*lines, _short(layer.feedforward)]


def _memory(layer: LayerConfig, position: int, stage: StageConfig) -> str:
    attention = layer.attention
    if attention.read is not None:
        above = position < stage.condensed.get(attention.read, 0)
        return f"← reads {attention.read}" + (f" from above, in {stage.passes} passes" if above else "")
    only = "" if attention.attends else "only "
    return _short(attention.memory) + (f" → {only}writes {attention.write}" if attention.write is not None else "")


def _short(node: Config) -> str:
    """A node's kind, and the fields that are not as by default."""
    fields = {
        name: getattr(node, name)
        for name, field in type(node).model_fields.items()
        if name != "kind" and getattr(node, name) != field.get_default(call_default_factory=True)
    }
    return " ".join([*filter(None, [getattr(node, "kind", None)]), *(f"{name}={_value(v)}" for name, v in fields.items())])


def _value(value: Any) -> str:
    match value:
        case Config():
            return f"({_short(value)})"
        case None | bool():
            return {None: "none", True: "yes", False: "no"}[value]
        case _:
            return str(value)
