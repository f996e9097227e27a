"""A local server that answers completions as vLLM does, or in every way that it should not."""

import json
import socket
import struct
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODEL = "tiny"


class FakeServer(ThreadingHTTPServer):
    """Serves one token every `gap` seconds, or misbehaves.

    Attributes
    ----------
    behave : callable or None
        Called with the handler and the number of the completion request, from 0; returns True when
        it has answered the request itself.
    bodies : list
        Of completion requests, as they came.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, behave=None, gap=0.001):
        super().__init__(("127.0.0.1", 0), Handler)
        self.behave = behave
        self.gap = gap
        self.bodies = []
        self.steps = 0
        self.lock = threading.Lock()

    @property
    def base_url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address):
        pass  # clients that leave are expected here


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        pages = {
            "/health": "",
            "/v1/models": json.dumps({"data": [{"id": MODEL}]}),
            "/metrics": "vllm:num_requests_running 0.0\n"
            f'vllm:iteration_tokens_total_count{{engine="0"}} {self.server.steps}.0\n',
        }
        text = pages.get(self.path)
        self.answer(404 if text is None else 200, text or "")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            number = len(self.server.bodies)
            self.server.bodies.append(body)
        if self.server.behave is not None and self.server.behave(self, number):
            return
        self.begin_stream()
        for count in range(1, body["max_tokens"] + 1):
            time.sleep(self.server.gap)
            self.server.steps += 1
            self.send_token(count)
        self.send_event("[DONE]")
        self.end_stream()

    def answer(self, status, text):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin_stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def send_chunk(self, data):
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def send_event(self, text):
        self.send_chunk(f"data: {text}\n\n".encode())

    def send_token(self, count):
        event = {"choices": [{"index": 0, "text": ""}], "usage": {"completion_tokens": count}}
        self.send_event(json.dumps(event))

    def end_stream(self):
        self.wfile.write(b"0\r\n\r\n")

    def reset(self):
        """Close the connection as a crashed server does."""
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True
        self.connection.close()


@contextmanager
def serving(behave=None, gap=0.001):
    """Run a server for as long as the block lasts."""
    server = FakeServer(behave, gap)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# Ways to misbehave: each answers the requests that it is asked about and lets others be.


def status(code, message):
    def behave(handler, number):
        handler.answer(code, json.dumps({"error": {"message": message}}))
        return True

    return behave


def reset(handler, number):
    handler.reset()
    return True


def reset_mid_stream(handler, number):
    handler.begin_stream()
    handler.send_token(1)
    handler.send_token(2)
    handler.reset()
    return True


def end_early(handler, number):
    handler.begin_stream()
    handler.send_token(1)
    handler.end_stream()
    return True


def too_few(handler, number):
    handler.begin_stream()
    handler.send_token(1)
    handler.send_event("[DONE]")
    handler.end_stream()
    return True


def too_many(handler, number):
    handler.begin_stream()
    handler.send_token(1000)
    return True


def garbage(handler, number):
    handler.begin_stream()
    handler.send_event('{"choices": [')
    handler.end_stream()
    return True


def wrong_shape(handler, number):
    handler.begin_stream()
    handler.send_event("[1, 2]")
    handler.end_stream()
    return True


def web_page(handler, number):
    handler.answer(200, "<html>It works!</html>\n")
    return True


def error_event(handler, number):
    handler.begin_stream()
    handler.send_token(1)
    handler.send_event(json.dumps({"error": {"message": "out of memory"}}))
    handler.end_stream()
    return True


def endless_line(handler, number):
    handler.begin_stream()
    for _ in range(40):
        handler.send_chunk(b"x" * (1 << 15))
    handler.close_connection = True
    return True


def not_http(handler, number):
    handler.wfile.write(b"\x00\x01\x02 nonsense\r\n\r\n")
    handler.close_connection = True
    handler.connection.close()
    return True


def hang(handler, number):
    time.sleep(1.5)
    handler.close_connection = True
    return True


def drip(handler, number):
    """Send bytes now and then, and never a token."""
    handler.begin_stream()
    for _ in range(30):
        handler.send_chunk(b": still here\n\n")
        time.sleep(0.05)
    handler.close_connection = True
    return True


def only(row, behave, head=10):
    """Misbehave for one request only; its prompt is `head` tokens longer than its row."""

    def behave_then(handler, number):
        prompt = handler.server.bodies[number]["prompt"]
        return len(prompt) == head + row and behave(handler, number)

    return behave_then
