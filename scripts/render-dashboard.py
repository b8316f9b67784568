#!/usr/bin/env python3
"""Draws a Grafana dashboard as SVG, from its JSON and the figures of a Prometheus server.

    scripts/render-dashboard.py PROMETHEUS_URL DASHBOARD.json RANGE OUTPUT.svg

It draws the panels that the dashboards of walrelay use: rows, stats, time series and state timelines.
Layout, titles, queries, units, legends and thresholds are those of the JSON.
"""

import html
import json
import math
import pathlib
import re
import sys
import time
import urllib.parse
import urllib.request

UNIT_WIDTH, UNIT_HEIGHT, GAP = 50, 28, 8
STEP_SECONDS = 5
COLORS = ["#3274d9", "#e0752d", "#37872d", "#a352cc", "#c4162a", "#0097a7", "#b8860b", "#6d6d6d", "#d683ce", "#5794f2"]
THRESHOLD = {"green": "#37872d", "yellow": "#cc8a00", "red": "#c4162a"}


def ask(server, query, seconds):
    """Returns the series of a range query: labels, and points of time and value."""
    end = math.floor(time.time() / STEP_SECONDS) * STEP_SECONDS
    query = query.replace("$__rate_interval", "30s").replace("$job", ".*").replace("$consumer", ".*")
    asked = urllib.parse.urlencode({"query": query, "start": end - seconds, "end": end, "step": STEP_SECONDS})
    with urllib.request.urlopen(f"{server}/api/v1/query_range?{asked}") as answer:
        result = json.load(answer)["data"]["result"]
    series = []
    for one in result:
        points = [(float(at), float(value)) for at, value in one["values"]]
        series.append((one["metric"], [point for point in points if math.isfinite(point[1])]))
    return end - seconds, end, series


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
    if unit == "s":
        if 0 < abs(value) < 1:
            return f"{value * 1000:.3g} ms"
        return f"{value / 60:.3g} min" if value >= 120 else f"{value:.3g} s"
    suffix = {"ops": " ops/s", "reqps": " req/s", "cps": " /s"}.get(unit, "")
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


