"""What a method would have accepted of a text that is known: the engine's greedy steps without its target.

The target's greedy output does not depend on the draft. Once it is known, a step needs no target forward: what a
method proposes is compared with what comes next. Steps, proposals and acceptance are those of the engine.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from anydraft.methods.base import Answer, Ask, DraftBackend, Drafted, Method, Prompt, Rollout, drive
from anydraft.vocab.tokenizer import Tokenizer


@dataclass(frozen=True)
class Known:
    """A prompt and the target's own greedy continuation of it.

    Attributes:
        prompt_ids, output_ids: target ids.
        draft_ids: the draft's own rendering of the prompt, or None (see
            :class:`~anydraft.methods.base.Prompt`).
    """

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    draft_ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class ReplayedStep:
    """One step: target ids proposed and accepted, tokens that the draft model drew for it, tokens emitted."""

    num_proposed: int
    num_accepted: int
    num_drawn: int
    num_emitted: int


Lengths = Mapping[int, Method]
"""Draft tokens a step -> the method with that many."""


def replay(lengths: Lengths, known: Known, backend: DraftBackend | None) -> dict[int, list[ReplayedStep]]:
    """The steps with which the longest of ``lengths`` gets through ``known``, and what each of the others would have
    done at the same places. Given one length alone, these are exactly the steps of an engine that has it.

    Args:
        backend: the draft, best in a :class:`RememberingDraft`, since all lengths ask it the same; None for methods
            that need none.
    """
    prompt = Prompt(target_ids=known.prompt_ids, draft_ids=known.draft_ids)
    proposers = {length: lengths[length].start(prompt) for length in sorted(lengths, reverse=True)}
    longest = max(lengths)
    steps: dict[int, list[ReplayedStep]] = {length: [] for length in sorted(lengths)}
    done = 0
    while done < len(known.output_ids):
        coming = known.output_ids[done:]
        for length, proposer in proposers.items():
            # As in the engine, where a step emits one more than it accepts.
            proposal = drive({0: proposer.propose(len(coming) - 1)}, backend)[0]
            accepted = _num_equal(proposal.token_ids, coming)
            emitted = min(accepted + 1, len(coming))
            drawn = proposal.num_draft_tokens
            steps[length].append(ReplayedStep(len(proposal.token_ids), accepted, drawn, emitted))
        emitted = steps[longest][-1].num_emitted
        for proposer in proposers.values():
            proposer.observe(coming[:emitted])
        done += emitted
    if backend is not None:
        backend.release(0)
    return steps


def acceptance_length(steps: Sequence[ReplayedStep]) -> float:
    """Tokens emitted a step, as :attr:`~anydraft.engine.outputs.RequestStats.acceptance_length` counts them."""
    return 1.0 + sum(step.num_accepted for step in steps) / len(steps) if steps else 0.0


class RememberingDraft:
    """A draft that answers greedy rollouts after a context that it has seen from memory.

    Each context is asked for ``most`` tokens once; shorter rollouts are beginnings of it.

    Args:
        draft: the model; only rollouts of one method are asked of it.
    """

    def __init__(self, draft: DraftBackend, most: int) -> None:
        self._draft = draft
        self._most = most
        self._memory: dict[tuple[int, ...], tuple[int, ...]] = {}

    @property
    def tokenizer(self) -> Tokenizer:
        return self._draft.tokenizer

    @property
    def vocab_size(self) -> int:
        return self._draft.vocab_size

    def answer(self, asks: Mapping[Hashable, Ask]) -> dict[Hashable, Answer]:
        return {key: self._one(key, ask) for key, ask in asks.items()}

    def _one(self, key: Hashable, ask: Ask) -> Drafted:
        if not isinstance(ask, Rollout) or ask.temperature > 0 or ask.keep_rows or ask.min_survival > 0:
            raise TypeError(f"only greedy rollouts without rows are remembered, not {type(ask).__name__}")
        context = tuple(ask.context)
        if context not in self._memory:
            # What is stable since the asker's last ask says nothing of the model's, which may be older.
            longest = replace(ask, max_tokens=max(self._most, ask.max_tokens), stable=0)
            drafted = self._draft.answer({key: longest})[key]
            assert isinstance(drafted, Drafted)
            self._memory[context] = drafted.token_ids
        return Drafted(self._memory[context][: ask.max_tokens])

    def release(self, key: Hashable) -> None:
        self._draft.release(key)


def _num_equal(proposed: Sequence[int], coming: Sequence[int]) -> int:
    count = 0
    while count < min(len(proposed), len(coming)) and proposed[count] == coming[count]:
        count += 1
    return count
