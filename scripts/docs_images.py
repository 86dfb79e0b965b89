"""Draws docs/images: one picture a method, in the colours of the reader's light or dark theme.

python scripts/docs_images.py
"""

from __future__ import annotations

from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "docs" / "images"

_STYLE = """
  .page{fill:#ffffff} .ink{fill:#1f2328} .soft{fill:#59636e}
  .line{stroke:#59636e;fill:none;stroke-width:1.2}
  .box{fill:#f6f8fa;stroke:#8c959f} .good{fill:#d7f5df;stroke:#1a7f37} .bad{fill:#ffe3e0;stroke:#cf222e}
  .draft{fill:#ddf0ff;stroke:#0969da} .own{fill:#fff3c4;stroke:#9a6700}
  .off{fill:#f6f8fa;stroke:#8c959f;stroke-dasharray:3 3}
  text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:14px}
  .small{font-size:12.5px} .mid{text-anchor:middle} .end{text-anchor:end}
  .title{font-family:system-ui,-apple-system,Segoe UI,sans-serif;font-weight:600;font-size:14px}
  .note{font-family:system-ui,-apple-system,Segoe UI,sans-serif;font-size:13px}
  @media (prefers-color-scheme:dark){
  .page{fill:#0d1117} .ink{fill:#e6edf3} .soft{fill:#9198a1} .line{stroke:#9198a1}
  .box{fill:#161b22;stroke:#656c76} .good{fill:#12361f;stroke:#3fb950} .bad{fill:#4a1e1c;stroke:#f85149}
  .draft{fill:#0c2d50;stroke:#4493f8} .own{fill:#3d2f00;stroke:#d29922} .off{fill:#161b22;stroke:#656c76}}
"""


class Picture:
    """An SVG that grows by calls; x and y are of a shape's upper left corner, or of a text's baseline."""

    def __init__(self, name: str, title: str, width: int, height: int) -> None:
        self._name, self._title, self._size = name, title, (width, height)
        self._parts: list[str] = []

    def text(self, x: float, y: float, text: str, kind: str = "ink note") -> None:
        self._parts.append(
            f'<text class="{kind}" x="{x:g}" y="{y:g}" xml:space="preserve">{escape(text)}</text>'
        )

    def box(self, x: float, y: float, text: str, kind: str = "box", width: float | None = None) -> float:
        """A token; returns where the next one begins."""
        wide = width if width is not None else 16 + 8.5 * len(text)
        self.bar(x, y, wide, 28, kind)
        self.text(x + wide / 2, y + 19, text, "ink mid")
        return x + wide + 6

    def bar(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        self._parts.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4"/>'
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        self._parts.append(f'<path class="line" marker-end="url(#tip)" d="M{x1:g} {y1:g}L{x2:g} {y2:g}"/>')

    def row(self, y: float, label: str, tokens: list[tuple[str, str]], x: float = 190) -> list[float]:
        """A label and tokens (text, kind); returns the middles of the tokens."""
        self.text(16, y + 19, label)
        middles = []
        for text, kind in tokens:
            after = self.box(x, y, text, kind)
            middles.append((x + after - 6) / 2)
            x = after
        return middles

    def write(self) -> None:
        width, height = self._size
        tip = (
            '<defs><marker id="tip" markerWidth="9" markerHeight="9" refX="7" refY="3.5" orient="auto">'
            '<path class="soft" d="M0 0L7 3.5L0 7z"/></marker></defs>'
        )
        text = "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
                f"<title>{escape(self._title)}</title><style>{_STYLE}</style>{tip}",
                f'<rect class="page" width="{width}" height="{height}" rx="6"/>',
                *self._parts,
                "</svg>\n",
            ]
        )
        (FOLDER / f"{self._name}.svg").write_text(text, encoding="utf-8")


def tli() -> None:
    title = "TLI: the draft may draw only tokens that the target has too"
    p = Picture("tli", title, 720, 268)
    p.text(16, 26, title, "ink title")
    for x, head in ((16, "draft token"), (150, "draft's q"), (330, "kept: q', sum 1"), (520, "target's p")):
        p.text(x, 54, head, "soft note")
    rows = [("return", 0.40, 0.50, 0.60), ("yield", 0.24, 0.30, 0.10), ("pass", 0.16, 0.20, 0.05)]
    y = 64
    for token, q, kept, target in rows:
        p.box(16, y, token, "draft", 110)
        for x, value, kind in ((150, q, "draft"), (330, kept, "draft"), (520, target, "own")):
            p.bar(x, y + 5, 180 * value, 18, kind)
            p.text(x + 180 * value + 8, y + 19, f"{value:.2f}", "ink small")
        y += 36
    p.box(16, y, "returnn", "off", 110)
    p.bar(150, y + 5, 180 * 0.2, 18, "off")
    p.text(150 + 180 * 0.2 + 8, y + 19, "0.20", "ink small")
    p.text(330, y + 19, "no such token in the target: never drawn", "soft note")
    p.text(
        16,
        232,
        "Drawn from q': return with 0.50, accepted with min(1, 0.60/0.50) = 1; yield with 0.30, accepted with 1/3.",
    )
    p.text(16, 252, "After a rejection the target draws from (p - q')+: what comes out has the law p.")
    p.write()


