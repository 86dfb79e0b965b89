"""TLI and standard drafting: which ids may cross, what the draft sees, what q is."""

from __future__ import annotations

import pytest
import torch

from anydraft.errors import PairError
from anydraft.methods.base import DraftSettings, Prompt
from anydraft.methods.standard import DirectContext, Standard
from anydraft.methods.tli import TLI
from anydraft.methods.token_rule import TokenMap
from anydraft.rules.noise import CoupledNoise, KeyedNoise
from anydraft.vocab.bridge import Bridge
from tests.methods.scripted import ScriptedDraft, propose
from tests.proof.worlds import MergeTokenizer, ToyTokenizer

LETTERS = [f"{a}{b}" for a in "abcdefghij" for b in "klmnopqrst"]  # a hundred ids


def bridge(target: ToyTokenizer, draft: ToyTokenizer) -> Bridge:
    return Bridge(target.vocabulary, draft.vocabulary)


def test_probabilities_of_draft_ids_with_the_same_bytes_add_up() -> None:
    tokens = TokenMap(torch.tensor([0, 2, 5]), torch.tensor([4, 1, 4]), frozenset(), 6)
    q = tokens.q(torch.tensor([[0.25, 0.5, 0.25]]))
    assert q.tolist() == [[0.0, 0.5, 0.0, 0.0, 0.5, 0.0]]
    assert tokens.to_target([5, 2]) == (4, 1)


@pytest.mark.parametrize("width", [3, 4, 7])
def test_rows_of_another_width_are_padded_or_cut(width: int) -> None:
    """Padded heads: the draft's rows may be narrower or wider than the target's."""
    tokens = TokenMap(None, torch.arange(3), frozenset(), 4)
    rows = torch.zeros(2, width)
    rows[:, 1] = 1.0
    assert tokens.q(rows).tolist() == [[0.0, 1.0, 0.0, 0.0]] * 2


def test_tli_draws_from_the_intersection_and_end_tokens_only() -> None:
    target = ToyTokenizer(["a", "b", "ab"], ("<eos>", "<pad>"))
    draft = ToyTokenizer(["b", "xy", "a", "ba"], ("<bos>", "<eos>", "<pad>"), bos="<bos>")
    method = TLI(bridge(target, draft), draft, target_vocab_size=5)
    backend = ScriptedDraft(draft, [2, 0, 5, 2])
    proposer = method.start(Prompt((0, 2), temperature=1.0, noise=KeyedNoise(0)))
    proposal = propose(proposer, backend)
    assert proposal.token_ids == (0, 1, 3)
    assert proposal.num_draft_tokens == 3
    ask = backend.asks[0]
    assert ask.allowed is not None
    assert sorted(ask.allowed.tolist()) == [0, 2, 5]
    assert 5 in ask.stop_ids
    assert proposal.q is not None
    assert proposal.q.shape == (3, 5)
    assert proposal.q.sum(dim=-1).tolist() == pytest.approx([1.0] * 3)


def test_ids_beyond_the_targets_rows_are_never_proposed() -> None:
    target = ToyTokenizer(["a", "b", "ab"])
    draft = ToyTokenizer(["b", "ab", "a"])
    method = TLI(bridge(target, draft), draft, target_vocab_size=2)
    backend = ScriptedDraft(draft, [1])
    assert propose(method.start(Prompt((0,))), backend).token_ids == ()
    assert backend.asks[0].allowed is not None
    assert sorted(backend.asks[0].allowed.tolist()) == [0, 2]


