"""One way to name a model (folder, hub id, GGUF file, packaged name or object), one way it comes back."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from anydraft.errors import ModelError, UsageError
from anydraft.kernels import available
from anydraft.models.architecture import refuse_stateful, refuse_unsupported
from anydraft.models.cache import gigabytes
from anydraft.models.locate import check_config, check_folder, locate
from anydraft.models.packaged import PACKAGED

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_DEFAULT_CONTEXT = 4096


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run.

    Attributes:
        model: the Transformers module, in evaluation mode.
        hf_tokenizer: its tokenizer.
        config: its config (of the text part, where there are several).
        name: how it was named.
        stop_ids: ids that end a generation, from the generation config, the config and the tokenizer.
        max_context: positions that it was made for.
        vocab_size: rows of the LM head; may exceed the tokenizer's ids.
        dtype: of the weights.
        device: of the weights.
        borrowed: whether the caller gave the objects; then not even a layer may be replaced.
    """

    model: Any
    hf_tokenizer: Any
    config: Any
    name: str
    stop_ids: frozenset[int]
    max_context: int
    vocab_size: int
    dtype: torch.dtype
    device: torch.device
    borrowed: bool = False


def resolve_device(device: str | torch.device | None = None) -> torch.device:
    """``device``, or the GPU where there is one, else the CPU."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError:
        raise UsageError(f"device={device!r} is not a device; give cpu, cuda or cuda:N") from None
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device={device!r} was asked for, but torch sees no GPU; use device='cpu'")
    return resolved


def resolve_dtype(
    dtype: str | torch.dtype | None = None, device: str | torch.device | None = None
) -> tuple[torch.dtype, str]:
    """The dtype to load weights in, and why.

    None or ``"auto"`` chooses: bfloat16 on a GPU, on a CPU that computes in it, and where the C kernels are; else
    float32.
    """
    if isinstance(dtype, torch.dtype):
        if dtype in DTYPES.values():
            return dtype, "asked for"
    elif dtype in DTYPES:
        return DTYPES[dtype], "asked for"
    elif dtype in (None, "auto"):
        if resolve_device(device).type != "cpu":
            return torch.bfloat16, "the device computes in bfloat16"
        if _cpu_has_bf16():
            return torch.bfloat16, "the processor has bfloat16 instructions"
        if available():
            return torch.bfloat16, "the C kernels compute with bfloat16 weights"
        return torch.float32, "the processor has no bfloat16 instructions and there are no C kernels"
    raise UsageError(f"dtype={dtype!r} is not known; give one of auto, {', '.join(DTYPES)}")


def load_model(
    source: Any,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
) -> LoadedModel:
    """Load a model and its tokenizer.

    Args:
        source: the name of a packaged model (pulled when missing), a local folder, a ``.gguf`` file, a hub
            id, a ``(model, tokenizer)`` pair, or a LoadedModel. Objects are used as they are: their dtype
            and device stay.
        dtype, device: see :func:`resolve_dtype` and :func:`resolve_device`.

    Raises:
        ModelError: it is missing, damaged, of a kind that cannot be served, or too large for the memory.
        UsageError: ``dtype`` or ``device`` make no sense.
    """
    if isinstance(source, LoadedModel):
        return replace(source, borrowed=True)  # whoever loaded it may use it again
    if isinstance(source, tuple):
        return _from_objects(source)
    if not isinstance(source, (str, Path)) or not str(source):
        raise UsageError(
            f"a model is named by a folder, hub id, GGUF file, packaged name or (model, tokenizer), not {source!r:.80}"
        )
    where = resolve_device(device)
    chosen, reason = resolve_dtype(dtype, where)
    logger.info("%s: loading in %s on %s (%s)", source, chosen, where, reason)
    folder = locate(source)
    return _from_pretrained(str(folder), str(source), chosen, where, local=isinstance(folder, Path))


def load_config(folder: str, name: str, *, local: bool) -> Any:
    """The config of a folder or (not ``local``) hub id that the user called ``name``, of a kind that can be
    served."""
    from transformers import AutoConfig

    if local:
        check_config(Path(folder), name)
    try:
        config = local_first(AutoConfig.from_pretrained, folder, local=local)
    except Exception as error:
        raise _missing(name, error, local=local) from error
    refuse_unsupported(config, name)
    return config


def load_tokenizer(folder: str, name: str, *, local: bool) -> Any:
    """The tokenizer of a folder or (not ``local``) hub id that the user called ``name``."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        if local and _is_plain_fast(Path(folder)):
            # By its file alone: the class that AutoTokenizer picks by model type may rebuild the pre-tokenizer.
            return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        return local_first(AutoTokenizer.from_pretrained, folder, local=local)
    except Exception as error:
        raise ModelError(f"the tokenizer of {name} cannot be loaded: {_first_line(error)}") from error


