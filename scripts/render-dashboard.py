#!/usr/bin/env python3
"""Draws panels of a Grafana dashboard as SVG, from its JSON and the figures of a Prometheus server.

    scripts/render-dashboard.py PROMETHEUS_URL DASHBOARD.json BEGIN END FAULTS OUTPUT.svg TITLE...

It draws all stats, and two in a row the panels with these titles: time series and state timelines. Titles, queries,
units, legends and thresholds are those of the JSON. Series that are 0 all the time are left out.
BEGIN and END are seconds since 1970. Each line of the file FAULTS has begin, end and name of a fault.
"""

import json
import math
import pathlib
import re
import sys
import urllib.parse
import urllib.request

from svg import Picture

WIDTH, GAP = 840, 8
STAT_HEIGHT = 96
HEIGHTS = {"timeseries": 208, "state-timeline": 140}
STEP_SECONDS = 5
COLOURS = ["blue", "orange", "green", "purple", "red", "teal", "yellow", "grey"]


def ask(server, query, begin, end):
    """Returns the series of a range query: labels, and points of time and value."""
    query = query.replace("$__rate_interval", "30s").replace("$job", ".*").replace("$consumer", ".*")
    asked = urllib.parse.urlencode({"query": query, "start": begin, "end": end, "step": STEP_SECONDS})
    with urllib.request.urlopen(f"{server}/api/v1/query_range?{asked}") as answer:
        result = json.load(answer)["data"]["result"]
    series = []
    for one in result:
        points = [(float(at), float(value)) for at, value in one["values"]]
        series.append((one["metric"], [point for point in points if math.isfinite(point[1])]))
    return series


def scaled(value, base, units):
    step = 0
    while abs(value) >= base and step < len(units) - 1:
        value, step = value / base, step + 1
    figure = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return figure + units[step]


def shown(value, unit):
    """Returns a figure with its unit, as Grafana would show it."""
    if unit in ("bytes", "Bps"):
        suffix = "/s" if unit == "Bps" else ""
        return scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]) + suffix
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "s":
        if 0 < abs(value) < 1:
            return f"{value * 1000:.3g} ms"
        return f"{value / 60:.3g} min" if value >= 120 else f"{value:.3g} s"
    suffix = {"ops": " ops/s", "reqps": " req/s", "cps": " /s", "rowsps": " rows/s"}.get(unit, "")
    return scaled(value, 1000, ["", " K", " Mil", " Bil"]) + suffix


def rounded_up(value, unit):
    """Returns the next figure of which a quarter is short."""
    if unit in ("bytes", "Bps") and value >= 1024:
        scale = 1024 ** math.floor(math.log(value, 1024))
        return rounded_up(value / scale, "short") * scale
    magnitude = 10 ** math.floor(math.log10(value)) if value > 0 else 1
    return next(step * magnitude for step in (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10, 12) if step * magnitude >= value * 0.999)


def legend(target, labels):
    text = re.sub(r"{{\s*(\w+)\s*}}", lambda match: labels.get(match[1], ""), target.get("legendFormat", ""))
    return text.replace("projects/local/topics/", "")


def runs(points):
    """Splits points where a scrape is missing."""
    found = []
    for point in points:
        if found and point[0] - found[-1][-1][0] <= 2 * STEP_SECONDS:
            found[-1].append(point)
        else:
            found.append([point])
    return found


