"""A draft beside SGLang: it writes outside SGLang's model runner, with the text in its own tokens for context, and what
it writes is verified as a tree of one chain."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from sglang.srt.runtime_context import get_device, get_schedule, get_spec
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
from sglang.srt.speculative.ngram_worker import NGRAMWorker

from anydraft.methods.select import make_method
from anydraft.plugins.drafter import Drafter, Row
from anydraft.plugins.own import load_own
from anydraft.plugins.report import IntervalLog, StepRecord
from anydraft.plugins.requests import RequestTracker
from anydraft.plugins.sglang.chains import chains
from anydraft.plugins.sglang.options import read_draft_options
from anydraft.plugins.sglang.pair import read_pair
from anydraft.plugins.sglang.texts import Texts

logger = logging.getLogger(__name__)


class _NoCorpus:
    """In place of the text that NGRAM copies from."""

    def erase_match_state(self, request_ids: Sequence[str]) -> None:
        """Drafts of requests that left the batch are forgotten by the drafter itself."""


class BesideWorker(NGRAMWorker):
    """SGLang's worker for drafts from the host, with a draft model of ours in place of its corpus.

    Raises:
        AnyDraftError: an option, the draft or the pair will not do; the message says what to do.
    """

    method: ClassVar[Literal["slem", "tli"]]

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        # Not NGRAMWorker's: it compiles and fills a corpus. These are the attributes that its methods read.
        BaseSpecWorker.__init__(self)
        self.server_args = server_args
        self.enable_overlap = False
        self._target_worker = target_worker
        self.model_runner = target_worker.model_runner
        self.page_size = get_schedule().page_size
        self.draft_token_num = self.speculative_num_draft_tokens = get_spec().speculative_num_draft_tokens
        self.speculative_num_steps = get_spec().speculative_num_steps
        self.topk = 1
        self.device = get_device().device
        self.adaptive_controller = None
        self.grammar_tree_host = None
        self.ngram_corpus = _NoCorpus()
        self._prev_decode_rids: set[str] = set()

        options = read_draft_options(server_args, os.environ, self.method)
        pair = read_pair(server_args)
        method = make_method(
            self.method,
            target_tokenizer=pair.target,
            target_vocab_size=int(self.model_runner.model_config.vocab_size),
            draft_tokenizer=pair.draft,
            bridge=pair.bridge,
            num_speculative_tokens=int(self.speculative_num_steps),
        )
        assert method is not None, "slem and tli are methods"
        dtype = self.model_runner.dtype if options.dtype == "auto" else options.dtype
        draft = load_own(
            pair.info.name,
            pair.draft,
            dtype="bfloat16" if options.quantization else dtype,  # what quantized weights are made from
            device=self.device if self.device == "cpu" else f"{self.device}:{gpu_id}",
            quantization=options.quantization,
            max_context=min(pair.info.max_context, options.window or pair.info.max_context),
            kv_cache_gib=options.kv_cache_gib,
        )
        tracker = RequestTracker(max_idle=int(get_schedule().max_running_requests))
        self._drafter = Drafter(method, draft, tracker=tracker)
        self._texts = Texts()
        self._log = IntervalLog(options.log_interval)
        logger.info("AnyDraft: method %s, draft %s", self.method, pair.info.name)

    def _prepare_draft_tokens(self, batch: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """The drafted chain of each request behind its last token, as NGRAM gives its trees.

        Returns:
            int64 [B * n] tokens and bool [B * n * n] ancestors, n = ``speculative_num_draft_tokens``.
        """
        rows = [self._texts.ids(request) for request in batch.reqs]
        drafts = self._drafter.step([Row(ids, True, self.draft_token_num - 1) for ids in rows])
        if self._log.due() and (line := self._drafter.record.line()):
            logger.info("AnyDraft metrics: %s, Requests: %d", line, self._drafter.num_requests)
            self._drafter.record = StepRecord()
        return chains([int(ids[-1]) for ids in rows], drafts, self.draft_token_num)

    def _update_ngram_corpus(self, batch: Any) -> None:
        """Nothing is learned from what was emitted."""

    def clear_cache_pool(self) -> None:
        """Forget all requests, after a flush of SGLang's cache."""
        self._drafter.forget()


class SLEMWorker(BesideWorker):
    """The draft's text, translated."""

    method = "slem"


class TLIWorker(BesideWorker):
    """The draft's tokens that the target has, one by one."""

    method = "tli"
