"""What a configuration is and costs, as tables for the console."""

from rich.console import Console
from rich.table import Table

from mnemax.configs.schema import LayerConfig, ModelConfig
from mnemax.evaluation.accounting import LayerCost, forward_flops, human, layer_costs, parameters, state_bytes, train_flops


def describe(model: ModelConfig, name: str, console: Console, context: int | None = None) -> None:
    """Prints parameters, FLOPs a token, the layer plan, and decode bytes by layer at a context (default: the model's longest)."""
    context = model.max_length if context is None else context
    costs = layer_costs(model, context)
    total = state_bytes(model, 1, context)
    console.print(f"[bold]{name}[/]: {human(parameters(model))} parameters, {len(model.layers)} layers of width {model.width}")
    console.print(
        f"{human(forward_flops(model, context), 'FLOPs')} a token forward, {human(train_flops(model, context), 'FLOPs')} trained, "
        f"averaged over {context} tokens"
    )
    console.print(_plan(model, costs, context))
    console.print(
        f"decode state at {context} tokens: {human(total, 'B')} = {human(total / context, 'B')} a token; "
        f"a step reads {human(sum(cost.read_bytes for cost in costs), 'B')} of it"
    )


def _plan(model: ModelConfig, costs: list[LayerCost], context: int) -> Table:
    table = Table(title=f"layer plan ({model.dtype}, context {context})", title_justify="left")
    for column in ("layers", "projection", "memory", "feed-forward"):
        table.add_column(column)
    for column in ("B a token written", "state B", "read B a step"):
        table.add_column(column, justify="right")
    first = 0
    for stage in model.stages:
        for position, layer in enumerate(stage.layers):
            cost = costs[first + position]
            table.add_row(
                _numbers(first + position, len(stage.layers), stage.repeat),
                _short(layer.attention.projection),
                _memory(layer),
                _short(layer.feedforward),
                *(f"{value:,}" for value in (cost.entry_bytes, cost.state_bytes, cost.read_bytes)),
            )
        first += len(stage.layers) * stage.repeat
        table.add_section()
    return table


def _numbers(first: int, stride: int, repeat: int) -> str:
    if repeat == 1:
        return str(first)
    numbers = [str(first + i * stride) for i in range(repeat)]
    return f"{numbers[0]}-{numbers[-1]}" if stride == 1 else ", ".join(numbers if repeat <= 4 else [*numbers[:2], "…", numbers[-1]])


def _memory(layer: LayerConfig) -> str:
    attention = layer.attention
    if attention.read is not None:
        return f"← reads {attention.read}"
    return _short(attention.memory) + (f" → writes {attention.write}" if attention.write is not None else "")


def _short(node) -> str:
    """A node's kind and the fields that were set, nested nodes left out."""
    fields = {name: getattr(node, name) for name in node.model_fields_set if name != "kind"}
    return " ".join(
        [
            node.kind,
            *(
                f"{name}={value}"
                for name, value in fields.items()
                if isinstance(value, int | float) and not isinstance(value, bool)
            ),
        ]
    )
