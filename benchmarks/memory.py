"""Memory: what a process takes beside the bytes of the weights and of the keys and values.

    python benchmarks/memory.py [--only NAME ...] [--out memory.json]

The target alone and with each draft, each in a process of its own: after the libraries are loaded, after the models
are, and after 64 tokens at batch 1 and at batch 8; and, as "conversion", the making of the target's folder from its
GGUF file, which happens once. Results are kept in ``--out``; the table shows all that are there.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from own_process import in_process, read, tell

from anydraft.bench.markdown import table

TARGET = "qwen2.5-coder-1.5b-instruct"
DRAFTS = {
    "alone": None,
    "<- SmolLM2-135M": "smollm2-135m-instruct",
    "<- Gemma-3-270M": "gemma-3-270m",
    "<- Qwen2.5-Coder-0.5B": "qwen2.5-coder-0.5b-instruct",
}
CONVERSION = "conversion"
BATCHES = (1, 8)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[*DRAFTS, CONVERSION], metavar="NAME")
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("memory.json"))
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        if options.measure == CONVERSION:
            tell(convert(options.target))
        else:
            tell(measure(options.target, DRAFTS[options.measure], options.max_tokens))
        return
    for name in options.only:
        results = read(options.out)
        results[name] = in_process(__file__, name, os.environ)
        options.out.write_text(json.dumps(results))
    print(report(read(options.out)))


def measure(target: str, draft: str | None, max_tokens: int) -> dict[str, Any]:
    """Bytes of everything, in the order in which it comes."""
    import torch
    import transformers.modeling_utils

    from anydraft.bench.prompts import packaged_prompts
    from anydraft.bench.serve_all import serve_all
    from anydraft.engine import Engine
    from anydraft.models.kv import SlotCache
    from anydraft.models.native import NativeCache
    from anydraft.rules.params import SamplingParams

    transformers.AutoModelForCausalLM  # noqa: B018 (imported at the first use)
    torch.ones(64, 64, dtype=torch.bfloat16) @ torch.ones(64, 64, dtype=torch.bfloat16)
    gc.collect()
    libraries = status()
    kept = vocabularies([target] if draft is None else [target, draft])
    gc.collect()
    result: dict[str, Any] = {
        "libraries": libraries,
        "vocabularies": status()["now"] - libraries["now"],
    }
    del kept  # the engine makes its own, where these were
    gc.collect()
    engine = Engine(target, draft, dtype="bfloat16", max_num_seqs=max(BATCHES))
    gc.collect()
    own = weights(engine.pair.target.model)
    everything = weights(*alive(torch.nn.Module))
    result |= {
        "loaded": status(),
        "target_weights": sum(own.values()),
        "draft_weights": sum(everything.values()) - sum(own.values()),
        "batches": {},
    }
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    for size in BATCHES:
        forget_peak()
        prompts = packaged_prompts(size)
        serve_all(engine, prompts, [params] * size)
        gc.collect()
        result["batches"][str(size)] = status() | {
            "kv": sum(c.num_bytes for c in alive(NativeCache, SlotCache))
        }
    return result


def vocabularies(names: Sequence[str]) -> Any:
    """The tokenizers of one or two models, the bytes of their tokens, and the bridge between them."""
    from anydraft.models.load import load_tokenizer
    from anydraft.models.locate import locate
    from anydraft.vocab.bridge import Bridge
    from anydraft.vocab.readers import read_tokenizer

    read = [read_tokenizer(load_tokenizer(str(locate(name)), name, local=True)) for name in names]
    return read, Bridge(*(tokenizer.vocabulary for tokenizer in read)) if len(read) == 2 else None


def convert(target: str) -> dict[str, Any]:
    """Of a packaged model, into a folder that is thrown away."""
    import torch  # noqa: F401 (a library like the others)
    import transformers  # noqa: F401

    from anydraft.models.convert import convert_gguf
    from anydraft.models.locate import locate

    (gguf,) = Path(locate(target)).parent.glob("*.gguf")
    libraries = status()
    with tempfile.TemporaryDirectory() as folder:
        convert_gguf(gguf, Path(folder) / "made")
    return {"libraries": libraries, "converted": status(), "gguf": gguf.stat().st_size}


def weights(*modules: Any) -> dict[int, int]:
    """Bytes of all parameters and buffers by their address: what is shared (a tied head) is counted once."""
    found: dict[int, int] = {}
    for module in modules:
        for tensor in (*module.parameters(), *module.buffers()):
            found[tensor.data_ptr()] = max(found.get(tensor.data_ptr(), 0), tensor.nbytes)
    return found


def alive(*kinds: type) -> list[Any]:
    """All objects of these classes in the process, so that a copy that nobody thinks of is counted too."""
    return [o for o in gc.get_objects() if issubclass(type(o), kinds)]


def status() -> dict[str, int]:
    """Bytes that are resident now, those of files among them, and the peak since :func:`forget_peak`."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    names = {"now": "VmRSS", "files": "RssFile", "peak": "VmHWM"}
    return {name: 1024 * int(lines[key].split()[0]) for name, key in names.items()}


def forget_peak() -> None:
    """The peak is what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def report(results: dict[str, Any]) -> str:
    """MB (a million bytes) throughout."""
    headers = [
        "configuration",
        "libraries",
        "vocabularies",
        "weights: target",
        "draft",
        "sum",
        "loaded",
        "peak of the load",
        *(f"batch {b}: {what}" for b in BATCHES for what in ("keys and values", "then", "peak", "over")),
    ]
    rows = []
    for name, r in results.items():
        if name == CONVERSION:
            continue
        parts = [r["libraries"]["now"], r["vocabularies"], r["target_weights"], r["draft_weights"]]
        sizes = [*parts, sum(parts), r["loaded"]["now"], r["loaded"]["peak"]]
        for batch in map(str, BATCHES):
            b = r["batches"][batch]
            sizes += [b["kv"], b["now"], b["peak"], b["peak"] - sum(parts) - b["kv"]]
        rows.append((name, *(f"{size / 1e6:,.0f}" for size in sizes)))
    shown = [table(headers, rows, "l" + "r" * (len(headers) - 1))] if rows else []
    if made := results.get(CONVERSION):
        shown.append(
            f"Conversion of a GGUF file of {made['gguf'] / 1e6:,.0f} MB: peak {made['converted']['peak'] / 1e6:,.0f} MB"
        )
    return "\n\n".join(shown)


if __name__ == "__main__":
    main()
