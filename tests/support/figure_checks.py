"""What can be said of any figure without eyes: it is plain SVG, and its texts keep apart."""

from xml.etree import ElementTree

from experiments.reports.figures.svg import text_width

SVG = "{http://www.w3.org/2000/svg}"
ELEMENTS = {
    f"{SVG}{tag}"
    for tag in (
        "svg",
        "title",
        "desc",
        "rect",
        "line",
        "path",
        "circle",
        "text",
    )
}


def parsed(svg):
    return ElementTree.fromstring(svg)


def texts(svg):
    """The lines of a figure: what is written, without what the pointer shows."""
    return [element.text for element in parsed(svg).iter(f"{SVG}text")]


def tips(svg):
    """What the pointer shows."""
    return [element.text for element in parsed(svg).iter(f"{SVG}title")][1:]


def text_boxes(svg):
    """The line, and left, top, right and bottom of every text."""
    found = []
    for element in parsed(svg).iter(f"{SVG}text"):
        size = float(element.get("font-size", "12"))
        width = text_width(element.text, size, bold=element.get("font-weight") == "bold")
        anchor = element.get("text-anchor", "start")
        left = float(element.get("x")) - width * {"start": 0, "middle": 0.5, "end": 1}[anchor]
        y = float(element.get("y"))
        found.append((element.text, left, y - size * 0.72, left + width, y + size * 0.2))
    return found


def check_plain(svg):
    """No script, style, link or foreign element; a name, a title and a description."""
    root = parsed(svg)
    assert {element.tag for element in root.iter()} <= ELEMENTS
    for element in root.iter():
        for attribute, value in element.attrib.items():
            # Identifiers of all images of a page would be in one space.
            assert not attribute.startswith("on") and "href" not in attribute
            assert attribute not in ("id", "style", "class") and "url(" not in value
    assert root.get("role") == "img" and root.get("aria-label")
    assert [child.tag for child in root[:2]] == [f"{SVG}title", f"{SVG}desc"]
    assert root[0].text and root[1].text


def check_layout(svg):
    """All texts are inside of the figure, and none covers another."""
    root = parsed(svg)
    _, _, width, height = map(float, root.get("viewBox").split())
    boxes = text_boxes(svg)
    for line, left, top, right, bottom in boxes:
        assert left >= -0.5 and right <= width + 0.5 and top >= 0 and bottom <= height, line
    boxes.sort(key=lambda box: box[1])
    for index, (line, _, top, right, bottom) in enumerate(boxes):
        for other, other_left, other_top, _, other_bottom in boxes[index + 1 :]:
            if other_left >= right:
                break
            assert other_top >= bottom or other_bottom <= top, (line, other)
