"""The class that vLLM's ``method="custom_class"`` makes and asks for drafts."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from anydraft.errors import UsageError
from anydraft.methods.costs import CostModel
from anydraft.methods.select import make_method
from anydraft.models import load
from anydraft.models.describe import ModelInfo, describe_model
from anydraft.plugins.capacity import BoundedDraft
from anydraft.plugins.drafter import Drafter, Row
from anydraft.plugins.hooks import HostError
from anydraft.plugins.loadable import refuse_unloadable
from anydraft.plugins.options import Options, read_options
from anydraft.plugins.report import IntervalLog, StepRecord
from anydraft.plugins.requests import RequestTracker
from anydraft.plugins.vllm.draft import DraftPlan, draft_model_config, load_on_cpu, load_paged
from anydraft.plugins.vllm.host import DRAFT_HOOKS, PROPOSER_HOOKS, SUPPORTED, check_hooks
from anydraft.plugins.vllm.sampling import repair_sampling
from anydraft.vocab.bridge import Bridge
from anydraft.vocab.readers import read_tokenizer
from anydraft.vocab.tokenizer import Tokenizer

logger = logging.getLogger("vllm.anydraft")


class AnyDraftProposer:
    """Drafts for a vLLM engine with any draft model, whatever its tokenizer.

    ::

        LLM(target, speculative_config={"method": "custom_class", "model": "anydraft.plugins.vllm.AnyDraftProposer",
                                        "num_speculative_tokens": 4},
            additional_config={"anydraft": {"draft": draft}})

    The constructor checks everything that can be checked without weights.

    Raises:
        AnyDraftError: an option, the draft, the pair or this vLLM will not do; the message says what to do.
    """

    def __init__(self, vllm_config: Any) -> None:
        import vllm

        check_hooks(PROPOSER_HOOKS, vllm.__version__)
        self._host = vllm_config
        self._options = read_options(vllm_config.additional_config, os.environ)
        self._max_tokens = _num_speculative_tokens(vllm_config)
        self._max_model_len = int(vllm_config.model_config.max_model_len)
        _refuse_unsupported(vllm_config)
        if _on_cpu():
            from vllm.v1.sample import rejection_sampler

            repair_sampling(rejection_sampler)
        target = _target_tokenizer(vllm_config)
        self._plan: DraftPlan | None = None
        self._draft_config: Any = None
        bridge = None
        if self._options.draft is not None and self._options.method == "lookup":
            logger.warning(
                "AnyDraft: method 'lookup' copies from the text; the draft %s is not loaded",
                self._options.draft,
            )
        elif self._options.draft is not None:
            self._plan = _plan(self._options, vllm_config)
            bridge = Bridge(target.vocabulary, self._plan.tokenizer.vocabulary)
            if not self._options.own_runtime:
                check_hooks(DRAFT_HOOKS, vllm.__version__)
                self._draft_config = draft_model_config(self._options, self._plan, vllm_config)
        self._costs = CostModel()
        method = make_method(
            self._options.method,
            target_tokenizer=target,
            target_vocab_size=int(vllm_config.model_config.get_vocab_size()),
            draft_tokenizer=self._plan.tokenizer if self._plan else None,
            bridge=bridge,
            num_speculative_tokens=self._max_tokens,
            costs=self._costs,
        )
        assert method is not None, "the options know no method 'none'"
        self._method = method
        self._draft: BoundedDraft | None = None
        self._drafter = self._new_drafter()
        self._log_lines = IntervalLog(self._options.log_interval)
        logger.info(
            "AnyDraft: method %s, draft %s", method.name, self._plan.info.name if self._plan else "none"
        )

    def load_model(self, target_model: Any) -> None:
        """Load the draft; vLLM calls this when the target's weights are loaded, before it sizes the KV cache."""
        del target_model
        if self._plan is None:
            return
        if self._options.own_runtime:
            self._draft = load_on_cpu(self._options, self._plan, self._host)
        else:
            self._draft = load_paged(self._options, self._plan, self._host, self._draft_config)
        self._drafter = self._new_drafter()

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: npt.NDArray[np.int32],
        token_ids_cpu: npt.NDArray[np.int32],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """The drafts of each row.

        Args:
            sampled_token_ids: what each row emitted in the step just done; ``[]`` in the middle of a prompt.
            num_tokens_no_spec: [rows or more], tokens of each row, those just emitted included.
            token_ids_cpu: [rows or more, max_model_len], target ids.
            slot_mappings: of the target's cache; not used.

        Returns:
            For each row at most ``num_speculative_tokens`` target ids.
        """
        del slot_mappings
        rows = []
        for i, sampled in enumerate(sampled_token_ids):
            length = int(num_tokens_no_spec[i])
            room = max(min(self._max_tokens, self._max_model_len - length - 1), 0)
            rows.append(Row(token_ids_cpu[i, :length], bool(sampled), room))
        drafts = self._drafter.step(rows)
        self._log()
        return drafts

    @property
    def drafter(self) -> Drafter:
        return self._drafter

    def _new_drafter(self) -> Drafter:
        tracker = RequestTracker(max_idle=int(self._host.scheduler_config.max_num_seqs))
        several = self._host.parallel_config.tensor_parallel_size > 1
        agree = _first_ranks if several else float
        return Drafter(self._method, self._draft, self._costs, tracker, agree=agree)

    def _log(self) -> None:
        if not self._log_lines.due():
            return
        if line := self._drafter.record.line():
            logger.info("AnyDraft metrics: %s, Requests: %d", line, self._drafter.num_requests)
        logger.debug(
            "AnyDraft costs, seconds by size: target %s, draft %s", self._costs.target, self._costs.draft
        )
        self._drafter.record = StepRecord()


def _num_speculative_tokens(host: Any) -> int:
    count = host.speculative_config.num_speculative_tokens
    if not isinstance(count, int) or count < 1:
        raise UsageError(
            f"num_speculative_tokens={count!r} must be at least 1; without drafts leave out speculative_config"
        )
    return count


def _refuse_unsupported(host: Any) -> None:
    if (size := host.parallel_config.pipeline_parallel_size) > 1:
        raise HostError(
            f"pipeline_parallel_size={size} is not supported: vLLM {SUPPORTED} fails with any kind of drafting "
            "there; use tensor_parallel_size"
        )


def _first_ranks(seconds: float) -> float:
    """What rank 0 measured: ranks that decide by their own clocks would wait for each other for ever."""
    from vllm.distributed.parallel_state import get_tp_group

    return float(get_tp_group().broadcast_object(seconds, src=0))


def _on_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def _target_tokenizer(host: Any) -> Tokenizer:
    """Of whatever vLLM can run: that the target's state can be rolled back is vLLM's own concern."""
    config = host.model_config
    local = Path(config.tokenizer).is_dir()
    tokenizer = load.load_tokenizer(config.tokenizer, config.tokenizer, local=local)
    generation = SimpleNamespace(**config.try_get_generation_config())
    stops = load.stop_ids(SimpleNamespace(generation_config=generation, config=config.hf_config), tokenizer)
    return read_tokenizer(tokenizer, stop_ids=stops)


def _plan(options: Options, host: Any) -> DraftPlan:
    assert options.draft is not None
    info: ModelInfo = describe_model(options.draft)
    refuse_unloadable(options.draft)
    return DraftPlan(
        info=info,
        tokenizer=read_tokenizer(info.hf_tokenizer, stop_ids=info.stop_ids),
        max_context=min(info.max_context, options.window or info.max_context),
        max_rows=int(host.scheduler_config.max_num_seqs),
    )
