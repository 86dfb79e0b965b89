"""What a step costs and what a draft is worth: the arithmetic behind ``auto``.

The engine tells how long its forwards took; from these and the acceptance so far follow how many tokens to
draft, down to none. Seconds everywhere.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from anydraft.methods.step_times import Speed, StepTimes

_WORTH_A_PAIR, _WORTH_MOST = 0.15, 0.7
"""By how much more than 1 a speed-up has to be predicted before rows propose, for each pair of them, and at most, where
nobody takes the place of a row that ends: rows that propose end at different times, the last ones in steps that cost as
much as any. (Four rows, predicted 1.4 to 1.6, broke even.)"""
_WORTH_LEAST = 0.1
"""The same where every place is taken again: a wrong yes holds up all rows."""
_REFILL_MEMORY = 0.1
"""Weight of a place that a row left in the share of those that are taken again."""
_OUTPUT_LENGTHS = (64, 64)
"""Tokens of requests before some have ended."""
_OUTPUTS = 64
"""So many ended requests say how long others will be."""
_MEMORY = 0.97
"""Of what is averaged over prompts."""
_UNSEEN_DRAFT = 0.125
"""Of the target's time for a context, what a draft is supposed to take before it has read any."""


@dataclass(frozen=True)
class DraftWork:
    """What a draft model does for a request.

    Attributes:
        forwards: for each token that it proposes.
        reading: seconds for each token that the request will emit, of its context; see
            :meth:`CostModel.reading_a_token`.
    """

    forwards: float = 1.0
    reading: float = 0.0


