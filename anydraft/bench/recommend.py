"""Which draft, which method, how many tokens a step: from one run of the target and short ones of each draft.

The target writes its own greedy continuation of a few prompts, once. Each draft is then replayed against it
(:mod:`anydraft.bench.replay`), which gives acceptance, and timed in the engine's own steps
(:mod:`anydraft.bench.step_costs`); the two together predict tokens a second.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from anydraft.bench.prompts import BenchPrompt
from anydraft.bench.recommend_report import Candidate, RecommendReport, Refused
from anydraft.bench.replay import (
    Known,
    Lengths,
    RememberingDraft,
    ReplayedStep,
    acceptance_length,
    replay,
)
from anydraft.bench.serve_all import serve_all
from anydraft.bench.step_costs import StepCosts, measure_costs
from anydraft.engine import Engine
from anydraft.engine.prompts import has_chat_template
from anydraft.errors import AnyDraftError, ModelError, PairError, UsageError
from anydraft.methods.base import DraftBackend, Method
from anydraft.methods.select import choose
from anydraft.models.download import is_cached
from anydraft.models.packaged import PACKAGED
from anydraft.models.select import Quantization, check_quantization
from anydraft.rules.params import SamplingParams
from anydraft.vocab.bridge import Bridge

Progress = Callable[[str, int, int], None]
"""Called with (what, done, total)."""

MOST_TOKENS = 8
"""Draft tokens a step at most; those of another family are seldom right so far."""

_TIMED_PROMPTS = 3
"""Prompts after which steps are timed: each gives a time of every length."""


@dataclass(frozen=True)
class RecommendOptions:
    """What to rank; ``drafts`` empty: the cached packaged models that are smaller than the target."""

    target: Any
    drafts: tuple[Any, ...] = ()
    max_tokens: int = 48
    dtype: str | None = None
    device: str | None = None
    draft_quantization: Quantization = "auto"


def recommend(
    options: RecommendOptions,
    prompts: Sequence[BenchPrompt],
    progress: Progress = lambda what, done, total: None,
) -> RecommendReport:
    """Rank drafts for a target on ``prompts``; one draft is in memory at a time.

    Raises:
        UsageError: a prompt cannot be served, or there is nothing to rank.
        ModelError, PairError: the target cannot run, or not one of several drafts can.
    """
    if options.max_tokens < 2:
        raise UsageError(f"max_tokens={options.max_tokens} leaves nothing to draft; give at least 2")
    check_quantization(options.draft_quantization)
    alone = Engine(options.target, method="none", dtype=options.dtype, device=options.device, max_num_seqs=1)
    drafts = options.drafts or cached_drafts(alone)
    texts = _probe(alone, prompts, options.max_tokens, progress)
    probe = _Probe(alone, tuple(prompts), texts)
    progress("the target's steps", 0, 1)
    lookup, plain_costs = probe.copies()
    progress("the target's steps", 1, 1)
    candidates, refused = [lookup], []
    for draft in drafts:
        progress(_name(draft), 0, 1)
        try:
            candidates += probe.drafted(draft, options)
        except UsageError:
            raise
        except AnyDraftError as error:
            if len(drafts) == 1:
                raise
            refused.append(Refused(_name(draft), str(error)))
        gc.collect()  # before the next draft is loaded
        progress(_name(draft), 1, 1)
    if drafts and len(refused) == len(drafts):
        raise ModelError("; ".join(f"{r.draft}: {r.reason}" for r in refused))
    return RecommendReport(
        target=_name(options.target),
        num_prompts=len(prompts),
        num_tokens=sum(len(text.output_ids) for text in texts),
        target_step=plain_costs.alone,
        verify_steps=plain_costs.target,
        candidates=tuple(candidates),
        refused=tuple(refused),
    )


def cached_drafts(alone: Engine) -> tuple[str, ...]:
    """The packaged models in the cache that have fewer parameters than the target."""
    target = alone.pair.target
    size = sum(p.numel() for p in target.model.parameters())
    return tuple(
        name
        for name, model in PACKAGED.items()
        if name != target.name and model.parameters < size and is_cached(model)
    )


def _probe(
    alone: Engine, prompts: Sequence[BenchPrompt], max_tokens: int, progress: Progress
) -> tuple[Known, ...]:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    texts = []
    for number, prompt in enumerate(prompts):
        progress("the target's own text", number, len(prompts))
        (result,) = serve_all(alone, [prompt], [params])
        texts.append(Known(result.prompt_token_ids, result.token_ids))
    progress("the target's own text", len(prompts), len(prompts))
    return tuple(texts)


@dataclass(frozen=True)
class _Probe:
    """What the drafts are tried against."""

    alone: Engine
    prompts: tuple[BenchPrompt, ...]
    texts: tuple[Known, ...]

    def copies(self) -> tuple[Candidate, StepCosts]:
        """Copying, which needs no draft, and what the target's steps cost."""
        engine = Engine(self.alone.pair.target, method="lookup", max_num_seqs=1)
        methods = _lengths(engine, "lookup")
        costs = measure_costs(self.alone, engine, methods[MOST_TOKENS], self.texts[:_TIMED_PROMPTS])
        return _candidate(None, "lookup", choose(None), 1.0, methods, None, self.texts, costs), costs

    def drafted(self, draft: Any, options: RecommendOptions) -> list[Candidate]:
        """The methods that suit a draft, each at its best length."""
        engine = Engine(
            self.alone.pair.target,
            draft,
            dtype=options.dtype,
            device=options.device,
            draft_quantization=options.draft_quantization,
            max_num_seqs=1,
        )
        bridge, backend = engine.pair.bridge, engine.pair.backend
        assert bridge is not None and backend is not None
        texts = [
            replace(text, draft_ids=_draft_ids(engine, prompt))
            for prompt, text in zip(self.prompts, self.texts, strict=True)
        ]
        methods = _suiting(engine)
        # How the tokens cross costs next to nothing beside drawing them: one method is timed for all.
        timed = next(iter(methods.values()))[MOST_TOKENS]
        costs = measure_costs(self.alone, engine, timed, texts[:_TIMED_PROMPTS])
        overlap = _overlap(bridge, texts)
        return [
            _candidate(_name(draft), name, choose(bridge), overlap, lengths, backend, texts, costs)
            for name, lengths in methods.items()
        ]


