"""Our algorithms as SGLang asks them: which of its code paths they take, and what they make of its arguments."""

from __future__ import annotations

import logging
import os
from typing import Any

from sglang.srt.environ import envs
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from anydraft.errors import UsageError
from anydraft.plugins.sglang.arguments import complete
from anydraft.plugins.sglang.context import common_tokens
from anydraft.plugins.sglang.options import read_context, read_draft_options
from anydraft.plugins.sglang.pair import read_pair

logger = logging.getLogger(__name__)


class Algorithm(CustomSpecAlgo):
    """What both share. The methods that SGLang's base class lacks are asked for without being declared."""

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

    def _complete(self, server_args: Any) -> None:
        complete(server_args, self.name)
        if server_args.device in ("cpu", "xpu"):
            logger.warning(
                "SGLang verifies drafts greedily on %s: sampled requests are not sampled there",
                server_args.device,
            )


class TLIAlgorithm(Algorithm):
    """A draft at the target's positions, in the target's slots, as STANDALONE."""

    def is_standalone(self) -> bool:
        return True

    def need_topk(self) -> bool:
        return True

    def supports_grammar_overlap(self) -> bool:
        return True

    def handle_server_args(self, server_args: Any) -> None:
        """Refuse in the first process, before any weights are loaded, what would fail later."""
        self._complete(server_args)
        read_context(os.environ)
        if server_args.device == "cpu":
            server_args.disable_overlap_schedule = True
        pair = read_pair(server_args)
        common, _ = common_tokens(pair.bridge, len(pair.target.vocabulary), pair.info.vocab_size)
        logger.info(
            "AnyDraft: %d tokens in common, %.1f %% of the draft's and %.1f %% of the target's text tokens",
            len(common),
            100 * pair.bridge.draft_overlap,
            100 * pair.bridge.target_overlap,
        )
        context = server_args.context_length or pair.target_context
        if (
            context
            and context > pair.info.max_context
            and not envs.SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN.get()
        ):
            raise UsageError(
                f"the draft {pair.info.name} was made for {pair.info.max_context} tokens of context and would run at "
                f"the target's positions, up to {context}; give --context-length {pair.info.max_context} or less, set "
                "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 if the draft extrapolates, or use ANYDRAFT_SLEM"
            )


class SLEMAlgorithm(Algorithm):
    """Drafts made outside SGLang's model runner and verified as a tree of one chain, as NGRAM."""

    def is_ngram(self) -> bool:
        return True

    def has_draft_kv(self) -> bool:
        return False

    def need_topk(self) -> bool:
        return False

    def handle_server_args(self, server_args: Any) -> None:
        self._complete(server_args)
        server_args.disable_overlap_schedule = True  # a draft starts from the tokens of the step before
        read_draft_options(server_args, os.environ)
        read_pair(server_args)
