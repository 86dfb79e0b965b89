"""Costs, acceptance, and what auto decides from them; no model, no clock."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from anydraft.methods.auto import Auto, ProbeBudget
from anydraft.methods.base import Prompt, Proposal, ProposalGenerator
from anydraft.methods.costs import Acceptance, CostModel, DraftWork, expected_tokens
from anydraft.methods.lookup import Lookup


def costs(target: dict[int, float], draft: dict[int, float]) -> CostModel:
    """Each measured often enough to be trusted, the smallest by as many rows that propose nothing."""
    model = CostModel()
    model.num_rows = min(target)
    for n, seconds in [*target.items()] * 3:
        model.observe_target(n, seconds)
    for n, seconds in draft.items():
        model.observe_draft(n, seconds)
    return model


def test_expected_tokens() -> None:
    assert expected_tokens(0, 0.5) == 1
    assert expected_tokens(2, 0.5) == 1.75
    assert expected_tokens(3, 1.0) == 4


def test_times_lie_on_the_line_between_measurements() -> None:
    model = costs({1: 0.10, 5: 0.14}, {1: 0.01})
    assert model.target_time(1) == pytest.approx(0.10)
    assert model.target_time(3) == pytest.approx(0.12)
    assert model.target_time(9) == pytest.approx(0.18)


def test_a_larger_forward_is_never_predicted_to_be_cheaper() -> None:
    assert costs({1: 0.10, 5: 0.05}, {}).target_time(9) == pytest.approx(0.075)


def test_one_noisy_measurement_does_not_set_the_price_of_a_token() -> None:
    model = costs({1: 0.100, 2: 0.102, 4: 0.106, 5: 0.108, 9: 0.116}, {1: 0.01})
    for _ in range(5):
        for n in (1, 2, 4, 5, 9):
            model.observe_target(n, 0.098 + 0.002 * n)
    model.observe_target(5, 0.3)
    assert model.target_time(6) - model.target_time(5) < 0.006


def test_forwards_of_other_batches_say_nothing_of_this_one() -> None:
    model = costs({1: 0.1, 9: 0.1, 64: 6.4}, {})
    assert model.target_time(9) == pytest.approx(0.1)


def test_cheap_drafts_and_flat_targets_draft_long() -> None:
    model = costs({1: 0.1, 9: 0.1}, {1: 0.001})
    length, speedup = model.best_length(8, 0.9, 1, DraftWork())
    assert length == 8
    assert speedup == pytest.approx(expected_tokens(8, 0.9) * 0.1 / 0.108)


def test_a_target_that_pays_for_every_token_turns_drafting_off() -> None:
    model = costs({1: 0.1, 9: 0.9}, {1: 0.02})
    assert model.best_length(8, 0.6, 1, DraftWork())[0] == 0


def test_a_larger_batch_drafts_less() -> None:
    model = costs({1: 0.1, 8: 0.11, 64: 0.8}, {1: 0.01, 8: 0.02})
    assert model.best_length(8, 0.7, 1, DraftWork())[0] > model.best_length(8, 0.7, 8, DraftWork())[0]


def test_a_prompt_that_the_draft_has_yet_to_read_is_paid_by_what_the_request_will_emit() -> None:
    model = costs({1: 0.1, 9: 0.1}, {1: 0.001})
    assert model.reading_a_token(100, 0, None) == 0.0
    model.reading_time, model.tokens_read = 3.0, 200
    for _ in range(300):
        model.observe_output(50)
    assert model.reading_a_token(100, 0, None) == pytest.approx(1.5 / 50, rel=0.01)
    assert model.reading_a_token(100, 0, 10) == pytest.approx(1.5 / 10)
    assert model.reading_a_token(100, 20, None) == pytest.approx(1.5 / 30, rel=0.01)
    model.observe_output(320)
    assert model.reading_a_token(100, 200, None) == pytest.approx(1.5 / 120), (
        "as those that went on so long did"
    )
    assert model.reading_a_token(100, 400, None) == pytest.approx(1.5 / 400), "what went on will go on"
    assert model.reading_a_token(100, 400, 420) == pytest.approx(1.5 / 20)
    tokens = expected_tokens(1, 0.5)
    with_reading = model.speedup(1, 0.5, 1, DraftWork(reading=0.03))
    assert with_reading == pytest.approx(tokens * 0.1 / (0.101 + tokens * 0.03))
    rows = costs({4: 0.1, 8: 0.1}, {4: 0.001})
    with_reading = rows.speedup(1, 0.5, 4, DraftWork(reading=0.01))
    assert with_reading == pytest.approx(tokens * 0.1 / (0.101 + 4 * tokens * 0.01))


def test_short_outputs_do_not_pay_for_reading_the_prompt_but_what_is_read_is_read() -> None:
    auto = Auto(Lookup(), _Drafting())
    auto.costs = costs({1: 0.1, 9: 0.1}, {1: 0.02})
    first = auto.start(Prompt((1, 2, 3)))
    assert step(first).token_ids
    auto.costs.reading_time = 0.7
    for _ in range(50):
        auto.costs.observe_output(4)
    second = auto.start(Prompt((1, 2, 3)))
    assert len(step(second).token_ids) == 3  # a probe
    assert "off" in second.decision
    third = auto.start(Prompt((1, 2, 3)))
    assert step(third).token_ids == (), "probes that read are few, those of one row as well"
    first.observe([9, 8])
    assert len(step(first).token_ids) == 8
    assert auto.costs.tokens_read == 6


def test_a_long_prompt_is_not_read_for_a_few_tokens_even_before_the_draft_was_measured() -> None:
    auto = Auto(Lookup(), _Drafting())
    auto.costs = costs({1: 0.1}, {})
    auto.costs.observe_prompt(1000, 8.0)
    long = auto.start(Prompt(tuple(range(4000)), max_tokens=30))
    assert step(long).token_ids == ()
    assert "off" in long.decision
    assert len(step(auto.start(Prompt(tuple(range(4000)), max_tokens=3))).token_ids) == 0
    assert step(auto.start(Prompt(tuple(range(100)), max_tokens=30))).token_ids


def test_a_long_prompt_is_read_once_its_output_is_long() -> None:
    drafting = _Drafting()
    auto = Auto(Lookup(), drafting)
    auto.costs = costs({1: 0.1, 9: 0.1}, {1: 0.01})
    auto.costs.tokens_read, auto.costs.reading_time = 1000, 1.0
    long = auto.start(Prompt(tuple(range(10000, 14000))))
    emitted = 0
    while not step(long).token_ids:
        emitted += 1
        long.observe([emitted])
    assert 120 < emitted < 140, "4 s of reading; a drafted token takes 0.06 s instead of 0.1, or 0.069"


def test_a_prompt_is_read_only_if_that_pays_where_less_is_accepted_too() -> None:
    """At 0.6, the rate of old, a token takes 0.06 s and its reading 0.035; at 0.5 it takes 0.069 s."""
    for seconds, reads in ((1.75, False), (1.4, True)):
        auto = Auto(Lookup(), _Drafting(), costs=costs({1: 0.1, 9: 0.1}, {1: 0.01}))
        auto.costs.tokens_read, auto.costs.reading_time = 1000, seconds
        proposer = auto.start(Prompt(tuple(range(1000)), max_tokens=50))
        assert auto.costs.best_length(8, 0.6, 1, DraftWork(reading=seconds / 50))[0]
        assert bool(step(proposer).token_ids) is reads
        assert ("off" in proposer.decision) is not reads
    dear = Auto(Lookup(), _Drafting(), costs=costs({1: 0.1, 9: 0.1}, {1: 0.051}))
    assert dear.costs.best_length(8, 0.5, 1, DraftWork())[0] == 0
    proposer = dear.start(Prompt((1, 2, 3)))
    assert step(proposer).token_ids
    assert "off" not in proposer.decision, "nothing to read, nothing to lose"


def test_copies_of_several_rows_are_probed_only_where_they_could_pay() -> None:
    """One of four rows copies: at best the others wait for it no longer than they do alone."""
    repeated = Prompt((1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5))
    for refilled, proposed in ((0.0, 0), (1.0, 3)):
        auto = Auto(Lookup(), _Drafting(), costs=costs({4: 0.1, 12: 0.101}, {4: 1.0}))
        auto.costs.num_rows, auto.costs.refilled = 4, refilled
        auto.copied.observe(100, 0)
        row = auto.start(repeated)
        assert len(step(row).token_ids) == proposed


def test_least_survival_is_the_price_of_one_more_token() -> None:
    model = costs({1: 0.1, 9: 0.1}, {1: 0.02})
    # One step of one token: 0.12 s for 1.5 tokens, a token is worth 0.08 s, another draft costs 0.02 s and is
    # accepted half of the times.
    assert model.least_survival(0.5, 1, 1) == pytest.approx(0.5)


def test_acceptance_follows_the_text() -> None:
    acceptance = Acceptance()
    for _ in range(30):
        acceptance.observe(4, 4)
    assert acceptance.rate > 0.97
    for _ in range(30):
        acceptance.observe(4, 0)
    assert acceptance.rate < 0.5


class _Drafting:
    """Proposes 9, 9, ...; counts."""

    name = "nines"

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.seen: list[list[int]] = []

    def start(self, prompt: Prompt) -> _Drafting:
        return self

    def propose(self, max_target_tokens: int, min_survival: float = 0.0) -> ProposalGenerator:
        self.calls.append(max_target_tokens)
        return Proposal((9,) * max_target_tokens, num_draft_tokens=max_target_tokens)
        yield

    def observe(self, token_ids: Sequence[int]) -> None:
        self.seen.append(list(token_ids))


def step(proposer: object, most: int = 20) -> Proposal:
    generator = proposer.propose(most)  # type: ignore[attr-defined]
    try:
        next(generator)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("asked for draft rows")


def test_the_first_step_measures_the_target_alone() -> None:
    auto = Auto(Lookup(), _Drafting())
    proposer = auto.start(Prompt((1, 2, 3)))
    assert step(proposer).token_ids == ()
    auto.costs.observe_target(1, 0.1)
    assert step(proposer).token_ids == (9,) * 8


def test_a_long_match_is_copied_before_drafting() -> None:
    auto = Auto(Lookup(), _Drafting())
    auto.costs.observe_target(1, 0.1)
    proposer = auto.start(Prompt((1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5)))
    proposal = step(proposer)
    assert proposal.source == "lookup"
    assert proposal.token_ids[:2] == (6, 7)


def test_a_bad_draft_is_turned_off_and_probed_ever_more_seldom() -> None:
    """Case 12."""
    drafting = _Drafting()
    auto = Auto(Lookup(), drafting)
    auto.costs = costs({1: 0.1, 9: 0.2}, {1: 0.02})
    proposer = auto.start(Prompt((1, 2, 3)))
    for i in range(300):
        step(proposer)
        proposer.observe([1000 + i])
    assert len(drafting.calls) < 20
    assert "off" in proposer.decision
    assert set(drafting.calls[-3:]) == {3}


def test_a_good_draft_stays_on() -> None:
    drafting = _Drafting()
    auto = Auto(Lookup(), drafting)
    auto.costs = costs({1: 0.1, 9: 0.11}, {1: 0.005})
    proposer = auto.start(Prompt((1, 2, 3)))
    for i in range(50):
        proposal = step(proposer)
        proposer.observe([*proposal.token_ids, 1000 + i])
    assert len(drafting.calls) >= 45


def run_badly(auto: Auto, steps: int) -> None:
    """A request whose every draft is wrong."""
    proposer = auto.start(Prompt((1, 2, 3)))
    for i in range(steps):
        step(proposer)
        proposer.observe([1000 + i])


def test_a_new_request_begins_with_what_others_learned() -> None:
    drafting = _Drafting()
    auto = Auto(Lookup(), drafting)
    auto.costs = costs({4: 0.1, 36: 0.9}, {4: 0.02})
    auto.costs.num_rows = 4
    run_badly(auto, 1000)
    learned = len(drafting.calls)
    for _ in range(10):
        run_badly(auto, 7)
    assert len(drafting.calls) == learned, "short requests do not try again what did not pay"
    run_badly(auto, 1500)
    assert len(drafting.calls) == learned + 1, "a long one does"
    learned = len(drafting.calls)
    auto.costs = costs({1: 0.1, 9: 0.9}, {1: 0.02})
    run_badly(auto, 7)
    assert len(drafting.calls) == learned + 1, "and one that is alone, whom it costs little"


def test_probes_of_several_rows_take_their_share_of_the_time_and_the_reading_of_prompts_counts() -> None:
    for reading in (0.0, 0.5):
        drafting = _Drafting()
        auto = Auto(Lookup(), drafting)
        auto.costs = costs({4: 0.1, 36: 0.9}, {1: 0.02})
        auto.costs.num_rows = 4
        auto.costs.reading_time, auto.costs.tokens_read = 1e6 * reading, 3 * 10**6
        probe = 0.04 + (0.9 - 0.1) * 2 / 32 + reading  # of 3, 2 and 1 tokens in turn
        for _ in range(1000):
            run_badly(auto, 4)
        seconds = 1000 * 4 * 0.1 / 4
        assert len(drafting.calls) == pytest.approx(1 + 0.004 * seconds / probe, abs=1)
        assert drafting.calls[:4] == [3, 2, 1, 3][: len(drafting.calls)]


def test_the_first_probe_may_be_long_a_few_short_ones_follow_and_then_they_take_their_share() -> None:
    budget = ProbeBudget()
    assert not budget.spend(9.0)
    assert budget.spend(7.9)
    budget = ProbeBudget()
    assert budget.spend(3.0)
    assert [budget.spend(0.2) for _ in range(4)] == [True, True, False, False]
    made = 0
    for _ in range(1000):
        budget.save(1.0)
        made += budget.spend(0.2)
    assert made == pytest.approx(1000 * 0.004 / 0.2, abs=1)
    assert not budget.spend(0.6)


def test_what_was_measured_is_forgotten_whole() -> None:
    model = costs({4: 0.1}, {1: 0.01})
    model.observe_prompt(100, 0.8)
    model.reading_time, model.tokens_read = 3.0, 2
    model.observe_places(1, 1)
    model.clear()
    assert model.refilled == 0.0
    assert model.reading_a_token(100, 0, None) == 0.0
    model.observe_target(1, 0.1)
    assert model.target_time(50) == pytest.approx(0.1)


def test_one_row_of_several_tries_a_draft_whose_price_nobody_knows() -> None:
    drafting = _Drafting()
    auto = Auto(Lookup(), drafting)
    auto.costs = costs({4: 0.1}, {})
    rows = [auto.start(Prompt((1, 2, 3))) for _ in range(4)]
    assert [len(step(row).token_ids) for row in rows] == [3, 0, 0, 0]


def test_several_rows_widen_a_forward_to_twice_the_widest_at_most() -> None:
    model = costs({4: 0.1}, {1: 0.001})
    assert model.best_length(8, 0.9, 4, DraftWork())[0] == 1
    for _ in range(3):
        model.observe_target(8, 0.1)
    assert model.best_length(8, 0.9, 4, DraftWork())[0] == 3
    auto = Auto(Lookup(), _Drafting(), costs=model)
    assert len(step(auto.start(Prompt((1, 2, 3)))).token_ids) == 3


def test_a_forward_wider_than_any_so_far_costs_what_a_token_of_a_prompt_does() -> None:
    model = costs({4: 0.08, 7: 0.08}, {})
    assert model.target_time(12) == pytest.approx(0.08)
    model.observe_prompt(0, 1.0)
    model.observe_prompt(100, 0.8)
    assert model.target_time(7) == pytest.approx(0.08)
    assert model.target_time(12) == pytest.approx(0.08 + 5 * 0.008)
    steep = costs({4: 0.08, 8: 0.16, 12: 0.32}, {})
    steep.observe_prompt(100, 0.8)
    assert steep.target_time(16) == pytest.approx(0.48)


def test_a_forward_narrower_than_any_so_far_lies_on_the_line_to_the_target_alone() -> None:
    model = costs({4: 0.1, 36: 0.9}, {})
    assert model.target_time(4) == pytest.approx(0.1)
    assert model.target_time(20) == pytest.approx(0.5)


def test_more_rows_probe_less_often() -> None:
    calls = []
    for rows in (1, 4):
        drafting = _Drafting()
        auto = Auto(Lookup(), drafting)
        auto.costs = costs({rows: 0.1, 9 * rows: 0.9}, {rows: 0.02})
        auto.costs.num_rows = rows
        run_badly(auto, 250)
        calls.append(len(drafting.calls))
    assert calls[1] < calls[0]


def test_the_cost_of_the_target_alone_stands_for_itself() -> None:
    """Wide, dear forwards must not make the target alone look dear and drafting cheap."""
    model = costs({4: 0.1, 8: 0.5, 12: 0.55, 16: 0.6, 20: 0.65}, {4: 0.001})
    assert model.plain_time(4) == pytest.approx(0.1)
    assert model.best_length(4, 0.7, 4, DraftWork())[0] == 0


def test_tokens_of_one_row_do_not_stand_in_for_rows() -> None:
    """Four tokens of one row took longer than one of each of four does."""
    model = costs({1: 0.1, 4: 0.2, 16: 0.3}, {4: 0.001})
    model.num_rows = 4
    assert model.num_plain() == 0
    for _ in range(3):
        model.observe_target(4, 0.1)
    assert model.num_plain() == 3
    assert model.plain_time(4) == pytest.approx(0.1)
    assert model.plain_time_a_row() == pytest.approx(0.025)


def test_a_draft_that_is_off_follows_the_text_only_when_it_is_asked() -> None:
    drafting = _Drafting()
    auto = Auto(Lookup(), drafting)
    auto.costs = costs({1: 0.1, 9: 0.9}, {1: 0.02})
    proposer = auto.start(Prompt((1, 2, 3)))
    emitted = []
    for i in range(200):
        emitted.append(1000 + i)
        step(proposer)
        proposer.observe(emitted[-1:])
    asked, seen = len(drafting.calls), [i for ids in drafting.seen for i in ids]
    assert 0 < asked < 10
    assert seen == emitted[: len(seen)], "in order, nothing twice"
    assert len(seen) > 50
    assert len(drafting.seen) <= 2 * asked


def test_several_rows_want_more_than_a_break_even() -> None:
    many, one = costs({4: 0.1, 8: 0.135}, {}), costs({1: 0.1, 2: 0.135}, {})
    many.num_rows = 4
    assert 1.0 < many.speedup(1, 0.4, 4, None) < 1.05
    assert many.best_length(1, 0.4, 4, None)[0] == 0
    assert one.best_length(1, 0.4, 1, None)[0] == 1


def test_the_more_rows_the_more_has_to_be_won() -> None:
    choices = {}
    for rows in (1, 2, 4, 16):
        model = costs({rows: 0.1, 2 * rows: 0.128}, {})
        assert model.speedup(1, 0.6, rows, None) == pytest.approx(1.25)
        choices[rows] = model.best_length(1, 0.6, rows, None)[0]
    assert choices == {1: 1, 2: 1, 4: 0, 16: 0}
    sure = costs({16: 0.1, 48: 0.11}, {})
    assert sure.speedup(2, 0.6, 16, None) == pytest.approx(1.96 / 1.1)
    assert sure.best_length(2, 0.6, 16, None)[0] == 2, "1.78 is enough for any number of rows"


def test_rows_whose_places_are_taken_again_want_little_more_than_a_break_even() -> None:
    model = costs({4: 0.1, 8: 0.128}, {})
    model.observe_places(0, 3)
    assert model.best_length(1, 0.6, 4, None)[0] == 0, "rows that came in took nobody's place"
    for _ in range(12):
        model.observe_places(2, 2)
    assert model.best_length(1, 0.6, 4, None) == (1, pytest.approx(1.25))
    assert model.best_length(1, 0.38, 4, None)[0] == 0, "1.08 is too little even so"
    for _ in range(12):
        model.observe_places(2, 0)
    assert model.best_length(1, 0.6, 4, None)[0] == 0
    half = costs({4: 0.1, 8: 0.128}, {})
    for _ in range(40):
        half.observe_places(2, 1)
    assert half.refilled == pytest.approx(0.5, abs=0.05)


def test_what_some_rows_propose_is_judged_by_what_it_does_to_all() -> None:
    model = costs({4: 0.1, 8: 0.12, 20: 0.3}, {})
    # Three rows of 0.12 s a token and one of 0.12 / 5, over four of 0.1.
    assert model.speedup(4, 1.0, 4, None, 1.0) == pytest.approx(4 * 0.1 / (3 * 0.12 + 0.12 / 5))
    assert model.speedup(1, 1.0, 4, None, 4.0) == pytest.approx(2 * 0.1 / 0.12)
    # Two rows of two tokens: 2 x 0.12 and 2 x 0.12 / 3.
    assert model.speedup(2, 1.0, 4, None, 2.0) == pytest.approx(4 * 0.1 / (2 * 0.12 + 2 * 0.12 / 3))


def test_one_row_of_several_copies_where_most_do() -> None:
    repeated = Prompt((1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5))
    lengths = {}
    for prompt in (Prompt((1, 2, 3)), repeated):
        auto = Auto(Lookup(), _Drafting(), costs=costs({4: 0.1, 20: 0.11}, {4: 1.0}))
        auto.probes.spend(8.0)
        auto.costs.num_rows = 4
        auto.copied.observe(200, 200)
        others, row = [auto.start(prompt) for _ in range(3)], auto.start(repeated)
        for _ in range(40):
            for other in others:
                step(other)
            lengths[prompt] = len(step(row).token_ids)
    assert lengths == {Prompt((1, 2, 3)): 0, repeated: 9}


def test_a_good_row_among_bad_ones_does_not_draft_for_all_to_pay() -> None:
    drafting = _Drafting()
    auto = Auto(Lookup(), drafting, costs=costs({1: 0.1, 4: 0.1, 36: 0.11}, {1: 0.001, 4: 0.001}))
    auto.costs.num_rows = 4
    for _ in range(3):
        auto.costs.observe_target(4, 0.1)
    auto.probes.spend(8.0)
    good = auto.start(Prompt((1, 2, 3)))
    assert step(good).token_ids == (9,) * 8
    for _ in range(400):
        auto.drafted["nines", False].observe(3, 0)
    assert step(good).token_ids == ()
    auto.costs.num_rows = 1
    step(good)
    assert "drafting" in good.decision and "off" not in good.decision, "alone it has only itself to hold up"


def test_more_tokens_of_several_rows_are_never_taken_for_cheaper_than_none() -> None:
    """Two rows took longer than four tokens do."""
    model = costs({2: 0.14, 4: 0.1, 6: 0.1}, {})
    assert model.speedup(1, 0.0, 2, None) == pytest.approx(1.0)
    assert model.least_survival(0.5, 2, 1) == pytest.approx(0.0)


def test_sampled_drafts_do_not_lower_what_greedy_requests_expect() -> None:
    auto = Auto(Lookup(), _Drafting(), costs=costs({1: 0.1, 9: 0.11}, {1: 0.005}))
    sampled = auto.start(Prompt((1, 2, 3), temperature=1.0))
    before = auto.drafted["nines", False].rate
    for i in range(40):
        step(sampled)
        sampled.observe([1000 + i])
    assert auto.drafted["nines", True].rate < 0.2
    assert auto.drafted["nines", False].rate == before


def test_several_rows_measure_the_target_alone_more_than_once() -> None:
    auto = Auto(Lookup(), _Drafting())
    auto.costs.num_rows = 4
    auto.costs.observe_draft(4, 0.001)
    proposer = auto.start(Prompt((1, 2, 3)))
    for _ in range(3):
        assert not step(proposer).token_ids
        proposer.observe([7])
        auto.costs.observe_target(4, 0.1)
    auto.costs.observe_target(8, 0.1)
    assert step(proposer).token_ids


def test_rows_are_judged_by_steps_of_as_many_rows() -> None:
    model = CostModel()
    for num_rows, seconds in ((2, 0.16), (3, 0.13), (4, 0.1)):
        model.num_rows = num_rows
        for _ in range(20):
            model.observe_target(num_rows, seconds)
    assert model.plain_time(4) < 0.11 < 0.12 < model.plain_time(3) < 0.14
    assert model.plain_time_a_row() == model.plain_time(4) / 4
