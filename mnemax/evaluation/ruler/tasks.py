"""The tasks by RULER's names."""

from dataclasses import replace
from typing import Literal

from mnemax.errors import UserError
from mnemax.evaluation.ruler import Task
from mnemax.evaluation.ruler.counts import CommonWords, FrequentWords
from mnemax.evaluation.ruler.haystacks import HaystackTask
from mnemax.evaluation.ruler.needles import Needles, PassKey
from mnemax.evaluation.ruler.questions import Questions
from mnemax.evaluation.ruler.variables import Variables

OneNeedle = Literal["passkey", "niah_single_1", "niah_single_2", "niah_single_3"]
Name = Literal[
    "passkey",
    "niah_single_1",
    "niah_single_2",
    "niah_single_3",
    "niah_multikey_1",
    "niah_multikey_2",
    "niah_multikey_3",
    "niah_multivalue",
    "niah_multiquery",
    "vt",
    "cwe",
    "fwe",
    "qa",
]

TASKS: dict[str, Task] = {
    "passkey": PassKey(),
    "niah_single_1": Needles(haystack="noise"),
    "niah_single_2": Needles(),
    "niah_single_3": Needles(value_type="uuids"),
    "niah_multikey_1": Needles(keys=4),
    "niah_multikey_2": Needles(haystack="needles"),
    "niah_multikey_3": Needles(haystack="needles", key_type="uuids", value_type="uuids"),
    "niah_multivalue": Needles(values=4),
    "niah_multiquery": Needles(keys=4, queries=4),
    "vt": Variables(),
    "cwe": CommonWords(),
    "fwe": FrequentWords(),
    "qa": Questions(),
}


def task(name: Name, haystack: Literal["noise", "text"] | None = None, path: str | None = None) -> Task:
    """A task, in another haystack or another text than its own.

    Raises:
        UserError: the task has no haystack to exchange, or reads no file.
    """
    found = TASKS[name]
    if haystack is not None:
        if not isinstance(found, HaystackTask) or found.haystack == "needles":
            raise UserError(f"The task {name} has a haystack of its own kind; leave `haystack` ({haystack}) out.")
        found = replace(found, haystack=haystack)
    if path is not None:
        if not isinstance(found, Questions) and not (isinstance(found, HaystackTask) and found.haystack == "text"):
            raise UserError(f"The task {name} reads no text, so it has no `path` ({path}); `haystack: text` would.")
        found = replace(found, path=path)
    return found
