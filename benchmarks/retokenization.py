"""Time of retokenization a step, both ways, against the length of the context. Prints a Markdown table.

    python benchmarks/retokenization.py

A step is what a string method pays each time around: the target's new tokens (three on average) are
appended to the draft's context, and five drafted tokens are translated to target tokens. Tokenizers of the
packaged models; the text is code, prose and other scripts, repeated to the length asked for. Processor time
of the process, so that what else the machine does is left out.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable

from transformers import AutoTokenizer

from anydraft.models.download import pull
from anydraft.models.packaged import packaged_model
from anydraft.vocab.bridge import Bridge
from anydraft.vocab.readers import read_tokenizer
from anydraft.vocab.retokenize import DraftContext
from anydraft.vocab.tokenizer import Tokenizer
from anydraft.vocab.translate import Translator

QWEN, SMOLLM2, GEMMA = "qwen2.5-coder-1.5b-instruct", "smollm2-135m-instruct", "gemma-3-270m"
PAIRS = [(QWEN, SMOLLM2), (SMOLLM2, QWEN), (QWEN, GEMMA), (GEMMA, QWEN)]
CONTEXTS = [100, 1_000, 10_000, 100_000]
TEXT = (
    "def moving_average(values: list[float], size: int) -> list[float]:\n"
    '    """Mean of every window of ``size`` values."""\n'
    "    if size <= 0 or size > len(values):\n"
    '        raise ValueError(f"size must be in 1..{len(values)}, not {size}")\n'
    "    return [sum(values[i : i + size]) / size for i in range(len(values) - size + 1)]\n\n\n"
    "The tide comes in twice a day, about fifty minutes later each time, because the moon has moved on "
    "while the earth turned. In 1687 Newton explained why there are two: one below the moon, one opposite.\n\n"
    "Die Flut kommt zweimal am Tag – „pünktlich“ wie der Mond. Прилив бывает дважды в сутки. "
    "潮は一日に二度満ちる。 潮汐每天两次，约晚五十分钟。 😀🌊🌊\n\n"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    steps = parser.parse_args().steps
    tokenizers = {name: _load(name) for name in (QWEN, SMOLLM2, GEMMA)}
    print(
        "| target <- draft | context, tokens | to the draft, µs: median | p95 | to the target, µs: median | p95 |"
    )
    print("|---|---|---|---|---|---|")
    for target, draft in PAIRS:
        for context in CONTEXTS:
            times = _measure(tokenizers[target], tokenizers[draft], context, steps)
            cells = " | ".join(f"{m:.0f} | {p:.0f}" for m, p in map(_summary, times))
            print(f"| {target} <- {draft} | {context:,} | {cells} |", flush=True)


def _load(name: str) -> Tokenizer:
    return read_tokenizer(AutoTokenizer.from_pretrained(pull(packaged_model(name))))


def _measure(target: Tokenizer, draft: Tokenizer, length: int, steps: int) -> tuple[list[float], list[float]]:
    """Seconds of each step, to the draft and to the target."""
    bridge = Bridge(target.vocabulary, draft.vocabulary)
    once = target.encode(TEXT)
    ids = list(itertools.islice(itertools.cycle(once), length + 5 * steps + 8))
    ends = itertools.accumulate(itertools.islice(itertools.cycle([3, 1, 4, 5, 2, 3]), steps), initial=length)
    context = DraftContext(draft, bridge, [b for b in [draft.vocabulary.bos_id] if b is not None])
    context.append(ids[:length])
    translator = Translator(target, draft.vocabulary, bridge)
    to_draft, to_target = [], []
    for start, end in itertools.pairwise(ends):
        new = ids[start:end]
        _timed(to_draft, lambda new=new: context.append(new))
        following = target.vocabulary.bytes_of(ids[end : end + 8]).decode(errors="ignore")
        drafted = draft.encode_continuation(following)[:5]
        known = ids[max(0, end - 8) : end]
        _timed(to_target, lambda known=known, drafted=drafted: translator.translate(known, drafted))
    return to_draft, to_target


def _timed(seconds: list[float], call: Callable[[], object]) -> None:
    start = time.process_time()
    call()
    seconds.append(time.process_time() - start)


def _summary(seconds: list[float]) -> tuple[float, float]:
    """Median and 95th percentile in microseconds."""
    return statistics.median(seconds) * 1e6, statistics.quantiles(seconds, n=20)[-1] * 1e6


if __name__ == "__main__":
    main()
