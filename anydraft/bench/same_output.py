"""Outputs of a bench that are not the baseline's own: ties, or mistakes?

Judged after everything was timed, by two forward passes that are there already: the target as the engine runs it,
and a plain one of the same loaded model by Transformers. No second copy of the weights is made, so that logits of a
bf16 target are compared in bf16; see :mod:`anydraft.bench.ties` for the rule.
"""

from __future__ import annotations

from collections.abc import Sequence

from anydraft.bench.measure import Series
from anydraft.bench.prompts import BenchPrompt
from anydraft.bench.serve_all import target_ids
from anydraft.bench.ties import Divergence, Reference, first_difference, judge, running_logits
from anydraft.bench.verify_report import Difference
from anydraft.engine import Engine

Key = tuple[str, int, int | None, int | None]


class OutputJudge:
    """Judges greedy outputs against those of the target alone; each first difference once.

    Args:
        plain: an idle engine on the target.
        prompts: in the order in which they were measured.
    """

    def __init__(self, plain: Engine, prompts: Sequence[BenchPrompt]) -> None:
        self._plain = plain
        self._prompts = prompts
        self._reference: Reference | None = None
        self._judged: dict[Key, Difference] = {}

    def differences(self, series: Series, baseline: Series) -> list[Difference]:
        """One for each output that is not the baseline's, in the order of the prompts."""
        outputs = zip(series.outputs, baseline.outputs, self._prompts, strict=True)
        return [
            self._difference(prompt, own, drafted, at)
            for drafted, own, prompt in outputs
            if (at := first_difference(own, drafted)) is not None
        ]

    def _difference(
        self, prompt: BenchPrompt, own: tuple[int, ...], drafted: tuple[int, ...], at: int
    ) -> Difference:
        own_id = own[at] if at < len(own) else None
        drafted_id = drafted[at] if at < len(drafted) else None
        key = prompt.id, at, own_id, drafted_id
        if key not in self._judged:
            pair = self._plain.pair
            if self._reference is None:
                self._reference = Reference(pair.target.model, pair.target)
            context = target_ids(pair.target, prompt) + own[:at]
            logits = running_logits(self._plain, context)
            found = Divergence(prompt.id, at, context, own_id, drafted_id, logits)
            texts = {i: pair.target.hf_tokenizer.decode([i]) for i in key[2:] if i is not None}
            self._judged[key] = judge(found, self._reference, pair.target.dtype, texts)
        return self._judged[key]
