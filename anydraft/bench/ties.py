"""Two outputs that differ: numerical noise, or a mistake?

Let l be the logits of the target as it ran and f those of the reference, and n = max |l - f| at the
position. A token that has the best l is at most 2n behind the best f. Both tokens were best in some run, so
both are at most 2n behind: otherwise rounding cannot have chosen them. And n itself must be of the size of
rounding, else it is the forward pass that errs. Where the reference has the target's own dtype, n is what two
ways to compute the same logits differ by, and at least one machine epsilon of the largest. In float32 nothing is
forgiven beyond a fixed small gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from anydraft.bench.verify_report import Difference
from anydraft.engine.engine import Engine
from anydraft.models.load import LoadedModel, load_model
from anydraft.rules.noise import CoupledNoise

FLOAT32_GAP = 1e-3
NOISE_IN_EPS = 8.0
"""Rounding may move a logit by so many machine epsilons of the largest logit (bf16: 6 % of it)."""


@dataclass(frozen=True)
class Divergence:
    """A first differing position, not judged yet.

    Attributes:
        prompt_id, position: of the output.
        context: the target's ids before it.
        own_id, drafted_id: see :class:`~anydraft.bench.verify_report.Difference`.
        logits: [V] float32, of the target as it ran.
        temperature, seed: of a coupled request; None: greedy.
    """

    prompt_id: str
    position: int
    context: tuple[int, ...]
    own_id: int | None
    drafted_id: int | None
    logits: torch.Tensor
    temperature: float = 1.0
    seed: int | None = None

    def scores(self, logits: torch.Tensor) -> torch.Tensor:
        """Whose argmax is emitted: the logits, or when coupled the race of them, ln p - ln arrival."""
        if self.seed is None:
            return logits
        arrivals = CoupledNoise(self.seed).arrivals(self.position, len(logits))
        return logits.double() / self.temperature - arrivals.log()


def first_difference(own: Sequence[int], drafted: Sequence[int]) -> int | None:
    """The first position at which two outputs differ; None where they do not."""
    for i, (a, b) in enumerate(zip(own, drafted, strict=False)):
        if a != b:
            return i
    lengths = len(own), len(drafted)
    return None if lengths[0] == lengths[1] else min(lengths)


@torch.inference_mode()
def running_logits(engine: Engine, ids: tuple[int, ...]) -> torch.Tensor:
    """The next token's raw logits [V] float32 as ``engine``, which must be idle, computes them."""
    runner = engine.pair.runner
    if len(ids) > 1:
        runner.prefill(0, ids[:-1], 0)
    return runner.forward(0, [[ids[-1]]], [len(ids) - 1])[0, -1].float().cpu()


class Reference:
    """The target in float32, by plain forwards of Transformers.

    Args:
        target: what the engine was made from. A name is loaded again in float32, unless it runs in that
            already. Objects are not copied: they judge in their own dtype.
        running: the model as it ran.
    """

    def __init__(self, target: object, running: LoadedModel) -> None:
        if running.dtype == torch.float32 or not isinstance(target, str):
            self._loaded = running
        else:
            self._loaded = load_model(target, dtype="float32", device=str(running.device))
        self.dtype = str(self._loaded.dtype).removeprefix("torch.")

    @torch.inference_mode()
    def logits(self, ids: tuple[int, ...]) -> torch.Tensor:
        """[V] float32."""
        given = torch.tensor([ids], device=self._loaded.device)
        return (
            self._loaded.model(input_ids=given, use_cache=False, logits_to_keep=1).logits[0, -1].float().cpu()
        )


def judge(found: Divergence, reference: Reference, running: torch.dtype, texts: dict[int, str]) -> Difference:
    """Tie or mismatch.

    Args:
        running: the dtype that the target ran in.
        texts: of the two tokens.
    """
    wanted = reference.logits(found.context)
    noise = float((wanted - found.logits).abs().max())
    epsilon = torch.finfo(running).eps * float(wanted.abs().max())
    rounding = NOISE_IN_EPS * epsilon
    if running == torch.float32:
        bound = FLOAT32_GAP
    else:
        bound = 2.0 * (noise if reference.dtype == "float32" else max(noise, epsilon))
    bound /= found.temperature
    scores = found.scores(wanted)
    ids = [i for i in (found.own_id, found.drafted_id) if i is not None]
    behind = float(scores.max()) - min(float(scores[i]) for i in ids)
    both = len(ids) == 2
    tie = both and behind <= bound and noise <= max(rounding, FLOAT32_GAP)
    return Difference(
        prompt_id=found.prompt_id,
        position=found.position,
        own_id=found.own_id,
        drafted_id=found.drafted_id,
        own_text=texts.get(found.own_id, "") if found.own_id is not None else "",
        drafted_text=texts.get(found.drafted_id, "") if found.drafted_id is not None else "",
        gap=abs(float(scores[ids[0]] - scores[ids[1]])) if both else None,
        behind=behind,
        top_two=both and set(scores.topk(2).indices.tolist()) == set(ids),
        noise=noise,
        bound=bound,
        reference=reference.dtype,
        verdict="tie" if tie else "mismatch",
    )
