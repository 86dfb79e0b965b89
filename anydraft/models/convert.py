"""GGUF file -> a plain Transformers folder: dequantized safetensors, an exact tokenizer, end tokens.

Transformers' own reader dequantizes the tensors (so every architecture that it knows works) and this
module mends what that reader loses: the pre-tokenizer, the tied embeddings and the end tokens.
"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from anydraft.errors import ModelError
from anydraft.models.architecture import refuse_unsupported
from anydraft.models.gguf_file import GGUFFile, read_gguf
from anydraft.models.gguf_rope import restore_rope_scaling
from anydraft.models.gguf_tokenizer import build_tokenizer, stop_token_ids

logger = logging.getLogger(__name__)

TIED_DIFFERENCE = 0.2
"""Two quantizations of one matrix differ by at most about 0.1 of its norm; unrelated ones by about 1.4."""

_F32, _F16 = 0, 1


def convert_gguf(source: str | Path, folder: Path) -> None:
    """Convert the GGUF file ``source`` into ``folder``, which appears only when it is complete.

    Raises:
        ModelError: a damaged file, an architecture that Transformers' reader does not know, or one that
            cannot be served losslessly.
        TokenizerError: a tokenizer that cannot be rebuilt exactly.
    """
    gguf = read_gguf(source)
    config = read_config(gguf)
    refuse_unsupported(config, str(gguf.path))
    tokenizer = build_tokenizer(gguf.metadata)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        with _failures_named(gguf.path), _quiet():
            model = _dequantized(gguf, config)
            tie_if_equal(model)
            _set_generation_ids(model, gguf)
            model.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
        del model
        gc.collect()
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@torch.no_grad()
def tie_if_equal(model: Any) -> bool:
    """Share one matrix between embedding and LM head where the file stores two quantizations of one.

    The LM head's, the finer of the two in practice, is kept. Returns whether they were tied here.
    """
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head is None or head.weight is embedding.weight or head.weight.shape != embedding.weight.shape:
        return False
    if getattr(head, "bias", None) is not None:
        return False
    difference = norm = 0.0
    for a, b in zip(embedding.weight.split(8192), head.weight.split(8192), strict=True):
        difference += float((a.float() - b.float()).pow(2).sum())
        norm += float(b.float().pow(2).sum())
    if difference > TIED_DIFFERENCE**2 * norm:
        return False
    embedding.weight = head.weight
    model.config.tie_word_embeddings = True
    return True


def read_config(gguf: GGUFFile) -> Any:
    """The config of a GGUF file as Transformers reads it, which takes it up to a minute.

    Raises:
        ModelError: an architecture that its reader does not know.
    """
    from transformers import AutoConfig

    with _failures_named(gguf.path):
        config = AutoConfig.from_pretrained(gguf.path.parent, gguf_file=gguf.path.name, local_files_only=True)
        restore_rope_scaling(config, gguf)
        return config


def _dequantized(gguf: GGUFFile, config: Any) -> Any:
    import transformers

    options: dict[str, Any] = {
        "config": config,
        "gguf_file": gguf.path.name,
        "dtype": _storage_dtype(gguf),
        "local_files_only": True,
    }
    # Transformers before 5.20 always dequantizes; later versions must be told to.
    if hasattr(transformers, "GgufConfig"):
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(gguf.path.parent, **options)
    for part in (model, model.config):
        for name in ("quantization_config", "hf_quantizer", "is_quantized", "quantization_method"):
            if name in vars(part):
                delattr(part, name)
    vars(model.config).pop("_model_name_or_path", None)
    return model


def _storage_dtype(gguf: GGUFFile) -> torch.dtype:
    """The float type of the largest tensor; bfloat16 where it is quantized."""
    largest = max(gguf.tensors, key=lambda t: t.nbytes, default=None)
    if largest is None:
        raise ModelError(f"{gguf.path} holds no tensors (a vocabulary only?); give a file with weights")
    return {_F32: torch.float32, _F16: torch.float16}.get(largest.ggml_type, torch.bfloat16)


def _set_generation_ids(model: Any, gguf: GGUFFile) -> None:
    stops = stop_token_ids(gguf.metadata)
    model.generation_config._from_model_config = False
    if stops:
        model.generation_config.eos_token_id = stops if len(stops) > 1 else stops[0]


@contextlib.contextmanager
def _failures_named(path: Path) -> Iterator[None]:
    """What Transformers' reader raises, as one line that names the file."""
    try:
        yield
    except ModelError:
        raise
    except MemoryError:
        raise ModelError(
            f"not enough memory to convert {path}; close other programs or use a smaller model"
        ) from None
    except Exception as error:  # its readers raise ValueError, KeyError, NotImplementedError and more
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"Transformers cannot read {path}: {reason[0]}; use another model") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the reader's progress bars, which cannot be switched off one by one."""
    with contextlib.redirect_stderr(io.StringIO()):
        yield
