"""What auto drafts with in sampled requests: by measured acceptance and costs, never where a seed must reproduce."""

from __future__ import annotations

import pytest

from anydraft.methods import winners
from anydraft.methods.auto import Auto
from anydraft.methods.base import Method, Prompt
from anydraft.methods.costs import CostModel
from anydraft.methods.select import make_method
from anydraft.methods.slem import SLEMProposer
from anydraft.methods.slrs import SLRSProposer
from anydraft.methods.winners import Drafting, choose_sampled
from anydraft.rules.noise import CoupledNoise, KeyedNoise, Noise
from anydraft.vocab.bridge import Bridge
from tests.proof.worlds import ToyTokenizer

Patch = pytest.MonkeyPatch
SHIPPED = winners.CANDIDATES

PLAIN = Drafting("slem", 0.0, 1.0, {0.5: 0.8, 1.0: 0.6})
CLEVER = Drafting("slrs", 0.7, 3.0, {0.5: 0.81, 1.0: 0.7})


@pytest.fixture(autouse=True)
def two_candidates(monkeypatch: Patch) -> None:
    monkeypatch.setattr(winners, "CANDIDATES", (PLAIN, CLEVER))


def costs(draft: float) -> CostModel:
    """A target whose forward takes 0.1 s, whatever its width."""
    model = CostModel()
    for n in (1, 9):
        model.observe_target(n, 0.1)
    model.observe_draft(1, draft)
    return model


def test_a_cheap_draft_may_work_harder_and_a_dear_one_may_not() -> None:
    assert choose_sampled(1.0, 0.5, costs(0.0005), 8) is CLEVER
    assert choose_sampled(1.0, 0.5, costs(0.03), 8) is PLAIN


def test_a_gain_within_the_margin_changes_nothing() -> None:
    assert choose_sampled(0.5, 0.5, costs(0.0001), 8) is PLAIN


def test_nothing_known_nothing_chosen() -> None:
    assert choose_sampled(1.0, 0.5, CostModel(), 8) is PLAIN
    assert choose_sampled(1.0, 0.05, costs(0.0005), 8) is PLAIN


def test_acceptance_between_and_beyond_the_measured_temperatures() -> None:
    assert PLAIN.acceptance_at(0.75) == pytest.approx(0.7)
    assert PLAIN.acceptance_at(0.5) == 0.8
    assert PLAIN.acceptance_at(0.2) == 0.8
    assert PLAIN.acceptance_at(1.6) == 0.6


def test_what_is_shipped_can_be_made() -> None:
    for one in SHIPPED:
        assert make(one.method).name == one.method
        assert all(0.0 < a < 1.0 for a in one.acceptance.values())
    assert SHIPPED[0].draft_temperature == 0.0  # so that it serves requests that must reproduce


TARGET = ToyTokenizer(["a", "b", "c", "ab"], ("<eos>",))
DRAFT = ToyTokenizer(["b", "ab", "abc", "a"], ("<eos>",))


def make(name: str) -> Method:
    method = make_method(
        name,
        target_tokenizer=TARGET,
        target_vocab_size=5,
        draft_tokenizer=DRAFT,
        bridge=Bridge(TARGET.vocabulary, DRAFT.vocabulary),
        costs=costs(0.0005),
    )
    assert method is not None
    return method


def auto() -> Auto:
    method = make("auto")
    assert isinstance(method, Auto)
    return method


def drafting(method: Auto, noise: Noise | None, **changes: object) -> object:
    prompt = Prompt((0, 1), noise=noise, **{"temperature": 1.0, **changes})  # type: ignore[arg-type]
    return method.start(prompt)._drafting


def test_a_free_sampled_request_drafts_with_the_winner_at_its_temperature() -> None:
    method = auto()
    chosen = drafting(method, KeyedNoise(1))
    assert isinstance(chosen, SLRSProposer)
    assert chosen._temperature == 0.7
    again = drafting(method, KeyedNoise(2))
    assert isinstance(again, SLRSProposer)
    assert again._method is chosen._method


@pytest.mark.parametrize(
    ("noise", "changes"),
    [
        (KeyedNoise(1), {"temperature": 0.0}),
        (None, {}),
        (KeyedNoise(1), {"draft_temperature": 0.0}),
        (KeyedNoise(1), {"draft_temperature": 0.7}),
        (CoupledNoise(1), {}),
    ],
    ids=["greedy", "no noise", "seeded", "a draft temperature asked for", "coupled"],
)
def test_every_other_request_drafts_with_the_pairs_method(
    noise: Noise | None, changes: dict[str, object]
) -> None:
    assert isinstance(drafting(auto(), noise, **changes), SLEMProposer)


def test_a_dear_draft_leaves_sampled_requests_as_they_were() -> None:
    method = auto()
    method.costs.clear()
    assert isinstance(drafting(method, KeyedNoise(1)), SLEMProposer)