class Picture:
    def __init__(self, width, height):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="11">',
            f'<rect width="{width}" height="{height}" fill="#f4f5f5"/>',
        ]

    def text(self, x, y, text, color="#24292e", size=11, anchor="start", weight="normal"):
        self.parts.append(
            f'<text x="{x:.0f}" y="{y:.0f}" fill="{color}" font-size="{size}" text-anchor="{anchor}" '
            f'font-weight="{weight}">{html.escape(text)}</text>'
        )

    def rectangle(self, x, y, width, height, fill, stroke="none"):
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}" stroke="{stroke}" rx="2"/>'
        )

    def line(self, points, color, width=1.4):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width}"/>')

    def written(self):
        return "\n".join([*self.parts, "</svg>", ""])


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
    def __init__(self, panel, server, seconds):
        self.kind, self.title = panel["type"], panel["title"]
        self.defaults = panel.get("fieldConfig", {}).get("defaults", {})
        self.unit = self.defaults.get("unit", "short")
        place = panel["gridPos"]
        self.x, self.y = place["x"] * UNIT_WIDTH + GAP / 2, place["y"] * UNIT_HEIGHT + GAP / 2 + 40
        self.width, self.height = place["w"] * UNIT_WIDTH - GAP, place["h"] * UNIT_HEIGHT - GAP
        self.series = []
        for target in panel.get("targets", []):
            self.start, self.end, series = ask(server, target["expr"], seconds)
            self.series += [(legend(target, labels), points) for labels, points in series if points]

    def draw(self, picture):
        if self.kind == "row":
            picture.text(self.x + 2, self.y + 16, self.title, size=13, weight="bold")
            return
        picture.rectangle(self.x, self.y, self.width, self.height, "#ffffff", "#dce1e6")
        picture.text(self.x + 8, self.y + 16, self.title, size=11, weight="bold")
        {"stat": self.stat, "timeseries": self.timeseries, "state-timeline": self.timeline}[self.kind](picture)

    def stat(self, picture):
        value = self.series[0][1][-1][1] if self.series else None
        color = "#6d6d6d"
        for step in self.defaults.get("thresholds", {}).get("steps", []):
            if value is not None and (step["value"] is None or value >= step["value"]):
                color = THRESHOLD.get(step["color"], color)
        text = "No data" if value is None else shown(value, self.unit)
        picture.text(self.x + self.width / 2, self.y + self.height / 2 + 18, text, color, 26, "middle", "bold")

    def frame(self):
        """Returns the left, top, right and bottom of the plot."""
        names = 176 if self.kind == "state-timeline" else 66
        return self.x + names, self.y + 28, self.x + self.width - 16, self.y + self.height - 40

    def time_to_x(self, at):
        left, _, right, _ = self.frame()
        return left + (at - self.start) / (self.end - self.start) * (right - left)

    def times(self, picture):
        _, _, _, bottom = self.frame()
        for part in range(6):
            at = self.start + (self.end - self.start) * part / 5
            minutes = f"{(at - self.end) / 60:.0f} min" if part < 5 else "now"
            picture.text(self.time_to_x(at), bottom + 14, minutes.replace("-", "−"), "#6d6d6d", 9, "middle")

    def timeseries(self, picture):
        left, top, right, bottom = self.frame()
        highest = max((value for _, points in self.series for _, value in points), default=1) or 1
        lowest = min((value for _, points in self.series for _, value in points), default=0)
        lowest = 0 if lowest >= 0 else lowest
        highest = rounded_up(highest, self.unit)
        for part in range(5):
            y = bottom - (bottom - top) * part / 4
            picture.line([(left, y), (right, y)], "#e9ecef", 1)
            figure = shown(lowest + (highest - lowest) * part / 4, self.unit)
            picture.text(left - 6, y + 3, figure, "#6d6d6d", 9, "end")
        self.times(picture)
        if not self.series:
            picture.text((left + right) / 2, (top + bottom) / 2, "No data", "#6d6d6d", 12, "middle")
        if len(self.series) > 5:
            # The legend has no space for all, so the series with the highest figures come first.
            self.series.sort(key=lambda one: -max(value for _, value in one[1]))
        x = left - 50
        for number, (name, points) in enumerate(self.series):
            color = COLORS[number % len(COLORS)]
            for run in runs(points):
                places = [(self.time_to_x(at), bottom - (value - lowest) / (highest - lowest) * (bottom - top)) for at, value in run]
                picture.line(places if len(places) > 1 else places * 2, color)
            if x + 14 + 6.2 * len(name) < right:
                picture.rectangle(x, bottom + 26, 10, 3, color)
                picture.text(x + 14, bottom + 31, name, "#24292e", 9)
            x += 26 + 5.8 * len(name)

    def timeline(self, picture):
        left, top, right, bottom = self.frame()
        self.times(picture)
        if not self.series:
            picture.text((left + right) / 2, (top + bottom) / 2, "No data", "#6d6d6d", 12, "middle")
        height = min(22, (bottom - top) / max(len(self.series), 1))
        for number, (name, points) in enumerate(self.series):
            y = top + number * height
            short = name if len(name) < 34 else name[:33] + "…"
            picture.text(self.x + 8, y + height / 2 + 4, short, "#24292e", 9)
            for run in runs(points):
                begin, end = (min(self.time_to_x(at), right) for at in (run[0][0], run[-1][0] + STEP_SECONDS))
                picture.rectangle(begin, y + 2, max(end - begin, 1), height - 4, COLORS[number % len(COLORS)])


def main():
    server, dashboard, period, output = sys.argv[1:]
    seconds = int(period[:-1]) * {"m": 60, "h": 3600}[period[-1]]
    described = json.loads(pathlib.Path(dashboard).read_text())
    panels = [Panel(panel, server, seconds) for panel in described["panels"]]
    height = max(panel.y + panel.height for panel in panels) + GAP
    picture = Picture(24 * UNIT_WIDTH, math.ceil(height))
    picture.text(GAP, 26, f"{described['title']} · last {period}", size=16, weight="bold")
    for panel in panels:
        panel.draw(picture)
    pathlib.Path(output).write_text(picture.written())


main()
