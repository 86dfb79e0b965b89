"""Many streams at once against a server, with clients that leave: is every text right, is anything left behind?

    python benchmarks/serve_load.py [--target TARGET --draft DRAFT] [--dtype D] [--streams 32] [--seconds 120]

Starts ``anydraft serve`` and keeps so many streams open for so long, of which one in four leaves somewhere in the
middle; in turns with the same load under ``method: "none"``, for half the time. Every finished text is compared
with what the target alone gives for its prompt (greedy, one request at a time, before the load). Rows and the server's
resident memory are read before, between and after. Prints a Markdown table; exits with 1 if a text was wrong or a row
was left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from anydraft.bench.markdown import table

TOPICS = ["the tides", "a binary search", "bread", "a mutex"]
FORMS = [
    "In two sentences, {} can be explained like this:",
    "A short poem about {}:\n\n",
    "Five facts about {}:\n1.",
]


@dataclass(frozen=True)
class Ask:
    prompt: str
    max_tokens: int

    def body(self, model: str, method: str | None) -> dict[str, Any]:
        return {
            "model": model,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "speculative": {"method": method, "return_tokens": True} if method else {"return_tokens": True},
        }


ASKS = [Ask(form.format(topic), 24 + 12 * (i % 4)) for i, topic in enumerate(TOPICS) for form in FORMS]


@dataclass
class Count:
    """What one phase of the load did."""

    name: str
    finished: int = 0
    left: int = 0
    wrong: list[str] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    steps: int = 0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


@contextmanager
def serving(options: argparse.Namespace) -> Iterator[tuple[int, str]]:
    """(process id, URL) of a server of its own."""
    command = [sys.executable, "-m", "anydraft", "serve", options.target, "--draft", options.draft]
    command += ["--port", "0", "--json", "--dtype", options.dtype, "--method", options.method]
    command += ["--max-num-seqs", str(options.max_num_seqs), "--shutdown-timeout", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        told = process.stdout.readline()
        if not told:
            sys.exit("the server did not start")
        yield process.pid, json.loads(told)["url"]
    finally:
        process.terminate()
        process.wait(timeout=30)


def resident_mb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) // 1024
    return 0


async def gauge(client: httpx.AsyncClient, name: str) -> float:
    text = (await client.get("/metrics")).text
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"{name}{{"))


async def stream(
    client: httpx.AsyncClient, body: dict[str, Any], count: Count, leave_after: int | None
) -> str | None:
    """The text of one stream; None where it left. Tokens are counted as they come."""
    text, told = "", {"num_tokens": 0, "num_steps": 0}
    async with client.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            for choice in event["choices"]:
                text += choice["text"]
                new = choice.get("speculative", told)
                count.tokens += new["num_tokens"] - told["num_tokens"]
                count.steps += new["num_steps"] - told["num_steps"]
                told = new
            if leave_after is not None and told["num_tokens"] >= leave_after:
                return None
    return text


async def load(
    client: httpx.AsyncClient,
    model: str,
    expected: dict[Ask, str],
    options: argparse.Namespace,
    count: Count,
    method: str | None,
    seconds: float,
) -> None:
    """Keep the streams busy for so long; what still runs then leaves."""
    generator = random.Random(count.name)

    async def one_client() -> None:
        while True:
            ask = generator.choice(ASKS)
            leave = generator.randrange(1, ask.max_tokens) if generator.random() < options.leaving else None
            text = await stream(client, ask.body(model, method), count, leave)
            if text is None:
                count.left += 1
            else:
                count.finished += 1
                if text != expected[ask]:
                    count.wrong.append(ask.prompt)

    started = time.monotonic()
    clients = [asyncio.create_task(one_client()) for _ in range(options.streams)]
    done, running = await asyncio.wait(clients, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    count.seconds = time.monotonic() - started
    for client_task in running:
        client_task.cancel()
    await asyncio.wait(clients)
    for client_task in done:
        client_task.result()
    count.left += len(running)


async def run(pid: int, url: str, options: argparse.Namespace) -> bool:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        expected: dict[Ask, str] = {}
        scratch = Count("alone")
        for ask in ASKS:
            text = await stream(client, ask.body(model, "none"), scratch, None)
            assert text is not None
            expected[ask] = text
        memory = [resident_mb(pid)]
        warm_up = Count("warm-up")
        await load(client, model, expected, options, warm_up, None, options.seconds / 8)
        memory.append(resident_mb(pid))
        phases = []
        # Halves in turn, so that a machine that gets busy favours neither.
        for half in (1, 2):
            for name, method, share in (("with drafts", None, 1.0), ("method none", "none", 0.5)):
                count = Count(f"{name}, part {half}")
                await load(client, model, expected, options, count, method, share * options.seconds / 2)
                phases.append(count)
                memory.append(resident_mb(pid))
                print(f"{count.name}: {count.rate:.1f} tok/s", file=sys.stderr, flush=True)
        await asyncio.sleep(1)
        rows = await gauge(client, "vllm:num_requests_running") + await gauge(
            client, "vllm:num_requests_waiting"
        )
        failures = await gauge(client, "anydraft:step_failures_total")
    print(
        table(
            ["phase", "seconds", "finished", "left", "wrong texts", "tokens", "tok/s", "tokens a step"],
            [
                (
                    c.name,
                    f"{c.seconds:.0f}",
                    str(c.finished),
                    str(c.left),
                    str(len(c.wrong)),
                    str(c.tokens),
                    f"{c.rate:.1f}",
                    f"{c.tokens / max(c.steps, 1):.2f}",
                )
                for c in (warm_up, *phases)
            ],
            "lrrrrrrr",
        )
    )
    drafted = sum(c.tokens for c in phases[::2]) / sum(c.seconds for c in phases[::2])
    plain = sum(c.tokens for c in phases[1::2]) / sum(c.seconds for c in phases[1::2])
    print(
        f"\nThroughput with drafts over that of the target alone under the same load: {drafted / plain:.2f}."
    )
    print(f"Rows left: {rows:.0f}. Steps that failed: {failures:.0f}.")
    print(
        f"Resident memory before, after the warm-up and after each phase, MB: {', '.join(map(str, memory))}."
    )
    return not rows and not failures and not any(c.wrong for c in (warm_up, *phases))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--target", default="gemma-3-270m")
    parser.add_argument("--draft", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--method", default="auto", help="of the streams with drafts")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=120, help="of load with drafts")
    parser.add_argument("--leaving", type=float, default=0.25, help="share of the streams that leave")
    parser.add_argument("--max-num-seqs", type=int, default=16)
    options = parser.parse_args()
    with serving(options) as (pid, url):
        good = asyncio.run(run(pid, url, options))
    sys.exit(not good)


if __name__ == "__main__":
    main()
