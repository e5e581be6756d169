"""A mirror for other hosts of the cluster: its folder over HTTP, read-only, whole objects and ranges of them.

Every object proves itself to whoever fetches it (its name, or its seal), so nothing here is trusted and nothing is
encrypted. What is half-written is not served, and nothing outside of the folder is.
"""

import re
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedReader
from pathlib import Path
from urllib.parse import unquote, urlsplit

from twinmill.store.blobs import check_key
from twinmill.store.errors import StoreRefused

SILENCE_S = 30.0
"""a client that neither reads nor writes for so long is let go"""
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class MirrorServer(ThreadingHTTPServer):
    """`with MirrorServer(folder) as server: server.serve_forever()`. Port 0 = any free one, see `url`."""

    daemon_threads = True

    def __init__(self, folder: Path | str, host: str = "127.0.0.1", port: int = 0) -> None:
        """FileNotFoundError when there is no such folder; OSError when the port is taken."""
        self.folder = Path(folder).resolve(strict=True)
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host if isinstance(host, str) else host.decode()}:{port}"


class _Handler(BaseHTTPRequestHandler):
    server: MirrorServer
    protocol_version = "HTTP/1.1"
    timeout = SILENCE_S

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: one line per range would bury what matters."""

    def _answer(self, with_body: bool) -> None:
        path = self._path()
        if path is None:
            self._empty(HTTPStatus.NOT_FOUND)
            return
        with open(path, "rb") as file:
            size = path.stat().st_size
            asked = self.headers.get("Range")
            span = (0, size) if asked is None else _span(asked, size)
            if span is None:
                self._empty(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, {"Content-Range": f"bytes */{size}"})
                return
            first, end = span
            self.send_response(HTTPStatus.OK if asked is None else HTTPStatus.PARTIAL_CONTENT)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(end - first))
            if asked is not None:
                self.send_header("Content-Range", f"bytes {first}-{end - 1}/{size}")
            self.end_headers()
            if with_body:
                file.seek(first)
                self._send(file, end - first)

    def _send(self, file: BufferedReader, left: int) -> None:
        while left and (data := file.read(min(left, 1 << 20))):
            self.wfile.write(data)
            left -= len(data)

    def _path(self) -> Path | None:
        """The file of the key that was asked for; None = there is none that may be seen."""
        key = unquote(urlsplit(self.path).path).removeprefix("/")
        try:
            check_key(key)
            path = (self.server.folder / key).resolve(strict=True)
        except (StoreRefused, OSError, ValueError):
            return None
        return path if path.is_file() and path.is_relative_to(self.server.folder) else None

    def _empty(self, status: HTTPStatus, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": "0", **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()


def _span(asked: str, size: int) -> tuple[int, int] | None:
    """(first, end) of a Range header; None when it cannot be satisfied."""
    found = _RANGE.fullmatch(asked.strip())
    if found is None or found[0] == "bytes=-":
        return None
    if not found[1]:
        first, end = max(0, size - int(found[2])), size
    else:
        first, end = int(found[1]), min(size, int(found[2]) + 1) if found[2] else size
    return (first, end) if first < end else None
