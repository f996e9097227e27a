"""Fetching: whatever a server does, a file under its own name is the right one."""

import hashlib
import http.server
import json
import re
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

from queuesmith.errors import TraceError
from queuesmith.traces import catalog, fetch
from queuesmith.traces.fetch import fetch as fetch_trace

BODY = bytes(range(256)) * 1000
SHA256 = hashlib.sha256(BODY).hexdigest()
ETAG = '"one"'


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Keep the user's own traces out of it, and theirs out of harm's way."""
    folder = tmp_path / "traces"
    monkeypatch.setenv("QUEUESMITH_TRACES", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    return folder


class Server:
    """A local server whose answers are a list of functions of the handler; the last one stays."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    @contextmanager
    def running(self):
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked.append((self.path, dict(self.headers)))
                answer = outer.answers[min(len(outer.asked), len(outer.answers)) - 1]
                answer(self)

            def log_message(self, *arguments):
                pass

        class Quiet(http.server.ThreadingHTTPServer):
            def handle_error(self, request, client_address):
                pass  # a client that hangs up is part of the test

        server = Quiet(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def send(body=BODY, *, length=None, etag=ETAG, status=200, cut=None, headers=()):
    """Return an answer: announce a length, send a body, or only the first `cut` bytes of it."""

    def answer(handler):
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body) if length is None else length))
        if etag:
            handler.send_header("ETag", etag)
        for name, value in headers:
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body[:cut])

    return answer


def send_range(body=BODY, *, etag=ETAG, cut=None):
    """Return an answer of a server that knows ranges and proofs."""

    def answer(handler):
        asked = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        if not asked or handler.headers.get("If-Range") != etag:
            send(body, etag=etag, cut=cut)(handler)
            return
        start = int(asked[1])
        place = f"bytes {start}-{len(body) - 1}/{len(body)}"
        send(body[start:], etag=etag, status=206, headers=[("Content-Range", place)])(handler)

    return answer


def say(status, **headers):
    return send(b"", status=status, etag="", headers=headers.items())


@contextmanager
def served(monkeypatch, *answers, **fields):
    """Put a local server into the catalogue as the place of azure_2023_conv."""
    server = Server(*answers)
    with server.running() as address:
        entry = replace(
            catalog.get_entry("azure_2023_conv"),
            **{
                "url": f"{address}/trace.csv",
                "file": "trace.csv",
                "sha256": SHA256,
                "bytes": len(BODY),
                **fields,
            },
        )
        monkeypatch.setattr(catalog, "get_entry", lambda name: entry)
        monkeypatch.setattr(fetch, "get_entry", lambda name: entry)
        yield server


def get(**options):
    return fetch_trace("azure_2023_conv", **{"timeout": 2.0, "wait": 0.01, **options})


