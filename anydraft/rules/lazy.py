"""Rejection for a proposal whose q is only known token by token (SLRS in the paper's form)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import torch

from anydraft.rules.noise import Noise

PsiOf = Callable[[int], float]
"""The probability with which a target id is proposed."""

_NOTHING_LEFT = 1e-13


def accepts(p: torch.Tensor, token_id: int, psi: PsiOf, noise: Noise, position: int) -> bool:
    """Accept ``token_id`` with min(1, p / psi); -1, a draw that came out empty, never."""
    if token_id < 0:
        return False
    ratio = float(p[token_id]) / max(psi(token_id), 1e-300)
    return ratio >= 1.0 or noise.bernoulli(ratio, "accept", position)


def residual_round(
    p: torch.Tensor, psi: PsiOf, noise: Noise, position: int, attempt: int
) -> tuple[int, bool]:
    """One try at a token of (p - psi)+: draw t ~ p and keep it with max(0, 1 - psi(t) / p(t)).

    A round keeps t with p(t) * max(0, 1 - psi(t) / p(t)) = (p - psi)+(t), so the first kept token has that law,
    normalised. psi is needed for the drawn tokens alone.

    Args:
        attempt: 1, 2, ...; names the round's draws.
    """
    token_id = noise.categorical(p, "residual", position, attempt)
    keep = 1.0 - psi(token_id) / float(p[token_id])
    return token_id, keep > 0.0 and noise.bernoulli(keep, "accept", position, attempt)


def verify_lazy(p: torch.Tensor, token_id: int, psi: PsiOf, noise: Noise, position: int) -> tuple[int, bool]:
    """The token that is emitted for one proposed ``token_id`` (-1: nothing), and whether that is the proposal.

    Rounds take 1 / (1 - sum min(p, psi)) tries on average, after a rejection as improbable as that is large: not
    even one more draw a position, all told. Where rounding leaves nothing to keep, p itself is drawn from.

    Args:
        p: [V], the target's distribution.
    """
    if accepts(p, token_id, psi, noise, position):
        return token_id, True
    hopeless: dict[int, float] = {}
    for attempt in count(1):
        drawn, kept = residual_round(p, psi, noise, position, attempt)
        if kept:
            return drawn, False
        if psi(drawn) >= float(p[drawn]):
            hopeless[drawn] = float(p[drawn])
            if sum(hopeless.values()) >= float(p.sum(dtype=torch.float64)) - _NOTHING_LEFT:
                return drawn, False
    raise AssertionError("unreachable: the rounds are endless")