class Panel:
    def __init__(self, panel, server, run):
        self.kind, self.title = panel["type"], panel["title"]
        self.defaults = panel.get("fieldConfig", {}).get("defaults", {})
        self.unit = self.defaults.get("unit", "short")
        self.begin, self.end, self.faults = run
        self.series = []
        for target in panel.get("targets", []):
            found = ask(server, target["expr"], self.begin, self.end)
            self.series += [(legend(target, labels), points) for labels, points in found if points]
        if not self.series:
            sys.exit(f"the panel `{self.title}` has no data")
        if self.kind != "stat":
            moved = [one for one in self.series if any(value != 0 for _, value in one[1])]
            self.series = moved or self.series

    def draw(self, picture, x, y, width, height):
        self.left, self.right = x + 70, x + width - 16
        self.bottom = y + height - (46 if self.kind == "timeseries" else 26)
        self.top = y + 48
        picture.rectangle(x, y, width, height, "panel", "grid", 6)
        if self.kind == "stat":
            self.stat(picture, x, y, width)
            return
        picture.text(x + 10, y + 20, self.title, bold=True)
        self.times(picture)
        {"timeseries": self.timeseries, "state-timeline": self.timeline}[self.kind](picture)

    def stat(self, picture, x, y, width):
        value = self.series[0][1][-1][1]
        colour = "grey"
        for step in self.defaults.get("thresholds", {}).get("steps", []):
            if step["value"] is None or value >= step["value"]:
                colour = step["color"]
        words, lines = self.title.split(), [""]
        for word in words:
            if len(lines[-1]) + len(word) > 17:
                lines.append("")
            lines[-1] += f"{word} "
        for index, line in enumerate(lines):
            picture.text(x + 10, y + 20 + 15 * index, line.strip(), size=12, bold=True)
        picture.text(x + width / 2, y + STAT_HEIGHT - 18, shown(value, self.unit), colour, 22, "middle", bold=True)

    def time_to_x(self, at):
        return self.left + (at - self.begin) / (self.end - self.begin) * (self.right - self.left)

    def times(self, picture):
        """Draws the time axis and the faults."""
        for number, (begin, end, _) in enumerate(self.faults, 1):
            left, right = self.time_to_x(begin), self.time_to_x(end)
            picture.rectangle(left, self.top - 16, right - left, self.bottom - self.top + 16, "band", radius=0)
            picture.text((left + right) / 2, self.top - 5, str(number), size=11, anchor="middle", bold=True)
        for minute in range(math.floor((self.end - self.begin) / 60) + 1):
            text = f"{minute} min" if minute else "0"
            picture.text(self.time_to_x(self.begin + 60 * minute), self.bottom + 15, text, "muted", 11, "middle")

    def timeseries(self, picture):
        highest = rounded_up(max(value for _, points in self.series for _, value in points) or 1, self.unit)
        for part in range(5):
            y = self.bottom - (self.bottom - self.top) * part / 4
            picture.line([(self.left, y), (self.right, y)], "grid")
            picture.text(self.left - 6, y + 4, shown(highest * part / 4, self.unit), "muted", 11, "end")
        x = self.left - 58
        for number, (name, points) in enumerate(self.series):
            colour = COLOURS[number % len(COLOURS)]
            # The first series is often the sum of the others. It is so wide that it is visible below them.
            width = 3 if number == 0 and len(self.series) > 1 else 1.6
            for part in runs(points):
                places = [(self.time_to_x(at), self.bottom - value / highest * (self.bottom - self.top)) for at, value in part]
                picture.line(places if len(places) > 1 else places * 2, colour, width)
            picture.rectangle(x, self.bottom + 28, 10, 4, colour)
            picture.text(x + 15, self.bottom + 35, name, size=11)
            x += 30 + 6.3 * len(name)

    def timeline(self, picture):
        for number, (name, points) in enumerate(self.series):
            y = self.top + 8 + number * 38
            picture.text(self.left, y + 8, name, size=11)
            for part in runs(points):
                begin, end = (min(self.time_to_x(at), self.right) for at in (part[0][0], part[-1][0] + STEP_SECONDS))
                picture.rectangle(begin, y + 14, max(end - begin, 1), 16, COLOURS[number % len(COLOURS)])


def main():
    server, dashboard, begin, end, faults, output, *titles = sys.argv[1:]
    faults = [line.split(" ", 2) for line in pathlib.Path(faults).read_text().splitlines()]
    faults = [(int(start), int(stop), name) for start, stop, name in faults]
    run = int(begin), int(end), faults
    described = json.loads(pathlib.Path(dashboard).read_text())
    panels = described["panels"]
    stats = [Panel(panel, server, run) for panel in panels if panel["type"] == "stat"]
    chosen = [Panel(next(panel for panel in panels if panel["title"] == title and panel["type"] != "stat"), server, run) for title in titles]

    picture = Picture(WIDTH, f"Dashboard `{described['title']}` of a run with {len(faults)} faults")
    picture.text(GAP, 24, f"Dashboard “{described['title']}”: a run with {len(faults)} faults", size=16, bold=True)
    for index, (_, _, name) in enumerate(faults):
        x, y = GAP + (index % 2) * WIDTH / 2, 36 + (index // 2) * 22
        picture.rectangle(x, y, 18, 16, "band", radius=0)
        picture.text(x + 9, y + 12, str(index + 1), size=11, anchor="middle", bold=True)
        picture.text(x + 26, y + 13, name)
    y = 36 + (len(faults) + 1) // 2 * 22 + 24
    picture.text(GAP, y - 8, "At the end of the run", "muted")
    width = (WIDTH - GAP * (len(stats) + 1)) / len(stats)
    for index, panel in enumerate(stats):
        panel.draw(picture, GAP + index * (width + GAP), y, width, STAT_HEIGHT)
    y += STAT_HEIGHT + 24
    picture.text(GAP, y - 8, "During the run", "muted")
    width = (WIDTH - 3 * GAP) / 2
    for left, right in zip(chosen[::2], chosen[1::2]):
        height = max(HEIGHTS[left.kind], HEIGHTS[right.kind])
        left.draw(picture, GAP, y, width, height)
        right.draw(picture, GAP + width + GAP, y, width, height)
        y += height + GAP
    picture.write(pathlib.Path(output), y)


main()
