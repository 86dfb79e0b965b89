"""The rollouts of one request: what a proposer that lets the draft write by itself keeps between its steps."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import torch

from anydraft.methods.base import Answer, Ask, Drafted, DraftSettings, Prompt, Rollout
from anydraft.methods.request import Context, draft_temperature
from anydraft.rules.noise import CoupledNoise, Noise


class Rollouts:
    """The draft's context of one request, how much of it is as it was, and the name of the next draw.

    Args:
        context: of the draft.
        default_temperature: of the draft in a sampled request that says none.
        race_ids: int64, the target id in whose name each drawable draft id runs in a coupled race.
        allowed: the draft ids that may be drawn, as in :class:`~anydraft.methods.base.Rollout`.
        stop_ids: draft ids that end a rollout.
    """

    def __init__(
        self,
        prompt: Prompt,
        context: Context,
        settings: DraftSettings,
        *,
        default_temperature: float,
        race_ids: torch.Tensor,
        allowed: torch.Tensor | None = None,
        stop_ids: frozenset[int],
    ) -> None:
        self._context = context
        self._settings = settings
        self._allowed = allowed
        self._stop_ids = stop_ids
        self._temperature = draft_temperature(prompt, settings, default_temperature)
        self.sampled = self._temperature > 0.0
        self.coupled = isinstance(prompt.noise, CoupledNoise)
        """Then the draft runs the target's own race and exact match verifies it."""
        self._noise: Noise | None = prompt.noise if self.sampled else None
        if isinstance(self._noise, CoupledNoise):
            self._noise = self._noise.for_draft(race_ids)
        self._stable = 0
        self._num_draws = 0  # names the draws: each is made once, also where it was drafted in vain before
        self._num_outputs = 0

    def draft(
        self, max_tokens: int, min_survival: float, *, keep_rows: bool = False
    ) -> Generator[Ask, Answer, Drafted]:
        """At most ``max_tokens`` draft tokens, none where there is nothing to go on from."""
        count = min(self._settings.num_speculative_tokens, max_tokens)
        if count < 1 or not self._context.ids:
            return Drafted(())
        drafted = yield Rollout(
            context=self._context.ids,
            stable=self._stable,
            max_tokens=count,
            temperature=self._temperature,
            allowed=self._allowed,
            stop_ids=self._stop_ids,
            min_confidence=self._settings.min_confidence,
            min_survival=min_survival,
            keep_rows=keep_rows,
            noise=self._noise,
            position=self._num_outputs if self.coupled else self._num_draws,
        )
        assert isinstance(drafted, Drafted)
        self._stable = len(self._context.ids)
        self._num_draws += count
        return drafted

    def observe(self, token_ids: Sequence[int]) -> None:
        """The target emitted ``token_ids``."""
        self._stable = min(self._stable, self._context.append(token_ids))
        self._num_outputs += len(token_ids)
