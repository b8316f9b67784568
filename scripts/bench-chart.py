#!/usr/bin/env python3
"""Draws the charts of docs/images from the tables of two pages.

    scripts/bench-chart.py

`make bench` prints the tables of docs/project/benchmarks.md: benchmarks.svg has the rate of each
backlog beside the rate of `pg_recvlogical` on the same slot. `make bench-peers` prints the tables of
docs/project/peers.md: peers.svg has the rate of each peer in the second half of two backlogs.
"""

from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LABEL_WIDTH, BAR_WIDTH, VALUE_WIDTH = 150, 420, 90
BAR_HEIGHT, GAP, TOP = 14, 16, 44
FIRST, SECOND = "#2563eb", "#94a3b8"


def table(page, heading):
    """Returns the cells of the first table below a heading."""
    section = (ROOT / "docs/project" / page).read_text().split(heading + "\n")[1].split("\n#")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def number(cell):
    return float(cell.replace(",", ""))


def workloads():
    """Returns workload, rate of the relay and rate of `pg_recvlogical`."""
    for cells in table("benchmarks.md", "### Draining a backlog"):
        yield cells[0], number(cells[2]), number(cells[3])


def peers():
    """Returns peer, rate with 1,000 keys and rate with distinct keys, both in the second half."""
    rates = {}
    for cells in table("peers.md", "### Backlog"):
        rates.setdefault(cells[0], {})[cells[1]] = number(cells[5])
    return [(peer, of["1,000 keys"], of["distinct keys"]) for peer, of in rates.items()]


def bar(y, value, most, fill):
    width = BAR_WIDTH * value / most
    return (
        f'<rect x="{LABEL_WIDTH}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}" rx="2" fill="{fill}"/>'
        f'<text x="{LABEL_WIDTH + width + 6:.1f}" y="{y + 11}" class="v">{value:,.0f}</text>'
    )


def draw(name, title, data, legend):
    data = list(data)
    most = max(max(row[1:]) for row in data)
    parts = []
    for index, (label, first, second) in enumerate(data):
        y = TOP + index * (2 * BAR_HEIGHT + GAP)
        parts.append(f'<text x="{LABEL_WIDTH - 8}" y="{y + BAR_HEIGHT + 4}" class="n">{escape(label)}</text>')
        parts += [bar(y, first, most, FIRST), bar(y + BAR_HEIGHT, second, most, SECOND)]
    width = LABEL_WIDTH + BAR_WIDTH + VALUE_WIDTH
    height = TOP + len(data) * (2 * BAR_HEIGHT + GAP)
    legend = "".join(
        f'<rect x="{x}" y="14" width="12" height="12" fill="{fill}"/><text x="{x + 18}" y="24" class="v">{text}</text>'
        for x, fill, text in zip((LABEL_WIDTH, LABEL_WIDTH + 220), (FIRST, SECOND), legend)
    )
    style = "text{font:12px system-ui,sans-serif;fill:#334155}.n{text-anchor:end;font-weight:600}"
    output = ROOT / "docs/images" / name
    output.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{title}"><style>{style}</style>\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>{legend}\n' + "\n".join(parts) + "\n</svg>\n"
    )
    print(f"wrote {output}")


draw(
    "benchmarks.svg",
    "Rows per second by workload",
    workloads(),
    ("walrelay, publishing, rows/s", "pg_recvlogical, reading only, rows/s"),
)
draw("peers.svg", "Rows per second by tool", peers(), ("1,000 keys, rows/s", "every row its own key, rows/s"))
