"""The terminal's side of a chat: lines in, coloured answers out, commands, Ctrl-C."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.text import Text

from anydraft.cli.conversation import Conversation, describe
from anydraft.engine.pieces import Piece
from anydraft.errors import AnyDraftError, UsageError

STYLES = {
    "accepted": "green",
    "lookup": "blue",
    "corrected": "yellow",
    "bonus": "magenta",
    "target": "default",
}
_NAMES = {"lookup": "copied"}

HELP = """\
/stats               what the drafts brought, answer by answer and in all
/method [NAME [N]]   show or choose the method, and draft tokens a step
/save FILE           write the conversation and its statistics as JSON
/reset               forget the conversation
/help                this list
Ctrl-C ends an answer, Ctrl-D the chat."""


class ChatLoop:
    """Reads a line, answers it, and so on until the input ends.

    Colours tell where a token came from; the statistics go to stderr. With ``quiet`` answers are not printed.
    """

    def __init__(self, conversation: Conversation, *, quiet: bool = False) -> None:
        self._conversation = conversation
        self._quiet = quiet
        self._out = Console(highlight=False, soft_wrap=True)
        self._err = Console(stderr=True, highlight=False, soft_wrap=True)
        self._commands: dict[str, Callable[[list[str]], None]] = {
            "/stats": self._stats,
            "/method": self._method,
            "/save": self._save,
            "/reset": self._reset,
            "/help": self._help,
        }
        self.failed = False
        """Whether some line could not be answered or done."""

    def run(self) -> None:
        lines = self._typed() if sys.stdin.isatty() else (line.rstrip("\n") for line in sys.stdin)
        for line in lines:
            if not line.strip():
                continue
            try:
                if line.startswith("/"):
                    self._command(line.split())
                else:
                    self._answer(line)
            except KeyboardInterrupt:
                self._say("\ninterrupted")
            except AnyDraftError as error:
                self.failed = True
                self._say(str(error), "red")

    def greet(self) -> None:
        """Say on a terminal what the colours mean."""
        if sys.stdin.isatty():
            legend = Text("tokens: ", "dim")
            for source, style in STYLES.items():
                legend.append(_NAMES.get(source, source), style).append(" ")
            self._err.print(legend)
            self._say(f"method {self._conversation.method}; /help lists the commands")

    def _typed(self) -> Iterator[str]:
        import readline  # noqa: F401  (input() then edits lines and remembers them)

        while True:
            try:
                yield input("> ")
            except KeyboardInterrupt:
                self._say("\nCtrl-D ends the chat")
            except EOFError:
                self._err.print()
                return

    def _answer(self, text: str) -> None:
        with _noticing_interrupts() as interrupted:
            for pieces in self._conversation.ask(text, interrupted):
                if not self._quiet:
                    self._show(pieces)
        if not self._quiet:
            self._out.print()
        self._say(describe(self._conversation.turns[-1]))

    def _show(self, pieces: tuple[Piece, ...]) -> None:
        for piece in pieces:
            self._out.print(Text(printable(piece.text), STYLES[piece.source]), end="")
        self._out.file.flush()

    def _command(self, words: list[str]) -> None:
        name, arguments = words[0], words[1:]
        if name not in self._commands:
            raise UsageError(f"{name} is no command; /help lists them")
        self._commands[name](arguments)

    def _stats(self, arguments: list[str]) -> None:
        turns = self._conversation.turns
        if not turns:
            self._say("nothing has been answered yet")
        for number, turn in enumerate(turns, start=1):
            self._say(f"{number}. {describe(turn)}")
        if len(turns) > 1:
            self._say(f"in all {describe(self._conversation.total())}")

    def _method(self, arguments: list[str]) -> None:
        if arguments:
            count = arguments[1] if len(arguments) > 1 else None
            if len(arguments) > 2 or (count is not None and not count.isdecimal()):
                raise UsageError("/method takes a name and a number of draft tokens, such as /method slem 5")
            self._conversation.use_method(arguments[0], int(count) if count is not None else None)
        self._say(f"method {self._conversation.method} (of {', '.join(self._conversation.methods)})")

    def _save(self, arguments: list[str]) -> None:
        if len(arguments) != 1:
            raise UsageError("/save takes the name of a file")
        path = Path(arguments[0]).expanduser()
        try:
            path.write_text(json.dumps(self._conversation.to_dict(), ensure_ascii=False, indent=2) + "\n")
        except OSError as error:
            raise AnyDraftError(f"{path} cannot be written: {error.strerror}; name another file") from error
        self._say(f"saved to {path}")

    def _reset(self, arguments: list[str]) -> None:
        self._conversation.reset()
        self._say("the conversation is forgotten")

    def _help(self, arguments: list[str]) -> None:
        self._say(HELP)

    def _say(self, text: str, style: str = "dim") -> None:
        self._err.print(Text(text, style))


def printable(text: str) -> str:
    """``text`` without control characters, by which a model could take hold of the terminal."""
    return "".join(c if c in "\n\t" or (c >= " " and not "\x7f" <= c <= "\x9f") else "\ufffd" for c in text)


@contextmanager
def _noticing_interrupts() -> Iterator[Callable[[], bool]]:
    """Ctrl-C is noted, so that a step ends as it should; the second one does not wait for it."""
    seen = False

    def note(signum: int, frame: FrameType | None) -> None:
        nonlocal seen
        if seen:
            raise KeyboardInterrupt
        seen = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: seen
    finally:
        signal.signal(signal.SIGINT, before)