def _from_pretrained(
    folder: str, name: str, dtype: torch.dtype, device: torch.device, *, local: bool
) -> LoadedModel:
    from transformers import AutoModelForCausalLM

    config = load_config(folder, name, local=local)
    if local:
        check_folder(Path(folder), name)
        _require_memory(Path(folder), config, dtype, device, name)
    tokenizer = load_tokenizer(folder, name, local=local)
    options: dict[str, Any] = {"config": config, "dtype": dtype}
    if device.type != "cpu":
        options["device_map"] = {"": device}
    try:
        with _bars_on_terminals_only():
            model = local_first(AutoModelForCausalLM.from_pretrained, folder, local=local, **options)
    except Exception as error:
        if _is_memory_error(error):
            raise ModelError(
                f"{name} does not fit into memory in {str(dtype).removeprefix('torch.')}; use a smaller model or "
                "dtype, or another device"
            ) from error
        raise ModelError(f"{name} cannot be loaded: {_first_line(error)}") from error
    refuse_stateful(model, name)
    return _describe(model.eval(), tokenizer, name)


def _from_objects(pair: tuple[Any, ...]) -> LoadedModel:
    if (
        len(pair) != 2
        or not isinstance(pair[0], torch.nn.Module)
        or not callable(getattr(pair[1], "decode", None))
    ):
        raise UsageError(
            "a ready model is given as (model, tokenizer): a Transformers causal language model and its tokenizer"
        )
    model, tokenizer = pair
    name = getattr(model.config, "_name_or_path", "") or type(model).__name__
    if model.training:
        raise UsageError(f"{name} is in training mode; call model.eval() first (it is not changed here)")
    if model.get_output_embeddings() is None:
        raise ModelError(f"{name} ({type(model).__name__}) has no LM head; load it with AutoModelForCausalLM")
    refuse_unsupported(model.config, name)
    refuse_stateful(model, name)
    return _describe(model, tokenizer, name, borrowed=True)


def _describe(model: Any, tokenizer: Any, name: str, *, borrowed: bool = False) -> LoadedModel:
    weight = model.get_output_embeddings().weight
    text = model.config.get_text_config()
    return LoadedModel(
        model=model,
        hf_tokenizer=tokenizer,
        config=text,
        name=name,
        stop_ids=stop_ids(model, tokenizer),
        max_context=max_context(text),
        vocab_size=int(weight.shape[0]),
        dtype=weight.dtype,
        device=weight.device,
        borrowed=borrowed,
    )


def stop_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """The generation config decides; the config and the tokenizer add what they declare."""
    found: set[int] = set()
    for source in (getattr(model, "generation_config", None), model.config.get_text_config(), tokenizer):
        value = getattr(source, "eos_token_id", None)
        found |= set(value if isinstance(value, (list, tuple)) else [value]) - {None}
    return frozenset(int(i) for i in found)


def max_context(config: Any) -> int:
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        if isinstance(value := getattr(config, name, None), int) and value > 0:
            return value
    logger.warning("the config states no context length; %d is assumed", _DEFAULT_CONTEXT)
    return _DEFAULT_CONTEXT


def _is_plain_fast(folder: Path) -> bool:
    """Whether the tokenizer config asks for no class of its own."""
    config = folder / "tokenizer_config.json"
    if not config.is_file() or not (folder / "tokenizer.json").is_file():
        return False
    wanted = json.loads(config.read_text(encoding="utf-8")).get("tokenizer_class")
    return wanted in ("PreTrainedTokenizerFast", "TokenizersBackend")


def local_first(load: Any, folder: str, *, local: bool, **options: Any) -> Any:
    """Load without network if the files are here; a hub id that is not cached may use it."""
    try:
        return load(folder, local_files_only=True, **options)
    except OSError:
        if local:
            raise
        return load(folder, **options)


def _missing(name: str, error: Exception, *, local: bool) -> ModelError:
    if local:
        return ModelError(f"{name} is not a model that Transformers knows: {_first_line(error)}")
    return ModelError(
        f"{name} is neither a local folder or GGUF file, nor a packaged model ({', '.join(PACKAGED)}), nor a hub "
        f"model that can be had: {_first_line(error)}"
    )


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0].rstrip(".:")


def _require_memory(folder: Path, config: Any, dtype: torch.dtype, device: torch.device, name: str) -> None:
    """Refuse before the kernel kills the process: weights larger than what is free."""
    stored = getattr(config, "dtype", None) or torch.float32
    on_disk = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    need = on_disk * dtype.itemsize // getattr(torch, str(stored).removeprefix("torch.")).itemsize
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _free_memory()
    if free is not None and need > free:
        raise ModelError(
            f"{name} needs {gigabytes(need)} of memory in {str(dtype).removeprefix('torch.')}, {gigabytes(free)} "
            "are free; use a smaller model or dtype, or close other programs"
        )


def _free_memory() -> int | None:
    """Bytes of RAM that can be had without swapping; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None


@contextlib.contextmanager
def _bars_on_terminals_only() -> Iterator[None]:
    """Transformers' progress bars fill a log file with one line a step."""
    from transformers.utils import logging as their_logging

    if sys.stderr.isatty() or not their_logging.is_progress_bar_enabled():
        yield
        return
    their_logging.disable_progress_bar()
    try:
        yield
    finally:
        their_logging.enable_progress_bar()


def _is_memory_error(error: Exception) -> bool:
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and "allocate memory" in str(error)
    )


def _cpu_has_bf16() -> bool:
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return bool(torch.backends.mkldnn.is_available() and supported is not None and supported())
