"""From what a caller gives (text, ids, chat messages) to the ids that each model sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from anydraft.errors import UsageError

Message = Mapping[str, Any]
Conversation = Sequence[Message]


class Tokenized(Protocol):
    """What is asked here of a model, loaded or only described."""

    @property
    def name(self) -> str: ...

    @property
    def hf_tokenizer(self) -> Any: ...

    @property
    def vocab_size(self) -> int: ...


def prompt_ids(model: Tokenized, prompt: str | Sequence[int]) -> tuple[int, ...]:
    """Ids of a raw prompt as Transformers encodes it: BOS if the tokenizer adds one, control tokens recognised.

    Raises:
        UsageError: empty, not encodable, or ids that the model does not have.
    """
    if isinstance(prompt, str):
        _refuse_surrogates(prompt)
        ids = list(model.hf_tokenizer(prompt).input_ids)
    else:
        ids = list(prompt)
        bad = [
            i for i in ids if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < model.vocab_size
        ]
        if bad:
            raise UsageError(
                f"prompt id {bad[0]!r} is not one of the {model.vocab_size} ids (0 to {model.vocab_size - 1}) "
                f"of {model.name}; pass text, or ids of this model's tokenizer"
            )
    if not ids:
        raise UsageError(
            f"the prompt is empty and {model.name} adds no BOS; give at least one token to start from"
        )
    return tuple(ids)


def chat_ids(model: Tokenized, conversation: Conversation) -> tuple[int, ...]:
    """Ids of a conversation in the model's own chat template, ready for the assistant's turn.

    Raises:
        UsageError: malformed messages, or a model without a chat template.
    """
    check_messages(conversation)
    require_chat_template(model, "pass a raw prompt instead of messages")
    try:
        ids = model.hf_tokenizer.apply_chat_template(
            [dict(m) for m in conversation], add_generation_prompt=True, tokenize=True, return_dict=False
        )
    except Exception as error:  # Jinja templates raise whatever their author chose.
        raise UsageError(f"the chat template of {model.name} refuses these messages: {error}") from error
    return tuple(int(i) for i in ids)


def draft_chat_ids(model: Tokenized, conversation: Conversation) -> tuple[int, ...] | None:
    """The draft's own rendering of the same conversation; None where it has no template or refuses this one
    (the draft then sees the target's text)."""
    if not has_chat_template(model):
        return None
    try:
        return chat_ids(model, conversation)
    except UsageError:
        return None


def has_chat_template(model: Tokenized) -> bool:
    return bool(getattr(model.hf_tokenizer, "chat_template", None))


def require_chat_template(model: Tokenized, otherwise: str) -> None:
    """Raise UsageError if ``model`` has no chat template; ``otherwise``: what to do then."""
    if not has_chat_template(model):
        raise UsageError(f"{model.name} has no chat template; {otherwise}")


def check_messages(conversation: Conversation) -> None:
    """Raise UsageError unless ``conversation`` is a non-empty list of {role, content} with text contents."""
    if isinstance(conversation, (str, bytes, Mapping)) or not conversation:
        raise UsageError(
            f"messages must be a non-empty list of {{'role': ..., 'content': ...}}, not {conversation!r:.80}"
        )
    for message in conversation:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise UsageError(f"a message must be {{'role': ..., 'content': ...}}, not {message!r:.80}")
        content = message.get("content")
        if not isinstance(content, str):
            raise UsageError(f"the content of a message must be text, not {content!r:.80}")
        _refuse_surrogates(content)


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the text holds a lone surrogate (U+{ord(text[error.start]):04X} at character {error.start}), which is "
            "no Unicode text; remove it or decode the input properly"
        ) from error
