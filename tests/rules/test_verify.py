"""What the proof bench does not look at: float32, extreme rows, counts. Laws are proved in tests/proof."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anydraft.rules.noise import KeyedNoise
from anydraft.rules.verify import verify_block, verify_exact, verify_greedy, verify_rejection


def rows(n: int, size: int, seed: int, sharpness: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(torch.randn(n, size, generator=generator) * sharpness, dim=-1)


def test_greedy_stops_at_the_first_difference() -> None:
    assert verify_greedy([4, 5, 6, 7], [4, 5, 9]).token_ids == (4, 5, 6)
    assert verify_greedy([4, 5, 6, 7], [4, 5, 9]).num_accepted == 2
    assert verify_greedy([4, 5, 6, 7], [4, 5, 6]).token_ids == (4, 5, 6, 7)
    assert verify_greedy([4], []).token_ids == (4,)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 4), st.booleans())
def test_float32_rows_emit_possible_tokens_only(seed: int, n: int, declined: bool) -> None:
    """Also where p has zeros, q is sharper than p, or the two are equal."""
    size = 30
    p = rows(n + 1, size, seed)
    p[:, ::3] = 0.0
    p /= p.sum(dim=-1, keepdim=True)
    q = rows(n + declined, size, seed + 1, sharpness=12.0)
    if seed % 4 == 0:
        q = p[: n + declined].clone()
    noise = KeyedNoise(seed)
    ids = [noise.categorical(q[i], "draft", i) for i in range(n)]
    for rule in (verify_rejection, verify_block):
        verdict = rule(p, ids, q, noise, 5)
        assert len(verdict.token_ids) == verdict.num_accepted + 1
        assert list(verdict.token_ids[: verdict.num_accepted]) == ids[: verdict.num_accepted]
        assert all(p[i, token] > 0 for i, token in enumerate(verdict.token_ids))


def test_a_draft_equal_to_the_target_is_always_accepted() -> None:
    p = rows(4, 1000, 1)
    for seed in range(50):
        noise = KeyedNoise(seed)
        ids = [noise.categorical(p[i], "draft", i) for i in range(3)]
        for rule in (verify_rejection, verify_block):
            assert rule(p, ids, p[:3], noise, 0).num_accepted == 3


def test_exact_match_gives_the_same_text_whatever_was_proposed() -> None:
    p = rows(4, 20, 3)
    alone = [KeyedNoise(8).categorical(p[i], "target", 10 + i) for i in range(4)]
    right = verify_exact(p, alone[:3], KeyedNoise(8), 10)
    assert list(right.token_ids) == alone
    wrong = verify_exact(p, [alone[0], (alone[1] + 1) % 20, 0], KeyedNoise(8), 10)
    assert list(wrong.token_ids) == alone[:2]
    assert wrong.num_accepted == 1


def test_a_long_shot_of_the_draft_is_hardly_ever_accepted() -> None:
    p = torch.tensor([[1e-9, 1.0 - 1e-9], [0.5, 0.5]])
    q = torch.tensor([[0.5, 0.5]])
    for rule in (verify_rejection, verify_block):
        assert [rule(p, [0], q, KeyedNoise(s), 0).num_accepted for s in range(200)] == [0] * 200
