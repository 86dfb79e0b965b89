"""Auto: copy where the text repeats, draft where that pays, else leave the target alone; step by step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from anydraft.methods.base import EMPTY, Method, Prompt, Proposal, ProposalGenerator, Proposer
from anydraft.methods.costs import Acceptance, CostModel, DraftWork
from anydraft.methods.lookup import Lookup, LookupProposer
from anydraft.methods.winners import Drafting
from anydraft.rules.noise import CoupledNoise

ChooseSampled = Callable[[float, CostModel], tuple[Method, Drafting]]
"""From a request's temperature and the costs to the method that drafts for it, and how."""

_LONG_MATCH = 5
"""So many equal last tokens are worth a copy before its acceptance is known."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 8, 64
"""While drafting is off one step of a single row whose context the draft has read is a draft all the same, one in so
many; the pause doubles up to the last."""
_PROBE_SHARE = 0.004
"""Share of the time that all other probes may take: one holds up all rows, and the draft may have to read a context."""
_FIRST_PROBES, _LEFT_OVER = 8.0, 0.5
"""Steps that the first probe may take, and what is left of them at most for a few more."""
_PROBE_LENGTHS = (3, 2, 1)
"""In turn: on some hosts a step gets dear from one width to the next, and what a narrower one takes shows only if it is
tried."""
_SHARED_MEMORY = 0.995
_COPYING_MEMORY = 0.05
"""Weight of a row's step in the share of rows that copy."""
_PLAIN_FIRST = 3
"""So many steps of several rows propose nothing before any does: a wrong yes holds up all rows, and all is judged by
what those took."""
_PLAIN_EVERY = 128
"""One step in so many proposes nothing, so that the cost of the target alone stays known."""
_CAUTION = 0.1
"""A context is read by the draft only if that would pay at an acceptance so much lower, too: texts differ, and what is
read for a text that is accepted less is lost."""


class Auto:
    """Lookup and, if there is a draft, a drafting method; how much of each follows from measured costs.

    Args:
        lookup: copies; always there.
        drafting: the method that suits the pair, or None without a draft.
        max_tokens: drafted tokens a step at most.
        costs: what the engine measures; None: of its own.
        sampled: chooses for sampled requests; None: ``drafting`` serves them too. It goes by measured times, so
            requests that must reproduce are left out: those that say a draft temperature (as the engine does for
            a seed) and coupled ones.
    """

    def __init__(
        self,
        lookup: Lookup,
        drafting: Method | None,
        max_tokens: int = 8,
        costs: CostModel | None = None,
        sampled: ChooseSampled | None = None,
    ) -> None:
        self.lookup = lookup
        self.drafting = drafting
        self.max_tokens = max_tokens
        self.costs = costs or CostModel()
        self.sampled = sampled
        self.probes = ProbeBudget()
        self.copying = 0.0
        """Share of the rows that have a long match, of late."""
        self.copied = Acceptance(accepted=1.5, trials=3.0, memory=_SHARED_MEMORY)
        self.drafted: defaultdict[tuple[str, bool], Acceptance] = defaultdict(
            lambda: Acceptance(memory=_SHARED_MEMORY)
        )
        """Over all requests, with which each new one begins: most are over before they have learned it anew. Of
        drafts by method and whether the request is sampled, which are accepted at rates of their own."""

    @property
    def name(self) -> str:
        return f"auto({self.drafting.name}+lookup)" if self.drafting else "auto(lookup)"

    def start(self, prompt: Prompt) -> AutoProposer:
        lookup = self.lookup.start(prompt)
        if self.drafting is None:
            return AutoProposer(self, prompt, lookup, None)
        free = prompt.draft_temperature is None and not isinstance(prompt.noise, CoupledNoise)
        sampled = prompt.temperature > 0.0
        if self.sampled is None or not sampled or prompt.noise is None or not free:
            drafted = self.drafted[self.drafting.name, sampled]
            return AutoProposer(self, prompt, lookup, self.drafting.start(prompt), drafted)
        method, chosen = self.sampled(prompt.temperature, self.costs)
        asked = replace(prompt, draft_temperature=chosen.draft_temperature)
        drafted = self.drafted[method.name, sampled]
        return AutoProposer(
            self, prompt, lookup, method.start(asked), drafted, chosen.forwards, f" with {method.name}"
        )


class ProbeBudget:
    """What probes that are not cheap may take, of all requests together, in steps in which no row proposes.

    The first one is given; and a few more follow it soon where they cost little, as a single one may fall into a moment
    in which something else ran.
    """

    def __init__(self) -> None:
        self._saved = _FIRST_PROBES
        self._made = 0

    @property
    def length(self) -> int:
        """Tokens of the next one."""
        return _PROBE_LENGTHS[self._made % len(_PROBE_LENGTHS)]

    def save(self, steps: float) -> None:
        """So many steps (a row's share of one) passed without a proposal."""
        self._saved += _PROBE_SHARE * steps

    def spend(self, steps: float) -> bool:
        """Whether a probe that costs so many steps may be made now."""
        if self._saved < steps:
            return False
        self._saved = min(self._saved - steps, _LEFT_OVER)
        self._made += 1
        return True


