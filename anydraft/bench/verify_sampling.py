"""Sampled tokens against the target's own probabilities: draws through the engine, tests by position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from anydraft.bench.frequencies import Group, TestResult, frequency_test, holm, likelihood_test
from anydraft.bench.serve_all import serve_all
from anydraft.bench.ties import running_logits
from anydraft.bench.verify_report import NamedTest, SamplingCheck
from anydraft.engine.engine import Engine
from anydraft.rules.params import SamplingParams
from anydraft.rules.sampling import History, probabilities

MAX_TOKENS = 3
"""Tokens drawn after a context: a step's first proposals, its correction and its bonus are among them."""

ROWS = 32
_CONTEXT, _REPEAT = 12, 6
_LEAST_DRAWS = 10

Draw = tuple[int, ...]


def contexts_of(prompts: Sequence[Sequence[int]], count: int) -> list[tuple[int, ...]]:
    """``count`` short contexts of prompts' ids. Every other one begins again after its end, so that there is
    something to copy; what the text means does not matter."""
    contexts = []
    for i in range(count):
        ids = tuple(prompts[i % len(prompts)][:_CONTEXT])
        contexts.append(ids + ids[1 : 1 + _REPEAT] if i % 2 else ids)
    return contexts


class TargetRows:
    """The target's processed probabilities after a context and some drawn tokens; each is worked out once."""

    def __init__(self, engine: Engine, params: SamplingParams) -> None:
        self._engine = engine
        self._params = params
        self._rows: dict[tuple[Draw, Draw], torch.Tensor] = {}

    def row(self, context: Draw, drawn: Draw) -> torch.Tensor:
        """p, float32 [V]."""
        key = context, drawn
        if key not in self._rows:
            logits = running_logits(self._engine, context + drawn)
            history = History(context, drawn, self._engine.pair.target.stop_ids)
            self._rows[key] = probabilities(logits[None], self._params, history)[0]
        return self._rows[key]


def groups_of(draws: Sequence[Draw], position: int, row: Callable[[Draw], torch.Tensor]) -> list[Group]:
    """Draws of one position by what was drawn before it. Which groups are large enough to count is decided
    by what stands before the position, so that it cannot favour any token at it."""
    following: dict[Draw, Counter[int]] = {}
    for draw in draws:
        if len(draw) > position:
            following.setdefault(draw[:position], Counter())[draw[position]] += 1
    return [
        Group(counts, row(prefix)) for prefix, counts in following.items() if counts.total() >= _LEAST_DRAWS
    ]


def all_tests(groups: dict[tuple[str, str], list[Group]]) -> list[NamedTest]:
    """Both tests of each context and position ("context 1", "first token"), and of all together."""
    tests = []
    everything = [group for some in groups.values() for group in some]
    for of, some in [*((", ".join(key), some) for key, some in groups.items()), ("all", everything)]:
        count = sum(group.num_draws for group in some)
        results: dict[str, TestResult | None] = {
            "frequencies": frequency_test(some),
            "likelihood": likelihood_test(some) if some else None,
        }
        tests += [
            NamedTest(name, of, count, result) for name, result in results.items() if result is not None
        ]
    return tests


def check_sampling(
    engine: Engine,
    rows: TargetRows,
    contexts: Sequence[Draw],
    params: SamplingParams,
    num_draws: int,
    *,
    method: str,
    verification: str,
    done: Callable[[], None],
) -> SamplingCheck:
    """Draw ``num_draws`` times after each context, each with a seed of its own, and test the tokens.

    Args:
        engine: idle; its ``max_num_seqs`` is the batch.
        params: its seed is the first of them.
        method, verification: how the report names them.
    """
    groups: dict[tuple[str, str], list[Group]] = {}
    drafted = accepted = 0
    for number, context in enumerate(contexts):
        first = (params.seed or 0) + number * num_draws
        each = [replace(params, seed=first + i, max_tokens=MAX_TOKENS) for i in range(num_draws)]
        results = serve_all(engine, [context] * num_draws, each, done)
        draws = [tuple(result.token_ids) for result in results]
        drafted += sum(result.stats.num_draft_tokens for result in results)
        accepted += sum(result.stats.num_accepted_tokens for result in results)

        def row(prefix: Draw, context: Draw = context) -> torch.Tensor:
            return rows.row(context, prefix)

        name = f"context {number + 1}"
        groups[name, "first token"] = groups_of(draws, 0, row)
        groups[name, "later tokens"] = [
            group for position in range(1, MAX_TOKENS) for group in groups_of(draws, position, row)
        ]
    return SamplingCheck(
        method=method,
        verification=verification,
        num_contexts=len(contexts),
        num_draws=len(contexts) * num_draws,
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        tests=tuple(all_tests(groups)),
    )


def flag(checks: Sequence[SamplingCheck], false_alarm: float) -> tuple[SamplingCheck, ...]:
    """With what Holm's procedure rejects at ``false_alarm``, over all tests of all methods."""
    adjusted = iter(holm([test.result.p_value for check in checks for test in check.tests]))
    return tuple(
        replace(check, flagged=tuple(test for test in check.tests if next(adjusted) <= false_alarm))
        for check in checks
    )