def slem() -> None:
    title = "SLEM: compare text; the draft uses its whole vocabulary"
    p = Picture("slem", title, 720, 262)
    p.text(16, 26, title, "ink title")
    p.row(
        46,
        "draft writes",
        [("def", "draft"), ("␣fi", "draft"), ("b", "draft"), ("(n", "draft"), ("):", "draft")],
    )
    p.arrow(300, 78, 300, 96)
    p.text(316, 92, "as text", "soft note")
    p.row(100, "text", [("def fib(n):", "box")])
    p.arrow(300, 132, 300, 150)
    p.text(316, 146, "in the target's tokens", "soft note")
    ours = p.row(
        154, "proposal", [("def", "good"), ("␣fib", "good"), ("(", "good"), ("n", "bad"), ("):", "off")]
    )
    theirs = p.row(206, "target's own choice", [("def", "own"), ("␣fib", "own"), ("(", "own"), ("x", "own")])
    for a, b in zip(ours, theirs, strict=False):
        p.arrow(b, 205, a, 184)
    p.text(420, 172, "equal: accepted; the last one may still go on")
    p.text(420, 224, "3 accepted, then x: 4 tokens a call")
    p.write()


def slrs() -> None:
    title = "SLRS: a proposal tree; psi(t) is the mass of the leaves that mean t"
    p = Picture("slrs", title, 720, 330)
    p.text(16, 26, title, "ink title")
    p.text(16, 46, "Target tokens: i n t f in if int. Draft tokens: i n t f.", "soft note")
    root = (24, 150)
    p.box(*root, "root", "box", 60)

    def edge(x1: float, y1: float, x2: float, y2: float) -> None:
        p.arrow(x1, y1 + 14, x2 - 2, y2 + 14)

    def leaf(x: float, y: float, text: str, mass: str, token: str) -> None:
        p.box(x, y, text, "good", 54)
        p.text(x + 62, y + 19, f"{mass} → {token}", "ink small")

    edge(84, 150, 140, 76)
    p.box(140, 76, "i 0.7", "draft", 70)
    edge(84, 150, 140, 190)
    leaf(140, 190, "n", "0.20", "n")
    edge(84, 150, 140, 236)
    leaf(140, 236, "t", "0.10", "t")
    edge(210, 76, 290, 66)
    p.box(290, 66, "in 0.42", "draft", 84)
    edge(210, 76, 290, 118)
    leaf(290, 118, "if", "0.21", "if")
    edge(210, 76, 290, 160)
    leaf(290, 160, "it", "0.07", "i")
    edge(374, 66, 470, 56)
    leaf(470, 56, "int", "0.21", "int")
    edge(374, 66, 470, 98)
    leaf(470, 98, "inn", "0.13", "in")
    edge(374, 66, 470, 140)
    leaf(470, 140, "inf", "0.08", "in")
    p.text(
        16,
        290,
        "Blue: the beginning of a target token, so the draft goes on. Green: a leaf, which means the",
    )
    p.text(
        16,
        310,
        "longest target token that its text begins with; in has psi = 0.13 + 0.08. Accepted with min(1, p/psi).",
    )
    p.write()


def lookup() -> None:
    title = "Lookup: copy what followed the last time"
    p = Picture("lookup", title, 720, 190)
    p.text(16, 26, title, "ink title")
    first = p.row(
        48,
        "text so far",
        [
            (t, k)
            for t, k in (
                ("total", "box"),
                ("=", "own"),
                ("sum", "own"),
                ("(", "own"),
                ("x", "good"),
                (")", "good"),
                ("…", "box"),
                ("=", "own"),
                ("sum", "own"),
                ("(", "own"),
            )
        ],
        120,
    )
    second = p.row(118, "proposal", [("x", "good"), (")", "good"), ("…", "good")], first[-1] + 30)
    p.arrow(first[4], 78, second[0], 116)
    p.text(
        16,
        172,
        "The last tokens (yellow) stood there before; what came after them (green) is proposed.",
    )
    p.write()


