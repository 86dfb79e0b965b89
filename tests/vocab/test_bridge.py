from __future__ import annotations

import numpy as np
import pytest

from anydraft.errors import PairError
from anydraft.vocab.bridge import Bridge
from anydraft.vocab.vocabulary import Role, Vocabulary
from tests.vocab.worlds import vocabulary

TURN, TEXT = (Role.EOS, "<|im_end|>"), (Role.EOS, "<|endoftext|>")
GEMMA_TURN, GEMMA_TEXT = (Role.EOS, "<end_of_turn>"), (Role.EOS, "<eos>")


def test_text_meets_by_bytes_and_never_an_empty_or_unused_token() -> None:
    bridge = Bridge(vocabulary(b"a", b" b", None, b""), vocabulary(b"", b" b", None, b"c", b"a"))
    assert bridge.draft_to_target.tolist() == [-1, 1, -1, -1, 0]
    assert bridge.target_to_draft.tolist() == [4, 1, -1, -1]
    assert bridge.intersection.tolist() == [1, 4]
    assert bridge.draft_to_target.dtype == bridge.intersection.dtype == np.int64


def test_duplicates_in_the_draft_share_a_target_id_and_the_ordinary_piece_stands_for_it() -> None:
    target = vocabulary(b"A", b"z")
    draft = vocabulary(b"A", b"x", b"A", b"A", byte_fallback={0})
    bridge = Bridge(target, draft)
    assert bridge.draft_to_target.tolist() == [0, -1, 0, 0]
    assert bridge.target_to_draft.tolist() == [2, -1]  # not <0x41>, and the lowest of the others


def test_duplicates_in_the_target_the_ordinary_one_is_meant() -> None:
    target = vocabulary(b"A", b"B", b"A", b"A", b"C", byte_fallback={0, 4})
    bridge = Bridge(target, vocabulary(b"C", b"A"))
    assert bridge.draft_to_target.tolist() == [4, 2]
    assert bridge.target_to_draft.tolist() == [1, -1, 1, 1, 0]


def test_end_tokens_meet_by_surface_then_by_kind() -> None:
    same = Bridge(vocabulary(TEXT, TURN), vocabulary(b"a", TURN, TEXT))
    assert same.draft_to_target.tolist() == [-1, 1, 0]
    kinds = Bridge(vocabulary(TEXT, TURN, eos_id=1), vocabulary(GEMMA_TEXT, b"a", GEMMA_TURN, eos_id=0))
    assert kinds.draft_to_target.tolist() == [0, -1, 1]
    assert kinds.target_to_draft.tolist() == [0, 2]


def test_a_lone_end_of_text_meets_the_main_end_token() -> None:
    """Such a model ends its turns with </s>: that is <|im_end|> where <|im_end|> is the main end."""
    only_text = vocabulary(b"a", (Role.EOS, "</s>"), eos_id=1)
    both = vocabulary(TEXT, TURN, b"a", eos_id=1)
    assert Bridge(both, only_text).draft_to_target.tolist() == [2, 1]
    back = Bridge(only_text, both)
    assert back.draft_to_target.tolist() == [1, 1, 0]
    assert back.target_to_draft.tolist() == [2, 1]
    without_main = vocabulary(TEXT, TURN, b"a")
    assert Bridge(without_main, only_text).draft_to_target.tolist() == [2, 1]


def test_every_stop_id_of_the_target_has_an_end_in_the_draft() -> None:
    target = vocabulary(TEXT, TURN, (Role.EOS, "<|custom|>"), eos_id=1)
    draft = vocabulary((Role.EOS, "<eos>"), eos_id=0)
    bridge = Bridge(target, draft)
    assert bridge.target_to_draft.tolist() == [0, 0, 0]
    assert bridge.draft_to_target.tolist() == [1]


def test_an_end_never_meets_what_is_no_end() -> None:
    target = vocabulary((Role.OTHER, "<|im_end|>"), b"<|im_end|>")
    bridge = Bridge(target, vocabulary(TURN, b"<|im_end|>"))
    assert bridge.draft_to_target.tolist() == [-1, 1]


def test_bos_by_role_others_by_surface_pad_and_unk_never() -> None:
    target = vocabulary(
        (Role.BOS, "<s>"), (Role.PAD, "<pad>"), (Role.UNK, "<unk>"), (Role.OTHER, "[INST]"), bos_id=0
    )
    draft = vocabulary(
        (Role.PAD, "<pad>"), (Role.UNK, "<unk>"), (Role.BOS, "<bos>"), (Role.OTHER, "[INST]"), bos_id=2
    )
    bridge = Bridge(target, draft)
    assert bridge.draft_to_target.tolist() == [-1, -1, 0, 3]
    assert bridge.target_to_draft.tolist() == [2, -1, -1, 3]


def test_padding_of_one_is_nothing_in_the_other_whatever_its_surface() -> None:
    pad, other = vocabulary((Role.PAD, "<fill>")), vocabulary((Role.OTHER, "<fill>"))
    assert Bridge(pad, other).draft_to_target.tolist() == [-1]
    assert Bridge(other, pad).draft_to_target.tolist() == [-1]


