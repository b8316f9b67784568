#!/usr/bin/env python3
"""Records `walrelay demo` and writes docs/images/demo.svg, an animation of that run.

    make build && scripts/record-demo.py [target/release/walrelay]

The program runs on a pseudo-terminal. Each line appears at the moment at which it was printed. The
finished picture is first, so that a still or printed page has it. A reader who prefers reduced motion
gets no animation.
"""

import os
import pty
import sys
import time
from pathlib import Path

from svg import MONOSPACE, Picture

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "docs/images/demo.svg"
ARGUMENTS = ["demo", "--rows", "1000", "--quiet"]
# The picture is then as wide as the README, so that its text is not scaled down.
COLUMNS = 94
LINE_HEIGHT = 19
CHARACTER_WIDTH = 8.43
MARGIN = 16
TITLE_HEIGHT = 34
# How long the finished picture stays before the animation starts.
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
        return "text"
    if line.startswith(("committed", "delivered", "applied", "dead", "           ")):
        return "green"
    return "blue" if line.lstrip()[:1].isdigit() else "muted"


def draw(lines):
    lines = [(0.0, "$ walrelay " + " ".join(ARGUMENTS)), *spread(wrapped(lines))]
    total = lines[-1][0] + PAUSE_SECONDS
    picture = Picture(COLUMNS * CHARACTER_WIDTH + 2 * MARGIN, "A run of walrelay demo", MONOSPACE)
    height = TITLE_HEIGHT + len(lines) * LINE_HEIGHT + MARGIN
    picture.rectangle(1, 1, picture.width - 2, height - 2, "panel", "grid", 8)
    for number, fill in enumerate(["red", "yellow", "green"]):
        picture.circle(MARGIN + 6 + 18 * number, 17, 5.5, fill)
    for index, (moment, line) in enumerate(lines):
        name = ""
        if moment > 0:
            share = 100 * moment / total
            picture.styles.append(
                f"@keyframes l{index}{{0%,{share:.2f}%{{opacity:0}}{share + 0.01:.2f}%,100%{{opacity:1}}}}"
                f".l{index}{{animation:l{index} {total:.2f}s linear -{total - PAUSE_SECONDS:.2f}s infinite}}"
            )
            name = f" l{index}"
        y = TITLE_HEIGHT + (index + 0.8) * LINE_HEIGHT
        picture.text(MARGIN, y, line, colour(line), 14, bold=not moment, extra=name)
    picture.styles.append("@media(prefers-reduced-motion:reduce){text{animation:none!important}}")
    picture.write(OUTPUT, height)


def main():
    draw(record(sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "target/release/walrelay")))


main()
