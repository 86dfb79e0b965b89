"""Our algorithms as SGLang asks them: which of its code paths they take, and what they make of its arguments."""

from __future__ import annotations

import logging
import os
from typing import Any, ClassVar, Literal

from sglang.srt.environ import envs
from sglang.srt.runtime_context import get_platform
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from anydraft.errors import AnyDraftError, UsageError
from anydraft.plugins.sglang.arguments import complete, refuse_backend
from anydraft.plugins.sglang.context import common_tokens
from anydraft.plugins.sglang.options import read_context, read_draft_options, refuse_draft_options
from anydraft.plugins.sglang.pair import Pair, read_pair
from anydraft.plugins.sglang.refusal import refuse

logger = logging.getLogger(__name__)


class Algorithm(CustomSpecAlgo):
    """A draft beside SGLang, verified as NGRAM's trees, or in the target's slots, as STANDALONE.

    The methods that SGLang's base class lacks are asked for without being declared.
    """

    method: ClassVar[Literal["slem", "tli"]]

    @property
    def in_slots(self) -> bool:
        """Whether the draft runs in the target's slots. Asked of the environment each time, which every process of a
        server has, and of which SGLang's first process may make several servers."""
        return False

    def is_standalone(self) -> bool:
        return self.in_slots

    def is_ngram(self) -> bool:
        return not self.in_slots

    def has_draft_kv(self) -> bool:
        return self.in_slots

    def need_topk(self) -> bool:
        return self.in_slots

    def supports_grammar_overlap(self) -> bool:
        return self.in_slots

    def carries_draft_hidden_states(self) -> bool:
        return False

    def create_future_map(
        self,
        device: Any,
        req_to_token_pool: Any,
        needs_cpu_seq_lens: bool = True,
        needs_confidence_relay: bool = False,
    ) -> Any:
        from sglang.srt.managers.overlap_utils import FutureMap

        return FutureMap(device, self, req_to_token_pool, needs_cpu_seq_lens, needs_confidence_relay)

    def handle_server_args(self, server_args: Any) -> None:
        """Refuse in the first process, before any weights are loaded, what would fail later."""
        try:
            complete(server_args, self.name)
            refuse_backend(server_args, bool(get_platform().has_amx))
            if self.in_slots:
                refuse_draft_options(os.environ)
            else:
                read_draft_options(server_args, os.environ, self.method)
            self.check_pair(server_args, read_pair(server_args))
        except AnyDraftError as error:
            refuse(error)
        if not self.in_slots or server_args.device == "cpu":
            # Beside SGLang a draft starts from the tokens of the step before; on CPUs SGLang overlaps no drafts.
            server_args.disable_overlap_schedule = True
        if server_args.device in ("cpu", "xpu"):
            logger.warning(
                "SGLang verifies drafts greedily on %s: sampled requests are not sampled there",
                server_args.device,
            )

    def check_pair(self, server_args: Any, pair: Pair) -> None:
        """Refuse a pair that the method cannot work with."""


class SLEMAlgorithm(Algorithm):
    """The draft's text, translated."""

    method = "slem"


class TLIAlgorithm(Algorithm):
    """The draft's tokens that the target has, one by one."""

    method = "tli"

    @property
    def in_slots(self) -> bool:
        return read_context(os.environ) != "retokenized"

    def check_pair(self, server_args: Any, pair: Pair) -> None:
        common, _ = common_tokens(pair.bridge, len(pair.target.vocabulary), pair.info.vocab_size)
        logger.info(
            "AnyDraft: %d tokens in common, %.1f %% of the draft's and %.1f %% of the target's text tokens",
            len(common),
            100 * pair.bridge.draft_overlap,
            100 * pair.bridge.target_overlap,
        )
        if self.in_slots:
            _refuse_short(server_args, pair)


def _refuse_short(server_args: Any, pair: Pair) -> None:
    """Refuse a draft of a shorter context than the target's positions."""
    most, context = pair.info.max_context, server_args.context_length or pair.target_context
    if context and context > most and not envs.SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN.get():
        raise UsageError(
            f"the draft {pair.info.name} was made for {most} tokens of context and would run at the target's "
            f"positions, up to {context}; give --context-length {most} or less, set "
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 if the draft extrapolates, or leave out ANYDRAFT_TLI_CONTEXT"
        )
