"""What a draft in SGLang reads and may write, and the trees that its drafts become."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anydraft.errors import PairError
from anydraft.plugins.sglang.chains import chains
from anydraft.plugins.sglang.context import begin_with, common_tokens, draft_ids, filler, sub_tokens
from anydraft.plugins.sglang.modules import PrunedHead, TargetEmbedding
from anydraft.vocab.bridge import Bridge
from anydraft.vocab.readers import read_tokenizer
from anydraft.vocab.tokenizer import Tokenizer
from anydraft.vocab.vocabulary import Control, Role, Vocabulary
from tests import tiny


@pytest.fixture(scope="module")
def target() -> Tokenizer:
    return read_tokenizer(tiny.byte_level())


@pytest.fixture(scope="module")
def draft() -> Tokenizer:
    return read_tokenizer(tiny.sentencepiece_like())


@pytest.fixture(scope="module")
def bridge(target: Tokenizer, draft: Tokenizer) -> Bridge:
    return Bridge(target.vocabulary, draft.vocabulary)


def test_sub_tokens_say_what_the_token_says(target: Tokenizer, draft: Tokenizer, bridge: Bridge) -> None:
    rows = len(target.vocabulary) + 5  # padded rows
    subs = sub_tokens(bridge, draft, rows, len(draft.vocabulary))
    assert len(subs) == rows
    assert sum(len(ids) > 1 for ids in subs) > 20
    for i, data in target.vocabulary.text_items():
        assert draft.vocabulary.bytes_of(subs[i]) == data


def test_a_common_token_is_its_counterpart(target: Tokenizer, draft: Tokenizer, bridge: Bridge) -> None:
    rows, draft_rows = len(target.vocabulary), len(draft.vocabulary)
    table = draft_ids(sub_tokens(bridge, draft, rows, draft_rows), bridge, "last")
    common, target_ids = common_tokens(bridge, rows, draft_rows)
    there = torch.from_numpy(table)[target_ids]
    tokens = draft.vocabulary.tokens
    assert all(tokens[a] == tokens[b] for a, b in zip(there.tolist(), common.tolist(), strict=True))
    assert table.min() >= 0
    assert table.max() < draft_rows


def test_other_tokens_are_their_last_part_or_the_end_token(
    target: Tokenizer, draft: Tokenizer, bridge: Bridge
) -> None:
    rows = len(target.vocabulary)
    subs = sub_tokens(bridge, draft, rows, len(draft.vocabulary))
    last, eos = draft_ids(subs, bridge, "last"), draft_ids(subs, bridge, "eos")
    other = bridge.target_to_draft[:rows] < 0
    assert (last[:rows] == eos[:rows])[~other].all()
    assert set(eos[:rows][other].tolist()) == {draft.vocabulary.eos_id}
    assert last[rows] == eos[rows] == filler(draft.vocabulary) == draft.vocabulary.bos_id
    several = [i for i, ids in enumerate(subs) if len(ids) > 1]
    assert all(last[i] == subs[i][-1] for i in several)


def test_control_tokens_without_counterpart_are_their_text_or_nothing(draft: Tokenizer) -> None:
    surfaces = {0: ("<|pad|>", Role.PAD), 1: ("<|tool|>", Role.OTHER)}
    controls = {i: Control(i, role, surface) for i, (surface, role) in surfaces.items()}
    bridge = Bridge(Vocabulary((None, None, b"a"), controls), draft.vocabulary)
    subs = sub_tokens(bridge, draft, 3, len(draft.vocabulary))
    assert subs[0] == [filler(draft.vocabulary)]
    assert draft.vocabulary.bytes_of(subs[1]) == b"<|tool|>"
    assert draft.vocabulary.bytes_of(subs[2]) == b"a"


def test_the_filler_says_nothing() -> None:
    assert filler(Vocabulary((b"a", None), bos_id=1)) == 1
    assert filler(Vocabulary((b"a", None), stop_ids=frozenset({1}), eos_id=1)) == 1
    assert filler(Vocabulary((b"a",))) == 0


def test_rows_that_a_model_lacks_are_never_drafted(bridge: Bridge) -> None:
    common, target_ids = common_tokens(bridge, 200, 300)
    assert len(common) > 10
    assert common.max() < 300
    assert target_ids.max() < 200


def test_no_text_in_common_is_refused_with_a_remedy() -> None:
    controls = {1: Control(1, Role.OTHER, "<tool>")}
    apart = Bridge(Vocabulary((b"a", None), controls), Vocabulary((b"b", None), controls))
    assert apart.intersection.tolist() == [1]
    with pytest.raises(PairError, match=r"no text token in common.*ANYDRAFT_SLEM"):
        common_tokens(apart, 2, 2)


def test_a_prompt_begins_with_the_drafts_bos_where_the_draft_reads_first() -> None:
    """Of four prompts: one from its start, one token, one that goes on, one from its start."""
    ids = torch.arange(10, 18)
    begun = begin_with(ids, [3, 1, 2, 2], [0, 0, 5, 0], 99)
    assert begun.tolist() == [10, 99, 12, 13, 14, 15, 16, 99]
    assert ids.tolist() == list(range(10, 18))


def test_the_two_ends_speak_target_ids() -> None:
    embedding = torch.nn.Embedding(4, 3)
    head = PrunedHead(embedding.weight, torch.tensor([1, 3]))
    spoken = TargetEmbedding(embedding, torch.tensor([2, 2, 0, 3, 1]), head)
    ids = torch.tensor([[0, 1], [4, 3]])
    assert torch.equal(spoken(ids), embedding(torch.tensor([[2, 2], [1, 3]])))
    assert spoken.weight is head.weight, "as the LM head of a model whose ends are tied"
    assert torch.equal(head.weight, embedding.weight[[1, 3]])
    assert not head.weight.requires_grad


def test_drafts_become_chains() -> None:
    tokens, ancestors = chains([5, 6], [[7, 8, 9], []], 4)
    assert tokens.dtype == np.int64
    assert tokens.tolist() == [5, 7, 8, 9, 6, 0, 0, 0]
    trees = ancestors.reshape(2, 4, 4)
    assert trees.dtype == np.bool_
    assert all((tree == np.tril(np.ones((4, 4)))).all() for tree in trees)
