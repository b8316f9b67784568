#!/usr/bin/env python3
"""Draws docs/images/benchmarks.svg from the tables of docs/project/benchmarks.md.

    scripts/bench-chart.py

`make bench` prints these tables. The chart has the rate of each backlog beside the rate of
`pg_recvlogical` on the same slot.
"""

from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/project/benchmarks.md"
OUTPUT = ROOT / "docs/images/benchmarks.svg"
HEADING = "### Draining a backlog"
LABEL_WIDTH, BAR_WIDTH, VALUE_WIDTH = 150, 420, 90
BAR_HEIGHT, GAP, TOP = 14, 16, 44
OURS, THEIRS = "#2563eb", "#94a3b8"


def rows():
    """Returns workload, rate of the relay and rate of `pg_recvlogical`."""
    section = PAGE.read_text().split(HEADING)[1].split("\n#")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        yield cells[0], *(int(cells[column].replace(",", "")) for column in (2, 3))


def bar(y, value, most, fill):
    width = BAR_WIDTH * value / most
    return (
        f'<rect x="{LABEL_WIDTH}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}" rx="2" fill="{fill}"/>'
        f'<text x="{LABEL_WIDTH + width + 6:.1f}" y="{y + 11}" class="v">{value:,}</text>'
    )


def main():
    data = list(rows())
    most = max(max(row[1:]) for row in data)
    parts = []
    for index, (name, ours, theirs) in enumerate(data):
        y = TOP + index * (2 * BAR_HEIGHT + GAP)
        parts.append(f'<text x="{LABEL_WIDTH - 8}" y="{y + BAR_HEIGHT + 4}" class="n">{escape(name)}</text>')
        parts += [bar(y, ours, most, OURS), bar(y + BAR_HEIGHT, theirs, most, THEIRS)]
    width = LABEL_WIDTH + BAR_WIDTH + VALUE_WIDTH
    height = TOP + len(data) * (2 * BAR_HEIGHT + GAP)
    legend = "".join(
        f'<rect x="{x}" y="14" width="12" height="12" fill="{fill}"/><text x="{x + 18}" y="24" class="v">{text}</text>'
        for x, fill, text in [
            (LABEL_WIDTH, OURS, "walrelay, publishing, rows/s"),
            (LABEL_WIDTH + 220, THEIRS, "pg_recvlogical, reading only, rows/s"),
        ]
    )
    style = "text{font:12px system-ui,sans-serif;fill:#334155}.n{text-anchor:end;font-weight:600}"
    OUTPUT.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="Rows per second by workload"><style>{style}</style>\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>{legend}\n' + "\n".join(parts) + "\n</svg>\n"
    )
    print(f"wrote {OUTPUT}")


main()
