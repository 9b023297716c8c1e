"""The server's side of `kubectl exec`: the streams of one command, over SPDY/3.1 or over a WebSocket.

A kubectl before 1.31 uses SPDY, a later one a WebSocket.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import subprocess
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Protocol

STDIN, STDOUT, STDERR, ERROR = "stdin", "stdout", "stderr", "error"
_SYN_STREAM, _SYN_REPLY, _PING = 1, 2, 6
_FIN = 1
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CHANNELS = {STDIN: 0, STDOUT: 1, STDERR: 2, ERROR: 3}


class Streams(Protocol):
    """The connection of one `kubectl exec`."""

    def received(self) -> Iterator[bytes]:
        """Yield pieces of the command's input until it ends."""

    def send(self, stream: str, data: bytes, *, last: bool = False) -> None: ...

    def finish(self) -> None: ...


def open_streams(handler: BaseHTTPRequestHandler) -> Streams:
    """Answer the upgrade that kubectl asks for."""
    websocket = handler.headers.get("Upgrade", "").lower() == "websocket"
    return WebSocketStreams(handler) if websocket else SpdyStreams(handler)


class SpdyStreams:
    """Streams of SPDY/3.1. kubectl opens them in a fixed order, so that their headers need not be read."""

    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        self._read, self._write = handler.rfile, handler.wfile
        self._lock = threading.Lock()
        handler.close_connection = True
        handler.send_response(101)
        handler.send_header("Upgrade", "SPDY/3.1")
        handler.send_header("Connection", "Upgrade")
        handler.send_header("X-Stream-Protocol-Version", "v4.channel.k8s.io")
        handler.end_headers()
        compress = zlib.compressobj()
        self._headers = compress.compress(struct.pack(">I", 0)) + compress.flush(zlib.Z_SYNC_FLUSH)
        self._more = zlib.Z_SYNC_FLUSH
        self._compress = compress
        self._ids: dict[str, int] = {}
        names = [ERROR, STDIN, STDOUT, STDERR]
        while len(self._ids) < len(names):
            kind, stream, _ = self._frame()
            if kind == _SYN_STREAM:
                self._reply(stream, first=not self._ids)
                self._ids[names[len(self._ids)]] = stream

    def received(self) -> Iterator[bytes]:
        while True:
            try:
                kind, stream, data = self._frame()
            except EOFError:
                return
            if kind in (0, -1) and stream == self._ids[STDIN]:
                yield data
                if kind == -1:
                    return

    def send(self, stream: str, data: bytes, *, last: bool = False) -> None:
        for start in range(0, len(data) or 1, 2**15):
            piece = data[start : start + 2**15]
            flags = _FIN if last and start + 2**15 >= len(data) else 0
            with self._lock:
                self._write.write(struct.pack(">II", self._ids[stream], flags << 24 | len(piece)) + piece)
                self._write.flush()

    def finish(self) -> None:
        self._write.flush()

    def _frame(self) -> tuple[int, int, bytes]:
        """Return kind, stream and content of the next frame; the kind of data is 0, of the last data -1."""
        head = self._exactly(8)
        first, second = struct.unpack(">II", head)
        flags, data = second >> 24, self._exactly(second & 0xFFFFFF)
        if not first >> 31:
            return (-1 if flags & _FIN else 0), first, data
        kind = first & 0xFFFF
        if kind == _PING:
            with self._lock:
                self._write.write(head + data)
        return kind, struct.unpack(">I", data[:4])[0] if len(data) >= 4 else 0, data

    def _reply(self, stream: int, *, first: bool) -> None:
        headers = self._headers
        if not first:
            headers = self._compress.compress(struct.pack(">I", 0)) + self._compress.flush(zlib.Z_SYNC_FLUSH)
        body = struct.pack(">I", stream) + headers
        with self._lock:
            self._write.write(struct.pack(">II", 0x8003 << 16 | _SYN_REPLY, len(body)) + body)
            self._write.flush()

    def _exactly(self, count: int) -> bytes:
        data = self._read.read(count)
        if len(data) < count:
            raise EOFError
        return data


