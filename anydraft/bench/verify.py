"""Is it lossless, here, with this pair? The target alone beside each method: greedy, coupled, sampled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from anydraft.bench.prompts import BenchPrompt
from anydraft.bench.serve_all import Progress, serve_all
from anydraft.bench.ties import Divergence, Reference, first_difference, judge, running_logits
from anydraft.bench.verify_report import Comparison, SamplingCheck, VerifyReport
from anydraft.bench.verify_sampling import ROWS, TargetRows, check_sampling, contexts_of, flag
from anydraft.engine.engine import Engine
from anydraft.engine.outputs import GenerationResult
from anydraft.engine.prompts import prompt_ids
from anydraft.engine.sampler import Verification
from anydraft.errors import PairError, UsageError
from anydraft.models.select import Quantization
from anydraft.rules.params import SamplingParams

logger = logging.getLogger(__name__)

RAGGED = 4
"""Every method also runs in batches of so many: rows then differ in length and in what is accepted."""

Mode = Literal["greedy", "coupled"]


@dataclass(frozen=True)
class VerifySettings:
    """What to verify.

    Attributes:
        methods: None: all that suit the pair.
        max_tokens: tokens of a greedy or coupled output.
        batch_size: rows at once; greedy and coupled outputs run in batches of ``RAGGED`` too.
        num_speculative_tokens: None: each method's own choice.
        sampling: whether sampled tokens are tested.
        temperature: of sampled and coupled requests.
        num_contexts, num_draws: contexts, and sampled draws of each.
        num_coupled: prompts whose coupled outputs are compared.
        verifications: "rejection", "block" or both; where a method has no q they are the same.
        seed: of everything; the same seed gives the same report (but for "auto", which goes by the clock).
        false_alarm: probability that a lossless engine is flagged by any test of this run.
    """

    methods: tuple[str, ...] | None = None
    max_tokens: int = 64
    batch_size: int = 1
    num_speculative_tokens: int | None = None
    sampling: bool = True
    temperature: float = 1.0
    num_contexts: int = 4
    num_draws: int = 250
    num_coupled: int = 4
    verifications: tuple[Verification, ...] = ("rejection",)
    seed: int = 0
    false_alarm: float = 1e-4

    def __post_init__(self) -> None:
        for name in ("max_tokens", "batch_size", "num_contexts", "num_draws", "num_coupled"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)} must be at least 1")
        if self.sampling and self.temperature <= 0.0:
            raise UsageError(
                f"temperature={self.temperature} leaves nothing to sample; give one above 0, or no sampling"
            )
        if not 0.0 < self.false_alarm < 1.0:
            raise UsageError(f"false_alarm={self.false_alarm} must be between 0 and 1")
        wrong = [v for v in self.verifications if v not in ("rejection", "block")]
        if wrong or not self.verifications:
            raise UsageError(f"verifications={self.verifications!r} must be of rejection and block")


def _has_q(method: str) -> bool:
    """Whether the method's sampled proposals carry their probabilities; "auto" names what it drafts with."""
    return any(name in method for name in ("standard", "tli", "slrs"))


@dataclass
class _Pending:
    """A comparison whose differences are not judged yet."""

    report: Comparison
    divergences: list[Divergence] = field(default_factory=list)


def verify(
    target: Any,
    draft: Any,
    prompts: Sequence[BenchPrompt],
    settings: VerifySettings | None = None,
    *,
    dtype: str | None = None,
    draft_quantization: Quantization = "auto",
    device: str | None = None,
    progress: Progress = lambda what, done, total: None,
) -> VerifyReport:
    """Run ``target`` with and without ``draft`` and compare.

    Args:
        target, draft, dtype, draft_quantization, device: see :class:`~anydraft.engine.engine.Engine`.
        prompts: of the greedy and coupled comparisons; their beginnings are the contexts of the sampled ones.

    Raises:
        UsageError, PairError, ModelError: one line that says what is wrong and what to do.
    """
    settings = settings or VerifySettings()
    if not prompts:
        raise UsageError("there are no prompts to verify with; give at least one")
    progress("loading", 0, 1)
    engine = Engine(
        target, draft, method="auto", dtype=dtype, draft_quantization=draft_quantization, device=device
    )
    progress("loading", 1, 1)
    methods = _methods(engine, settings)
    run = _Run(engine, methods, settings, progress)
    pending = run.compare("greedy", prompts, SamplingParams(temperature=0.0, max_tokens=settings.max_tokens))
    sampling: tuple[SamplingCheck, ...] = ()
    if settings.sampling:
        params = SamplingParams(temperature=settings.temperature, max_tokens=settings.max_tokens)
        pending += run.compare("coupled", prompts[: settings.num_coupled], params)
        sampling = flag(run.sample(prompts, params), settings.false_alarm)
    loaded, vocabulary = engine.pair.target, engine.pair.target_vocabulary
    runner = type(engine.pair.runner).__name__
    del engine, run  # the reference may need the memory

    def text(token_id: int) -> str:
        control = vocabulary.controls.get(token_id)
        return control.surface if control else vocabulary.bytes_of([token_id]).decode(errors="replace")

    comparisons = _judged(pending, target, loaded, text, progress)
    return VerifyReport(
        target=loaded.name,
        draft=str(draft) if isinstance(draft, str) else type(draft).__name__,
        dtype=str(loaded.dtype).removeprefix("torch."),
        runner=runner,
        temperature=settings.temperature,
        false_alarm=settings.false_alarm,
        comparisons=comparisons,
        sampling=sampling,
    )


