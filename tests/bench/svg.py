"""Pictures as SVG text: no more than figures.py needs."""

from xml.sax.saxutils import escape


class Picture:
    """A white page of width x height; y grows downwards."""

    def __init__(self, width, height, title):
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            'font-family="Helvetica, Arial, sans-serif" font-size="12">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" fill="white"/>',
        ]

    def text(self, x, y, text, anchor="middle", size=12, colour="#222", bold=False):
        weight = ' font-weight="bold"' if bold else ""
        self._parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}"{weight}>'
                           f"{escape(text)}</text>")

    def line(self, x1, y1, x2, y2, colour="#ddd", width=1.0):
        self._parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>')

    def box(self, x, y, width, height, colour):
        self._parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>')

    def curve(self, points, colour, width, name):
        """A line through the points with a dot on each; `name` is its class, for who reads the file."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<g class="{escape(name)}"><polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>')
        self._parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{1 + width:.1f}" fill="{colour}"/>' for x, y in points]
        self._parts.append("</g>")

    def save(self, path):
        with open(path, "w") as file:
            file.write("\n".join([*self._parts, "</svg>"]) + "\n")


def ticks(top, count=5):
    """0 and round steps up to the first that is `top` or more."""
    step = next(m * 10**e for e in range(-3, 9) for m in (1, 2, 2.5, 5) if m * 10**e * count >= top)
    out = [0.0]
    while out[-1] < top:
        out.append(out[-1] + step)
    return out
