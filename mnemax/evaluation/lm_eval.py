"""lm-eval's tasks on our models: `lm_eval --model mnemax --model_args path=RUN --tasks ...`.

Every number means what it means for lm-eval's own class `hf`: the token before an empty context, truncation from the left, the
windows of long texts, greediness and stop strings are the same. How lm-eval finds the class: `lm_eval_name.py`.
"""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import Collator, handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from mnemax.configs.load import validate
from mnemax.errors import UserError
from mnemax.models import hf
from mnemax.models.folder import open_model
from mnemax.models.generate import Generator, Sampling
from mnemax.models.params import Params, bind

POSITIONS = 32  # of each row whose logits exist at one time; lengths are multiples of it
NEUTRAL = {"num_beams": 1}  # what tasks write although it changes nothing

type Request = tuple[tuple[str, str] | None, list[int], list[int]]
"""The strings, or None for a window of a longer text; the context's ids; the continuation's."""


class MnemaxLM(TemplateLM):
    """A run or an import as a model of lm-eval."""

    def __init__(
        self,
        path: str = "",
        batch_size: int | str = 1,
        dtype: str | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        device: str | None = None,
        max_batch_size: int | None = None,
        **unknown: Any,
    ) -> None:
        """Reads the newest checkpoint of `path`.

        Args:
            path: the folder of a run or of an import.
            batch_size: rows computed together.
            dtype: of activations and decode state; default: the model's.
            max_length: tokens of context and continuation together; default: the model's, which is the most.
            max_gen_toks: new tokens where a task does not say how many.
            device, max_batch_size: lm-eval gives them to every model. JAX_PLATFORMS chooses the device; the batch is `batch_size`.

        Raises:
            UserError: `path` is no run or has no tokenizer, or an argument is unknown or out of range.
        """
        super().__init__()
        if unknown:
            raise UserError(
                f"lm-eval's model mnemax has no argument {', '.join(sorted(unknown))}; "
                "it has path, batch_size, dtype, max_length and max_gen_toks."
            )
        model = open_model(Path(path), [] if dtype is None else [f"dtype={dtype}"])
        if model.tokenizer is None:
            raise UserError(f"{path} has no tokenizer/, which lm-eval needs to read its tasks' text.")
        self.config, self.params, self.texts = model.config, model.params, model.tokenizer
        self.batch_size = _whole(batch_size, "batch_size")
        self.max_length = self.config.max_length if max_length is None else _whole(max_length, "max_length")
        if self.max_length > self.config.max_length:
            raise UserError(f"max_length is {max_length}, more than the model's own ({self.config.max_length}).")
        self.max_gen_toks = _whole(max_gen_toks, "max_gen_toks")
        # As transformers reads text: the name of a special token is that token, and the tokenizer puts before a text what it does.
        self.reader = type(self.texts.backend).from_str(self.texts.backend.to_str())
        self.reader.encode_special_tokens = False
        named = self.texts.config.get("bos_token")
        bos = self.reader.token_to_id(named["content"] if isinstance(named, dict) else named) if named else None
        bos = self.texts.bos if bos is None else bos
        prefix = self.texts.eos if bos is None else bos
        if prefix is None:
            raise UserError(f"The tokenizer of {path} names neither bos nor eos, one of which lm-eval puts before a text.")
        self.prefix = prefix
        ends = hf.generation_config(Path(path) / "tokenizer").get("eos_token_id")
        self.ends = {self.texts.eos, *(ends if isinstance(ends, list) else [ends])} - {None}
        self._score = jax.jit(partial(_score, self.config))
        self._generator: Generator | None = None

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict, additional_config: dict | None = None) -> "MnemaxLM":
        """As lm-eval's, but a batch_size among the model's arguments goes before that of --batch_size."""
        return super().create_from_arg_obj({k: v for k, v in (additional_config or {}).items() if v is not None} | arg_dict)

    @property
    def eot_token_id(self) -> int | None:
        return self.texts.eos

    @property
    def prefix_token_id(self) -> int:
        """What an empty context stands for: bos, or eos where there is none."""
        return self.prefix

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Ids of a text, by default with what the tokenizer puts before one, unless that is written there already."""
        if add_special_tokens is None:
            add_special_tokens = not string.startswith(self._spelled(self.prefix))
        return self.reader.encode(string, add_special_tokens=add_special_tokens).ids

    def _spelled(self, token: int) -> str:
        return self.reader.decode([token], skip_special_tokens=False)

    def loglikelihood_rolling(self, requests: list, disable_tqdm: bool = False) -> list[float]:
        """log p in nats of whole texts, in windows of `max_length` that predict every token once."""
        windows: list[Request] = []
        owners: list[int] = []
        for owner, (text,) in enumerate(request.args for request in requests):
            pairs = get_rolling_token_windows(self.tok_encode(text), self.prefix, self.max_length, context_len=1)
            windows += [(None, *make_disjoint_window(pair)) for pair in pairs]
            owners += [owner] * (len(windows) - len(owners))
        totals = [0.0] * len(requests)
        for owner, (logp, _) in zip(owners, self._loglikelihood_tokens(windows, disable_tqdm), strict=True):
            totals[owner] += logp
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def _loglikelihood_tokens(self, requests: list[Request], disable_tqdm: bool = False, **_: Any) -> list[tuple[float, bool]]:
        def longest_first(request: Request) -> tuple[int, list[int]]:
            tokens = request[1] + request[2]
            return -len(tokens), tokens

        order, size = Collator(requests, sort_fn=longest_first), min(self.batch_size, len(requests))
        answers = []
        with tqdm(total=len(requests), disable=disable_tqdm, desc="Scoring") as bar:
            for batch in order.get_batched(n=size):
                for (strings, _, _), answer in zip(batch, self._scored(batch, size), strict=True):
                    answers.append(answer)
                    if strings is not None:
                        self.cache_hook.add_partial("loglikelihood", strings, answer)
                bar.update(len(batch))
        return order.get_original(answers)

    def _scored(self, batch: list[Request], size: int) -> list[tuple[float, bool]]:
        """log p of each continuation in nats, and whether each of its tokens is the likeliest; `size` rows are computed.

        They are padded on the left, so that what is asked for stands at the end of all of them.
        """
        rows = [(context + continuation)[-(self.max_length + 1) : -1] for _, context, continuation in batch]
        counts = [len(continuation) for _, _, continuation in batch]
        if max(counts) > self.max_length:
            raise UserError(f"A task asks for a continuation of {max(counts)} tokens; max_length is {self.max_length}.")
        T, C = _padded(max(map(len, rows))), _padded(max(counts))
        tokens, positions = np.zeros((2, size, T), np.int32)
        targets = np.zeros((size, C), np.int32)
        for i, (row, (_, _, continuation)) in enumerate(zip(rows, batch, strict=True)):
            tokens[i, T - len(row) :] = row
            positions[i, T - len(row) :] = np.arange(len(row))
            targets[i, C - len(continuation) :] = continuation
        logp, likeliest = map(np.asarray, self._score(self.params, tokens, positions, targets))
        return [(float(logp[i, C - n :].sum(dtype=np.float64)), bool(likeliest[i, C - n :].all())) for i, n in enumerate(counts)]

    def generate_until(self, requests: list, disable_tqdm: bool = False) -> list[str]:
        """Continuations up to the first stop string, greedy unless the task asks for a temperature."""

        def longest_first(request: tuple[str, dict]) -> tuple[int, str]:
            return -len(self.tok_encode(request[0])), request[0]

        order = Collator([r.args for r in requests], longest_first, group_fn=lambda request: request[1], group_by="gen_kwargs")
        texts, size = [], min(self.batch_size, len(requests))
        with tqdm(total=len(requests), disable=disable_tqdm, desc="Generating") as bar:
            for batch in order.get_batched(n=size):
                contexts, asked = [context for context, _ in batch], batch[0][1]
                for context, text in zip(contexts, self._continued(contexts, asked, size), strict=True):
                    texts.append(text)
                    self.cache_hook.add_partial("generate_until", (context, asked), text)
                bar.update(len(batch))
        return order.get_original(texts)

    def _continued(self, contexts: list[str], asked: dict, size: int) -> list[str]:
        settings = dict(normalize_gen_kwargs(asked, self.max_gen_toks))
        eos = None if self.texts.eos is None else self._spelled(self.texts.eos)
        until, new = handle_stop_sequences(settings.pop("until"), eos), settings.pop("max_gen_toks")
        if new >= self.max_length:
            raise UserError(f"A task asks for {new} new tokens (max_gen_toks); max_length, {self.max_length}, must be larger.")
        prompts = [(self.tok_encode(context) or [self.prefix])[new - self.max_length :] for context in contexts]
        filling = prompts[:1] * (size - len(prompts))  # a last, smaller batch would be compiled anew
        rows: list[list[int]] = [[] for _ in prompts]
        streams, texts = [self.texts.stream() for _ in prompts], [""] * len(prompts)
        going = set(range(len(prompts)))
        seed = np.random.randint(1 << 31)  # of the generator that lm-eval's --seed sets
        for tokens in self._generator_for(_sampling(settings)).stream(prompts + filling, new, seed=seed):
            for i in sorted(going):
                token = tokens[i]
                if token is None or token in self.ends:
                    going.remove(i)
                    continue
                rows[i].append(token)
                texts[i] += streams[i].add(token)
                if any(stop in texts[i] for stop in until):
                    going.remove(i)
            if not going:
                break
        return [postprocess_generated_text(self.texts.decode(row), until, None) for row in rows]

    def _generator_for(self, sampling: Sampling) -> Generator:
        if self._generator is None or self._generator.sampling != sampling:
            self._generator = Generator(self.config, self.params, sampling)
        return self._generator


def _score(
    config, params: Params, tokens: Int[Array, "B T"], positions: Int[Array, "B T"], targets: Int[Array, "B C"]
) -> tuple[Float[Array, "B C"], Bool[Array, "B C"]]:
    """log p of the targets of the last positions, and whether each is the likeliest token there."""
    model = bind(config, params)
    B, C = targets.shape
    x = model.hidden(tokens, positions)[0][:, -C:]

    def part(given):
        x, targets = given
        logits = model.logits(x)
        logp = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0] - jax.nn.logsumexp(logits, -1)
        return logp, jnp.argmax(logits, -1) == targets

    parts = tuple(jnp.moveaxis(a.reshape(B, -1, POSITIONS, *a.shape[2:]), 1, 0) for a in (x, targets))
    logp, likeliest = (jnp.moveaxis(a, 0, 1).reshape(B, C) for a in jax.lax.map(part, parts))
    return logp, likeliest


def _padded(length: int) -> int:
    """The next of at most four lengths an octave, so that few programs are compiled and little is computed in vain."""
    step = max(POSITIONS, 1 << max(0, length.bit_length() - 3))
    return -(-length // step) * step


def _sampling(settings: dict) -> Sampling:
    """What lm-eval's generation arguments mean for us.

    Raises:
        UserError: one is unknown or out of range.
    """
    known = {name: settings[name] for name in Sampling.model_fields if settings.get(name) is not None}
    allowed = ("do_sample", *Sampling.model_fields)
    if unknown := sorted(name for name, value in settings.items() if name not in allowed and value != NEUTRAL.get(name)):
        raise UserError(f"gen_kwargs: {', '.join(unknown)} is not supported; {', '.join(allowed)} are.")
    greedy = not settings["do_sample"] or not known.get("temperature")
    return validate(Sampling, {"temperature": 0.0} if greedy else known, "gen_kwargs")


def _whole(value: int | str, name: str) -> int:
    if not str(value).isdecimal() or int(value) == 0:
        raise UserError(f"{name} is {value!r}; it must be a whole number from 1.")
    return int(value)