class WebSocketStreams:
    """Streams of the subprotocol v5.channel.k8s.io: the first byte of a message names its stream."""

    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        self._read, self._write = handler.rfile, handler.wfile
        self._lock = threading.Lock()
        handler.close_connection = True
        key = handler.headers["Sec-WebSocket-Key"].encode()
        handler.send_response(101)
        handler.send_header("Upgrade", "websocket")
        handler.send_header("Connection", "Upgrade")
        accept = base64.b64encode(hashlib.sha1(key + _MAGIC).digest()).decode()
        handler.send_header("Sec-WebSocket-Accept", accept)
        handler.send_header("Sec-WebSocket-Protocol", "v5.channel.k8s.io")
        handler.end_headers()
        self._write.flush()

    def received(self) -> Iterator[bytes]:
        while True:
            try:
                opcode, data = self._message()
            except EOFError:
                return
            if opcode == 8 or data[:2] == bytes([255, _CHANNELS[STDIN]]):
                return
            if opcode == 9:
                self._send(10, data)
            elif data[:1] == bytes([_CHANNELS[STDIN]]):
                yield data[1:]

    def send(self, stream: str, data: bytes, *, last: bool = False) -> None:
        if data:
            self._send(2, bytes([_CHANNELS[stream]]) + data)

    def finish(self) -> None:
        self._send(8, struct.pack(">H", 1000))

    def _message(self) -> tuple[int, bytes]:
        first, second = self._exactly(2)
        size = second & 127
        if size >= 126:
            size = int.from_bytes(self._exactly(2 if size == 126 else 8), "big")
        mask = self._exactly(4)
        data = self._exactly(size)
        whole = mask * (size // 4 + 1)
        plain = (int.from_bytes(data, "big") ^ int.from_bytes(whole[:size], "big")).to_bytes(size, "big")
        return first & 15, plain

    def _send(self, opcode: int, data: bytes) -> None:
        size = len(data)
        if size < 126:
            length = bytes([size])
        else:
            length = b"\x7e" + struct.pack(">H", size) if size < 2**16 else b"\x7f" + struct.pack(">Q", size)
        with self._lock:
            self._write.write(bytes([128 | opcode]) + length + data)
            self._write.flush()

    def _exactly(self, count: int) -> bytes:
        data = self._read.read(count)
        if len(data) < count:
            raise EOFError
        return data


def carry(streams: Streams, process: subprocess.Popen[bytes]) -> None:
    """Connect a process to the streams, and send its exit code at the end, like a kubelet."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None

    def feed() -> None:
        assert process.stdin is not None
        try:
            for piece in streams.received():
                process.stdin.write(piece)
                process.stdin.flush()
            process.stdin.close()
        except (OSError, ValueError):
            return

    def drain(stream: str, pipe: object) -> None:
        while data := pipe.read1(2**16):  # type: ignore[attr-defined]
            streams.send(stream, data)
        streams.send(stream, b"", last=True)

    threads = [
        threading.Thread(target=feed, daemon=True),
        threading.Thread(target=drain, args=(STDOUT, process.stdout), daemon=True),
        threading.Thread(target=drain, args=(STDERR, process.stderr), daemon=True),
    ]
    for thread in threads:
        thread.start()
    code = process.wait()
    for thread in threads[1:]:
        thread.join()
    streams.send(ERROR, _status(code if code >= 0 else 128 - code), last=True)
    streams.finish()


def _status(code: int) -> bytes:
    if code == 0:
        return json.dumps({"metadata": {}, "status": "Success"}).encode()
    cause = {"reason": "ExitCode", "message": str(code)}
    failure = {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: {code}",
        "details": {"causes": [cause]},
    }
    return json.dumps(failure).encode()
