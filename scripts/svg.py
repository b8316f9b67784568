"""Writes SVG pictures for pages with a light and a dark colour scheme, for the other scripts.

The background is transparent. A colour is a name, with one value for each scheme.
"""

from html import escape

COLOURS = {
    "text": ("#1f2328", "#e6edf3"),
    "muted": ("#59636e", "#9198a1"),
    "grid": ("#d1d9e0", "#30363d"),
    "panel": ("#f6f8fa", "#161b22"),
    "band": ("#ffe7c7", "#45300c"),
    "blue": ("#0969da", "#58a6ff"),
    "orange": ("#bc4c00", "#f0883e"),
    "green": ("#1a7f37", "#3fb950"),
    "purple": ("#8250df", "#bc8cff"),
    "red": ("#cf222e", "#ff7b72"),
    "teal": ("#0a7d8c", "#39c5cf"),
    "yellow": ("#7d5600", "#d29922"),
    "grey": ("#818b98", "#768390"),
}
SANS = "system-ui,-apple-system,'Segoe UI','DejaVu Sans',Helvetica,Arial,sans-serif"
MONOSPACE = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"


class Picture:
    def __init__(self, width, title, family=SANS):
        self.width, self.title, self.family = width, title, family
        self.styles, self.parts = [], []

    def text(self, x, y, text, colour="text", size=13, anchor="start", bold=False, extra=""):
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" class="f-{colour}{extra}" font-size="{size}" '
            f'text-anchor="{anchor}"{weight}>{escape(text)}</text>'
        )

    def rectangle(self, x, y, width, height, fill, stroke=None, radius=2):
        outline = f" s-{stroke}" if stroke else ""
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius}" class="f-{fill}{outline}"/>'
        )

    def circle(self, x, y, radius, fill):
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" class="f-{fill}"/>')

    def line(self, points, colour, width=1.0):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" class="s-{colour}" stroke-width="{width}"/>')

    def write(self, output, height):
        def rules(scheme):
            return "".join(
                f".f-{name}{{fill:{values[scheme]}}}.s-{name}{{stroke:{values[scheme]}}}" for name, values in COLOURS.items()
            )

        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {self.width:.0f} {height:.0f}" role="img" aria-label="{escape(self.title)}">\n'
            f"<style>text{{font-family:{self.family};white-space:pre}}{rules(0)}\n"
            f"@media(prefers-color-scheme:dark){{{rules(1)}}}\n{''.join(self.styles)}</style>\n"
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )
        print(f"wrote {output}")
