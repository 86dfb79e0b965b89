"""From logits to the target's distribution p: pure functions on consecutive positions.

Row i of every argument is the position after ``proposal[:i]``, so that each verified position is
processed with its own history, exactly as if the target had emitted the proposal by itself. The order is
vLLM's: allowed ids, logit bias, min_tokens; penalties; temperature; min_p; top_k; top_p.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from anydraft.errors import UsageError
from anydraft.rules.params import SamplingParams


@dataclass(frozen=True)
class History:
    """What a position's processors look at.

    Attributes:
        prompt_ids, output_ids: target ids so far (by reference; never changed here).
        stop_ids: ids that end the text, which min_tokens bans.
    """

    prompt_ids: Sequence[int] = ()
    output_ids: Sequence[int] = ()
    stop_ids: Collection[int] = frozenset()


def probabilities(
    logits: torch.Tensor, params: SamplingParams, history: History, proposal: Sequence[int] = ()
) -> torch.Tensor:
    """The target's distributions p.

    Args:
        logits: [n, V] raw logits of n consecutive positions, any float dtype; not changed.
        proposal: the proposed ids; at least n - 1.

    Returns:
        [n, V], float64 if ``logits`` is, else float32; rows sum to 1. Greedy rows are one-hot at the
        argmax (the lowest id of an exact tie). Tokens that tie at the edge of top_k or top_p all stay.

    Raises:
        UsageError: the parameters ban every token.
    """
    scores = _processed(logits, params, history, proposal)
    if params.greedy:
        one_hot = torch.zeros(scores.shape, dtype=_wide(scores.dtype), device=scores.device)
        return one_hot.scatter_(1, scores.argmax(dim=-1, keepdim=True), 1.0)
    scores = scores.to(_wide(scores.dtype))
    if params.temperature != 1.0:
        scores = scores / params.temperature
    if params.min_p > 0.0:
        edge = scores.amax(dim=-1, keepdim=True) + torch.tensor(params.min_p, dtype=scores.dtype).log()
        scores = scores.masked_fill(scores < edge, -torch.inf)
    if 0 < params.top_k < scores.shape[-1]:
        edge = scores.topk(params.top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < edge, -torch.inf)
    p = torch.softmax(scores, dim=-1)
    return _nucleus(p, params.top_p) if params.top_p < 1.0 else p


def greedy_ids(
    logits: torch.Tensor, params: SamplingParams, history: History, proposal: Sequence[int] = ()
) -> list[int]:
    """The argmax of each row after the processors that can move it: n ids, without building p."""
    return [int(i) for i in _processed(logits, params, history, proposal).argmax(dim=-1).tolist()]


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities at one position, of the raw logits (no processor applied), as vLLM reports them.

    ``rank`` is 1 for the most probable token; ``top`` holds (id, logprob), most probable first.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


def token_logprobs(logits: torch.Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
    """Log-probabilities of n ``token_ids`` under ``logits`` [n or more, V], with ``num_top`` alternatives."""
    rows = logits[: len(token_ids)]
    rows = rows.to(_wide(rows.dtype))
    normaliser = torch.logsumexp(rows, dim=-1, keepdim=True)
    chosen = torch.tensor(list(token_ids), dtype=torch.int64, device=rows.device).unsqueeze(1)
    own = rows.gather(1, chosen)
    ranks = (rows > own).sum(dim=-1) + 1
    top = rows.topk(min(num_top, rows.shape[-1]), dim=-1)
    top_logprobs = (top.values - normaliser).tolist()
    return [
        TokenLogprobs(token_id, logprob, rank, tuple(zip(ids, values, strict=True)))
        for token_id, logprob, rank, ids, values in zip(
            token_ids,
            (own - normaliser).squeeze(1).tolist(),
            ranks.tolist(),
            top.indices.tolist(),
            top_logprobs,
            strict=True,
        )
    ]


def _wide(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype == torch.float64 else torch.float32


def _processed(
    logits: torch.Tensor, params: SamplingParams, history: History, proposal: Sequence[int]
) -> torch.Tensor:
    """Logits after the processors that can move the argmax; ``logits`` itself if there are none."""
    n, vocab_size = logits.shape
    num_banned_rows = min(n, max(0, params.min_tokens - len(history.output_ids))) if history.stop_ids else 0
    bans = params.allowed_token_ids is not None or num_banned_rows > 0
    if not (bans or params.logit_bias or params.has_penalties):
        return logits
    scores = logits.to(_wide(logits.dtype), copy=True)
    if params.allowed_token_ids is not None:
        allowed = torch.zeros(vocab_size, dtype=torch.bool, device=scores.device)
        allowed[_in_range("allowed_token_ids", params.allowed_token_ids, scores)] = True
        scores.masked_fill_(~allowed, -torch.inf)
    if params.logit_bias:
        ids = _in_range("logit_bias", list(params.logit_bias), scores)
        scores[:, ids] += scores.new_tensor(list(params.logit_bias.values()))
    if num_banned_rows:
        stops = [i for i in history.stop_ids if i < vocab_size]
        scores[:num_banned_rows, torch.tensor(stops, dtype=torch.int64, device=scores.device)] = -torch.inf
    if params.has_penalties:
        _penalise(scores, params, history, proposal)
    if bans and bool((scores.amax(dim=-1) == -torch.inf).any()):
        raise UsageError(
            "allowed_token_ids and min_tokens together ban every token; allow an id that is no end token."
        )
    return scores


def _in_range(name: str, ids: Sequence[int], scores: torch.Tensor) -> torch.Tensor:
    vocab_size = scores.shape[-1]
    if max(ids) >= vocab_size:
        raise UsageError(
            f"{name} names id {max(ids)}, but the target has {vocab_size} ids (0 to {vocab_size - 1})."
        )
    return torch.tensor(list(ids), dtype=torch.int64, device=scores.device)


def _penalise(
    scores: torch.Tensor, params: SamplingParams, history: History, proposal: Sequence[int]
) -> None:
    """In place. Only the columns of ids that occurred are touched: cost O(history + n x distinct ids)."""
    n = scores.shape[0]
    device = scores.device
    output = torch.tensor([*history.output_ids, *proposal[: n - 1]], dtype=torch.int64, device=device)
    prompt = torch.tensor(history.prompt_ids, dtype=torch.int64, device=device)
    ids, where = torch.unique(torch.cat([output, prompt]), return_inverse=True)
    before = len(history.output_ids)
    counts = torch.zeros(n, len(ids), dtype=scores.dtype, device=device)  # occurrences in the output, by row
    counts += torch.bincount(where[:before], minlength=len(ids))
    for i in range(1, n):
        counts[i:, where[before + i - 1]] += 1
    seen = counts > 0
    seen_anywhere = seen.clone()
    seen_anywhere[:, where[len(output) :]] = True
    columns = scores[:, ids]
    r = params.repetition_penalty
    columns = torch.where(seen_anywhere, torch.where(columns > 0, columns / r, columns * r), columns)
    columns = columns - params.frequency_penalty * counts - params.presence_penalty * seen.to(scores.dtype)
    scores[:, ids] = columns


def _nucleus(p: torch.Tensor, top_p: float) -> torch.Tensor:
    """The most probable tokens whose mass first reaches ``top_p`` (ties at the edge stay), renormalised.

    Tokens below (1 - top_p) / V weigh less than 1 - top_p together, so only the others are sorted.
    """
    floor = 0.999 * (1.0 - top_p) / p.shape[-1]
    edges = torch.empty(len(p), 1, dtype=p.dtype, device=p.device)
    for row, edge in zip(p, edges, strict=True):
        candidates = row[row >= floor].sort(descending=True).values
        mass = candidates.cumsum(dim=-1, dtype=torch.float64)
        last = min(int((mass < top_p).sum()), len(candidates) - 1)
        edge.copy_(candidates[last])
    kept = p.masked_fill(p < edges, 0.0)
    return kept / kept.sum(dim=-1, keepdim=True)
