"""Request bodies: OpenAI's names, vLLM's additions, and bounds.

Fields that nobody here knows are ignored, as OpenAI-compatible servers do; fields that would change the answer and
are not supported are refused.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from anydraft.rules.params import SamplingParams

MAX_LOGPROBS = 20
_MAX_STOPS, _MAX_STOP_LENGTH = 64, 1000
_INT64 = 2**63

_UNSUPPORTED = (
    "tools",
    "functions",
    "audio",
    "modalities",
    "prediction",
    "web_search_options",
    "suffix",
    "use_beam_search",
    "prompt_logprobs",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "lora_request",
)
"""Fields that change what is answered; ignoring them would be wrong."""


def _refuse(field: str, message: str) -> PydanticCustomError:
    return PydanticCustomError("unsupported", "{message}", {"message": message, "param": field})


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


StopString = Annotated[str, Field(min_length=1, max_length=_MAX_STOP_LENGTH)]
TokenId = Annotated[StrictInt, Field(ge=0, lt=_INT64)]


class StreamOptions(BaseModel):
    include_usage: bool = False


class Speculative(BaseModel):
    """What one request wants of the drafts; changes the speed, never the text.

    ``return_tokens``: say for each token where it came from.
    """

    method: Literal["auto", "standard", "tli", "slem", "slrs", "lookup", "none"] | None = None
    num_speculative_tokens: int | None = Field(default=None, ge=1, le=32)
    return_tokens: bool = False


class ResponseFormat(BaseModel):
    type: str


class GenerationRequest(BaseModel):
    """What completions and chat completions share."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    model: str | None = None
    """None: the one that is served, as in vLLM and llama.cpp."""
    n: int = Field(1, ge=1, le=128)
    max_tokens: int | None = Field(None, ge=1, lt=_INT64)
    temperature: float = Field(1.0, ge=0.0, le=2.0)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    presence_penalty: float = Field(0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(0.0, ge=-2.0, le=2.0)
    logit_bias: dict[int, Annotated[float, Field(ge=-100.0, le=100.0)]] | None = None
    seed: int | None = Field(None, ge=-_INT64, lt=_INT64)
    stop: Annotated[list[StopString], BeforeValidator(_as_list), Field(max_length=_MAX_STOPS)] = Field(
        default_factory=list
    )
    stream: bool = False
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    # vLLM's additions
    top_k: int = Field(0, ge=-1, lt=_INT64)
    min_p: float = Field(0.0, ge=0.0, le=1.0)
    repetition_penalty: float = Field(1.0, gt=0.0, le=100.0)
    min_tokens: int = Field(0, ge=0, lt=_INT64)
    ignore_eos: bool = False
    stop_token_ids: list[TokenId] | None = None
    allowed_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool = False
    # ours
    speculative: Speculative = Speculative()

    @model_validator(mode="before")
    @classmethod
    def _check_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name in _UNSUPPORTED:
            if data.get(name):
                raise _refuse(name, f"{name} is not supported by this server; leave it out.")
        return {key: value for key, value in data.items() if value is not None}

    @model_validator(mode="after")
    def _check_combinations(self) -> GenerationRequest:
        if self.response_format is not None and self.response_format.type != "text":
            raise _refuse(
                "response_format",
                f"response_format of type {self.response_format.type!r} is not supported by this server; only "
                "'text' is.",
            )
        if self.stream_options is not None and not self.stream:
            raise _refuse("stream_options", "stream_options belongs to a stream; set stream to true.")
        return self

    input_name: ClassVar[str]
    """The field that holds what to generate for."""

    @property
    def items(self) -> list[Any]:
        """What to generate for, as the engine encodes it: texts, lists of ids, or one conversation."""
        raise NotImplementedError

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def output_limit(self) -> int | None:
        """Tokens to generate at most; None: until the context is full."""
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives to report a token; None: no logprobs at all."""
        raise NotImplementedError

    def sampling_params(self, choice: int, max_tokens: int) -> SamplingParams:
        """Of one of the ``n`` choices. Each has a seed of its own: ``seed`` + its number.

        Raises:
            UsageError: values that contradict each other.
        """
        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.logit_bias,
            allowed_token_ids=self.allowed_token_ids,
            seed=None if self.seed is None else self.seed + choice,
            stop=self.stop or None,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
            include_stop_str_in_output=self.include_stop_str_in_output,
            logprobs=self.num_logprobs,
        )


class CompletionRequest(GenerationRequest):
    """Body of /v1/completions."""

    input_name = "prompt"

    prompt: str | list[TokenId] | list[str] | list[list[TokenId]]
    max_tokens: int | None = Field(16, ge=1, lt=_INT64)
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    echo: bool = False
    best_of: int | None = Field(None, ge=1, le=128)

    @field_validator("prompt", mode="wrap")
    @classmethod
    def _explain_prompt(cls, value: Any, check: ValidatorFunctionWrapHandler) -> Any:
        try:
            return check(value)
        except ValidationError:
            raise _refuse(
                "prompt", "this is no text, list of texts, list of token ids or list of such lists."
            ) from None

    @model_validator(mode="after")
    def _check_completion(self) -> CompletionRequest:
        if not self.prompt and self.prompt != "":
            raise _refuse("prompt", "prompt is an empty list; give at least one prompt.")
        if self.best_of is not None and self.best_of != self.n:
            raise _refuse(
                "best_of", f"best_of={self.best_of} must be equal to n={self.n}: nothing is ranked here."
            )
        if self.echo and self.logprobs is not None:
            raise _refuse(
                "echo", "echo with logprobs is not supported by this server; leave out one of them."
            )
        return self

    @property
    def items(self) -> list[Any]:
        prompt: Any = self.prompt
        if isinstance(prompt, str) or isinstance(prompt[0], int):
            return [prompt]
        return list(prompt)

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs


class ContentPart(BaseModel):
    type: str
    text: str | None = None


class ChatMessage(BaseModel):
    role: str = Field(min_length=1, max_length=64)
    content: str | list[ContentPart] | None = None

    @model_validator(mode="after")
    def _check_parts(self) -> ChatMessage:
        if self.content is None:
            raise _refuse("messages", f"a message of role {self.role!r} has no content; give a text.")
        if isinstance(self.content, list):
            for part in self.content:
                if part.type != "text" or part.text is None:
                    raise _refuse(
                        "messages",
                        f"a content part of type {part.type!r} is not supported; only text parts are.",
                    )
        return self

    def to_message(self) -> dict[str, str]:
        """As chat templates take it. OpenAI's "developer" is what they call "system"."""
        parts = self.content if isinstance(self.content, list) else []
        content = self.content if isinstance(self.content, str) else "".join(p.text or "" for p in parts)
        return {"role": "system" if self.role == "developer" else self.role, "content": content}


class ChatRequest(GenerationRequest):
    """Body of /v1/chat/completions."""

    input_name = "messages"

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1, lt=_INT64)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    @model_validator(mode="after")
    def _check_logprobs(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise _refuse("top_logprobs", "top_logprobs needs logprobs to be true.")
        return self

    @property
    def items(self) -> list[Any]:
        return [[message.to_message() for message in self.messages]]

    @property
    def output_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
