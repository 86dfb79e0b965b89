"""``anydraft bench``: methods x drafts x batch sizes on the same prompts, the target alone first."""

from __future__ import annotations

import platform
import resource
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch

from anydraft._version import __version__
from anydraft.bench.bench_report import BatchReport, BenchOptions, BenchReport
from anydraft.bench.measure import Configuration, EngineConfiguration, Progress, measure
from anydraft.bench.peers import ASSISTED, Assistant, Peer, TransformersPeer, refuse_wrong_sampling
from anydraft.bench.peers_vllm import VLLM_PEERS, VllmPeer, refuse_vllm_peers
from anydraft.bench.prompts import BenchPrompt
from anydraft.bench.same_output import OutputJudge
from anydraft.engine import Engine
from anydraft.models.load import LoadedModel, load_model, resolve_device
from anydraft.rules.params import SamplingParams

BASELINE = "AR"


def machine_card() -> str:
    """The machine in a line; times mean nothing without it."""
    where = (
        torch.cuda.get_device_name() if torch.cuda.is_available() else f"{torch.get_num_threads()} threads"
    )
    simd = torch.backends.cpu.get_cpu_capability()
    return (
        f"{platform.machine()} {simd}, {where}, Python {platform.python_version()}, torch {torch.__version__}, "
        f"anydraft {__version__}"
    )


def bench(
    options: BenchOptions,
    prompts: Sequence[BenchPrompt],
    params: SamplingParams,
    progress: Progress = lambda line: None,
) -> BenchReport:
    """Load everything once, measure batch size by batch size, then judge the outputs that differ.

    Raises:
        UsageError: a peer that cannot do what is asked, or a prompt that does not fit.
        ModelError, PairError: a model cannot be used.
        AnyDraftError: a peer failed.
    """
    refuse_vllm_peers(options, params, resolve_device(options.device))
    plain = Engine(options.target, method="none", dtype=options.dtype, device=options.device)
    target = plain.pair.target
    engines = {
        draft: Engine(
            target,
            draft,
            dtype=options.dtype,
            device=options.device,
            draft_quantization=options.draft_quantization,  # type: ignore[arg-type]
        )
        for draft in options.drafts
    }
    with _peers(options, params, prompts, target, engines, progress) as peers:
        batches = [
            BatchReport(
                batch_size,
                tuple(p.id for p in prompts),
                measure(
                    _configurations(options, plain, engines, peers, batch_size),
                    prompts,
                    params,
                    batch_size * options.queue,
                    progress,
                ),
                queue=options.queue,
            )
            for batch_size in options.batch_sizes
        ]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if params.greedy:
        judge = OutputJudge(plain, prompts)
        for batch in batches:
            batch.judge(judge)
    return BenchReport(options, params, tuple(p.id for p in prompts), batches, peak, machine_card())


def _configurations(
    options: BenchOptions, plain: Engine, engines: dict[str, Engine], peers: Sequence[Peer], batch_size: int
) -> list[Configuration]:
    """The baseline first."""
    configurations: list[Configuration] = [
        EngineConfiguration(BASELINE, plain.with_method("none", max_num_seqs=batch_size))
    ]
    configurations += [peer for peer in peers if batch_size == 1 or peer.batches]
    for method in options.methods:
        for draft, engine in engines.items() if method != "lookup" else list(engines.items())[:1]:
            configured = engine.with_method(
                method, num_speculative_tokens=options.num_speculative_tokens, max_num_seqs=batch_size
            )
            name = method if method == "lookup" else f"{method} <- {draft}"
            configurations.append(EngineConfiguration(name, configured))
    return configurations


@contextmanager
def _peers(
    options: BenchOptions,
    params: SamplingParams,
    prompts: Sequence[BenchPrompt],
    target: LoadedModel,
    engines: dict[str, Engine],
    progress: Progress,
) -> Iterator[list[Peer]]:
    """The peers that were asked for, in that order; closed at the end, however it comes."""
    assistants = _assistants(options, params, engines) if ASSISTED in options.peers else []
    first = next(iter(engines.values())).pair.draft if engines else None
    peers: list[Peer] = []
    with ExitStack() as stack:
        for kind in options.peers:
            made: list[Peer]
            if kind in VLLM_PEERS:
                progress(f"starting {kind}")
                made = [VllmPeer(kind, options, target, first, prompts, params.max_tokens)]
            elif kind == ASSISTED:
                made = [TransformersPeer(kind, target, assistant) for assistant in assistants or (None,)]
            else:
                made = [TransformersPeer(kind, target)]
            for peer in made:
                stack.callback(peer.close)
            peers += made
        yield peers


def _assistants(options: BenchOptions, params: SamplingParams, engines: dict[str, Engine]) -> list[Assistant]:
    """Every draft once more: what the engines draft with may be quantized, and a peer changes its draft."""
    universal = {draft: not _same_vocabulary(engine) for draft, engine in engines.items()}
    refuse_wrong_sampling(options.peers, params, [draft for draft, other in universal.items() if other])
    return [
        Assistant(draft, load_model(draft, dtype=options.dtype, device=options.device), other)
        for draft, other in universal.items()
    ]


def _same_vocabulary(engine: Engine) -> bool:
    pair = engine.pair
    return (
        pair.bridge is not None
        and pair.bridge.nearly_same
        and pair.draft is not None
        and pair.draft.vocab_size == pair.target.vocab_size
    )
