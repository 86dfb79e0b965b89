"""SLRS: string-level rejection sampling (Timor et al., arXiv 2502.05202, Algorithm 3), by proposal trees."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import torch

from anydraft.errors import PairError, UsageError
from anydraft.methods.base import (
    EMPTY,
    Answer,
    Ask,
    DraftSettings,
    Expand,
    Prompt,
    Proposal,
    ProposalGenerator,
)
from anydraft.methods.proposal_tree import Node, Path, Psi, grow
from anydraft.methods.request import Context, draft_temperature, retokenized_context
from anydraft.methods.strings import StringMap
from anydraft.rules.noise import CoupledNoise
from anydraft.vocab.bridge import Bridge
from anydraft.vocab.text import encode_bytes
from anydraft.vocab.tokenizer import Tokenizer


class SLRS:
    """Each proposed token is drawn from psi, the law of the target token that the draft's text begins with.

    The paper's psi sums over all draft sequences that spell a token, which explodes; here the sampler is
    restricted to a proposal tree (:mod:`~anydraft.methods.proposal_tree`) and psi is its exact law, for all
    target tokens at once. Several tokens a step: the next tree goes on in the draft tokens that ran over
    the end of the last token, and for the rest in the draft's own tokenization of the proposed text.

    ``settings.num_speculative_tokens`` counts proposed target tokens; each costs one draft forward a depth
    of its tree. Greedy requests and a draft temperature of 0 propose the mode of psi at temperature 1.

    Args:
        bridge: of the pair of vocabularies.
        tokenizer: the draft's.
        target_vocab_size: V_target, the width of the target's rows.
        settings: ``extra`` may hold "epsilon", the least mass that is worth a draft row (default 0.1), and
            "max_rows", the most draft rows of one tree (default 8).

    Raises:
        PairError: no draft text begins with a target token.
    """

    name = "slrs"

    def __init__(
        self,
        bridge: Bridge,
        tokenizer: Tokenizer,
        target_vocab_size: int,
        settings: DraftSettings | None = None,
    ) -> None:
        self.bridge = bridge
        self.tokenizer = tokenizer
        self.target_vocab_size = target_vocab_size
        self.settings = settings or DraftSettings()
        self.epsilon = float(self.settings.extra.get("epsilon", 0.1))
        self.max_rows = int(self.settings.extra.get("max_rows", 8))
        if not 0.0 <= self.epsilon <= 1.0 or self.max_rows < 1:
            raise UsageError(
                f"epsilon={self.epsilon:g}, max_rows={self.max_rows}: slrs needs an epsilon from 0 to 1 and at "
                "least one row."
            )
        self.strings = StringMap(bridge, target_vocab_size)
        tokens, extends = bridge.draft.tokens, self.strings.extends
        begins = self.strings.leaves(b"").draft_ids.tolist()
        if not any(tokens[i] for i in begins) and not any(d and extends(d) for d in tokens):
            raise PairError("no text of the draft begins with a token of the target; choose another draft.")

    def start(self, prompt: Prompt) -> SLRSProposer:
        return SLRSProposer(self, prompt, retokenized_context(self.tokenizer, self.bridge, prompt))


class SLRSProposer:
    """One request: a chain of proposal trees a step, all on the paths of one draft context."""

    def __init__(self, method: SLRS, prompt: Prompt, context: Context) -> None:
        self._method = method
        self._context = context
        temperature = draft_temperature(prompt, method.settings, default=prompt.temperature)
        self._greedy = temperature == 0.0
        self._temperature = temperature or 1.0
        self._noise = prompt.noise
        self._coupled = isinstance(prompt.noise, CoupledNoise)
        self._stable = 0
        self._num_draws = 0
        self._num_outputs = 0

    def propose(self, max_target_tokens: int, min_survival: float = 0.0) -> ProposalGenerator:
        method = self._method
        count = min(method.settings.num_speculative_tokens, max_target_tokens)
        if count < 1 or not self._context.ids:
            return EMPTY
        rows: dict[Path, torch.Tensor] = {}
        roots = [Node((), b"", 1.0)]
        ids: list[int] = []
        q: list[torch.Tensor] = []
        survival = 1.0
        while len(ids) < count:
            psi = yield from self._grow(roots, rows)
            confidence = float(psi.psi.max())
            survival *= confidence
            if confidence <= method.settings.min_confidence:
                break
            chosen = self._choose(psi, len(ids))
            if not (self._greedy or self._coupled):
                q.append(psi.psi)
            if chosen == method.target_vocab_size:
                break
            ids.append(chosen)
            if survival < min_survival or not self._is_text(chosen):
                break
            roots = self._next_roots(psi, ids)
        # The rows are as exact as the draft's, whose dtype says what the target's rows may be compared in.
        dtype = next(iter(rows.values())).dtype
        stacked = torch.stack(q).to(dtype) if q else None
        return Proposal(tuple(ids), stacked, num_draft_tokens=len(rows))

    def _grow(self, roots: Sequence[Node], rows: dict[Path, torch.Tensor]) -> Generator[Ask, Answer, Psi]:
        """One position's tree; ``rows`` are those that this step has asked for."""
        method = self._method
        tree = grow(roots, method.strings, method.target_vocab_size, method.epsilon, method.max_rows)
        try:
            paths = next(tree)
            while True:
                fresh = tuple(path for path in dict.fromkeys(paths) if path not in rows)
                if fresh:
                    answer = yield Expand(self._context.ids, self._stable, fresh, self._temperature)
                    assert isinstance(answer, torch.Tensor)
                    self._stable = len(self._context.ids)
                    rows.update(zip(fresh, answer.cpu(), strict=True))
                paths = tree.send([rows[path] for path in paths])
        except StopIteration as stop:
            grown: Psi = stop.value
            return grown

    def _choose(self, psi: Psi, index: int) -> int:
        """The id to propose; V_target: nothing."""
        if self._greedy or self._noise is None:
            return int(psi.psi.argmax())
        if self._coupled:
            return self._noise.categorical(psi.psi, "target", self._num_outputs + index)
        self._num_draws += 1
        return self._noise.categorical(psi.weights(), "draft", self._num_draws)

    def _is_text(self, target_id: int) -> bool:
        target = self._method.bridge.target
        return bool(target.tokens[target_id]) and target_id not in target.stop_ids

    def _next_roots(self, psi: Psi, ids: Sequence[int]) -> list[Node]:
        """Where the draft's text ran over the end of the last id it goes on; the rest starts afresh from
        the proposed text in the draft's own tokens."""
        method = self._method
        carried = psi.beyond(ids[-1], method.strings, method.epsilon)
        text = method.bridge.target.bytes_of(list(ids))
        path = tuple(encode_bytes(method.tokenizer, text, continuation=True))
        rest = 1.0 - sum(node.mass for node in carried)
        return [*carried, Node(path, b"", max(0.0, rest))]

    def observe(self, token_ids: Sequence[int]) -> None:
        self._stable = min(self._stable, self._context.append(token_ids))
        self._num_outputs += len(token_ids)
