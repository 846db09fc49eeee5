"""Field types that scenarios are made of, and the base class of their sections."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _number(value: Any) -> Any:
    """Refuse what pydantic would quietly turn into a number: true, '3'; accept numpy's."""
    if isinstance(value, bool | str) or not isinstance(value, Real):
        raise ValueError("must be a number")  # noqa: TRY004 (pydantic collects ValueError)
    return value if isinstance(value, int | float) else value.__float__()


def _integer(value: Any) -> Any:
    if isinstance(value, bool | str) or not isinstance(value, Real):
        raise ValueError("must be an integer")  # noqa: TRY004
    if isinstance(value, Integral):
        return int(value)
    number = float(value)  # 1e4 is an integer for a person
    if not number.is_integer():
        raise ValueError("must be an integer")
    return int(number)


Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
NonNegative = Annotated[Number, Field(ge=0)]
Fraction = Annotated[Number, Field(ge=0, lt=1)]  #: [0, 1)
Inside = Annotated[Number, Field(gt=0, lt=1)]  #: (0, 1)
Integer = Annotated[int, BeforeValidator(_integer)]
Count = Annotated[Integer, Field(ge=1, le=2**31 - 1)]  #: a count of things or tokens, at least 1
Flag = Annotated[bool, Field(strict=True)]


class Section(BaseModel):
    """A part of a scenario: immutable, hashable, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")
