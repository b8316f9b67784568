#!/usr/bin/env python3
"""Records `walrelay demo` and writes docs/images/demo.svg, an animation of that run.

    make build && scripts/record-demo.py [target/release/walrelay]

The program runs on a pseudo-terminal. Each line appears at the moment at which it was printed.
"""

import os
import pty
import sys
import time
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "docs/images/demo.svg"
ARGUMENTS = ["demo", "--rows", "18", "--rate", "6", "--aggregates", "4", "--log-level", "warn"]
COLUMNS = 100
LINE_HEIGHT = 19
CHARACTER_WIDTH = 8.43
MARGIN = 16
TITLE_HEIGHT = 34
# How long the finished picture stays before the animation starts again.
PAUSE_SECONDS = 5.0


def record(binary):
    """Returns the lines of a run with the seconds after the start at which each was complete."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(binary, [binary, *ARGUMENTS])
    start, lines, rest = time.monotonic(), [], b""
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the program has closed its terminal
            break
        if not data:
            break
        *complete, rest = (rest + data).split(b"\n")
        now = time.monotonic() - start
        lines += [(now, line.decode().rstrip()) for line in complete]
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit("\n".join(line for _, line in lines))
    return lines


def wrapped(lines):
    """Splits long lines at a blank, as a terminal of this width would show them."""
    for moment, line in lines:
        while len(line) > COLUMNS:
            end = line.rfind(" ", 0, COLUMNS) if " " in line[:COLUMNS] else COLUMNS
            yield moment, line[:end]
            line = "  " + line[end:].lstrip()
        yield moment, line


def spread(lines, gap=0.12):
    """Moves lines that were printed together apart, so that a reader sees them arrive."""
    last = 0.0
    for moment, line in lines:
        last = max(moment, last + gap)
        yield last, line


def colour(line):
    if line.startswith("$"):
        return "#f8f8f2"
    if line.startswith(("committed", "applied", "  ")):
        return "#50fa7b"
    return "#8be9fd" if line.startswith("order-") else "#9aa5ce"


def svg(lines):
    lines = [(0.0, "$ walrelay " + " ".join(ARGUMENTS[:-2])), *spread(wrapped(lines))]
    total = lines[-1][0] + PAUSE_SECONDS
    width = COLUMNS * CHARACTER_WIDTH + 2 * MARGIN
    height = TITLE_HEIGHT + len(lines) * LINE_HEIGHT + MARGIN
    styles, texts = [], []
    for index, (moment, line) in enumerate(lines):
        y = TITLE_HEIGHT + (index + 0.8) * LINE_HEIGHT
        name = ""
        if moment > 0:
            share = 100 * moment / total
            styles.append(
                f"@keyframes l{index}{{0%,{share:.2f}%{{opacity:0}}{share + 0.01:.2f}%,100%{{opacity:1}}}}"
                f".l{index}{{animation:l{index} {total:.2f}s linear infinite}}"
            )
            name = f' class="l{index}"'
        texts.append(f'<text{name} x="{MARGIN}" y="{y:.1f}" fill="{colour(line)}">{escape(line)}</text>')
    dots = "".join(
        f'<circle cx="{MARGIN + 6 + 18 * n}" cy="17" r="5.5" fill="{fill}"/>'
        for n, fill in enumerate(["#ff5555", "#f1fa8c", "#50fa7b"])
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="A run of walrelay demo">\n'
        "<style>text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre}"
        f"{''.join(styles)}</style>\n"
        f'<rect width="100%" height="100%" rx="8" fill="#1a1b26"/>{dots}\n'
        + "\n".join(texts)
        + "\n</svg>\n"
    )


def main():
    binary = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "target/release/walrelay")
    picture = svg(record(binary))
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(picture)
    print(f"wrote {OUTPUT}")


main()
