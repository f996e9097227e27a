"""A local OpenAI-compatible endpoint that answers from a list, well or badly.

Each reply is a function of the open connection and of what was asked; it may send what HTTP allows,
or anything else.
"""

import json
import socket
import struct
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Gives the replies of a list in turn, the last one for ever; keeps what it was asked."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, replies):
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies, self.requests, self.heads = list(replies), [], []
        self.turn = threading.Lock()
        self.over = threading.Event()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request, client_address):
        """Say nothing: clients that hang up are what is tested."""


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        server = self.server
        with server.turn:
            place = min(len(server.requests), len(server.replies) - 1)
            server.requests.append(json.loads(body))
            server.heads.append((self.path, dict(self.headers)))
            reply = server.replies[place]
        reply(self, server.requests[-1])

    def send(self, status, body, headers=()):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), **dict(headers)}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        """Print nothing."""


@contextmanager
def serving(*replies):
    """Serve replies from a thread; yield the server."""
    server = Server(replies)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def completion(text, *, prompt_tokens=1_000, answer_tokens=200, **changes):
    """Return the document of a good answer."""
    return {
        "id": "x",
        "object": "chat.completion",
        "model": "scripted-1",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": answer_tokens,
            "total_tokens": prompt_tokens + answer_tokens,
        },
        **changes,
    }


def say(text, **changes):
    """Answer with a text."""
    return lambda handler, asked: handler.send(200, completion(text, **changes))


def body(content, status=200, **headers):
    """Answer with these bytes, or with a document."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler, asked: handler.send(status, content, names)


def refuse(status, message="no", **headers):
    """Answer with an error as OpenAI words it."""
    return body({"error": {"message": message, "type": "x", "code": None}}, status, **headers)


def reset(handler, asked):
    """Break the connection off, without a goodbye."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def hang_up_halfway(handler, asked):
    """Promise a thousand bytes and send ten."""
    handler.send_response(200)
    handler.send_header("content-length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices"')
    handler.wfile.flush()
    handler.connection.shutdown(socket.SHUT_RDWR)


def drip(handler, asked):
    """Send a byte now and then, each soon enough for whoever only minds silence."""
    handler.send_response(200)
    handler.send_header("content-length", "100000")
    handler.end_headers()
    _trickle(handler, b" ")


def drip_headers(handler, asked):
    """Send a header that never ends."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nx-slow: ")
    _trickle(handler, b"a")


def drip_an_error(handler, asked):
    """Send an error whose body never ends."""
    handler.send_response(500)
    handler.end_headers()
    _trickle(handler, b" ")


def silence(handler, asked):
    """Take the question and say nothing."""
    handler.server.over.wait(30)


def flood(status=200):
    """Answer with a body without an end, as fast as it is read."""

    def reply(handler, asked):
        handler.send_response(status)
        handler.end_headers()
        while not handler.server.over.is_set():
            handler.wfile.write(b"x" * 65_536)

    return reply


def stream(text):
    """Answer as if streaming had been asked for."""
    lines = [
        {"model": "scripted-1", "choices": [{"delta": {"content": part}}]}
        for part in (text[:20], text[20:])
    ]
    lines.append(
        {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}}
    )
    sent = "".join(f"data: {json.dumps(line)}\n\n" for line in lines) + "data: [DONE]\n\n"
    return body(sent.encode(), content_type="text/event-stream")


def _trickle(handler, byte):
    while not handler.server.over.is_set():
        handler.wfile.write(byte)
        handler.wfile.flush()
        time.sleep(0.02)