def test_the_draft_sees_the_text_in_its_own_tokens_with_one_bos() -> None:
    """Target tokens outside the intersection too; after any number of steps, rejected drafts or not."""
    target = MergeTokenizer("abn ", [("a", "n"), ("an", "a")])
    draft = ToyTokenizer(["b", "an", "n", "a", " "], ("<bos>",), bos="<bos>")
    method = TLI(bridge(target, draft), draft, len(target.vocabulary))
    backend = ScriptedDraft(draft, [0, 0])
    proposer = method.start(Prompt(tuple(target.encode("banana"))))
    text = "banana"
    for step in ["na", "b", " b", "an", "a a"]:
        propose(proposer, backend)
        assert backend.contexts[-1] == [5, *draft.encode(text)]
        proposer.observe(target.encode(step))
        text += step
    propose(proposer, backend)
    assert backend.contexts[-1] == [5, *draft.encode(text)]


def test_greedy_requests_and_greedy_drafts_carry_no_q() -> None:
    tokenizer = ToyTokenizer(["a", "b"])
    other = ToyTokenizer(["b", "a"])
    for prompt, settings in [
        (Prompt((0,)), DraftSettings()),
        (Prompt((0,), temperature=0.8), DraftSettings()),
        (Prompt((0,), temperature=0.8, noise=KeyedNoise(1)), DraftSettings(draft_temperature=0.0)),
        (Prompt((0,), temperature=0.8, noise=KeyedNoise(1), draft_temperature=0.0), DraftSettings()),
        (Prompt((0,), noise=KeyedNoise(1), draft_temperature=0.5), DraftSettings()),
    ]:
        backend = ScriptedDraft(other, [1])
        method = TLI(bridge(tokenizer, other), other, 2, settings)
        assert propose(method.start(prompt), backend).q is None
        assert backend.asks[0].temperature == 0.0
        assert not backend.asks[0].keep_rows


def test_the_requests_draft_temperature_goes_before_the_methods_and_that_before_the_requests() -> None:
    tokenizer = ToyTokenizer(["a", "b"])
    pair = bridge(tokenizer, tokenizer)
    for mine, methods, expected in [(0.3, 0.5, 0.3), (None, 0.5, 0.5), (None, None, 0.9)]:
        backend = ScriptedDraft(tokenizer, [1])
        method = Standard(pair, tokenizer, 2, DraftSettings(draft_temperature=methods))
        propose(method.start(Prompt((0,), None, 0.9, KeyedNoise(1), mine)), backend)
        assert backend.asks[0].temperature == expected


def test_coupled_drafts_draw_at_output_positions_and_need_no_rows() -> None:
    tokenizer = ToyTokenizer(["a", "b"])
    backend = ScriptedDraft(tokenizer, [1])
    proposer = Standard(bridge(tokenizer, tokenizer), tokenizer, 2).start(
        Prompt((0,), temperature=1.0, noise=CoupledNoise(1))
    )
    propose(proposer, backend)
    proposer.observe([1, 1, 0])
    propose(proposer, backend)
    assert [ask.position for ask in backend.asks] == [0, 3]
    assert not any(ask.keep_rows for ask in backend.asks)


def test_sampled_drafts_name_each_draw_once() -> None:
    tokenizer = ToyTokenizer(["a", "b"])
    backend = ScriptedDraft(tokenizer, [1])
    method = Standard(bridge(tokenizer, tokenizer), tokenizer, 2, DraftSettings(3))
    proposer = method.start(Prompt((0,), temperature=1.0, noise=KeyedNoise(1)))
    for _ in range(3):
        propose(proposer, backend)
        proposer.observe([1])
    assert [ask.position for ask in backend.asks] == [0, 3, 6]


def test_no_room_no_question() -> None:
    tokenizer = ToyTokenizer(["a", "b"])
    backend = ScriptedDraft(tokenizer, [1, 1, 1])
    proposer = Standard(bridge(tokenizer, tokenizer), tokenizer, 2).start(Prompt((0,)))
    assert propose(proposer, backend, room=0).token_ids == ()
    assert not backend.asks
    assert propose(proposer, backend, room=2).token_ids == (1, 1)
    assert backend.asks[0].max_tokens == 2


