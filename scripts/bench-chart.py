#!/usr/bin/env python3
"""Draws the charts of docs/images from the tables of two pages.

    scripts/bench-chart.py

`make bench` prints the tables of docs/project/benchmarks.md: benchmarks.svg has the rate of each
backlog beside the rate of `pg_recvlogical` on the same slot. `make bench-peers` prints the tables of
docs/project/peers.md: peers.svg has the rate of each peer in the second half of two backlogs.
"""

import math
import re
from pathlib import Path

from svg import Picture

ROOT = Path(__file__).resolve().parent.parent
WIDTH, LABELS, PLOT, TOP = 800, 230, 490, 112
# The backlogs of a sink that answers at once. Those of a sink far away have tables of a later run.
WORKLOADS = {
    "hot-keys": "1,000 keys",
    "many-keys": "every row its own key",
    "single-key": "one key",
    "small-transactions": "1,000 keys, one row a commit",
    "one-transaction": "1,000 keys, one transaction",
    "payload-2kb": "1,000 keys, payload of 2 kB",
    "payload-100kb": "1,000 keys, payload of 100 kB",
}


def section(page, heading):
    return (ROOT / "docs/project" / page).read_text().split(f"\n{heading}\n")[1]


def table(page, heading):
    """Returns the cells of the first table below a heading."""
    lines = [line for line in section(page, heading).split("\n#")[0].splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def run(page, heading):
    """Returns date and commit of the run below a heading."""
    found = re.search(r"(\d{4}-\d\d-\d\d) .*? commit ([0-9a-f]{7,})", section(page, heading))
    return f"Run of {found[1]}, commit {found[2]}"


def number(cell):
    return float(cell.replace(",", ""))


def head(picture, title, lines, legend):
    picture.text(16, 24, title, size=16, bold=True)
    for index, line in enumerate(lines):
        picture.text(16, 45 + 18 * index, line, "muted")
    x = 16
    for colour, text in zip(("blue", "orange"), legend):
        picture.rectangle(x, 80, 12, 12, colour)
        picture.text(x + 18, 91, text)
        x += 42 + 7.2 * len(text)


def axis(picture, bottom, ticks, place):
    """Draws a vertical line and a figure for each tick."""
    for tick in ticks:
        picture.line([(place(tick), TOP - 4), (place(tick), bottom)], "grid")
        picture.text(place(tick), bottom + 18, f"{tick:,}", "muted", 12, "middle")
    picture.text(LABELS + PLOT / 2, bottom + 38, "rows per second", "muted", 12, "middle")


def benchmarks():
    rows = {cells[0]: cells for cells in table("benchmarks.md", "### Draining a backlog")}
    data = [(label, number(rows[name][2]), number(rows[name][3])) for name, label in WORKLOADS.items()]
    step = 44
    bottom = TOP + step * len(data)
    last = math.ceil(max(max(values) for _, *values in data) / 40_000) * 40_000

    def place(value):
        return LABELS + PLOT * value / last

    picture = Picture(WIDTH, "Rows per second by workload")
    head(
        picture,
        "Rows per second of a backlog, by workload",
        (
            f"{run('benchmarks.md', '## Last full result')}. Pub/Sub answers at once. Payloads have 200 bytes, or as named.",
            "A longer bar is faster.",
        ),
        ("walrelay publishes the rows", "pg_recvlogical reads and discards them"),
    )
    axis(picture, bottom, range(0, last + 1, 40_000), place)
    for index, (label, *values) in enumerate(data):
        y = TOP + 6 + step * index
        picture.text(LABELS - 10, y + 20, label, anchor="end")
        for offset, colour, value in zip((0, 16), ("blue", "orange"), values):
            picture.rectangle(LABELS, y + offset, place(value) - LABELS, 14, colour)
            picture.text(place(value) + 6, y + offset + 12, f"{value:,.0f}", size=12)
    picture.write(ROOT / "docs/images/benchmarks.svg", bottom + 50)


def peers():
    rates = {}
    for cells in table("peers.md", "### Backlog"):
        rates.setdefault(cells[0], {})[cells[1]] = number(cells[5])
    data = [(peer, of["1,000 keys"], of["distinct keys"]) for peer, of in rates.items()]
    step = 44
    bottom = TOP + step * len(data)

    decades = math.log10(max(max(values) for _, *values in data)) - 1

    def place(value):
        return LABELS + PLOT * (math.log10(value) - 1) / decades

    picture = Picture(WIDTH, "Rows per second by tool, on a logarithmic scale")
    head(
        picture,
        "Rows per second of a backlog, by tool",
        (
            f"{run('peers.md', '## Result')}. Pub/Sub answers after 20 ms. Start-up is not counted (second half).",
            "Logarithmic scale: each vertical line is ten times the one before it.",
        ),
        ("1,000 keys", "every row its own key"),
    )
    axis(picture, bottom, [10**power for power in range(1, math.floor(decades) + 2)], place)
    for index, (label, *values) in enumerate(data):
        y = TOP + 14 + step * index
        picture.text(LABELS - 10, y + 12, label, anchor="end")
        for offset, colour, value in zip((0, 16), ("blue", "orange"), values):
            picture.line([(LABELS, y + offset), (place(value), y + offset)], colour, 2)
            picture.circle(place(value), y + offset, 5, colour)
            picture.text(place(value) + 12, y + offset + 4, f"{value:,.0f}", size=12)
    picture.write(ROOT / "docs/images/peers.svg", bottom + 50)


benchmarks()
peers()
