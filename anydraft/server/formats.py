"""Response bodies as OpenAI shapes them: whole, and as the chunks of a stream."""

from __future__ import annotations

import codecs
import itertools
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from anydraft.engine.outputs import Delta, GenerationResult, Logprob, RequestStats
from anydraft.engine.pieces import Piece
from anydraft.vocab.vocabulary import Vocabulary

_LOWEST_LOGPROB = -9999.0
"""JSON has no infinity."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """What one step added to one choice of a response; ``num_tokens`` are those of the choice so far."""

    choice: int
    delta: Delta
    pieces: tuple[Piece, ...]
    num_tokens: int


class Format(Protocol):
    """One response: its identity, its choices so far."""

    def first_chunks(self, choice: int) -> list[Json]:
        """What a stream says of a choice before its first text."""
        ...

    def text_chunk(self, part: Part) -> Json: ...

    def last_chunk(self, choice: int, result: GenerationResult) -> Json: ...

    def usage_chunk(self, usage: Json, metrics: Json) -> Json: ...

    def body(self, parts: Sequence[Sequence[Part]], usage: Json, metrics: Json) -> Json:
        """The whole response from all parts of each choice."""
        ...


def usage(prompt_tokens: int, completion_tokens: int) -> Json:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def speculative_metrics(stats: RequestStats) -> Json:
    """``metrics`` of a response: vLLM's fields, then ours (see docs/serving.md)."""
    reached = [stats.num_drafts, *stats.accepted_per_position, 0]
    return {
        "speculative_decoding": {
            "mean_acceptance_length": 1.0 + stats.num_accepted_tokens / stats.num_drafts
            if stats.num_drafts
            else 1.0,
            "draft_acceptance_rate": stats.acceptance_rate,
            "acceptance_histogram": [a - b for a, b in itertools.pairwise(reached)],
            "num_spec_steps": stats.num_drafts,
            "num_accepted_draft_tokens": stats.num_accepted_tokens,
            "num_draft_tokens": stats.num_draft_tokens,
            "num_spec_tokens": len(stats.accepted_per_position),
            "method": stats.method,
            "num_steps": stats.num_steps,
            "acceptance_length": stats.acceptance_length,
            "num_lookup_tokens": stats.num_lookup_tokens,
            "num_draft_model_tokens": stats.num_draft_model_tokens,
            "draft_time": stats.draft_time,
            "target_time": stats.target_time,
            "predicted_speedup": stats.predicted_speedup,
        }
    }


class TokenNames:
    """Tokens as logprobs name them: their text, or "bytes:..." where a token is no whole text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def data(self, token_id: int) -> bytes:
        control = self._vocabulary.controls.get(token_id)
        return control.surface.encode() if control else self._vocabulary.bytes_of([token_id])

    def name(self, token_id: int) -> str:
        data = self.data(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def texts(self, delta: Delta) -> list[tuple[int, dict[int, Logprob]]]:
        """(id, logprobs) of the delta's tokens that stand for text; control tokens are left out."""
        controls = self._vocabulary.controls
        entries = zip(delta.token_ids, delta.logprobs or (), strict=False)
        return [(token_id, entry) for token_id, entry in entries if token_id not in controls]


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST_LOGPROB)


def _top(entry: dict[int, Logprob], most: int) -> list[tuple[int, Logprob]]:
    ranked = sorted(entry.items(), key=lambda item: item[1].rank)
    return [item for item in ranked if item[1].rank <= most][:most]


class _Base:
    """Identity of a response and what all formats share."""

    prefix: str
    object_name: str
    chunk_name: str

    def __init__(self, model: str, *, include_usage: bool, return_tokens: bool) -> None:
        self._model = model
        self._include_usage = include_usage
        self._return_tokens = return_tokens
        self._id = f"{self.prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def _frame(self, object_name: str, choices: list[Json]) -> Json:
        return {
            "id": self._id,
            "object": object_name,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }

    def _chunk(self, choice: Json) -> Json:
        chunk = self._frame(self.chunk_name, [choice])
        if self._include_usage:
            chunk["usage"] = None
        return chunk

    def usage_chunk(self, usage: Json, metrics: Json) -> Json:
        return {**self._frame(self.chunk_name, []), "usage": usage, "metrics": metrics}

    def _add_tokens(self, target: Json, parts: Sequence[Part]) -> None:
        if self._return_tokens:
            target["speculative"] = {
                "tokens": [{"text": p.text, "source": p.source} for part in parts for p in part.pieces]
            }
            if parts:
                target["speculative"].update(_progress(parts[-1]))


def _progress(part: Part) -> Json:
    stats = part.delta.stats
    return {
        "num_tokens": part.num_tokens,
        "num_steps": stats.num_steps,
        "acceptance_length": stats.acceptance_length,
        "predicted_speedup": stats.predicted_speedup,
        "decision": stats.decision,
    }


