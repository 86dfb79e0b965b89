"""A target and what drafts for it: loaded, bridged, with the method that suits them."""

from __future__ import annotations

import copy
import logging
from collections import OrderedDict
from typing import Any

from anydraft.errors import UsageError
from anydraft.methods.base import DraftBackend, DraftSettings, Method
from anydraft.methods.costs import CostModel
from anydraft.methods.select import make_method
from anydraft.models.draft import ModelDraft
from anydraft.models.load import LoadedModel, load_model
from anydraft.models.select import Quantization, SlotRunner, check_quantization, make_runner
from anydraft.vocab.bridge import Bridge
from anydraft.vocab.readers import read_tokenizer
from anydraft.vocab.tokenizer import Tokenizer
from anydraft.vocab.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

_MOST_OTHERS = 16


class Pair:
    """Loads both sides of a pair and chooses the method; see :class:`~anydraft.engine.engine.Engine`."""

    def __init__(
        self,
        target: Any,
        draft: Any,
        *,
        method: str,
        num_speculative_tokens: int | None,
        dtype: str | None,
        draft_dtype: str | None,
        draft_quantization: Quantization,
        device: str | None,
        draft_temperature: float | None,
    ) -> None:
        _check_count(num_speculative_tokens)  # before anything is loaded
        check_quantization(draft_quantization)
        self.target: LoadedModel = load_model(target, dtype=dtype, device=device)
        self.tokenizer: Tokenizer = read_model_tokenizer(self.target)
        self.draft: LoadedModel | None = None
        self.backend: DraftBackend | None = None
        if draft is not None and method not in ("none", "lookup"):
            self._load_draft(draft, draft_dtype or dtype, device, draft_quantization)
        self.bridge = (
            Bridge(self.tokenizer.vocabulary, self.backend.tokenizer.vocabulary) if self.backend else None
        )
        self.runner: SlotRunner = make_runner(self.target)
        self.costs = CostModel()
        self._others: OrderedDict[tuple[str, int | None], Method | None] = OrderedDict()
        self._draft_temperature = draft_temperature
        self.method = self._make_method(method, num_speculative_tokens, draft_temperature)

    def with_method(
        self,
        method: str,
        *,
        num_speculative_tokens: int | None = None,
        draft_temperature: float | None = None,
    ) -> Pair:
        """The same models, runners and keys and values with another method."""
        other = copy.copy(self)
        other.costs = CostModel()
        other._others = OrderedDict()
        other._draft_temperature = draft_temperature
        other.method = other._make_method(method, num_speculative_tokens, draft_temperature)
        return other

    def other_method(self, method: str, num_speculative_tokens: int | None = None) -> Method | None:
        """A method for single requests, beside :attr:`method`; the last few are kept, since making one may take a
        while.

        Raises:
            UsageError, PairError: it is unknown or does not work with this pair.
        """
        key = (method, num_speculative_tokens)
        if key not in self._others:
            self._others[key] = self._make_method(method, num_speculative_tokens, self._draft_temperature)
            if len(self._others) > _MOST_OTHERS:
                self._others.popitem(last=False)
        self._others.move_to_end(key)
        return self._others[key]

    def _make_method(
        self, method: str, num_speculative_tokens: int | None, draft_temperature: float | None
    ) -> Method | None:
        _check_count(num_speculative_tokens)
        return make_method(
            method,
            target_tokenizer=self.tokenizer,
            target_vocab_size=self.runner.vocab_size,
            draft_tokenizer=self.backend.tokenizer if self.backend else None,
            bridge=self.bridge,
            num_speculative_tokens=num_speculative_tokens,
            settings=DraftSettings(draft_temperature=draft_temperature),
            costs=self.costs,
        )

    def _load_draft(
        self, draft: Any, dtype: str | None, device: str | None, quantization: Quantization
    ) -> None:
        if hasattr(draft, "answer") and hasattr(draft, "tokenizer"):
            self.backend = draft
            return
        self.draft = load_model(draft, dtype=dtype, device=device)
        runner = make_runner(self.draft, quantization=quantization)
        self.backend = ModelDraft(runner, read_model_tokenizer(self.draft))

    @property
    def target_vocabulary(self) -> Vocabulary:
        return self.tokenizer.vocabulary


def read_model_tokenizer(model: LoadedModel) -> Tokenizer:
    """The bytes of a loaded model's vocabulary."""
    return read_tokenizer(model.hf_tokenizer, stop_ids=model.stop_ids)


def _check_count(num_speculative_tokens: int | None) -> None:
    if num_speculative_tokens is not None and num_speculative_tokens < 1:
        raise UsageError(
            f"num_speculative_tokens={num_speculative_tokens} must be at least 1; to run without drafts use "
            "method='none'"
        )
