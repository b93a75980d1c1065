"""Bytes of decode state against the length of the context, by memory: the picture of docs/architectures/kvm.md.

uv run python scripts/draw_growth.py docs/images/growth.png
"""

import sys
from pathlib import Path

import matplotlib
from matplotlib.ticker import EngFormatter

from mnemax.configs.schema import ModelConfig
from mnemax.evaluation.accounting import state_bytes
from mnemax.evaluation.report.labels import Label, beside_ends
from mnemax.evaluation.report.style import RC, look, new_figure, png, tokens_axis

LENGTHS = [2**n for n in range(8, 18)]
GQA = {"kind": "gqa", "heads": 6, "kv_heads": 6, "head_width": 128, "rope": {"fraction": 0.5}}
DELTA = {"kind": "gated_delta", "heads": 6, "value_heads": 6, "head_width": 128, "value_width": 128}


def kvm(**growth) -> dict:
    return {
        "projection": GQA,
        "memory": {"kind": "kvm", "chunk": 256, "rotated": 64, "growth": growth},
        "retention": {"kind": "merge_gate"},
    }


ATTENTIONS = {
    "full attention": {"projection": GQA},
    "KVM, 2 t^0.75 slots": kvm(kind="power", factor=2.0, power=0.75, least=256),
    "KVM, 16 t^0.5 slots": kvm(kind="power", factor=16.0, power=0.5, least=256),
    "KVM, saturating at 1024": kvm(kind="saturating", slots=1024),
    "KVM, 256 slots": kvm(kind="fixed", slots=256),
    "window 512": {"projection": GQA, "memory": {"kind": "window", "size": 512}},
    "gated delta rule": {"projection": DELTA, "memory": {"kind": "delta"}},
}


def model(attention: dict) -> ModelConfig:
    """The smaller model of the paper: 12 layers of width 768."""
    stages = [{"repeat": 12, "layers": [{"attention": attention, "feedforward": {"kind": "mlp", "width": 3072}}]}]
    return ModelConfig.model_validate({"width": 768, "vocab_size": 50304, "max_length": LENGTHS[-1], "stages": stages})


def main(out: Path) -> None:
    with matplotlib.rc_context(RC):
        figure = new_figure(5.0)
        axes = figure.add_subplot(xlabel="tokens of context", ylabel="bytes of decode state, one row")
        labels = []
        for i, (name, attention) in enumerate(ATTENTIONS.items()):
            config, style = model(attention), look(i)
            sizes = [state_bytes(config, 1, length) for length in LENGTHS]
            axes.plot(LENGTHS, sizes, color=style.color, ls=style.dashes, marker=style.marker)
            labels.append(Label(name, LENGTHS[-1], sizes[-1], style.color))
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(EngFormatter(unit="B"))
        tokens_axis(axes)
        beside_ends(axes, labels)
        out.write_bytes(png(figure))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
