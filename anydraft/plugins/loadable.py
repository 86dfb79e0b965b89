"""What a host would find out about a draft only once the target is loaded."""

from __future__ import annotations

from pathlib import Path

from anydraft.errors import ModelError
from anydraft.models.load import load_config
from anydraft.models.locate import check_folder, locate


def refuse_unloadable(draft: str) -> None:
    """Refuse a draft without weights, or a model of more than text.

    Raises:
        ModelError: saying which.
    """
    folder = locate(draft)
    local = isinstance(folder, Path)
    config = load_config(str(folder), draft, local=local)
    if isinstance(folder, Path):
        check_folder(folder, draft)
    if config.get_text_config() is not config:
        raise ModelError(f"the draft {draft} is multimodal; give a text-only model")