class AutoProposer:
    """One request: its own acceptance of copies and of drafts, and what was decided last."""

    def __init__(
        self,
        method: Auto,
        prompt: Prompt,
        lookup: LookupProposer,
        drafting: Proposer | None,
        drafted: Acceptance | None = None,
        forwards: float = 1.0,
        how: str = "",
    ) -> None:
        shared = drafted or Acceptance()
        self._all_drafted = shared
        self._method = method
        self._forwards = forwards
        self._how = how
        self._lookup = lookup
        self._drafting = drafting
        self._copied = method.copied.worth(3.0)
        self._drafted = shared.worth(5.0)
        self._last: Proposal = EMPTY
        self._unseen: list[list[int]] = []
        self._steps = 0
        self._num_prompt_tokens, self._max_tokens = len(prompt.target_ids), prompt.max_tokens
        self._num_emitted = 0
        self._reads = False  # whether the draft has read the context
        self._next_probe = 0
        self._pause = _SHORTEST_PAUSE
        self.decision = ""
        """In words, for the statistics."""

    def propose(self, max_target_tokens: int, min_survival: float = 0.0) -> ProposalGenerator:
        self._last = EMPTY
        self._steps += 1
        method = self._method
        costs = method.costs
        known = costs.num_plain() >= (1 if costs.num_rows == 1 else _PLAIN_FIRST)
        plain = not known or self._steps % _PLAIN_EVERY == 0
        if max_target_tokens > 0 and not plain:
            copy = self._copy(max_target_tokens)
            self._last = copy if copy.token_ids else (yield from self._draft(max_target_tokens))
        if not self._last.token_ids:
            method.probes.save(1.0 / costs.num_rows)
        return self._last

    def _copy(self, most: int) -> Proposal:
        method, costs = self._method, self._method.costs
        length = self._lookup.match_length
        method.copying += _COPYING_MEMORY * ((length >= _LONG_MATCH) - method.copying)
        if not length or (self._drafting is not None and length < _LONG_MATCH and not self._copies_better()):
            return EMPTY
        count = min(method.lookup.num_speculative_tokens, most)
        if costs.num_rows > 1 or costs.known(drafted=False):
            rate, rows = self._copied.rate, costs.num_rows
            copying = max(method.copying * rows, 1.0)
            best_length = partial(costs.best_length, count, num_rows=rows, draft=None, proposing=copying)
            count, speedup = best_length(rate)
            if not count and length >= _LONG_MATCH and best_length(1.0)[0]:
                count = self._probe(most, 0.0)
            self.decision = f"copying {count}: {speedup:.2f}x predicted"
        return Proposal(tuple(self._lookup.copy(count)), source="lookup") if count else EMPTY

    def _copies_better(self) -> bool:
        return self._copied.rate >= self._drafted.rate

    def _draft(self, most: int) -> ProposalGenerator:
        if self._drafting is None:
            return EMPTY
        method, costs = self._method, self._method.costs
        count = min(method.max_tokens, most, costs.longest(costs.num_rows))
        least = 0.0
        known = costs.known(drafted=True)
        best = self._best_length(count) if known or costs.num_rows == 1 else 0
        if best:
            self._pause = _SHORTEST_PAUSE
            if known:
                # The draft's own confidence says where to stop; the average only whether to start.
                least = costs.least_survival(self._drafted.rate, costs.num_rows, best, self._forwards)
        else:
            count = self._probe(most, self._forwards)
            if not count:
                return EMPTY
        if not self._reads:
            self._reads = True
            costs.tokens_read += self._num_tokens
        for token_ids in self._unseen:
            self._drafting.observe(token_ids)
        self._unseen = []
        proposal = yield from self._drafting.propose(count, least)
        return proposal

    @property
    def _num_tokens(self) -> int:
        """Of the context so far, target tokens."""
        return self._num_prompt_tokens + self._num_emitted

    def _best_length(self, most: int) -> int:
        costs = self._method.costs
        work = DraftWork(self._forwards)
        if not self._reads:
            reading = costs.reading_a_token(self._num_tokens, self._num_emitted, self._max_tokens)
            work = replace(work, reading=reading)
        rate = self._drafted.rate
        if costs.num_rows > 1:  # the others pay for this one's drafts, and are to win by theirs
            rate = min(rate, self._all_drafted.rate)
        best, speedup = costs.best_length(most, rate, costs.num_rows, work)
        if best and work.reading and costs.num_rows == 1:
            if not costs.best_length(most, rate - _CAUTION, 1, work)[0]:
                best = 0
        how = f"{best}{self._how}" if best else "off"
        self.decision = f"drafting {how}: {speedup:.2f}x predicted"
        return best

    def _probe(self, most: int, forwards: float) -> int:
        """How many tokens to propose, at most ``most``, although it does not pay, with so many forwards of the draft
        for each; mostly 0."""
        costs = self._method.costs
        reading = 0.0 if self._reads or not forwards else costs.reading_time_of(self._num_tokens)
        if costs.num_rows > 1 or reading:
            probes = self._method.probes
            length = min(probes.length, most)
            return length if probes.spend(costs.probe_steps(length, forwards, reading)) else 0
        if self._steps < self._next_probe:
            return 0
        self._next_probe = self._steps + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return min(_PROBE_LENGTHS[0], most)

    def observe(self, token_ids: Sequence[int]) -> None:
        self._num_emitted += len(token_ids)
        proposed = len(self._last.token_ids)
        if proposed:
            accepted = _common(self._last.token_ids, token_ids)
            copied = self._last.source == "lookup"
            for each in (self._copied, self._method.copied) if copied else (self._drafted, self._all_drafted):
                each.observe(proposed, accepted)
        self._lookup.observe(token_ids)
        if self._drafting is not None:
            self._remember(token_ids, drafted=bool(proposed) and self._last.source != "lookup")

    def _remember(self, token_ids: Sequence[int], *, drafted: bool) -> None:
        """Keep what was emitted for the next draft, which may be far off or never come: following the text in the
        draft's tokens costs time. What answers a draft stays apart from what came after it."""
        if drafted or len(self._unseen) < 2:
            self._unseen.append(list(token_ids))
        else:
            self._unseen[-1].extend(token_ids)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading ids are equal."""
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n