def test_control_never_meets_text_of_the_same_surface() -> None:
    """Qwen's plain text <unk> and Gemma's special one, and the literal marker in a text."""
    bridge = Bridge(vocabulary(b"<unk>", TURN), vocabulary((Role.UNK, "<unk>"), b"<|im_end|>"))
    assert bridge.draft_to_target.tolist() == [-1, -1]
    assert bridge.target_to_draft.tolist() == [-1, -1]


def test_same_vocabulary_up_to_padded_rows() -> None:
    """Case 3: 151,936 against 152,064."""
    short, long = vocabulary(b"a", b"b", TURN), vocabulary(b"a", b"b", TURN, None, None)
    for bridge in (Bridge(short, long), Bridge(long, short)):
        assert bridge.same_vocabulary
        assert bridge.nearly_same
        assert bridge.num_common == 3
    assert Bridge(short, long).draft_to_target.tolist() == [0, 1, 2, -1, -1]
    assert Bridge(long, short).target_to_draft.tolist() == [0, 1, 2, -1, -1]


def test_a_filler_is_known_to_neither() -> None:
    """[PAD151667] in one and <think> in the other is no difference."""
    bridge = Bridge(vocabulary(b"a", b"b", b"<think>"), vocabulary(b"a", b"b", None))
    assert bridge.same_vocabulary
    assert bridge.target_to_draft.tolist() == [0, 1, -1]


def test_one_id_that_differs_is_named_and_does_not_cost_the_others() -> None:
    """Case 3."""
    many = [bytes([i]) for i in range(100)]
    bridge = Bridge(vocabulary(*many, b"x1"), vocabulary(*many, b"x2"))
    assert not bridge.same_vocabulary
    assert bridge.nearly_same
    assert bridge.differing.tolist() == [100]
    assert bridge.draft_to_target.tolist() == [*range(100), -1]


def test_same_size_with_other_contents_is_seen() -> None:
    """Case 4."""
    bridge = Bridge(vocabulary(b"a", b"b", b"c"), vocabulary(b"c", b"a", b"b"))
    assert not bridge.same_vocabulary
    assert not bridge.nearly_same
    assert bridge.draft_to_target.tolist() == [2, 0, 1]


def test_controls_with_other_surfaces_differ() -> None:
    bridge = Bridge(vocabulary(b"a", b"b", b"c", TURN), vocabulary(b"a", b"b", b"c", TEXT))
    assert bridge.differing.tolist() == [3]


def test_nothing_in_common_is_not_the_same() -> None:
    bridge = Bridge(vocabulary(None, b"a"), vocabulary(b"b"))
    assert bridge.num_common == 0
    assert not bridge.same_vocabulary
    assert not bridge.nearly_same
    assert not Bridge(vocabulary(b"a"), vocabulary(b"b")).nearly_same
    fifty = [bytes([i]) for i in range(50)]
    assert not Bridge(vocabulary(*fifty, b"x1"), vocabulary(*fifty, b"x2")).nearly_same


def test_in_equal_vocabularies_every_id_maps_to_itself_duplicates_too() -> None:
    one = vocabulary(b"A", b"B", b"A", TURN, byte_fallback={0})
    assert Bridge(one, one).draft_to_target.tolist() == [0, 1, 2, 3]
    assert Bridge(one, one).target_to_draft.tolist() == [0, 1, 2, 3]


def test_overlap_counts_text_tokens() -> None:
    bridge = Bridge(vocabulary(b"a", b"b", b"c", b"d", TURN), vocabulary(b"a", b"x", TURN, None))
    assert (bridge.draft_overlap, bridge.target_overlap) == (0.5, 0.25)
    assert Bridge(vocabulary(TURN), vocabulary(TURN)).draft_overlap == 0.0


def test_arrays_bring_the_bridge_back(tmp_path: object) -> None:
    target, draft = vocabulary(b"a", b"b", TURN), vocabulary(b"b", TEXT, b"a", None)
    bridge = Bridge(target, draft)
    np.savez(f"{tmp_path}/bridge.npz", **bridge.to_arrays())
    with np.load(f"{tmp_path}/bridge.npz") as arrays:
        again = Bridge.from_arrays(target, draft, arrays)
        with pytest.raises(PairError, match="vocabularies of 3 and 4 ids, not 4 and 3"):
            Bridge.from_arrays(draft, target, arrays)
    for name, array in bridge.to_arrays().items():
        assert np.array_equal(array, again.to_arrays()[name])
    assert again.intersection.tolist() == bridge.intersection.tolist()


def test_fingerprints_tell_contents_apart() -> None:
    base = vocabulary(b"a", b"b", TURN)
    different = [
        vocabulary(b"a", b"c", TURN),
        vocabulary(b"ab", TURN),
        vocabulary(b"a", b"b", TEXT),
        vocabulary(b"a", b"b", (Role.OTHER, "<|im_end|>")),
        vocabulary(b"a", b"b", TURN, None),
        vocabulary(b"a", b"b", TURN, byte_fallback={0}),
        vocabulary(b"a", b"b", TURN, stop_ids={1}),
        Vocabulary((b"a", b"b", None), base.controls, base.stop_ids, dummy_prefix=True),
    ]
    assert len({v.fingerprint for v in [base, *different]}) == 1 + len(different)
    assert vocabulary(b"a", b"b", TURN).fingerprint == base.fingerprint
