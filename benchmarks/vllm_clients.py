"""OpenAI clients against ``vllm serve`` with the plugin: streams, eight at once, aborts; what is left then.

    python benchmarks/vllm_clients.py [--target NAME] [--draft NAME]

Starts a server, runs rounds of clients of which some walk away in the middle of their stream, compares what the
others read with the same requests one at a time, and reads the server's log: requests that the plugin
remembers must come down again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from openai import AsyncOpenAI

from anydraft.bench.prompts import packaged_prompts
from anydraft.models.locate import locate

PORT = 8791
CONCURRENT = 8


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="smollm2-135m-instruct")
    parser.add_argument("--draft", default="gemma-3-270m")
    parser.add_argument("--method", default="slem")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=48)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        server = start(options, log)
        try:
            wait(server, log)
            asyncio.run(clients(options))
            time.sleep(3)
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(timeout=60)
        lines = re.findall(r"AnyDraft metrics: .*", log.read_text())
    remembered = [int(found) for found in re.findall(r"Requests: (\d+)", "\n".join(lines))]
    print(f"requests remembered, line by line: {remembered}")
    print(lines[-1] if lines else "no line of the plugin in the log")
    print(f"server ended with {server.returncode}")


def start(options: argparse.Namespace, log: Path) -> subprocess.Popen[bytes]:
    speculative = {
        "method": "custom_class",
        "model": "anydraft.plugins.vllm.AnyDraftProposer",
        "num_speculative_tokens": 4,
    }
    plugin = {"anydraft": {"draft": options.draft, "method": options.method, "log_interval": 2}}
    arguments = {
        "--port": str(PORT),
        "--served-model-name": "target",
        "--dtype": "float32",
        "--max-model-len": "512",
        "--max-num-seqs": str(CONCURRENT),
        "--speculative-config": json.dumps(speculative),
        "--additional-config": json.dumps(plugin),
    }
    command = ["vllm", "serve", str(locate(options.target)), "--enforce-eager"]
    command += [word for pair in arguments.items() for word in pair]
    print(" ".join(command), file=sys.stderr)
    return subprocess.Popen(command, stdout=log.open("wb"), stderr=subprocess.STDOUT, start_new_session=True)


def wait(server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        if server.poll() is not None:
            raise SystemExit(f"the server ended: {log.read_text()[-3000:]}")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=2)
            return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise SystemExit(f"the server did not start: {log.read_text()[-3000:]}")


async def clients(options: argparse.Namespace) -> None:
    client = AsyncOpenAI(base_url=f"http://127.0.0.1:{PORT}/v1", api_key="none")
    prompts = [p.text[:300] for p in packaged_prompts(CONCURRENT)]

    async def ask(prompt: str, stop_after: int | None = None) -> str:
        stream = await client.completions.create(
            model="target", prompt=prompt, max_tokens=options.max_tokens, temperature=0, stream=True
        )
        text = ""
        count = 0
        async for chunk in stream:
            text += chunk.choices[0].text if chunk.choices else ""
            count += 1
            if count == stop_after:
                await stream.close()
                break
        return text

    alone = [await asyncio.wait_for(ask(prompt), 60) for prompt in prompts]
    wrong = aborted = 0
    started = time.perf_counter()
    for round_ in range(options.rounds):
        leaving = {i for i in range(CONCURRENT) if (i + round_) % 3 == 0}
        texts = await asyncio.wait_for(
            asyncio.gather(
                *(ask(p, 1 + (i + round_) % 5 if i in leaving else None) for i, p in enumerate(prompts))
            ),
            120,
        )
        aborted += len(leaving)
        wrong += sum(texts[i] != alone[i] for i in range(CONCURRENT) if i not in leaving)
        wrong += sum(not alone[i].startswith(texts[i]) for i in leaving)
    seconds = time.perf_counter() - started
    print(
        f"{options.rounds} rounds of {CONCURRENT} streams in {seconds:.1f} s, {aborted} left early, {wrong} wrong texts"
    )
    for _ in range(12):  # the plugin learns of the end of requests in the steps of others
        await ask("One more.")


if __name__ == "__main__":
    main()