def _suiting(engine: Engine) -> dict[str, dict[int, Method]]:
    """The methods to try with a draft: ids as they are for (nearly) one vocabulary, else text and common tokens."""
    if "standard" in engine.methods:
        return {"standard": _lengths(engine, "standard")}
    methods = {"slem": _lengths(engine, "slem")}
    with suppress(PairError):  # not one text token in common; text may do all the same
        methods["tli"] = _lengths(engine, "tli")
    return methods


def _lengths(engine: Engine, name: str) -> dict[int, Method]:
    methods = {n: engine.choose_method(name, n) for n in range(1, MOST_TOKENS + 1)}
    return {n: method for n, method in methods.items() if method is not None}


def _candidate(
    draft: str | None,
    method: str,
    auto_method: str,
    overlap: float,
    lengths: Lengths,
    backend: DraftBackend | None,
    texts: Sequence[Known],
    costs: StepCosts,
) -> Candidate:
    memory = None if backend is None else RememberingDraft(backend, max(lengths))
    steps = _replay_all(lengths, texts, memory)
    read = sum(len(text.prompt_ids) for text in texts)
    speedups = {n: costs.speedup(steps[n], read) for n in lengths}
    best = max(speedups, key=lambda n: (speedups[n], -n))
    # The places where a step of the best length begins are other ones than those of the longest.
    exact = _replay_all({best: lengths[best]}, texts, memory)[best]
    speedups[best] = costs.speedup(exact, read)
    return Candidate(
        draft=draft,
        method=method,
        overlap=overlap,
        num_speculative_tokens=best,
        acceptance_length=acceptance_length(exact),
        acceptance=tuple(
            sum(step.num_accepted > i for step in exact) / len(exact) for i in range(best) if exact
        ),
        draft_step=costs.draft_step,
        speedup=speedups[best],
        speedups=speedups,
        auto_method=auto_method,
    )


def _replay_all(
    lengths: Lengths, texts: Sequence[Known], backend: DraftBackend | None
) -> dict[int, list[ReplayedStep]]:
    steps: dict[int, list[ReplayedStep]] = {n: [] for n in lengths}
    for text in texts:
        for n, more in replay(lengths, text, backend).items():
            steps[n] += more
    return steps


def _draft_ids(engine: Engine, prompt: BenchPrompt) -> tuple[int, ...] | None:
    if prompt.messages is None or not has_chat_template(engine.pair.target):
        return None
    return engine.encode(prompt.messages, chat=True).draft_ids


def _overlap(bridge: Bridge, texts: Sequence[Known]) -> float:
    known = len(bridge.target_to_draft)
    ids = [i for text in texts for i in (*text.prompt_ids, *text.output_ids)]
    return sum(i < known and bool(bridge.target_to_draft[i] >= 0) for i in ids) / len(ids)


def _name(model: Any) -> str:
    return str(getattr(model, "name", model))
