"""What a model is measured on. One kind a file of this folder, registered by being there; this one holds the contract."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mnemax.configs.base import Config

if TYPE_CHECKING:
    from mnemax.data.config import DataConfig
    from mnemax.models.folder import Model

type Result = dict[str, Any]
"""What evaluation.json says of one measure: plain JSON."""
type Progress = Callable[[int, int], None]
"""Called with what is done so far, and what there is to do."""


@dataclass(frozen=True)
class Subject:
    """What is measured.

    Attributes:
        model: the model, as read from its folder.
        data: what its run read; None for an import.
        batch: rows that are computed at one time.
    """

    model: "Model"
    data: "DataConfig | None"
    batch: int


class MeasureConfig(Config):
    """The base of every measure."""

    def __call__(self, subject: Subject, progress: Progress) -> Result:
        """Measures.

        Raises:
            UserError: the subject cannot be measured so; the sentence names the field.
        """
        raise NotImplementedError
