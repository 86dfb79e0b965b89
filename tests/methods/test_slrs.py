"""SLRS beside its law, which tests/proof proves."""

from __future__ import annotations

import pytest
import torch

from anydraft.errors import PairError, UsageError
from anydraft.methods.base import DraftSettings, Prompt, Proposal, drive
from anydraft.methods.slrs import SLRS
from anydraft.methods.strings import StringMap
from anydraft.rules.noise import KeyedNoise
from anydraft.vocab.bridge import Bridge
from tests.proof.worlds import Table, TableDraft, ToyTokenizer


class Writer(Table):
    """A draft that goes on with a given text, byte by byte in its own tokens, nearly always."""

    def __init__(self, tokenizer: ToyTokenizer, ids: list[int], certainty: float = 20.0) -> None:
        super().__init__(len(tokenizer.vocabulary), seed=0)
        self._ids = ids
        self._certainty = certainty

    def logits(self, history: tuple[int, ...]) -> torch.Tensor:
        row = torch.zeros(self.vocab_size, dtype=torch.float64)
        if len(history) <= len(self._ids) and list(history) == self._ids[: len(history)]:
            if len(history) < len(self._ids):
                row[self._ids[len(history)]] = self._certainty
        return row


def propose(
    target: ToyTokenizer,
    draft: ToyTokenizer,
    text: str,
    prompt: str = "a",
    room: int = 100,
    **changes: object,
) -> tuple[Proposal, TableDraft]:
    settings = DraftSettings(**{"num_speculative_tokens": 4, **changes})  # type: ignore[arg-type]
    backend = TableDraft(Writer(draft, draft.encode(prompt + text)), draft)
    method = SLRS(Bridge(target.vocabulary, draft.vocabulary), draft, len(target.vocabulary), settings)
    proposer = method.start(Prompt(tuple(target.encode(prompt))))
    return drive({0: proposer.propose(room)}, backend)[0], backend


def test_a_token_is_put_together_from_the_drafts_pieces() -> None:
    target = ToyTokenizer(["a", "b", "c", "bcab", "cc"])
    proposal, _ = propose(target, ToyTokenizer(["c", "a", "b"]), "bcabccab")
    assert proposal.token_ids[:2] == (3, 4)
    assert proposal.q is None


def test_a_byte_level_draft_drafts_whole_words() -> None:
    target = ToyTokenizer([*"abcdefgh ", " def", "abc", " gh"])
    draft = ToyTokenizer([bytes([b]) for b in range(256)])
    proposal, backend = propose(target, draft, " def ghabc a", prompt="abc")
    assert target.vocabulary.bytes_of(proposal.token_ids).startswith(b" def ghabc")
    assert len(proposal.token_ids) == 4
    assert proposal.num_draft_tokens >= 10
    assert backend.num_asks == proposal.num_draft_tokens


def test_a_long_draft_token_is_proposed_in_pieces_for_the_price_of_one_row() -> None:
    target = ToyTokenizer(["a", "b", "c"])
    proposal, backend = propose(target, ToyTokenizer(["a", "b", "c", "bca"]), "bca", num_speculative_tokens=3)
    assert proposal.token_ids == (1, 2, 0)
    assert proposal.num_draft_tokens == 1
    assert backend.num_asks == 1


def test_the_end_of_the_draft_becomes_the_targets_and_ends_the_proposal() -> None:
    target = ToyTokenizer(["a", "b", "ab"], ("<eos>",))
    draft = ToyTokenizer(["b", "a"], ("<bos>", "<eos>"), bos="<bos>")
    backend = TableDraft(Writer(draft, [2, 1, 0, 3]), draft)
    method = SLRS(Bridge(target.vocabulary, draft.vocabulary), draft, 4)
    proposal = drive({0: method.start(Prompt((0,))).propose(9)}, backend)[0]
    assert proposal.token_ids == (1, 3)


