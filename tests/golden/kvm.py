"""Key-value means in float64 numpy: one row, one key/value head, as the paper (arXiv 2605.09877) runs it.

`prefill` goes chunk by chunk and folds a block into the state after a chunk has attended; `Decoder` goes token by token and folds
when a chunk begins. The two share the arithmetic of a fold and nothing of the bookkeeping.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import floor

import numpy as np


def fixed(slots: int) -> Callable[[int], int]:
    return lambda t: slots


def power(factor: float, exponent: float, least: int = 1) -> Callable[[int], int]:
    return lambda t: max(least, floor(factor * t**exponent))


def saturating(slots: int) -> Callable[[int], int]:
    return lambda t: slots * t // (slots + t)


@dataclass(frozen=True)
class Settings:
    """Sizes, switches and weights of one head; `budget(t)` is the number of slots that t tokens may have."""

    chunk: int
    budget: Callable[[int], int]
    window_chunks: int = 2
    sinks: int = 1
    rotated: int = 0
    value_norm: bool = True
    gate_appends: bool = False
    remask: bool = False
    weight: np.ndarray | float = 1.0
    bias: np.ndarray | float = 0.0
    state_temperature: float = 1.0
    window_temperature: float = 1.0
    eps: float = 1e-5

    @property
    def window(self) -> int:
        return self.chunk * self.window_chunks

    def norm(self, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        y = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self.eps) * self.weight + self.bias
        return self._without_rotated(y) if self.remask else y

    def memory_key(self, k: np.ndarray) -> np.ndarray:
        return self.norm(self._without_rotated(k))

    def _without_rotated(self, x: np.ndarray) -> np.ndarray:
        return np.concatenate([np.zeros_like(x[..., : self.rotated]), x[..., self.rotated :]], axis=-1)


@dataclass(frozen=True)
class Slots:
    """Sums of keys [m, H] and of values [m, Hv], and the length [m] at which a slot's value is read."""

    keys: np.ndarray
    values: np.ndarray
    radius: np.ndarray

    def __len__(self) -> int:
        return len(self.radius)


def first_slots(s: Settings, k: np.ndarray, v: np.ndarray) -> Slots:
    """The state as the first chunk leaves it: every token a slot of its own, no gate."""
    return Slots(s.memory_key(k), v.copy(), np.linalg.norm(v, axis=-1))


def fold(s: Settings, state: Slots, k: np.ndarray, v: np.ndarray, g: np.ndarray, tokens: int, available: int) -> Slots:
    """A block's tokens become slots, the most novel ones first, or join the slot most like them."""
    keys = s.memory_key(k)
    wanted = max(len(state), min(s.budget(tokens), available))
    appended = min(wanted - len(state), len(k))
    likeness = (keys @ s.norm(state.keys).T).max(axis=1)
    novel = np.sort(np.argsort(likeness, kind="stable")[:appended])
    rest = np.setdiff1d(np.arange(len(k)), novel)
    gate = g[novel, None] if s.gate_appends else np.ones((appended, 1))
    sums = np.concatenate([state.keys, gate * keys[novel]])
    values = np.concatenate([state.values, gate * v[novel]])
    radius = np.concatenate([state.radius, np.linalg.norm(gate * v[novel], axis=-1)])
    logits = (g[rest, None] * keys[rest]) @ s.norm(sums).T
    target = s.sinks + logits[:, s.sinks :].argmax(axis=1)
    np.add.at(sums, target, g[rest, None] * keys[rest])
    np.add.at(values, target, g[rest, None] * v[rest])
    return Slots(sums, values, radius)


def slot_entries(s: Settings, state: Slots) -> tuple[np.ndarray, np.ndarray]:
    """What a query reads of the state."""
    values = state.values
    if s.value_norm:
        values = state.radius[:, None] * values / np.linalg.norm(values, axis=-1, keepdims=True)
    return s.state_temperature * s.norm(state.keys), values


def attend(q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """q [G, H] over keys [S, H]."""
    logits = q @ keys.T / np.sqrt(q.shape[-1])
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True) @ values


def prefill(s: Settings, q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Outputs [T, G, Hv] of queries [T, G, H], and the number of slots that each chunk saw."""
    length, out, seen = len(k), [], []
    state = first_slots(s, k[: s.chunk], v[: s.chunk])
    for begin in range(0, length, s.chunk):
        end = begin + s.chunk
        oldest = max(0, end - s.window)
        slots = slot_entries(s, state) if end > s.window else (k[:0], v[:0])
        seen.append(len(slots[0]))
        for t in range(begin, min(end, length)):
            near = slice(oldest, t + 1)
            keys = np.concatenate([slots[0], s.window_temperature * k[near]])
            out.append(attend(q[t], keys, np.concatenate([slots[1], v[near]])))
        if oldest > 0:  # the oldest block leaves the window before the next chunk
            block = slice(oldest, oldest + s.chunk)
            state = fold(s, state, k[block], v[block], g[block], tokens=end, available=oldest + s.chunk)
    return np.stack(out), seen


@dataclass
class Decoder:
    """The same, a token at a time: what is held is the state and at most a window of tokens."""

    settings: Settings
    state: Slots | None = None
    recent: list[tuple[np.ndarray, np.ndarray, float]] = field(default_factory=list)
    total: int = 0

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, g: float) -> np.ndarray:
        s = self.settings
        if self.total % s.chunk == 0 and self.total >= s.window:
            self._leave()
        self.recent.append((k, v, g))
        self.total += 1
        keys = s.window_temperature * np.stack([k for k, _, _ in self.recent])
        values = np.stack([v for _, v, _ in self.recent])
        if self.state is not None:
            slots = slot_entries(s, self.state)
            keys, values = np.concatenate([slots[0], keys]), np.concatenate([slots[1], values])
        return attend(q, keys, values)

    def _leave(self) -> None:
        """The oldest chunk of the window goes into the state."""
        s = self.settings
        block, self.recent = self.recent[: s.chunk], self.recent[s.chunk :]
        k, v, g = (np.stack(part) for part in zip(*block, strict=True))
        covered = self.total - s.window
        if self.state is None:
            self.state = first_slots(s, k, v)
        else:
            self.state = fold(s, self.state, k, v, g, tokens=s.window + covered, available=covered + s.chunk)