def auto() -> None:
    title = "auto: one decision a step"
    p = Picture("auto", title, 720, 236)
    p.text(16, 26, title, "ink title")
    p.box(16, 56, "5 last tokens stood before?", "box", 250)
    p.arrow(268, 70, 330, 70)
    p.text(284, 62, "yes", "soft note")
    p.box(332, 56, "copy as many as pay", "good", 370)
    p.arrow(60, 86, 60, 110)
    p.text(70, 104, "no", "soft note")
    p.box(16, 112, "best length: speed-up > 1?", "box", 250)
    p.arrow(268, 126, 330, 126)
    p.text(284, 118, "yes", "soft note")
    p.box(332, 112, "draft, while the draft is sure enough", "draft", 370)
    p.arrow(60, 142, 60, 166)
    p.text(70, 160, "no", "soft note")
    p.box(16, 168, "the target alone", "own", 250)
    p.arrow(268, 182, 330, 182)
    p.text(332, 187, "now and then a short draft, to see whether it pays again")
    p.text(
        16,
        222,
        "Speed-up is predicted from the acceptance so far and the measured times of steps and drafts.",
        "soft note",
    )
    p.write()


def rejection() -> None:
    title = "Rejection: accept with min(1, p/q), else draw from (p - q)+"
    p = Picture("rejection", title, 720, 226)
    p.text(16, 26, title, "ink title")
    for x, head in (
        (60, "draft q"),
        (220, "target p"),
        (380, "accepted: min(p, q)"),
        (560, "left: (p - q)+"),
    ):
        p.text(x, 52, head, "soft note")
    y = 62
    for token, q, target in (("a", 0.2, 0.5), ("b", 0.6, 0.3), ("c", 0.2, 0.2)):
        p.box(16, y, token, "box", 28)
        values = (
            (60, q, "draft"),
            (220, target, "own"),
            (380, min(q, target), "good"),
            (560, max(target - q, 0), "own"),
        )
        for x, value, kind in values:
            if value > 0:
                p.bar(x, y + 5, 150 * value, 18, kind)
            p.text(x + 150 * value + 6, y + 19, f"{value:.1f}", "ink small")
        y += 36
    p.text(
        16,
        192,
        "Accepted in all: 0.2 + 0.3 + 0.2 = 0.7. In the other 0.3 of cases a is drawn from what is left:",
    )
    p.text(16, 212, "a comes out with 0.2 + 0.3 = 0.5, b with 0.3, c with 0.2. That is p, whatever q is.")
    p.write()


def block() -> None:
    title = "Block verification: judge the block as a whole"
    p = Picture("block", title, 720, 190)
    p.text(16, 26, title, "ink title")
    for x, head in ((180, "p/q of token 1"), (320, "p/q of token 2"), (470, "both accepted")):
        p.text(x, 54, head, "soft note")
    p.text(16, 84, "token by token")
    p.text(16, 122, "as a block")
    for y, kind, how in (
        (65, "bad", "min(1, 0.5) · min(1, 2) = 0.5"),
        (103, "good", "min(1, min(1, 0.5) · 2) = 1"),
    ):
        p.box(180, y, "0.5", "draft", 60)
        p.box(320, y, "2.0", "draft", 60)
        p.box(440, y, how, kind, 268)
    p.text(
        16,
        160,
        "A token that the target likes more than the draft did makes up for one before it that it likes less.",
    )
    p.text(16, 180, "At least as many tokens as rejection on average, with the same law of the output.")
    p.write()


def coupled() -> None:
    title = "Coupled: target and draft run the same race"
    p = Picture("coupled", title, 720, 236)
    p.text(16, 26, title, "ink title")
    heads = ((60, "noise E"), (160, "target p"), (270, "E/p"), (400, "draft q"), (510, "E/q"))
    for x, head in heads:
        p.text(x, 52, head, "soft note")
    y = 62
    for token, noise, target, q in (("a", 0.9, 0.5, 0.6), ("b", 0.4, 0.2, 0.1), ("c", 1.6, 0.3, 0.3)):
        p.box(16, y, token, "box", 28)
        p.text(60, y + 19, f"{noise:.1f}", "ink")
        p.text(160, y + 19, f"{target:.1f}", "ink")
        p.text(400, y + 19, f"{q:.1f}", "ink")
        for x, value in ((270, noise / target), (510, noise / q)):
            p.box(x, y, f"{value:.2f}", "good" if token == "a" else "box", 80)
        y += 36
    p.text(
        16,
        194,
        "The smallest wins: a in both races, so it is accepted. E depends on seed, position and token only,",
    )
    p.text(
        16,
        214,
        "so the target's winner is the same with any draft or none: the same seed gives the same text.",
    )
    p.write()


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for draw in (tli, slem, slrs, lookup, auto, rejection, block, coupled):
        draw()


if __name__ == "__main__":
    main()