def _methods(engine: Engine, settings: VerifySettings) -> list[str]:
    """Those asked for; else what "auto" means here and every other method that works with the pair."""
    if settings.methods is not None:
        for name in settings.methods:
            if name == "none":
                raise UsageError("method none is what the others are compared with; name another one")
            engine.with_method(name)  # refuses what this pair cannot have
        return list(dict.fromkeys(settings.methods))
    bridge = engine.pair.bridge
    same = bridge is not None and bridge.nearly_same
    wanted = ("standard", "lookup") if same else ("tli", "slem", "slrs", "lookup")
    methods = [] if engine.method in wanted else ["auto"]
    for name in wanted:
        try:
            engine.with_method(name)
        except PairError as error:
            logger.warning("%s is left out: %s", name, error)
        else:
            methods.append(name)
    return methods


class _Run:
    """The outputs, method by method."""

    def __init__(
        self, engine: Engine, methods: Sequence[str], settings: VerifySettings, progress: Progress
    ) -> None:
        self._engine = engine
        self._methods = methods
        self._settings = settings
        self._progress = progress

    def compare(self, mode: Mode, prompts: Sequence[BenchPrompt], params: SamplingParams) -> list[_Pending]:
        """Each method's outputs beside the target's own, which are drawn one row at a time."""
        settings = self._settings
        verification: Verification = "coupled" if mode == "coupled" else "rejection"
        each = [replace(params, seed=settings.seed + i) for i in range(len(prompts))]

        def outputs(method: str, batch_size: int) -> list[GenerationResult]:
            engine = self._engine.with_method(
                method,
                num_speculative_tokens=settings.num_speculative_tokens,
                verification=verification,
                max_num_seqs=batch_size,
            )
            label = "the target alone" if method == "none" else f"{method}, batch {batch_size}"
            return serve_all(engine, prompts, each, self._counter(f"{mode}: {label}", len(prompts)))

        own = outputs("none", 1)
        pending = []
        for method in self._methods:
            for batch_size in sorted({settings.batch_size, RAGGED}):
                drafted = outputs(method, batch_size)
                report = Comparison(
                    mode=mode,
                    method=method,
                    batch_size=batch_size,
                    num_outputs=len(drafted),
                    num_tokens=sum(len(r.token_ids) for r in drafted),
                    num_draft_tokens=sum(r.stats.num_draft_tokens for r in drafted),
                    num_accepted_tokens=sum(r.stats.num_accepted_tokens for r in drafted),
                    differences=(),
                )
                found = [
                    self._divergence(prompt, a, b, at, param if mode == "coupled" else None)
                    for prompt, a, b, param in zip(prompts, own, drafted, each, strict=True)
                    if (at := first_difference(a.token_ids, b.token_ids)) is not None
                ]
                pending.append(_Pending(report, found))
        return pending

    def sample(self, prompts: Sequence[BenchPrompt], params: SamplingParams) -> list[SamplingCheck]:
        """The tests of each method and rule, and first of the target alone."""
        settings = self._settings
        ids = [prompt_ids(self._engine.pair.target, prompt.text) for prompt in prompts]
        contexts = contexts_of(ids, settings.num_contexts)
        rows = TargetRows(self._engine, params)
        checks: list[SamplingCheck] = []
        for method in ("none", *self._methods):
            for rule in settings.verifications:
                engine = self._engine.with_method(
                    method,
                    num_speculative_tokens=settings.num_speculative_tokens,
                    verification=rule,
                    max_num_seqs=max(settings.batch_size, ROWS),
                )
                if checks and checks[-1].method == method and not _has_q(engine.method):
                    continue  # without a q the rules are one
                label = "the target alone" if method == "none" else f"{method}, {rule}"
                checks.append(
                    check_sampling(
                        engine,
                        rows,
                        contexts,
                        replace(params, seed=settings.seed),
                        settings.num_draws,
                        method=method,
                        verification=rule,
                        done=self._counter(f"sampling: {label}", settings.num_contexts * settings.num_draws),
                    )
                )
        return checks

    def _divergence(
        self,
        prompt: BenchPrompt,
        own: GenerationResult,
        drafted: GenerationResult,
        at: int,
        coupled: SamplingParams | None,
    ) -> Divergence:
        context = own.prompt_token_ids + own.token_ids[:at]
        return Divergence(
            prompt_id=prompt.id,
            position=at,
            context=context,
            own_id=own.token_ids[at] if at < len(own.token_ids) else None,
            drafted_id=drafted.token_ids[at] if at < len(drafted.token_ids) else None,
            logits=running_logits(self._engine, context),
            temperature=coupled.temperature if coupled else 1.0,
            seed=coupled.seed if coupled else None,
        )

    def _counter(self, what: str, total: int) -> Callable[[], None]:
        done = 0
        self._progress(what, 0, total)

        def one_more() -> None:
            nonlocal done
            done += 1
            self._progress(what, done, total)

        return one_more


def _judged(
    pending: Sequence[_Pending], target: Any, loaded: Any, text: Callable[[int], str], progress: Progress
) -> tuple[Comparison, ...]:
    """The comparisons with their differences judged; the reference is loaded only if there are any."""
    total = sum(len(p.divergences) for p in pending)
    if not total:
        return tuple(p.report for p in pending)
    progress("judging differences", 0, total)
    reference = Reference(target, loaded)
    comparisons = []
    done = 0
    for one in pending:
        differences = []
        for found in one.divergences:
            texts = {i: text(i) for i in (found.own_id, found.drafted_id) if i is not None}
            differences.append(judge(found, reference, loaded.dtype, texts))
            done += 1
            progress("judging differences", done, total)
        comparisons.append(replace(one.report, differences=tuple(differences)))
    return tuple(comparisons)
