from __future__ import annotations

import pytest

from anydraft.methods.base import DraftSettings, Prompt
from anydraft.methods.slem import SLEM
from anydraft.rules.noise import CoupledNoise, KeyedNoise
from anydraft.vocab.bridge import Bridge
from tests.methods.scripted import ScriptedDraft, propose
from tests.proof.worlds import MergeTokenizer, ToyTokenizer

TARGET = MergeTokenizer("abn u", [("a", "n"), ("an", "an")], ("<eos>",))
DRAFT = ToyTokenizer(["n", "a", "b", "ban", "an", " ", "u"], ("<bos>", "<eos>", "<mark>"), bos="<bos>")
BOS, EOS, MARK = 7, 8, 9


def method(settings: DraftSettings | None = None) -> SLEM:
    return SLEM(Bridge(TARGET.vocabulary, DRAFT.vocabulary), TARGET, DRAFT, settings)


def test_the_drafts_text_is_proposed_in_the_targets_tokens() -> None:
    backend = ScriptedDraft(DRAFT, DRAFT.encode("banan"))
    proposal = propose(method().start(Prompt(tuple(TARGET.encode("u ")))), backend)
    assert proposal.token_ids[:2] == tuple(TARGET.encode("banan"))[:2]
    assert proposal.q is None
    assert proposal.num_draft_tokens == 2
    assert backend.contexts == [[BOS, *DRAFT.encode("u ")]]
    assert backend.asks[0].allowed is None


def test_the_proposal_is_capped_in_target_tokens() -> None:
    backend = ScriptedDraft(DRAFT, DRAFT.encode("b b b"))
    proposer = method().start(Prompt((0,)))
    assert len(propose(proposer, backend, room=2).token_ids) == 2
    assert propose(proposer, backend, room=0).token_ids == ()
    assert len(backend.asks) == 1


def test_an_end_of_the_draft_becomes_the_targets_and_ends_the_proposal() -> None:
    backend = ScriptedDraft(DRAFT, [2, EOS, 2, 2])
    proposal = propose(method().start(Prompt((0,))), backend)
    assert proposal.token_ids == (*TARGET.encode("b"), 7)
    assert proposal.num_draft_tokens == 2


@pytest.mark.parametrize("control", [MARK, BOS])
def test_another_control_token_ends_the_proposal_unproposed(control: int) -> None:
    backend = ScriptedDraft(DRAFT, [2, 5, control, 2])
    assert propose(method().start(Prompt((0,))), backend).token_ids == tuple(TARGET.encode("b "))


def test_the_next_draft_sees_what_was_emitted_and_nothing_that_was_rejected() -> None:
    """Also where the context gets shorter: "u" + "n" and so on merge into what they were not before."""
    backend = ScriptedDraft(DRAFT, DRAFT.encode("nnn"))
    proposer = method().start(Prompt(tuple(TARGET.encode("ub"))))
    text = "ub"
    for step in ["a", "n", "an", "b", "an", "anan"]:
        propose(proposer, backend)
        assert backend.contexts[-1] == [BOS, *DRAFT.encode(text)]
        assert (
            backend.contexts[-1][: backend.asks[-1].stable]
            == backend.contexts[-2:][0][: backend.asks[-1].stable]
        )
        proposer.observe(TARGET.encode(step))
        text += step
    assert any(ask.stable < len(seen) for ask, seen in zip(backend.asks[1:], backend.contexts, strict=False))


@pytest.mark.parametrize("unit", ["a", "\n", "ab", "🙂🙃", "word "])
def test_every_round_drafts_on_repetitive_text(unit: str) -> None:
    target = ToyTokenizer([*(bytes([b]) for b in range(256)), unit * 2, unit * 3])
    draft = ToyTokenizer([unit, *(bytes([b]) for b in range(256)), unit * 4])
    pair = Bridge(target.vocabulary, draft.vocabulary)
    backend = ScriptedDraft(draft, draft.encode(unit * 12))
    proposer = SLEM(pair, target, draft).start(Prompt(tuple(target.encode(unit * 5))))
    text = unit * 5
    for count in (1, 2, 3, 1, 5, 4):
        proposal = propose(proposer, backend)
        proposed = target.vocabulary.bytes_of(proposal.token_ids)
        assert proposed
        assert (unit * 24).encode().startswith(proposed)
        assert backend.contexts[-1] == draft.encode(text)
        proposer.observe(target.encode(unit * count))
        text += unit * count


def test_half_a_character_is_never_proposed() -> None:
    target = ToyTokenizer(["a", "é", b"\xc3", b"\xa9"])
    draft = ToyTokenizer([b"\xa9", "a", b"\xc3"])
    slem = SLEM(Bridge(target.vocabulary, draft.vocabulary), target, draft)
    backend = ScriptedDraft(draft, [1, 2])
    assert propose(slem.start(Prompt((0,))), backend).token_ids == (0,)
    backend = ScriptedDraft(draft, [1, 2, 0, 1])
    assert propose(slem.start(Prompt((0,))), backend).token_ids[:2] == (0, 1)


def test_drafts_are_greedy_unless_a_temperature_is_given() -> None:
    sampled = Prompt((0,), temperature=1.0, noise=KeyedNoise(1))
    for settings, prompt, expected in [
        (DraftSettings(), sampled, 0.0),
        (DraftSettings(draft_temperature=0.7), sampled, 0.7),
        (DraftSettings(draft_temperature=0.7), Prompt((0,)), 0.0),
    ]:
        backend = ScriptedDraft(DRAFT, [2])
        propose(method(settings).start(prompt), backend)
        assert backend.asks[0].temperature == expected
        assert (backend.asks[0].noise is not None) == (expected > 0)


def test_sampled_drafts_name_each_draw_once_and_coupled_ones_by_position() -> None:
    settings = DraftSettings(3, draft_temperature=1.0)
    for noise, positions in [(KeyedNoise(1), [0, 3]), (CoupledNoise(1), [0, 2])]:
        backend = ScriptedDraft(DRAFT, [2])
        proposer = method(settings).start(Prompt((0,), temperature=1.0, noise=noise))
        propose(proposer, backend)
        proposer.observe([0, 1])
        propose(proposer, backend)
        assert [ask.position for ask in backend.asks] == positions


def test_the_drafts_own_rendering_of_a_conversation_stays_in_front() -> None:
    backend = ScriptedDraft(DRAFT, [2])
    proposer = method().start(Prompt(tuple(TARGET.encode("ab")), draft_ids=(BOS, MARK, 1, MARK)))
    proposer.observe(TARGET.encode("n"))
    propose(proposer, backend)
    assert backend.contexts == [[BOS, MARK, 1, MARK, 0]]
