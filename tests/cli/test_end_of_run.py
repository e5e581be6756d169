"""What a run leaves to look at: a report that needs nothing else, and a picture."""

import re
import struct
from html.parser import HTMLParser

from .conftest import Finished

PLACES = {"src", "href", "xlink:href", "srcset", "poster", "data", "action", "background", "formaction", "manifest"}
"""attributes that make a browser fetch something"""


class References(HTMLParser):
    """Everything that the page would fetch, and its words."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.text: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:  # type: ignore[no-untyped-def]
        self.tags.append(tag)
        for name, value in attrs:
            if name in PLACES and value:
                self.found.append(value)
            self.found += re.findall(r"url\(([^)]*)\)", value or "")

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        self.found += re.findall(r"url\(([^)]*)\)", data)


def test_the_report_needs_nothing_but_itself(finished: Finished) -> None:
    page = finished.folder.report_path.read_text()
    read = References()
    read.feed(page)
    outside = [place for place in read.found if not place.strip("'\" ").startswith(("#", "data:"))]
    assert outside == []
    assert not {"iframe", "object", "embed", "base"} & set(read.tags)
    assert not re.search(r"@import|fetch\(|XMLHttpRequest|importScripts|WebSocket|sendBeacon", page)
    words = " ".join(read.text)
    assert finished.folder.path.name in words
    assert "held-out" in words
    assert read.tags.count("svg") > 3, "curves, and who was busy when"


def test_the_picture_is_one(finished: Finished) -> None:
    data = (finished.folder.path / "report.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert width > 800
    assert height > 400
    assert data.rstrip().endswith(b"IEND\xaeB`\x82")
