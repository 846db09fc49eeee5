"""The text part of a workload: what kind of text requests hold, and how many bytes it has."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from llmroute_env.scenario.fields import NonNegative, Number, Section


class Mix(Section):
    """Shares of the categories; they sum to 1."""

    prose: NonNegative = 0.0
    code: NonNegative = 0.0
    cjk: NonNegative = 0.0

    @model_validator(mode="after")
    def _sum(self) -> Mix:
        total = self.prose + self.code + self.cjk
        if abs(total - 1.0) > 1e-6:
            raise ValueError(
                f"prose = {self.prose:g}, code = {self.code:g}, cjk = {self.cjk:g}: must sum to 1"
            )
        return self


class BytesPerToken(Section):
    """UTF-8 bytes per token of a request: lognormal."""

    mean: Annotated[Number, Field(gt=0, le=100)]
    spread: Annotated[Number, Field(ge=0, le=2)]  #: standard deviation of the logarithm


class CategoryBytes(Section):
    """Bytes per token by category, for a tokenizer of about 100,000 tokens (GPT-4's, Llama 3's)."""

    # Prose: English text has 4.4 to 4.6 characters (bytes) per token with GPT-4's and Llama 3's
    # vocabularies (https://huggingface.co/spaces/eson/tokenizer-arena, CC-100;
    # https://github.com/shisa-ai/shisa-v2, eval/tokenizer-efficiency).
    # Code: 30 to 50% more tokens per character than prose
    # (https://aipromptshub.co/blog/how-many-tokens-typical-prompt).
    # CJK: simplified Chinese has 3.2 bytes per token with Llama 3's vocabulary, 1.8 with Llama 2's
    # (tokenizer-arena, CC-100). The spreads between texts are assumptions.
    prose: BytesPerToken = BytesPerToken(mean=4.5, spread=0.10)
    code: BytesPerToken = BytesPerToken(mean=3.3, spread=0.20)
    cjk: BytesPerToken = BytesPerToken(mean=3.2, spread=0.15)


class Text(Section):
    """Size and category of each request's text, from its prompt tokens.

    A session is of one category, and all of its turns have the same bytes per token.
    """

    mix: Mix
    bytes_per_token: CategoryBytes = CategoryBytes()