def names(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_file_is_fetched_verified_and_recorded(folder, monkeypatch):
    seen = []
    with served(monkeypatch, send()) as server:
        fetched = get(progress=lambda done, total: seen.append((done, total)))

    assert fetched.path.read_bytes() == BODY
    assert (fetched.sha256, fetched.verified, fetched.downloaded) == (SHA256, True, True)
    assert seen[-1] == (len(BODY), len(BODY))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert server.asked[0][1]["User-Agent"].startswith("queuesmith/")
    assert names(folder) == ["trace.csv", "trace.csv.origin.json"]
    record = json.loads((folder / "trace.csv.origin.json").read_text())
    assert record["sha256"] == SHA256
    assert record["verified"] is True


def test_a_file_at_hand_is_not_fetched_again(folder, monkeypatch):
    with served(monkeypatch, send()) as server:
        get()
        again = get()

    assert len(server.asked) == 1
    assert not again.downloaded
    assert again.path == folder / "trace.csv"


def test_a_file_anywhere_below_the_named_folder_is_used(folder, monkeypatch):
    place = folder / "some" / "where" / "trace.csv"
    place.parent.mkdir(parents=True)
    place.write_bytes(BODY)
    with served(monkeypatch, send()) as server:
        fetched = get()

    assert fetched.path == place
    assert server.asked == []


def test_a_wrong_file_of_the_name_is_neither_used_nor_overwritten(folder, monkeypatch):
    folder.mkdir()
    (folder / "trace.csv").write_bytes(b"mine")
    with served(monkeypatch, send()), pytest.raises(TraceError, match=r"4 bytes.*move it away"):
        get()

    assert (folder / "trace.csv").read_bytes() == b"mine"


def test_a_truncated_answer_is_gone_on_with(folder, monkeypatch):
    with served(monkeypatch, send_range(cut=70_000), send_range()) as server:
        fetched = get()

    assert fetched.path.read_bytes() == BODY
    assert server.asked[1][1]["Range"] == "bytes=70000-"
    assert server.asked[1][1]["If-Range"] == ETAG
    assert names(folder) == ["trace.csv", "trace.csv.origin.json"]


def test_a_later_call_goes_on_where_an_earlier_one_stopped(folder, monkeypatch):
    with served(monkeypatch, send_range(cut=70_000)) as server:
        with pytest.raises(TraceError, match=r"stopped at 70,000 of 256,000 bytes"):
            get(attempts=1)
        assert "trace.csv" not in names(folder)
        server.answers = [send_range()]
        fetched = get()

    assert fetched.path.read_bytes() == BODY
    assert server.asked[-1][1]["Range"] == "bytes=70000-"


def test_a_server_that_ignores_ranges_sends_the_file_from_its_start(monkeypatch):
    with served(monkeypatch, send(cut=70_000), send()) as server:
        fetched = get()

    assert "Range" in server.asked[1][1]
    assert fetched.path.read_bytes() == BODY


def test_nothing_is_appended_to_a_file_that_has_changed(monkeypatch):
    with served(monkeypatch, send_range(b"x" * len(BODY), cut=70_000), send_range(etag='"two"')):
        fetched = get()

    assert fetched.path.read_bytes() == BODY


@pytest.mark.parametrize("etag", ["", 'W/"one"'])
def test_without_a_proof_of_sameness_half_a_file_is_worth_nothing(monkeypatch, etag):
    with served(monkeypatch, send(cut=70_000, etag=etag), send(etag=etag)) as server:
        fetched = get()

    assert "Range" not in server.asked[1][1]
    assert fetched.path.read_bytes() == BODY


def test_a_wrong_half_is_thrown_away_and_the_whole_fetched(monkeypatch):
    """The proof of sameness was wrong: the hash finds out, and one whole file decides."""
    half = send_range(b"x" * len(BODY), cut=70_000)
    with served(monkeypatch, half, send_range(), send_range()) as server:
        fetched = get()

    assert fetched.path.read_bytes() == BODY
    assert ["Range" in headers for _, headers in server.asked] == [False, True, False]


def test_another_part_than_was_asked_for_is_not_used(monkeypatch):
    wrong = send(
        BODY[10:], status=206, headers=[("Content-Range", f"bytes 10-{len(BODY) - 1}/{len(BODY)}")]
    )
    with served(monkeypatch, send(cut=70_000), wrong, send()):
        assert get().path.read_bytes() == BODY


def test_a_part_that_is_too_long_starts_again(folder, monkeypatch):
    folder.mkdir()
    with served(monkeypatch, say(416), send()) as server:
        (folder / "trace.csv.part").write_bytes(BODY + b"more")
        state = {"url": catalog.get_entry("").url, "validator": ETAG}
        (folder / "trace.csv.part.json").write_text(json.dumps(state))
        fetched = get()

    assert fetched.path.read_bytes() == BODY
    assert "Range" not in server.asked[1][1]


def test_a_part_that_is_whole_needs_only_its_name(folder, monkeypatch):
    folder.mkdir()
    (folder / "trace.csv.part").write_bytes(BODY)
    with served(monkeypatch, send()) as server:
        fetched = get()

    assert server.asked == []
    assert fetched.path.read_bytes() == BODY


def test_a_tampered_file_is_refused_and_not_kept(folder, monkeypatch):
    tampered = b"y" + BODY[1:]
    with served(monkeypatch, send(tampered)), pytest.raises(TraceError) as raised:
        get()

    message = str(raised.value)
    assert hashlib.sha256(tampered).hexdigest() in message
    assert SHA256 in message
    assert "\n" not in message
    assert names(folder) == []


@pytest.mark.parametrize(("length", "says"), [(300_000, "300,000"), (1_000, "1,000")])
def test_a_wrong_length_is_refused_before_anything_is_kept(folder, monkeypatch, length, says):
    with (
        served(monkeypatch, send(length=length)),
        pytest.raises(TraceError, match=rf"offers {says} bytes, the catalogue says 256,000"),
    ):
        get()

    assert names(folder) == []


def test_a_length_that_is_never_reached_is_given_up_when_the_size_is_unknown(folder, monkeypatch):
    with (
        served(monkeypatch, send(length=300_000), bytes=None),
        pytest.raises(TraceError, match=r"stopped at 256,000 of 300,000 bytes, 3 times"),
    ):
        get(attempts=3)

    assert "trace.csv" not in names(folder)


def test_more_than_the_catalogue_says_is_not_read_to_its_end(monkeypatch):
    def endless(handler):
        handler.send_response(200)
        handler.end_headers()
        for _ in range(1_000):
            handler.wfile.write(bytes(1 << 16))

    with served(monkeypatch, endless), pytest.raises(TraceError, match="the catalogue says"):
        get()


def test_an_unknown_hash_is_recorded_and_said_to_be_unverified(folder, monkeypatch):
    with served(monkeypatch, send(), sha256="", bytes=None):
        fetched = get()

    assert (fetched.sha256, fetched.verified) == (SHA256, False)
    record = json.loads((folder / "trace.csv.origin.json").read_text())
    assert record["verified"] is False


def test_an_error_of_the_server_is_tried_again(monkeypatch):
    with served(monkeypatch, say(500), say(503), send()) as server:
        fetched = get()

    assert len(server.asked) == 3
    assert fetched.path.read_bytes() == BODY


def test_waits_grow_and_the_servers_own_wish_counts(monkeypatch):
    slept = []
    monkeypatch.setattr(fetch.time, "sleep", slept.append)
    answers = [say(500), say(500), say(429, **{"Retry-After": "7"}), send()]
    with served(monkeypatch, *answers):
        get(wait=1.0)

    assert slept == [1.0, 2.0, 7.0]


def test_a_server_in_ruins_is_given_up(monkeypatch):
    with (
        served(monkeypatch, say(500)) as server,
        pytest.raises(TraceError, match=r"answers 500 .*, 3 times"),
    ):
        get(attempts=3)

    assert len(server.asked) == 3


def test_a_missing_file_is_not_asked_for_twice(monkeypatch):
    with (
        served(monkeypatch, say(404)) as server,
        pytest.raises(TraceError, match="404 Not Found"),
    ):
        get()

    assert len(server.asked) == 1


def test_a_redirect_is_followed(monkeypatch):
    with served(monkeypatch, say(302, Location="/elsewhere"), send()) as server:
        fetched = get()

    assert [path for path, _ in server.asked] == ["/trace.csv", "/elsewhere"]
    assert fetched.path.read_bytes() == BODY


@pytest.mark.parametrize(
    "place", ["http://example.org/trace.csv", "ftp://example.org/x", "file:///etc/hostname"]
)
def test_a_redirect_to_what_others_could_forge_is_refused(folder, monkeypatch, place):
    with (
        served(monkeypatch, say(302, Location=place)) as server,
        pytest.raises(TraceError, match=r"not (https|allowed)"),
    ):
        get()

    assert len(server.asked) == 1
    assert names(folder) == []


def test_an_address_that_is_not_https_is_refused(monkeypatch):
    with (
        served(monkeypatch, send(), url="http://example.org/trace.csv"),
        pytest.raises(TraceError, match="not https"),
    ):
        get()


def test_silence_ends_after_the_timeout(monkeypatch):
    release = threading.Event()

    def silent(handler):
        release.wait(10)

    start = time.monotonic()
    with served(monkeypatch, silent):
        with pytest.raises(TraceError, match="silent, 2 times"):
            get(timeout=0.2, attempts=2)
        release.set()

    assert time.monotonic() - start < 5


def test_a_drip_counts_as_silence(folder, monkeypatch):
    """Each byte comes in time, but the file never would."""
    stop = threading.Event()

    def drip(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(BODY)))
        handler.end_headers()
        for _ in range(250):  # an end, or a client without patience limits would never come back
            if stop.wait(0.02):
                return
            handler.wfile.write(b".")

    with served(monkeypatch, drip):
        with pytest.raises(TraceError, match=r"only \d+ bytes in 0.2 s, 2 times"):
            get(timeout=0.2, attempts=2)
        stop.set()

    assert "trace.csv" not in names(folder)


