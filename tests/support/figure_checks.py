"""What can be said of a figure of matplotlib without eyes."""

import re
from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
ELEMENTS = {"svg", "title", "g", "path", "use", "defs", "clipPath", "rect", "text"}


def parsed(svg):
    return ElementTree.fromstring(svg)


def texts(svg):
    """The lines that are written."""
    return [element.text for element in parsed(svg).iter(f"{SVG}text")]


def check_plain(svg):
    """No script, style, comment or link elsewhere; a name, a title, texts within the figure."""
    root = parsed(svg)
    assert "<!" not in svg and "<?" not in svg
    identifiers = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(identifiers) == len(set(identifiers))
    for element in root.iter():
        assert element.tag.removeprefix(SVG) in ELEMENTS
        for attribute, value in element.attrib.items():
            assert not attribute.startswith("on")
            if attribute == LINK:
                assert value[0] == "#" and value[1:] in identifiers
            elif "url(" in value:
                assert re.findall(r"url\((?!#)", value) == []
    assert root.get("role") == "img" and root.get("aria-label")
    assert root[0].tag == f"{SVG}title" and root[0].text
    _, _, width, height = map(float, root.get("viewBox").split())
    for element in root.iter(f"{SVG}text"):
        assert 0 <= float(element.get("x")) <= width and 0 <= float(element.get("y")) <= height
    return root


def bars(svg, colour):
    """Left, top, width and height of the bars of one colour, from top to bottom."""
    found = []
    for path in parsed(svg).iter(f"{SVG}path"):
        if f"fill: {colour}" in path.get("style", "") and "clip-path" in path.attrib:
            numbers = [float(text) for text in re.findall(r"-?[\d.]+", path.get("d"))]
            xs, ys = numbers[::2], numbers[1::2]
            found.append((min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)))
    return sorted(found, key=lambda bar: bar[1])
