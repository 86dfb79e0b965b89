"""Verification: from the target's distributions and a proposal to the tokens that are emitted.

Every rule emits the accepted prefix of the proposal and one more token, a correction or a bonus. The
emitted tokens, continued by the target alone, have exactly the target's distribution; each rule's
docstring says why. p is [n + 1, V] for n proposed tokens: row i is the target's distribution after
``token_ids[:i]``. ``position`` is the output position of the first proposed token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from anydraft.rules.noise import Noise


@dataclass(frozen=True)
class Verdict:
    """``token_ids`` are emitted: the first ``num_accepted`` of the proposal and one more."""

    token_ids: tuple[int, ...]
    num_accepted: int


def verify_greedy(argmax_ids: Sequence[int], token_ids: Sequence[int]) -> Verdict:
    """Accept while the target's own argmax (n + 1 ids, as :func:`~anydraft.rules.sampling.greedy_ids`
    gives them) equals the proposal; the first that differs is emitted in its place."""
    accepted = 0
    while accepted < len(token_ids) and argmax_ids[accepted] == token_ids[accepted]:
        accepted += 1
    return Verdict(tuple(argmax_ids[: accepted + 1]), accepted)


def verify_exact(p: torch.Tensor, token_ids: Sequence[int], noise: Noise, position: int) -> Verdict:
    """Accept while the target's own draw equals the proposal.

    The draw of an output position is named by that position only, so the text is the one that the target
    alone draws with the same noise, whatever was proposed. Acceptance: p(proposed token), or more if the
    draft drew with the same noise (:class:`~anydraft.rules.noise.CoupledNoise`).
    """
    emitted: list[int] = []
    for i in range(len(token_ids) + 1):
        emitted.append(noise.categorical(p[i], "target", position + i))
        if i == len(token_ids) or emitted[-1] != token_ids[i]:
            break
    return Verdict(tuple(emitted), len(emitted) - 1)


def verify_rejection(
    p: torch.Tensor, token_ids: Sequence[int], q: torch.Tensor, noise: Noise, position: int
) -> Verdict:
    """Speculative sampling (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318).

    Token i, drawn from q_i, is accepted with min(1, p_i / q_i); else one token is drawn from
    (p_i - q_i)+, normalised, and the block ends. Any q_i with mass at most 1 is right: t comes out with
    min(p, q)(t) + (1 - sum min(p, q)) * (p - q)+(t) / sum (p - q)+ = p(t), where a draw that came out
    empty is a rejection.

    Args:
        q: [n, V] or [n + 1, V], see :class:`~anydraft.methods.base.Proposal`. Row n, if there, says that
            the draw after the proposal came out empty: its residual is sampled, not p.
    """
    n = len(token_ids)
    for i, token in enumerate(token_ids):
        ratio = float(p[i, token]) / max(float(q[i, token]), 1e-300)
        if not (ratio >= 1.0 or noise.bernoulli(ratio, "accept", position + i)):
            correction = noise.categorical(_residual(p[i], q[i]), "residual", position + i)
            return Verdict((*token_ids[:i], correction), i)
    if len(q) > n:
        last = noise.categorical(_residual(p[n], q[n]), "residual", position + n)
    else:
        last = noise.categorical(p[n], "target", position + n)
    return Verdict((*token_ids, last), n)


def verify_block(
    p: torch.Tensor, token_ids: Sequence[int], q: torch.Tensor, noise: Noise, position: int
) -> Verdict:
    """Block verification (Sun et al., arXiv 2403.10444, Algorithm 2), for rows of mass at most 1 too.

    Let w_0 = 1 and w_i = min(1, w_(i-1) * p(x_i) / q(x_i)), and call S_i the sum of the residual
    (w_i p_i - q_i)+, where q_n is zero unless a draw came out empty there. Going back from i = n, the
    block ends after i tokens with probability h_i = S_i / (S_i + 1 - w_i), if it did not end later, and
    the next token is drawn from that residual.

    Why it is exact: P(at least i accepted | x_1..x_i drawn) = w_i. For i = n, h_n is w_n. One step back,
    P(at least i + 1 | x_1..x_i) = sum_x q_i(x) w_(i+1)(x) = sum_x min(w_i p_i, q_i) = w_i - S_i, with an
    empty draw counting as a block that ended; and (1 - (w_i - S_i)) h_i = S_i gives w_i. So y follows
    x_1..x_i with weight min(w_i p_i, q_i)(y) + (w_i p_i - q_i)+(y) = w_i p_i(y), as the target has it.
    w_i is at least the product of min(1, p / q), which is what token-wise rejection accepts.

    All tests of a step are named by the step's first position (attempts 1 to n + 1): tests that fail
    beyond the accepted tokens must not be drawn again by the next step.
    """
    n = len(token_ids)
    weights = [1.0]
    for i, token in enumerate(token_ids):
        ratio = float(p[i, token]) / max(float(q[i, token]), 1e-300)
        weights.append(min(1.0, weights[-1] * ratio))
    for i in range(n, -1, -1):
        w = weights[i]
        declined = i < len(q)
        residual = (w * p[i] - q[i]).clamp_(min=0.0) if declined else w * p[i]
        mass = float(residual.sum(dtype=torch.float64))
        accept = mass / (mass + 1.0 - w) if mass > 0.0 else 0.0
        if i == 0 or noise.bernoulli(accept, "accept", position, 1 + i):
            if i == n and not declined:
                last = noise.categorical(p[n], "target", position + n)
            else:
                last = noise.categorical(residual if mass > 0.0 else p[i], "residual", position + i)
            return Verdict((*token_ids[:i], last), i)
    raise AssertionError("unreachable: nothing accepted is always possible")


def _residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """(p - q)+, unnormalised; p itself where rounding left nothing (then p = q and it is hardly reached)."""
    rest = (p - q).clamp_(min=0.0)
    return rest if bool(rest.any()) else p
