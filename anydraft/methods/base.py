"""The protocol between a drafting method and whoever runs the draft model.

A method is sans-model: it never calls one. For each request it makes a :class:`Proposer`, whose
``propose`` is a generator that *asks* for draft rows (:class:`Rollout`, :class:`Expand`), is sent the
answers and returns a :class:`Proposal` in target ids. The engine, the plugins and the exact enumeration
of the tests drive the same generators, each with its own :class:`DraftBackend`.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from anydraft.rules.noise import Noise
from anydraft.vocab.tokenizer import Tokenizer


@dataclass(frozen=True)
class Rollout:
    """Ask the draft to continue its context by itself.

    Attributes:
        context: the draft's ids so far, whole (by reference; the backend must not change it).
        stable: how many leading ids of ``context`` are the same as in this request's previous ask; a
            backend keeps at most that much of its KV cache without comparing further.
        max_tokens: how many tokens to draw at most, at least 1.
        temperature: of the draft; 0 takes the argmax.
        allowed: int64 [A], ascending: the only ids that may be drawn, or None for all. One tensor for
            all requests of a method, so that a backend can prune its LM head once per tensor object.
        stop_ids: drawing one of them ends the rollout (it is part of the answer).
        min_confidence: the rollout ends *before* a draw whose row's largest probability is below it.
            (A rule on the row, not on the drawn token: it leaves the law of each draw intact.)
        min_survival: the rollout ends *after* a draw when the product of the largest probabilities of its row
            and those before it falls below it: the tokens so far are then unlikely to be all accepted, and one
            more is not worth a forward. (What was drawn is paid for; a rule on rows, like the one before.)
        keep_rows: whether the answer carries the distributions the tokens were drawn from.
        noise, position: the draws are ``noise.categorical(row, "draft", position + i)``.
    """

    context: Sequence[int]
    stable: int
    max_tokens: int
    temperature: float = 0.0
    allowed: torch.Tensor | None = None
    stop_ids: frozenset[int] = frozenset()
    min_confidence: float = 0.0
    min_survival: float = 0.0
    keep_rows: bool = False
    noise: Noise | None = None
    position: int = 0


@dataclass(frozen=True)
class Expand:
    """Ask for the draft's next-token rows after each of several continuations of its context.

    ``paths[i]`` is a list of draft ids to append to ``context`` (empty: the context itself). The answer is
    the distributions at ``temperature``, float32 [len(paths), V_draft].
    """

    context: Sequence[int]
    stable: int
    paths: tuple[tuple[int, ...], ...]
    temperature: float = 1.0


@dataclass(frozen=True)
class Drafted:
    """Answer to a :class:`Rollout`: n tokens, and if asked for their rows, [n, A or V_draft], each the
    distribution (restricted to ``allowed`` and renormalised, at the temperature) its token was drawn from."""

    token_ids: tuple[int, ...]
    rows: torch.Tensor | None = None


Ask = Rollout | Expand
Answer = Drafted | torch.Tensor


@dataclass(frozen=True)
class Proposal:
    """What one step proposes to the target.

    Attributes:
        token_ids: n target ids, a guess of the next n tokens. May be empty.
        q: None when the guess is to be checked by exact match; else [n, V_target] or [n + 1, V_target]:
            row i is the probability with which token i was drawn given those before it, for every target
            id. A row may sum to less than 1: the rest is the probability that nothing was proposed there.
            Row n, if present, is such a draw that came out empty, so the target must sample its residual.
        num_draft_tokens: tokens that the draft model generated for it (0 for lookup).
        source: which part proposed it, for statistics and for the page: "draft" or "lookup".
    """

    token_ids: tuple[int, ...] = ()
    q: torch.Tensor | None = None
    num_draft_tokens: int = 0
    source: str = "draft"


EMPTY = Proposal()


@dataclass(frozen=True)
class Prompt:
    """A request as its proposer sees it.

    Attributes:
        target_ids: the prompt in the target's ids.
        draft_ids: the draft's own rendering of the same conversation (its chat template, its BOS), or
            None: the draft then sees the text of ``target_ids`` in its own tokens.
        temperature: of the request; 0 is greedy. It tells a method whether q is worth computing.
        noise: the request's randomness; None: drafts are greedy.
        draft_temperature: of the request; goes before that of :class:`DraftSettings`.
        max_tokens: that the request may emit; None: unknown.
    """

    target_ids: tuple[int, ...]
    draft_ids: tuple[int, ...] | None = None
    temperature: float = 0.0
    noise: Noise | None = None
    draft_temperature: float | None = None
    max_tokens: int | None = None


ProposalGenerator = Generator[Ask, Answer, Proposal]


class Proposer(Protocol):
    """The proposing side of one request: its draft context and nothing of any model."""

    def propose(self, max_target_tokens: int, min_survival: float = 0.0) -> ProposalGenerator:
        """Propose at most ``max_target_tokens`` target ids (0: return an empty proposal, ask nothing).

        ``min_survival``: draft no further where the draft itself gives its tokens a smaller chance to be all
        right (see :class:`Rollout`); copies ignore it.
        """
        ...

    def observe(self, token_ids: Sequence[int]) -> None:
        """The target emitted ``token_ids`` (accepted, corrected and bonus tokens, in order)."""
        ...


class Method(Protocol):
    """A drafting method for one pair of vocabularies; makes one proposer a request."""

    @property
    def name(self) -> str: ...

    def start(self, prompt: Prompt) -> Proposer: ...


class DraftBackend(Protocol):
    """Whoever runs the draft model: the in-process runtime, an engine's plugin, or a table in a test."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def vocab_size(self) -> int:
        """Rows of the LM head (may exceed the tokenizer's; those are never drawn)."""
        ...

    def answer(self, asks: Mapping[Hashable, Ask]) -> dict[Hashable, Answer]:
        """Answer the asks of all requests at once; the keys name the requests."""
        ...

    def release(self, key: Hashable) -> None:
        """Forget the request (its KV row)."""
        ...


@dataclass
class DraftSettings:
    """Settings that every draft-model method shares.

    ``num_speculative_tokens`` are draft tokens a step. ``draft_temperature`` None means: greedy drafts for
    exact-match methods, the request's temperature for methods that use q. It changes acceptance, never
    the output's distribution.
    """

    num_speculative_tokens: int = 5
    draft_temperature: float | None = None
    min_confidence: float = 0.0
    extra: dict[str, float] = field(default_factory=dict)


def rows_drafted(proposals: Iterable[Proposal]) -> int:
    """For how many of ``proposals`` a draft model worked, 1 at least: the rows of its forwards."""
    return max(sum(proposal.num_draft_tokens > 0 for proposal in proposals), 1)


def drive(
    generators: Mapping[Hashable, ProposalGenerator], backend: DraftBackend | None
) -> dict[Hashable, Proposal]:
    """Run proposers in lockstep: collect their asks, have the backend answer them in one batch, repeat."""
    done: dict[Hashable, Proposal] = {}
    asks: dict[Hashable, Ask] = {}

    def advance(key: Hashable, answer: Answer | None) -> None:
        try:
            generator = generators[key]
            asks[key] = next(generator) if answer is None else generator.send(answer)
        except StopIteration as stop:
            asks.pop(key, None)
            done[key] = stop.value

    for key in generators:
        advance(key, None)
    while asks:
        assert backend is not None, "a method without a draft asked for draft rows"
        for key, answer in backend.answer(dict(asks)).items():
            advance(key, answer)
    return done
