"""From the target's logits and a proposal to what is emitted, by the rule that the request needs."""

from __future__ import annotations

from typing import Literal

import torch

from anydraft.engine.outputs import Logprob
from anydraft.engine.request import Request
from anydraft.methods.base import Proposal
from anydraft.rules.sampling import History, greedy_ids, probabilities, token_logprobs
from anydraft.rules.verify import Verdict, verify_block, verify_exact, verify_greedy, verify_rejection
from anydraft.vocab.vocabulary import Vocabulary

Verification = Literal["rejection", "block", "coupled"]


class Sampler:
    """Applies the sampling parameters at every verified position, then the verification rule.

    Greedy requests compare with the target's argmax. Sampled ones use ``verification`` where the
    proposal has a q, and the exact match with the target's own draw where it has none.
    """

    def __init__(self, vocabulary: Vocabulary, verification: Verification = "rejection") -> None:
        self._vocabulary = vocabulary
        self._verification = verification

    @torch.inference_mode()
    def verify(self, request: Request, proposal: Proposal, logits: torch.Tensor) -> Verdict:
        """What ``request`` emits in this step.

        Args:
            logits: [n + 1, V] for n proposed ids: the target's raw logits after each of them.

        Raises:
            UsageError: the request's parameters leave no token to emit.
        """
        verdict = self._verdict(request, proposal, logits)
        if request.params.logprobs is not None:
            self._record_logprobs(request, verdict, logits)
        return verdict

    def _verdict(self, request: Request, proposal: Proposal, logits: torch.Tensor) -> Verdict:
        proposed = proposal.token_ids
        history = History(request.prompt_ids, request.output_ids, request.stop_ids)
        if request.params.greedy:
            return verify_greedy(greedy_ids(logits, request.params, history, proposed), proposed)
        p = probabilities(logits, request.params, history, proposed)
        position = request.num_output_tokens
        if proposal.q is None or self._verification == "coupled":
            return verify_exact(p, proposed, request.noise, position)
        rule = verify_block if self._verification == "block" else verify_rejection
        return rule(p, proposed, proposal.q.to(p), request.noise, position)

    def _record_logprobs(self, request: Request, verdict: Verdict, logits: torch.Tensor) -> None:
        wanted = request.params.logprobs or 0
        for own in token_logprobs(logits, verdict.token_ids, wanted):
            entry = {
                token_id: Logprob(value, rank, self._decode(token_id))
                for rank, (token_id, value) in enumerate(own.top, start=1)
            }
            entry[own.token_id] = Logprob(own.logprob, own.rank, self._decode(own.token_id))
            request.logprobs.append(entry)

    def _decode(self, token_id: int) -> str:
        control = self._vocabulary.controls.get(token_id)
        return control.surface if control else self._vocabulary.bytes_of([token_id]).decode(errors="replace")
