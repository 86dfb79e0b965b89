"""``anydraft models``: the packaged models."""

from __future__ import annotations

from anydraft.cli.options import JsonReport


def models(json: JsonReport = False) -> None:
    """List the packaged models and whether they are in the cache."""
    from anydraft.bench.markdown import table
    from anydraft.cli.output import print_json, print_text
    from anydraft.models.cache import gigabytes
    from anydraft.models.download import is_cached, model_folder
    from anydraft.models.packaged import PACKAGED

    if json:
        print_json(
            {
                "models": [
                    {
                        "name": m.name,
                        "title": m.title,
                        "parameters": m.parameters,
                        "vocab_size": m.vocab_size,
                        "quantization": m.quantization,
                        "download_bytes": m.download_size,
                        "licence": m.licence,
                        "cached": is_cached(m),
                        "folder": str(model_folder(m)) if is_cached(m) else None,
                    }
                    for m in PACKAGED.values()
                ]
            }
        )
        return
    header = ("name", "parameters", "vocabulary", "weights", "download", "licence", "cached")
    rows = [
        (
            m.name,
            f"{m.parameters / 1e6:,.0f} M",
            f"{m.vocab_size:,}",
            f"GGUF {m.quantization}",
            gigabytes(m.download_size),
            m.licence,
            "yes" if is_cached(m) else "no",
        )
        for m in PACKAGED.values()
    ]
    print_text(table(header, rows))
