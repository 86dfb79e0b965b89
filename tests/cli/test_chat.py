"""anydraft chat: the conversation, its terminal, and the command."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anydraft.cli.chat_loop import ChatLoop, printable
from anydraft.cli.conversation import Conversation, describe
from anydraft.engine import Engine
from anydraft.errors import PairError, UsageError
from anydraft.rules.params import SamplingParams
from tests import tiny

PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(tiny.llama(), tiny.gemma3(), method="slem", dtype="float32", max_num_seqs=1)


@pytest.fixture
def conversation(engine: Engine) -> Conversation:
    return Conversation(engine, PARAMS)


def ask(conversation: Conversation, text: str, interrupted: Callable[[], bool] = lambda: False) -> str:
    return "".join(p.text for pieces in conversation.ask(text, interrupted) for p in pieces)


def test_answers_see_what_was_said_before(engine: Engine) -> None:
    conversation = Conversation(engine, PARAMS, system="Be brief.")
    first, second = ask(conversation, "fox?"), ask(conversation, "and a dog?")
    alone = Engine(tiny.llama(), method="none", dtype="float32")
    messages = [{"role": "system", "content": "Be brief."}]
    for question, answer in (("fox?", first), ("and a dog?", second)):
        messages.append({"role": "user", "content": question})
        assert alone.generate(messages=[messages], sampling_params=PARAMS)[0].text == answer
        messages.append({"role": "assistant", "content": answer})
    assert conversation.messages == messages
    assert [turn.num_tokens for turn in conversation.turns] == [12, 12]
    assert conversation.total().num_tokens == 24
    conversation.reset()
    assert conversation.messages == messages[:1]
    assert ask(conversation, "fox?") == first


def test_an_interrupted_answer_stays_and_the_chat_goes_on(engine: Engine, conversation: Conversation) -> None:
    steps = iter([False, False, True])
    said = ask(conversation, "fox?", lambda: next(steps))
    assert conversation.turns[0].finish_reason == "interrupted"
    assert conversation.turns[0].stats.num_steps == 3
    assert "interrupted" in describe(conversation.turns[0])
    assert conversation.messages[-1] == {"role": "assistant", "content": said}
    assert not engine.core.has_unfinished
    assert ask(conversation, "go on")


def test_the_method_changes_from_answer_to_answer(conversation: Conversation) -> None:
    texts = []
    for name, count in (("none", None), ("tli", 3), ("slem", None), ("auto", 2)):
        conversation.use_method(name, count)
        texts.append(ask(conversation, "fox?"))
        assert conversation.turns[-1].stats.method.partition("(")[0] == name
        conversation.messages.clear()
    assert len(set(texts)) == 1
    for name, count, error in (
        ("magic", None, UsageError),
        ("standard", None, PairError),
        ("slem", 0, UsageError),
    ):
        with pytest.raises(error):
            conversation.use_method(name, count)
    assert conversation.method == "auto 2"


def test_a_conversation_that_is_too_long_keeps_its_past(conversation: Conversation) -> None:
    ask(conversation, "fox?")
    before = list(conversation.messages)
    with pytest.raises(UsageError, match="256"):
        ask(conversation, "fox " * 400)
    assert conversation.messages == before
    assert len(conversation.turns) == 1


def test_a_seed_counts_on(engine: Engine) -> None:
    params = replace(PARAMS, temperature=1.0, seed=5)
    texts = []
    for _ in range(2):
        conversation = Conversation(engine, params)
        texts.append((ask(conversation, "fox?"), ask(conversation, "fox?")))
    assert texts[0] == texts[1]


def test_a_target_that_cannot_chat() -> None:
    model, tokenizer = tiny.llama()
    import copy

    silent = copy.copy(tokenizer)
    silent.chat_template = None
    with pytest.raises(UsageError, match="chat template"):
        Conversation(Engine((model, silent), method="none", dtype="float32"), PARAMS)


def type_lines(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_lines_without_a_terminal(
    conversation: Conversation,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    path = tmp_path / "chat.json"
    type_lines(
        monkeypatch,
        "fox?",
        "",
        "/method none",
        "dog?",
        "/stats",
        "/help",
        f"/save {path}",
        "/nonsense",
        "/save",
        "/method slem many",
        "/reset",
        "/stats",
        "/method",
    )
    loop = ChatLoop(conversation)
    loop.greet()
    loop.run()
    printed = capsys.readouterr()
    saved = json.loads(path.read_text())
    answers = [m["content"] for m in saved["messages"] if m["role"] == "assistant"]
    assert printed.out == "".join(printable(a) + "\n" for a in answers)
    assert len(answers) == len(saved["turns"]) == 2
    assert [t["metrics"]["speculative_decoding"]["method"] for t in saved["turns"]] == ["slem", "none"]
    for said in (
        "[slem] 12 tokens",
        "1. [slem]",
        "2. [none]",
        "in all [none] 24 tokens",
        "/nonsense is no command",
        "/save takes",
        "/method takes",
        "nothing has been answered yet",
        "method none (of auto, tli, slem, slrs, lookup, none)",
    ):
        assert said in printed.err
    assert loop.failed


def test_ctrl_c_ends_the_answer_and_nothing_else(
    conversation: Conversation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = conversation.ask

    def ask_and_press(text: str, interrupted: Callable[[], bool]) -> Iterator[Any]:
        for number, pieces in enumerate(real(text, interrupted)):
            if number == 1 and text == "fox?":
                os.kill(os.getpid(), signal.SIGINT)
            yield pieces

    monkeypatch.setattr(conversation, "ask", ask_and_press)
    before = signal.getsignal(signal.SIGINT)
    type_lines(monkeypatch, "fox?", "dog?")
    ChatLoop(conversation).run()
    assert [turn.finish_reason for turn in conversation.turns] == ["interrupted", "length"]
    assert conversation.turns[0].stats.num_steps == 2
    assert "interrupted" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


def test_a_model_cannot_take_hold_of_the_terminal() -> None:
    assert printable("a\x1b[31mb\x07\r\n\tc\x9b é😀") == "a\ufffd[31mb\ufffd\ufffd\n\tc\ufffd é😀"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    model, tokenizer = tiny.llama()
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_the_command(folder: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "anydraft",
        "chat",
        str(folder),
        "--max-tokens",
        "6",
        "--dtype",
        "float32",
    ]
    chat = subprocess.run(
        [*command, "--json"], input="fox?\n/method lookup\ndog?\n", capture_output=True, text=True, check=True
    )
    told = json.loads(chat.stdout)
    assert [m["role"] for m in told["messages"]] == ["user", "assistant"] * 2
    assert told["turns"][1]["metrics"]["speculative_decoding"]["method"] == "lookup"
    failed = subprocess.run(
        [*command, "--method", "slem"], input="", capture_output=True, text=True, check=False
    )
    assert failed.returncode == 2
    assert "--method slem needs a draft" in failed.stderr
