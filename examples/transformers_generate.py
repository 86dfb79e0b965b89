"""Transformers' own `generate`, sped up by a draft of any vocabulary (docs/transformers.md).

    python examples/transformers_generate.py [TARGET DRAFT]

Models are named by packaged name (the default; fetched when missing), folder or hub id.
"""

from __future__ import annotations

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

import anydraft.hf
from anydraft.models.locate import locate

TARGET, DRAFT = "qwen2.5-coder-1.5b-instruct", "smollm2-135m-instruct"


def main() -> None:
    target, draft = sys.argv[1:] or (TARGET, DRAFT)
    folder = locate(target)  # only packaged names need this; from_pretrained takes the others as they are
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    drafter = anydraft.hf.speculative(draft, tokenizer=tokenizer)
    inputs = tokenizer("def fib(n):", return_tensors="pt", return_token_type_ids=False)
    output = model.generate(**inputs, max_new_tokens=32, do_sample=False, custom_generate=drafter)
    print(tokenizer.decode(output[0], skip_special_tokens=True))
    print(f"{drafter.stats.acceptance_length:.2f} tokens a target call")


if __name__ == "__main__":
    main()
