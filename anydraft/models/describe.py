"""A model's tokenizer and config, without its weights."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from anydraft.errors import ModelError
from anydraft.models import load
from anydraft.models.architecture import refuse_unsupported
from anydraft.models.convert import read_config
from anydraft.models.gguf_file import GGUFFile, read_gguf
from anydraft.models.gguf_tokenizer import build_tokenizer, stop_token_ids
from anydraft.models.locate import check_folder, locate

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelInfo:
    """What can be known of a model without loading it.

    Attributes:
        name: as the user gave it.
        hf_tokenizer: its tokenizer.
        architecture: such as "qwen2" (``model_type``).
        stop_ids: ids that end a generation, from the generation config, the config and the tokenizer.
        max_context: positions that it was made for.
        vocab_size: rows of the LM head; may exceed the tokenizer's ids.
        num_parameters: tied ones once; None where they cannot be counted.
    """

    name: str
    hf_tokenizer: Any
    architecture: str
    stop_ids: frozenset[int]
    max_context: int
    vocab_size: int
    num_parameters: int | None


def describe_model(source: str | Path) -> ModelInfo:
    """Describe the model that ``source`` names.

    Args:
        source: as for :func:`~anydraft.models.load.load_model`, but no object. A GGUF file is not
            converted, a folder may be without weights, and of a hub model the small files are fetched only.

    Raises:
        ModelError: it is missing, damaged, or of a kind that cannot be served.
    """
    path = Path(source).expanduser()
    if path.suffix == ".gguf" or path.is_file():
        return _from_gguf(read_gguf(path), str(source))
    return _from_folder(locate(source), str(source))


def _from_folder(folder: Path | str, name: str) -> ModelInfo:
    """``folder`` is a Path, or a str for a hub id."""
    local = isinstance(folder, Path)
    config = load.load_config(str(folder), name, local=local)
    if isinstance(folder, Path):
        check_folder(folder, name, weights=False)
    tokenizer = load.load_tokenizer(str(folder), name, local=local)
    generation = _generation_config(str(folder), local=local)
    text = config.get_text_config()
    vocab_size = getattr(text, "vocab_size", None)
    if not isinstance(vocab_size, int) or vocab_size < 1:
        raise ModelError(f"the config of {name} states no vocab_size; use the model's own config.json")
    return ModelInfo(
        name=name,
        hf_tokenizer=tokenizer,
        architecture=str(text.model_type),
        stop_ids=load.stop_ids(SimpleNamespace(generation_config=generation, config=config), tokenizer),
        max_context=load.max_context(text),
        vocab_size=vocab_size,
        num_parameters=count_parameters(config),
    )


def count_parameters(config: Any) -> int | None:
    """Parameters of the causal language model of ``config``, tied ones once; None if it cannot be built."""
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except Exception as error:  # an architecture's own code may raise anything
        logger.info("the parameters of a %s cannot be counted: %s", config.model_type, error)
        return None
    return sum(p.numel() for p in model.parameters())


def _generation_config(folder: str, *, local: bool) -> Any:
    from transformers import GenerationConfig

    try:
        return load.local_first(GenerationConfig.from_pretrained, folder, local=local)
    except OSError:
        return None  # a model need not have one


def _from_gguf(gguf: GGUFFile, name: str) -> ModelInfo:
    refuse_unsupported(_gguf_kind(gguf), name)
    rows = next((t.shape[-1] for t in gguf.tensors if t.name == "token_embd.weight"), None)
    if rows is None:
        raise ModelError(f"{name} holds no token_embd.weight (a vocabulary only?); give a file with weights")
    context = gguf.metadata.get(f"{gguf.architecture}.context_length")
    return ModelInfo(
        name=name,
        hf_tokenizer=build_tokenizer(gguf.metadata),
        architecture=gguf.architecture,
        stop_ids=frozenset(stop_token_ids(gguf.metadata)),
        max_context=load.max_context(SimpleNamespace(max_position_embeddings=context)),
        vocab_size=rows,
        num_parameters=sum(prod(t.shape) for t in gguf.tensors),
    )


def _gguf_kind(gguf: GGUFFile) -> Any:
    """A config of the file's architecture: its defaults, as Transformers needs a minute to read the file's."""
    from transformers import CONFIG_MAPPING

    kind = gguf.architecture.replace("-", "_")
    return CONFIG_MAPPING[kind]() if kind in CONFIG_MAPPING else read_config(gguf)
