"""Real models, float32, greedy: AnyDraft's output is that of Transformers' own ``generate``, id by id."""

from __future__ import annotations

import pytest
import torch

from anydraft.bench.prompts import packaged_prompts
from anydraft.engine import Engine
from anydraft.models.load import LoadedModel, load_model
from anydraft.rules.params import SamplingParams

NUM_PROMPTS = 20
MAX_TOKENS = 12
PROMPTS = [p.text[:160] for p in packaged_prompts(NUM_PROMPTS)]
"""Their beginnings: the time goes into generating, not into reading."""
PAIRS = {"smollm2<-gemma3": ("smollm2", "gemma3"), "gemma3<-smollm2": ("gemma3", "smollm2")}


_known: dict[str, list[list[int]]] = {}


@torch.inference_mode()
def transformers_outputs(target: LoadedModel) -> list[list[int]]:
    if target.name in _known:
        return _known[target.name]
    outputs = _known.setdefault(target.name, [])
    for prompt in PROMPTS:
        ids = target.hf_tokenizer(prompt, return_tensors="pt").input_ids
        out = target.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=MAX_TOKENS, do_sample=False, num_beams=1
        )
        outputs.append(out[0, ids.shape[1] :].tolist())
    return outputs


@pytest.fixture(params=PAIRS, scope="module")
def pair(request: pytest.FixtureRequest) -> tuple[LoadedModel, LoadedModel]:
    target, draft = PAIRS[request.param]
    # A draft may have any precision: the target's is what "identical in float32" speaks of.
    drafting = load_model(request.getfixturevalue(draft).name, dtype="bfloat16")
    return request.getfixturevalue(target), drafting


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("method", ["tli", "slem", "lookup"])
def test_greedy_is_transformers_own(
    pair: tuple[LoadedModel, LoadedModel], method: str, batch_size: int
) -> None:
    target, draft = pair
    engine = Engine(target, draft, method=method, max_num_seqs=batch_size)
    results = engine.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=MAX_TOKENS))
    assert [list(r.token_ids) for r in results] == transformers_outputs(target)
    assert sum(r.stats.num_accepted_tokens for r in results) > 0


def test_the_draft_never_sees_a_second_bos(gemma3: LoadedModel, smollm2: LoadedModel) -> None:
    """Case 2, with the real Gemma as draft: after any number of steps one BOS, at the start."""
    engine = Engine(smollm2, gemma3, method="slem", max_num_seqs=1)
    backend = engine.pair.backend
    assert backend is not None
    contexts: list[list[int]] = []
    answer = backend.answer

    def spy(asks):  # type: ignore[no-untyped-def]
        contexts.extend(list(ask.context) for ask in asks.values())
        return answer(asks)

    backend.answer = spy  # type: ignore[method-assign]
    engine.generate(PROMPTS[1], SamplingParams(temperature=0, max_tokens=12))
    bos = gemma3.hf_tokenizer.bos_token_id
    assert len(contexts) > 2
    assert all(context[0] == bos and context.count(bos) == 1 for context in contexts)