class ChatFormat(_Base):
    """/v1/chat/completions."""

    prefix, object_name, chunk_name = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, model: str, names: TokenNames, num_logprobs: int | None, **options: bool) -> None:
        super().__init__(model, **options)
        self._names = names
        self._num_logprobs = num_logprobs

    def first_chunks(self, choice: int) -> list[Json]:
        delta = {"role": "assistant", "content": ""}
        return [self._chunk({"index": choice, "delta": delta, "logprobs": None, "finish_reason": None})]

    def text_chunk(self, part: Part) -> Json:
        choice = {
            "index": part.choice,
            "delta": {"content": part.delta.text},
            "logprobs": self._logprobs([part]),
            "finish_reason": None,
        }
        self._add_tokens(choice, [part])
        return self._chunk(choice)

    def last_chunk(self, choice: int, result: GenerationResult) -> Json:
        return self._chunk(
            {
                "index": choice,
                "delta": {},
                "logprobs": None,
                "finish_reason": result.finish_reason,
                "stop_reason": result.stop_reason,
            }
        )

    def body(self, parts: Sequence[Sequence[Part]], usage: Json, metrics: Json) -> Json:
        choices = []
        for index, mine in enumerate(parts):
            result = _result(mine)
            choice = {
                "index": index,
                "message": {"role": "assistant", "content": result.text, "refusal": None},
                "logprobs": self._logprobs(mine),
                "finish_reason": result.finish_reason,
                "stop_reason": result.stop_reason,
            }
            self._add_tokens(choice, mine)
            choices.append(choice)
        return {**self._frame(self.object_name, choices), "usage": usage, "metrics": metrics}

    def _logprobs(self, parts: Sequence[Part]) -> Json | None:
        if self._num_logprobs is None:
            return None
        content = [
            {
                **self._entry(token_id, entry[token_id]),
                "top_logprobs": [self._entry(*top) for top in _top(entry, self._num_logprobs)],
            }
            for part in parts
            for token_id, entry in self._names.texts(part.delta)
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token_id: int, logprob: Logprob) -> Json:
        return {
            "token": self._names.name(token_id),
            "logprob": _finite(logprob.logprob),
            "bytes": list(self._names.data(token_id)),
        }


class CompletionFormat(_Base):
    """/v1/completions.

    ``echoes``: the text to put before each choice's own; empty strings without ``echo``.
    """

    prefix, object_name, chunk_name = "cmpl", "text_completion", "text_completion"

    def __init__(
        self,
        model: str,
        names: TokenNames,
        num_logprobs: int | None,
        echoes: Sequence[str],
        **options: bool,
    ) -> None:
        super().__init__(model, **options)
        self._names = names
        self._num_logprobs = num_logprobs
        self._echoes = echoes
        self._offsets = [_Offsets(len(echo)) for echo in echoes]

    def first_chunks(self, choice: int) -> list[Json]:
        echo = self._echoes[choice]
        if not echo:
            return []
        return [self._chunk({"index": choice, "text": echo, "logprobs": None, "finish_reason": None})]

    def text_chunk(self, part: Part) -> Json:
        choice = {
            "index": part.choice,
            "text": part.delta.text,
            "logprobs": self._logprobs([part]),
            "finish_reason": None,
        }
        self._add_tokens(choice, [part])
        return self._chunk(choice)

    def last_chunk(self, choice: int, result: GenerationResult) -> Json:
        return self._chunk(
            {
                "index": choice,
                "text": "",
                "logprobs": None,
                "finish_reason": result.finish_reason,
                "stop_reason": result.stop_reason,
            }
        )

    def body(self, parts: Sequence[Sequence[Part]], usage: Json, metrics: Json) -> Json:
        choices = []
        for index, mine in enumerate(parts):
            result = _result(mine)
            choice = {
                "index": index,
                "text": self._echoes[index] + result.text,
                "logprobs": self._logprobs(mine),
                "finish_reason": result.finish_reason,
                "stop_reason": result.stop_reason,
            }
            self._add_tokens(choice, mine)
            choices.append(choice)
        return {**self._frame(self.object_name, choices), "usage": usage, "metrics": metrics}

    def _logprobs(self, parts: Sequence[Part]) -> Json | None:
        most = self._num_logprobs
        if most is None:
            return None
        shape: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for part in parts:
            for token_id, entry in self._names.texts(part.delta):
                own = entry[token_id]
                chosen = [*_top(entry, most), *([(token_id, own)] if own.rank > most else [])]
                shape["tokens"].append(self._names.name(token_id))
                shape["token_logprobs"].append(_finite(own.logprob))
                shape["top_logprobs"].append({self._names.name(i): _finite(lp.logprob) for i, lp in chosen})
                shape["text_offset"].append(self._offsets[part.choice].next(self._names.data(token_id)))
        if most == 0:
            shape["top_logprobs"] = None
        return shape


class _Offsets:
    """Where each token begins in a choice's text, in characters."""

    def __init__(self, start: int) -> None:
        self._at = start
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def next(self, data: bytes) -> int:
        at = self._at
        self._at += len(self._decoder.decode(data))
        return at


def _result(parts: Sequence[Part]) -> GenerationResult:
    result = parts[-1].delta.result
    assert result is not None, "a body is made of finished choices"
    return result