class CostModel:
    """Measured times: of target forwards by their number of tokens, of draft forwards by their number of rows.

    Steps of several rows in which none proposes are kept apart, by rows. They are the yardstick of every decision
    on a batch, and four tokens of one row take another time than one token of each of four.

    Attributes:
        target: all other forwards of the target, by tokens of all rows.
        plain: those of several rows in which no row proposed.
        draft: forwards of the draft.
        num_rows: rows of the current step; the engine sets it.
        refilled: share of the places that rows left, of late, that others took in the next step.
        tokens_read: target tokens of the contexts that the draft has read, as it began to draft for requests.
        reading_time: seconds that it took for them.
    """

    def __init__(self) -> None:
        self.num_rows = 1
        self.clear()

    def clear(self) -> None:
        """Forget what was measured."""
        speed = Speed()
        self.target, self.plain, self.draft = StepTimes(speed), StepTimes(speed), StepTimes()
        self.refilled = 0.0
        self.tokens_read, self.reading_time = 0, 0.0
        self._prompt_tokens, self._prompt_time = 0.0, 0.0
        self._outputs = deque(_OUTPUT_LENGTHS, maxlen=_OUTPUTS)

    def observe_target(self, num_tokens: int, seconds: float) -> None:
        """A target forward over ``num_tokens`` tokens of all rows took so long."""
        times = self.plain if num_tokens == self.num_rows > 1 else self.target
        times.observe(num_tokens, seconds)

    def observe_draft(self, num_rows: int, seconds: float) -> None:
        """A draft forward over ``num_rows`` rows took so long."""
        self.draft.observe(num_rows, seconds)

    def observe_prompt(self, num_tokens: int, seconds: float) -> None:
        """The target read so many tokens of a prompt in so long."""
        if num_tokens > 1:  # one is a whole forward
            self._prompt_tokens = _MEMORY * self._prompt_tokens + num_tokens
            self._prompt_time = _MEMORY * self._prompt_time + seconds

    def observe_places(self, num_left: int, num_taken: int) -> None:
        """So many rows ended while others went on, and so many came in for the next step. (Rows that all end together
        leave no place that others would pay for.)"""
        for i in range(num_left):
            self.refilled += _REFILL_MEMORY * ((i < num_taken) - self.refilled)

    def observe_output(self, num_tokens: int) -> None:
        """A request ended after so many tokens."""
        self._outputs.append(num_tokens)

    def reading_time_of(self, num_tokens: int) -> float:
        """Seconds that the draft takes to read a context of so many target tokens."""
        if self.tokens_read and self.reading_time:
            return num_tokens * self.reading_time / self.tokens_read
        if self._prompt_tokens:
            return num_tokens * _UNSEEN_DRAFT * self._prompt_time / self._prompt_tokens
        return 0.0

    def reading_a_token(self, num_tokens: int, num_emitted: int, most: int | None) -> float:
        """The same for each token that the request will still emit after ``num_emitted``: as many as those that went
        on longer did on average, or as many again where none did; at most ``most`` in all."""
        longer = [length for length in self._outputs if length > num_emitted]
        to_come = sum(longer) / len(longer) - num_emitted if longer else float(num_emitted)
        if most is not None:
            to_come = min(to_come, most - num_emitted)
        return self.reading_time_of(num_tokens) / max(to_come, 1.0)

    def known(self, *, drafted: bool) -> bool:
        """Whether steps with and without proposals (and drafts, if they are drafted) have been seen."""
        return len(self.target) + len(self.plain) >= 2 and (bool(self.draft) or not drafted)

    def num_plain(self) -> int:
        """How often a step of the current rows was measured in which none proposed."""
        return self._plain_times().count(self.num_rows)

    def target_time(self, num_tokens: int) -> float:
        """Of a forward in which some row proposes, over so many tokens.

        Forwards are about as dear up to some width, and from there on in proportion to it. How much a token costs
        there is known from prompts before any forward so wide has been measured; narrower ones than were measured
        lie on the line to those in which no row proposes.
        """
        times = self.target or self.plain
        if not times:
            return 0.0
        least, most = min(times), max(times)
        if num_tokens > most and self._prompt_tokens:
            rising = (num_tokens - most) * self._prompt_time / self._prompt_tokens
            return max(times.at(num_tokens), times.at(most) + rising)
        below = max((n for n in self.plain if n <= num_tokens), default=least)
        if below <= num_tokens < least:
            dear, cheap = times.at(least), min(self.plain[below], times.at(least))
            return cheap + (dear - cheap) * (num_tokens - below) / (least - below)
        return times.at(num_tokens)

    def plain_time(self, num_rows: int) -> float:
        """Of a forward in which no row proposes. Of several rows as it was measured, if it was: on some hosts two
        tokens take longer than four, and a step is not to be judged by those of other rows."""
        if num_rows in self.plain:
            return self.plain[num_rows]
        return (self.plain if num_rows > 1 and self.plain else self.target).at(num_rows)

    def plain_time_a_row(self) -> float:
        """A row's share of a step of the current rows that proposes nothing; NaN while no forward so small has
        been measured."""
        times = self._plain_times()
        if not times or min(times) > self.num_rows:
            return math.nan
        return self.plain_time(self.num_rows) / self.num_rows

    def _plain_times(self) -> StepTimes:
        """Where steps of the current rows that propose nothing are kept."""
        return self.plain if self.num_rows > 1 else self.target

    def draft_time(self, num_rows: int) -> float:
        """Of a draft forward over so many rows."""
        return self.draft.at(num_rows)

    def speedup(
        self,
        length: int,
        acceptance: float,
        num_rows: int,
        draft: DraftWork | None,
        proposing: float | None = None,
    ) -> float:
        """Predicted time that a token takes, on average over the rows, with none proposed, over that with ``length``
        proposed tokens in some rows. Where all propose these are tokens a second over tokens a second; where some do,
        the others are held up by them, which a sum of tokens would not show.

        Args:
            acceptance: probability of accepting a token, given that those before it were.
            num_rows: rows that step together.
            draft: what a draft model does for a row; None: the tokens are copied, which costs nothing.
            proposing: how many of the rows propose, on average; None: all.
        """
        rows = num_rows if proposing is None else proposing
        plain = self.plain_time(num_rows)
        step = self._wide_time(num_rows, round(rows * length))
        tokens = expected_tokens(length, acceptance)
        if draft is not None:
            step += length * draft.forwards * self.draft_time(round(rows)) + rows * tokens * draft.reading
        steps_a_token = (num_rows - rows + rows / tokens) / num_rows
        return plain / (step * steps_a_token)

    def _wide_time(self, num_rows: int, num_proposed: int) -> float:
        """Of a forward of so many rows with so many proposed tokens. Never less than without them: where that was
        measured, it was so for other rows or by chance, and is nothing to count on."""
        time = self.target_time(num_rows + num_proposed)
        return max(time, self.plain_time(num_rows)) if num_rows > 1 else time

    def probe_steps(self, length: int, forwards: float = 1.0, reading: float = 0.0) -> float:
        """By how much a step gets longer if one of its rows drafts ``length`` tokens and the draft reads for so many
        seconds before, in steps in which no row proposes. A draft that was never measured counts as the target."""
        plain = self.plain_time(self.num_rows)
        widening = self.target_time(self.num_rows + length) - plain
        drafting = length * forwards * (self.draft.at(1) if self.draft else plain)
        return (max(widening, 0.0) + drafting + reading) / plain

    def longest(self, num_rows: int) -> int:
        """Tokens that a row may propose at most. Several rows widen a forward step by step, to twice the widest that
        was measured: what more would take, nobody knows."""
        return 2 * max(*self.target, *self.plain, num_rows) // num_rows - 1 if num_rows > 1 else 10**9

    def best_length(
        self,
        most: int,
        acceptance: float,
        num_rows: int,
        draft: DraftWork | None,
        proposing: float | None = None,
    ) -> tuple[int, float]:
        """The length of at most ``most`` with the best predicted speed-up, and that speed-up (0 and 1.0 when
        nothing beats proposing nothing). Arguments as for :meth:`speedup`."""
        most = min(most, self.longest(num_rows))
        choices = ((self.speedup(n, acceptance, num_rows, draft, proposing), -n) for n in range(1, most + 1))
        best, negative = max(choices, default=(1.0, 0))
        return (-negative, best) if best > 1.0 + self._worth(num_rows) else (0, best)

    def _worth(self, num_rows: int) -> float:
        """By how much more than 1 a speed-up has to be predicted."""
        if num_rows == 1:
            return 0.0
        closed = min(_WORTH_A_PAIR * math.comb(num_rows, 2), _WORTH_MOST)
        return max((1.0 - self.refilled) * closed, _WORTH_LEAST)

    def least_survival(self, acceptance: float, num_rows: int, length: int, forwards: float = 1.0) -> float:
        """The chance of the tokens so far to be accepted below which one more costs more than it brings.

        It costs so many draft ``forwards`` and its share of a wider target forward, and brings that chance, times
        ``acceptance``, of a token, which is worth what a token takes at the present rate.
        """
        wide = self._wide_time(num_rows, num_rows * length)
        draft = forwards * self.draft_time(num_rows)
        seconds_a_token = (wide + length * draft) / expected_tokens(length, acceptance)
        widening = (self._wide_time(num_rows, num_rows * (1 + length)) - self.plain_time(num_rows)) / (
            1 + length
        )
        return min((draft + widening) / max(seconds_a_token * acceptance, 1e-9), 1.0)


def expected_tokens(length: int, acceptance: float) -> float:
    """Tokens a step emits when each proposed one is accepted with ``acceptance``: 1 + a + ... + a^length."""
    if acceptance >= 1.0:
        return float(length + 1)
    return (1.0 - acceptance ** (length + 1)) / (1.0 - acceptance)


@dataclass
class Acceptance:
    """Running estimate of the probability that a proposed token is accepted, given those before it were.

    Counts fade with each trial: by half in about 20 of them, so that it follows the text.
    """

    accepted: float = 3.0
    trials: float = 5.0
    memory: float = 0.966

    def worth(self, trials: float) -> Acceptance:
        """The same rate, as if from so many trials: what another request begins with."""
        return Acceptance(self.rate * trials, trials)

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """A proposal is one trial for each accepted token and one for the first rejected."""
        trials = min(num_accepted + 1, num_proposed)
        fade = self.memory**trials
        self.accepted = self.accepted * fade + num_accepted
        self.trials = self.trials * fade + trials

    @property
    def rate(self) -> float:
        return self.accepted / self.trials