def test_standard_works_on_vocabularies_that_differ_in_padding() -> None:
    target = ToyTokenizer(LETTERS, ("<eos>",))
    padded = ToyTokenizer([*LETTERS], ("<eos>", "<pad>"))
    backend = ScriptedDraft(padded, [3, 4, 100, 5])
    proposal = propose(Standard(bridge(target, padded), padded, 128).start(Prompt((1, 2))), backend)
    assert proposal.token_ids == (3, 4, 100)
    assert backend.contexts[0] == [1, 2]


def test_standard_never_lets_a_differing_id_cross() -> None:
    target = ToyTokenizer([*LETTERS, "é"])
    draft = ToyTokenizer([*LETTERS, "ö", b"\xc3", b"\xa9"])
    pair = bridge(target, draft)
    assert not pair.same_vocabulary
    method = Standard(pair, draft, 101, DraftSettings(5))
    backend = ScriptedDraft(draft, [0, 1, 100])
    proposer = method.start(Prompt((100,)))
    assert propose(proposer, backend).token_ids == (0, 1)
    assert backend.contexts[0] == [101, 102]
    proposer.observe([7, 100, 8])
    propose(proposer, backend)
    assert backend.contexts[1] == [101, 102, 7, 101, 102, 8]
    assert backend.asks[1].stable == 2


def test_standard_puts_one_bos_in_front() -> None:
    target = ToyTokenizer(LETTERS, ("<bos>",), bos="<bos>")
    pair = bridge(target, target)
    for prompt, seen in [((100, 3), [100, 3]), ((3, 4), [100, 3, 4])]:
        backend = ScriptedDraft(target, [1])
        propose(Standard(pair, target, 101).start(Prompt(prompt)), backend)
        assert backend.contexts == [seen]
    backend = ScriptedDraft(target, [1])
    propose(Standard(pair, target, 101).start(Prompt((3,), draft_ids=(100, 9, 9))), backend)
    assert backend.contexts == [[100, 9, 9]]


def test_same_size_but_other_contents_is_refused_by_content() -> None:
    target = ToyTokenizer(LETTERS)
    draft = ToyTokenizer(LETTERS[::-1])
    with pytest.raises(PairError, match=r"100 of 100 common ids differ; use method tli or slem"):
        Standard(bridge(target, draft), draft, 100)
    backend = ScriptedDraft(draft, [0, 1])
    assert propose(TLI(bridge(target, draft), draft, 100).start(Prompt((5,))), backend).token_ids == (99, 98)


@pytest.mark.parametrize("controls", [(), ("<eos>", "<tool>")])
def test_tli_refuses_vocabularies_without_a_common_text(controls: tuple[str, ...]) -> None:
    """End tokens and other control tokens that meet leave nothing to draft."""
    target, draft = ToyTokenizer(["aa", "bb"], controls), ToyTokenizer(["a", "b"], controls)
    pair = bridge(target, draft)
    assert len(pair.intersection) == len(controls)
    with pytest.raises(PairError, match="no text token in common, which tli needs; use slem"):
        TLI(pair, draft, 4)


def test_common_texts_beyond_the_targets_rows_are_none() -> None:
    tokenizer = ToyTokenizer(["a", "b"])
    with pytest.raises(PairError, match="no text token in common"):
        TLI(bridge(ToyTokenizer(["aa", "b"]), tokenizer), tokenizer, 1)


def test_ids_beyond_the_other_vocabulary_do_no_harm() -> None:
    """A target id at or above the draft's size, or of a padded row that no tokenizer knows."""
    target = ToyTokenizer([*LETTERS, "zz"])
    draft = ToyTokenizer(LETTERS[:50])
    context = DirectContext(bridge(target, target), target)
    assert context.append([100, 250]) == 0
    assert context.ids == [100]
    backend = ScriptedDraft(draft, [0])
    proposer = TLI(bridge(target, draft), draft, 300).start(Prompt((3, 99, 299)))
    proposer.observe([250, 4])
    assert propose(proposer, backend).token_ids == (0,)
    assert all(0 <= i < 50 for i in backend.contexts[0])