def test_sampled_proposals_carry_psi_in_the_drafts_precision() -> None:
    target, draft = ToyTokenizer(["a", "b", "ab"]), ToyTokenizer(["b", "a"])

    class Single(TableDraft):
        def _answer(self, key, ask):  # type: ignore[no-untyped-def]
            return super()._answer(key, ask).float()

    method = SLRS(Bridge(target.vocabulary, draft.vocabulary), draft, 5)
    for seed in range(10):
        prompt = Prompt((0,), temperature=1.0, noise=KeyedNoise(seed))
        proposal = drive({0: method.start(prompt).propose(3)}, Single(Table(2, 1), draft))[0]
        assert proposal.q is not None
        assert proposal.q.dtype == torch.float32
        assert proposal.q.shape == (3, 5)
        assert proposal.q.sum(dim=-1).tolist() == pytest.approx([1.0] * 3)
        assert all(proposal.q[i, token] > 0 for i, token in enumerate(proposal.token_ids))


def test_a_draft_that_is_not_confident_is_not_followed() -> None:
    target, draft = ToyTokenizer(["a", "b", "ab"]), ToyTokenizer(["b", "a"])
    sure, _ = propose(target, draft, "ba", min_confidence=0.9)
    assert len(sure.token_ids) >= 1
    unsure, _ = propose(target, draft, "", min_confidence=0.9)
    assert unsure.token_ids == ()


def test_no_room_no_question() -> None:
    target, draft = ToyTokenizer(["a", "b"]), ToyTokenizer(["b", "a"])
    proposal, backend = propose(target, draft, "ba", room=0)
    assert proposal.token_ids == ()
    assert backend.num_asks == 0
    assert len(propose(target, draft, "baba", room=2)[0].token_ids) == 2


def test_rows_stay_within_the_budget() -> None:
    target = ToyTokenizer(["a", "b", "abab", "baba"])
    draft = ToyTokenizer(["b", "a"])
    for max_rows in (1, 2, 3):
        proposal, _ = propose(
            target, draft, "", num_speculative_tokens=1, extra={"epsilon": 0.0, "max_rows": max_rows}
        )
        assert proposal.num_draft_tokens <= max_rows


@pytest.mark.parametrize("extra", [{"epsilon": -0.1}, {"epsilon": 1.5}, {"max_rows": 0}])
def test_senseless_settings_are_refused(extra: dict[str, float]) -> None:
    tokenizer = ToyTokenizer(["a"])
    with pytest.raises(UsageError, match="slrs needs an epsilon from 0 to 1"):
        SLRS(Bridge(tokenizer.vocabulary, tokenizer.vocabulary), tokenizer, 1, DraftSettings(extra=extra))


@pytest.mark.parametrize("controls", [(), ("<eos>",)])
def test_a_draft_without_a_text_for_the_target_is_refused(controls: tuple[str, ...]) -> None:
    """An end token that both have is no text."""
    target, draft = ToyTokenizer(["a", "b"], controls), ToyTokenizer(["c", "d"], controls)
    with pytest.raises(PairError, match="choose another draft"):
        SLRS(Bridge(target.vocabulary, draft.vocabulary), draft, 3)


@pytest.mark.parametrize(("own", "drafted"), [("a", "ab"), ("ab", "a")])
def test_one_text_that_begins_with_the_targets_or_begins_it_is_enough(own: str, drafted: str) -> None:
    target, draft = ToyTokenizer([own]), ToyTokenizer(["c", drafted])
    assert SLRS(Bridge(target.vocabulary, draft.vocabulary), draft, 1).name == "slrs"


def test_ordinary_pieces_win_over_byte_fallback_and_ids_beyond_the_rows_are_left_out() -> None:
    target = ToyTokenizer(["a", "a", "b", "ab"])
    object.__setattr__(target.vocabulary, "byte_fallback", frozenset({0}))
    draft = ToyTokenizer(["a", "b"])
    strings = StringMap(Bridge(target.vocabulary, draft.vocabulary), target_vocab_size=3)
    assert strings.longest(b"ab") == 1
    assert not strings.extends(b"a")


def test_forgotten_maps_come_back_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = ToyTokenizer(["a", "b", "ab", "aba"]), ToyTokenizer(["a", "b", "ba"])
    strings = StringMap(Bridge(target.vocabulary, draft.vocabulary), 4)
    first = {text: strings.leaves(text).target_ids.tolist() for text in (b"", b"a", b"ab")}
    assert strings.leaves(b"a") is strings.leaves(b"a")
    monkeypatch.setattr("anydraft.methods.strings._CACHED_IDS", 1)
    kept = strings.leaves(b"")
    again = {text: strings.leaves(text).target_ids.tolist() for text in (b"ab", b"a", b"")}
    assert again == first
    assert strings.leaves(b"ab") is not kept
