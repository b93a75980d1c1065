"""The base of every configuration node: frozen, strict, and of one `kind` where a choice exists."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Config(BaseModel):
    """A node of the configuration tree. Unknown fields are errors; a node never changes once read."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
