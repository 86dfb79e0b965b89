"""What Prometheus reads, under vLLM's names where it has them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from anydraft.engine.outputs import Delta, RequestStats
from anydraft.server.worker import Job

_LATENCY = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
_FIRST_TOKEN = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)


@dataclass
class _Seen:
    """Counts of a running request that are in the counters already."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    has_token: bool = False


class Metrics:
    """Counters of one server; an :class:`~anydraft.server.worker.Observer`.

    Args:
        model_name: the label of all of them.
        kv_cache_bytes: tells how many bytes keys and values take now.
    """

    def __init__(self, model_name: str, kv_cache_bytes: Any) -> None:
        self._registry = CollectorRegistry()
        self._seen: dict[Job, _Seen] = {}

        def make(kind: Any, name: str, text: str, labels: tuple[str, ...] = (), **options: Any) -> Any:
            metric = kind(name, text, ("model_name", *labels), registry=self._registry, **options)
            return metric if labels else metric.labels(model_name)

        self._model_name = model_name
        self._running = make(Gauge, "vllm:num_requests_running", "Requests that have a row.")
        self._waiting = make(Gauge, "vllm:num_requests_waiting", "Requests that wait for a row.")
        self._prompt = make(Counter, "vllm:prompt_tokens", "Prompt tokens read.")
        self._generated = make(Counter, "vllm:generation_tokens", "Tokens generated.")
        self._drafts = make(Counter, "vllm:spec_decode_num_drafts", "Steps that proposed something.")
        self._proposed = make(Counter, "vllm:spec_decode_num_draft_tokens", "Tokens proposed.")
        self._accepted = make(Counter, "vllm:spec_decode_num_accepted_tokens", "Proposed tokens accepted.")
        self._per_position = make(
            Counter,
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Proposed tokens accepted, by their position in the proposal.",
            ("position",),
        )
        self._finished = make(
            Counter, "vllm:request_success", "Requests that ended, by finish reason.", ("finished_reason",)
        )
        self._latency = make(
            Histogram,
            "vllm:e2e_request_latency_seconds",
            "From a request's arrival to its last token.",
            buckets=_LATENCY,
        )
        self._first_token = make(
            Histogram,
            "vllm:time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            buckets=_FIRST_TOKEN,
        )
        self._failures = make(Counter, "anydraft:step_failures", "Steps of the engine that failed.")
        make(Gauge, "anydraft:kv_cache_bytes", "Bytes of the target's keys and values.").set_function(
            kv_cache_bytes
        )

    def on_delta(self, job: Job, delta: Delta) -> None:
        seen = self._seen.setdefault(job, _Seen())
        now = time.perf_counter()
        if delta.token_ids and not seen.has_token:
            seen.has_token = True
            self._prompt.inc(len(job.prompt.target_ids))
            self._first_token.observe(now - job.arrived)
        self._generated.inc(len(delta.token_ids))
        self._count_drafts(seen, delta.stats)
        if delta.result is not None:
            del self._seen[job]
            self._finished.labels(self._model_name, delta.result.finish_reason).inc()
            self._latency.observe(now - job.arrived)

    def _count_drafts(self, seen: _Seen, stats: RequestStats) -> None:
        self._drafts.inc(stats.num_drafts - seen.num_drafts)
        self._proposed.inc(stats.num_draft_tokens - seen.num_draft_tokens)
        self._accepted.inc(stats.num_accepted_tokens - seen.num_accepted_tokens)
        before = seen.accepted_per_position
        for position, count in enumerate(stats.accepted_per_position):
            new = count - (before[position] if position < len(before) else 0)
            if new:
                self._per_position.labels(self._model_name, str(position)).inc(new)
        seen.num_drafts = stats.num_drafts
        seen.num_draft_tokens = stats.num_draft_tokens
        seen.num_accepted_tokens = stats.num_accepted_tokens
        seen.accepted_per_position = list(stats.accepted_per_position)

    def on_rows(self, running: int, waiting: int) -> None:
        self._running.set(running)
        self._waiting.set(waiting)

    def on_failure(self) -> None:
        self._failures.inc()
        self._seen.clear()

    def render(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)