def test_no_network_says_in_one_line_what_to_do_by_hand(folder, monkeypatch):
    url = "https://queuesmith.invalid/trace.csv"
    with served(monkeypatch, send(), url=url), pytest.raises(TraceError) as raised:
        get()

    message = str(raised.value)
    assert "\n" not in message
    for needed in ("is there a network?", url, str(folder / "trace.csv"), SHA256):
        assert needed in message


def test_a_refused_connection_is_reported(monkeypatch):
    with (
        served(monkeypatch, send(), url="http://127.0.0.1:9/trace.csv"),
        pytest.raises(TraceError, match="refused, 2 times"),
    ):
        get(attempts=2)


def test_what_is_published_as_a_folder_comes_with_instructions():
    with pytest.raises(TraceError, match=r"clone https://github.com/alibaba/ServeGen and pack"):
        fetch_trace("servegen_deepseek_r1")


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with served(monkeypatch, send()), pytest.raises(TraceError, match="cannot be written"):
        get(folder=tmp_path / "file" / "below")


def test_a_second_fetch_of_the_same_file_waits_its_turn(folder, monkeypatch):
    pytest.importorskip("fcntl")
    folder.mkdir()
    with (
        served(monkeypatch, send()),
        fetch._alone(folder / "trace.csv"),
        pytest.raises(TraceError, match="being fetched already"),
    ):
        get()


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(TraceError, match="Did you mean 'azure_2023_conv'"):
        fetch_trace("azure_2023_con")
