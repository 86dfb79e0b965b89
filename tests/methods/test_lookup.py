from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anydraft.errors import UsageError
from anydraft.methods.base import Prompt, Proposal, drive
from anydraft.methods.lookup import Lookup, LookupProposer, NgramIndex


def propose(proposer: LookupProposer, room: int = 100) -> Proposal:
    return drive({0: proposer.propose(room)}, None)[0]


def naive(ids: list[int], least: int, most: int) -> tuple[int, int]:
    for length in range(min(most, len(ids) - 1), least - 1, -1):
        for end in range(len(ids) - 1, length - 1, -1):
            if ids[end - length : end] == ids[len(ids) - length :]:
                return length, end
    return 0, 0


@given(st.lists(st.integers(0, 2), max_size=25), st.integers(1, 3), st.integers(0, 4))
def test_the_longest_match_and_the_newest_of_them(ids: list[int], least: int, more: int) -> None:
    index = NgramIndex(least, least + more)
    for i, token in enumerate(ids):
        index.append([token])
        assert index.longest_match() == naive(ids[: i + 1], least, least + more)


def test_what_followed_is_copied() -> None:
    proposer = Lookup(num_speculative_tokens=4).start(Prompt((1, 2, 3, 4, 5, 6, 9, 1, 2)))
    assert proposer.match_length == 2
    proposal = propose(proposer)
    assert proposal.token_ids == (3, 4, 5, 6)
    assert proposal.source == "lookup"
    assert proposal.q is None
    assert proposal.num_draft_tokens == 0
    assert propose(proposer, room=2).token_ids == (3, 4)
    assert propose(proposer, room=0).token_ids == ()


def test_what_was_emitted_counts_and_what_was_proposed_does_not() -> None:
    proposer = Lookup().start(Prompt((1, 2, 3, 1, 2)))
    assert propose(proposer).token_ids[:1] == (3,)
    proposer.observe([7, 8])
    assert propose(proposer).token_ids == ()
    proposer.observe([1, 2])
    assert propose(proposer).token_ids[:3] == (7, 8, 1)


def test_periodic_text_is_continued_beyond_its_end() -> None:
    """Repetitive text drafts in full each round."""
    ones = Lookup(num_speculative_tokens=10).start(Prompt((5, 1, 1, 1)))
    assert propose(ones).token_ids == (1,) * 10
    pairs = Lookup(num_speculative_tokens=7).start(Prompt((3, 4, 3, 4, 3)))
    assert propose(pairs).token_ids == (4, 3, 4, 3, 4, 3, 4)


def test_nothing_is_copied_behind_an_end_token() -> None:
    proposer = Lookup(stop_ids={0}).start(Prompt((1, 2, 3, 0, 4, 1, 2)))
    assert propose(proposer).token_ids == (3, 0)


def test_no_match_no_proposal() -> None:
    assert propose(Lookup().start(Prompt((1, 2, 3)))).token_ids == ()
    assert propose(Lookup().start(Prompt(()))).token_ids == ()
    assert Lookup().start(Prompt((1, 2, 3, 9, 3))).match_length == 0


@pytest.mark.parametrize(("least", "most"), [(0, 3), (4, 3)])
def test_senseless_ngrams_are_refused(least: int, most: int) -> None:
    with pytest.raises(UsageError, match="lookup needs 1 <= min <= max"):
        Lookup(min_ngram=least, max_ngram=most)
