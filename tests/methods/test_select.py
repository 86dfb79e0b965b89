from __future__ import annotations

import pytest

from anydraft.errors import UsageError
from anydraft.methods.base import DraftSettings, Prompt
from anydraft.methods.select import METHODS, make_method
from anydraft.vocab.bridge import Bridge
from tests.methods.scripted import ScriptedDraft, propose
from tests.proof.worlds import ToyTokenizer

SAME = ToyTokenizer(["a", "b", "c", "ab"], ("<eos>",))
OTHER = ToyTokenizer(["b", "ab", "abc", "a"], ("<eos>",))


def make(name: str, draft: ToyTokenizer | None = OTHER, **changes: object):  # type: ignore[no-untyped-def]
    return make_method(
        name,
        target_tokenizer=SAME,
        target_vocab_size=5,
        draft_tokenizer=draft,
        bridge=Bridge(SAME.vocabulary, draft.vocabulary) if draft else None,
        **changes,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("name", ["tli", "slem", "slrs", "lookup"])
def test_methods_by_name(name: str) -> None:
    assert make(name).name == name


def test_standard_and_none() -> None:
    assert make("standard", SAME).name == "standard"
    assert make("none") is None
    assert make("none", None) is None


def test_auto_goes_by_the_pair() -> None:
    assert make("auto", SAME).name == "auto(standard+lookup)"
    assert make("auto", OTHER).name == "auto(slem+lookup)"
    assert make("auto", None).name == "auto(lookup)"


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        make("magic")
    assert "method='magic' is unknown" in str(caught.value)
    assert all(name in str(caught.value) for name in METHODS)


@pytest.mark.parametrize("name", ["standard", "tli", "slem", "slrs"])
def test_a_method_that_needs_a_draft_says_so(name: str) -> None:
    with pytest.raises(UsageError, match=f"method {name} needs a draft model"):
        make(name, None)


def test_the_number_of_speculative_tokens() -> None:
    for given, expected in [(None, 5), (3, 3)]:
        backend = ScriptedDraft(OTHER, [0] * 20)
        propose(make("slem", num_speculative_tokens=given).start(Prompt((0,))), backend)
        assert backend.asks[0].max_tokens == expected
    backend = ScriptedDraft(OTHER, [0] * 20)
    propose(make("tli", settings=DraftSettings(7)).start(Prompt((0,))), backend)
    assert backend.asks[0].max_tokens == 7
    for given, expected in [(None, 10), (2, 2)]:
        lookup = make("lookup", None, num_speculative_tokens=given).start(Prompt((0, 1) * 20))
        assert len(propose(lookup, backend).token_ids) == expected


def test_lookup_ends_at_the_targets_end_token() -> None:
    lookup = make("lookup", None).start(Prompt((0, 1, 4, 2, 0, 1)))
    assert propose(lookup, ScriptedDraft(OTHER, [])).token_ids == (4,)
