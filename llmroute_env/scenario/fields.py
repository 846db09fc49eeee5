"""Field types that scenarios are made of, and the base class of their sections."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _number(value: object) -> object:
    """Refuse what pydantic would quietly turn into a number: true, '3'."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must be a number")  # noqa: TRY004 (pydantic collects ValueError)
    return value


def _integer(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must be an integer")  # noqa: TRY004
    if not float(value).is_integer():  # 1e4 is an integer for a person
        raise ValueError("must be an integer")
    return int(value)


Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
NonNegative = Annotated[Number, Field(ge=0)]
Fraction = Annotated[Number, Field(ge=0, lt=1)]  #: [0, 1)
Inside = Annotated[Number, Field(gt=0, lt=1)]  #: (0, 1)
Integer = Annotated[int, BeforeValidator(_integer)]
Count = Annotated[Integer, Field(ge=1, le=2**31 - 1)]  #: a count of things or tokens, at least 1
#: half of what int64 nanoseconds hold, so that sums of two times hold too [s]
LONGEST_S = 4e9

Flag = Annotated[bool, Field(strict=True)]


class Section(BaseModel):
    """A part of a scenario: immutable, hashable, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")
