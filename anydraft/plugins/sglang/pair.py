"""The two vocabularies of a server's models, read without their weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from anydraft.models import load
from anydraft.models.describe import ModelInfo, describe_model
from anydraft.plugins.loadable import refuse_unloadable
from anydraft.vocab.bridge import Bridge
from anydraft.vocab.readers import read_tokenizer
from anydraft.vocab.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class Pair:
    """A target and a draft before their weights are loaded.

    Attributes:
        target, draft: their tokenizers.
        info: what else is known of the draft.
        bridge: between the vocabularies.
        target_context: positions that the target was made for; None where its config does not say.
    """

    target: Tokenizer
    draft: Tokenizer
    info: ModelInfo
    bridge: Bridge
    target_context: int | None


def read_pair(args: Any) -> Pair:
    """Read the pair that SGLang's arguments name.

    Raises:
        ModelError: the draft is missing, without weights, multimodal or cannot be rolled back, or a tokenizer cannot be
            read.
    """
    draft = str(args.speculative_draft_model_path)
    info = describe_model(draft)
    refuse_unloadable(draft)
    drafts = read_tokenizer(info.hf_tokenizer, stop_ids=info.stop_ids)
    target, context = _read_target(str(args.model_path), str(args.tokenizer_path or args.model_path))
    return Pair(target, drafts, info, Bridge(target.vocabulary, drafts.vocabulary), context)


def _read_target(model: str, tokenizer: str) -> tuple[Tokenizer, int | None]:
    """Of whatever SGLang can run: that the target's state can be rolled back is SGLang's own concern."""
    from transformers import AutoConfig, GenerationConfig

    hf_tokenizer = load.load_tokenizer(tokenizer, tokenizer, local=Path(tokenizer).is_dir())
    found: dict[str, Any] = {}
    for name, read in (("config", AutoConfig), ("generation_config", GenerationConfig)):
        try:
            found[name] = load.local_first(read.from_pretrained, model, local=Path(model).is_dir())
        except (OSError, ValueError):
            found[name] = None  # no such file, or a config of code that is not Transformers'
    if (config := found["config"]) is None:
        found["config"] = SimpleNamespace(get_text_config=SimpleNamespace)
    stops = load.stop_ids(SimpleNamespace(**found), hf_tokenizer)
    context = None if config is None else load.max_context(config.get_text_config())
    return read_tokenizer(hf_tokenizer, stop_ids=stops), context
