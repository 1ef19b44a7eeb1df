"""mtbert.data.download against a local server that breaks off, stalls, refuses and lies."""

import hashlib
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from mtbert.data import download as fetch_module
from mtbert.data.download import CHECKSUMS, fetch
from mtbert.data.tables import DataError
from mtbert.data.tasks import TASKS

HEADER = "\tid\tsentence1\tsentence2\tsimilarity\n"
TRAIN = HEADER + "".join(
    f"{i}\tdemo{i:04d}\tLamp number {i} is green.\tLamp {i} has a green light.\t{i % 6}.0\n" for i in range(400)
)
DEV = HEADER + "0\tdemo9000\tA heron stands in the pond.\tA bird is in the water.\t3.2\n"
TEST = "\tid\tsentence1\tsentence2\n0\tdemo9500\tTwo boats leave.\tThe boats stay.\n"
FILES = {"sts-train.csv": TRAIN.encode(), "sts-dev.csv": DEV.encode(), "sts-test-student.csv": TEST.encode()}
BODY = FILES["sts-train.csv"]
HALF = 3 * fetch_module.CHUNK


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Answers as the next behaviour in `server.behaviours` says, and honestly when none is left."""

    def do_GET(self):
        name = self.path.rsplit("/", 1)[1]
        asked = self.headers.get("Range")
        self.server.requests.append((name, asked))
        behave = self.server.behaviours.pop(0) if self.server.behaviours else honest
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        behave(self, self.server.files.get(name), start)

    def answer(self, status, body, length=None, **headers):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def honest(handler, body, start):
    if body is None:
        handler.answer(404, b"not here")
    elif start >= len(body):
        handler.answer(416, b"")
    elif start:
        handler.answer(206, body[start:], Content_Range=f"bytes {start}-{len(body) - 1}/{len(body)}")
    else:
        handler.answer(200, body)


def break_off(handler, body, start):
    handler.answer(200, body[:HALF], length=len(body))


def stall(handler, body, start):
    handler.answer(200, body[:HALF], length=len(body))
    handler.server.released.wait(5)


def error_500(handler, body, start):
    handler.answer(500, b"oops")


def ignore_range(handler, body, start):
    handler.answer(200, body)


def wrong_content_range(handler, body, start):
    handler.answer(206, body[:10], Content_Range=f"bytes 0-9/{len(body)}")


def wrong_bytes(handler, body, start):
    handler.answer(200, body.replace(b"green", b"brown"))


def too_long_content_length(handler, body, start):
    handler.answer(200, body, length=len(body) + 100)


def too_short_content_length(handler, body, start):
    handler.answer(200, body, length=HALF)


def html(handler, body, start):
    handler.answer(200, b"<!DOCTYPE html><html><body>Please log in.</body></html>", Content_Type="text/html")


@pytest.fixture
def server(monkeypatch):
    """A local course repository with three small STS files, whose checksums are the known ones."""
    monkeypatch.setattr(fetch_module, "BACK_OFF", 0.01)
    for name, body in FILES.items():
        monkeypatch.setitem(CHECKSUMS, name, sha256(body))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.files, server.behaviours, server.requests = dict(FILES), [], []
    server.released = threading.Event()
    server.url = f"http://127.0.0.1:{server.server_port}/data/"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()


def fetch_sts(folder, server, **options):
    return fetch(folder, server.url, tasks=["sts"], **{"timeout": 0.3, "retries": 2} | options)


def assert_only_complete_files(folder):
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES


def test_downloads_the_files_of_the_task_and_nothing_twice(server, tmp_path):
    paths = fetch_sts(tmp_path / "new", server)
    assert [path.name for path in paths] == list(FILES)
    assert_only_complete_files(tmp_path / "new")
    fetch_sts(tmp_path / "new", server)
    assert [name for name, _ in server.requests] == list(FILES)


@pytest.mark.parametrize("behaviour", [break_off, stall, error_500])
def test_tries_again_after_passing_failures(server, tmp_path, behaviour):
    server.behaviours = [behaviour]
    fetch_sts(tmp_path, server)
    assert_only_complete_files(tmp_path)
    resumed_at = None if behaviour is error_500 else f"bytes={HALF}-"
    assert server.requests[:2] == [("sts-train.csv", None), ("sts-train.csv", resumed_at)]


def test_resumes_what_an_earlier_call_left(server, tmp_path):
    server.behaviours = [break_off]
    with pytest.raises(DataError, match="broke off"):
        fetch_sts(tmp_path, server, retries=0)
    assert (tmp_path / "sts-train.csv.part").read_bytes() == BODY[:HALF]
    assert not (tmp_path / "sts-train.csv").exists()
    fetch_sts(tmp_path, server)
    assert server.requests[1] == ("sts-train.csv", f"bytes={HALF}-")
    assert_only_complete_files(tmp_path)


@pytest.mark.parametrize("behaviour", [ignore_range, wrong_content_range])
def test_does_not_trust_a_server_that_resumes_wrongly(server, tmp_path, behaviour):
    server.behaviours = [break_off, behaviour]
    fetch_sts(tmp_path, server)
    assert_only_complete_files(tmp_path)


@pytest.mark.parametrize("part", [b"the beginning of another version", BODY, BODY + b"and more"])
@pytest.mark.parametrize("known", [True, False])
def test_starts_over_when_the_partial_download_does_not_fit(server, tmp_path, monkeypatch, part, known):
    if not known:
        monkeypatch.setitem(CHECKSUMS, "sts-train.csv", None)
    (tmp_path / "sts-train.csv.part").write_bytes(part)
    fetch_sts(tmp_path, server)
    assert server.requests[0] == ("sts-train.csv", f"bytes={len(part)}-")
    assert server.requests[1] == ("sts-train.csv", None)
    assert_only_complete_files(tmp_path)


@pytest.mark.parametrize(
    ("behaviour", "received"),
    [
        (wrong_bytes, BODY.replace(b"green", b"brown")),
        (too_short_content_length, BODY[:HALF]),
        (html, b"<!DOCTYPE html><html><body>Please log in.</body></html>"),
    ],
)
def test_wrong_content_is_an_error_with_both_digests(server, tmp_path, behaviour, received):
    server.behaviours = [behaviour]
    with pytest.raises(DataError) as caught:
        fetch_sts(tmp_path, server)
    for part in ("sts-train.csv", sha256(BODY), sha256(received)):
        assert part in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_content_length_that_never_comes_is_an_error(server, tmp_path):
    server.behaviours = [too_long_content_length] * 3
    with pytest.raises(DataError, match="after 3 tries"):
        fetch_sts(tmp_path, server)
    assert not (tmp_path / "sts-train.csv").exists()


@pytest.mark.parametrize("behaviour", [None, html, too_short_content_length])
def test_without_a_checksum_the_file_must_be_readable(server, tmp_path, monkeypatch, behaviour):
    monkeypatch.setitem(CHECKSUMS, "sts-train.csv", None)
    if behaviour is None:
        fetch_sts(tmp_path, server)
        assert_only_complete_files(tmp_path)
        return
    server.behaviours = [behaviour]
    with pytest.raises(DataError, match=r"sts-train\.csv"):
        fetch_sts(tmp_path, server)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("known", [True, False])
def test_another_file_in_its_place_is_kept_unless_forced(server, tmp_path, monkeypatch, known):
    if not known:
        monkeypatch.setitem(CHECKSUMS, "sts-dev.csv", None)
    mine = tmp_path / "sts-dev.csv"
    mine.write_text("my own notes\n")
    with pytest.raises(DataError, match=r"sts-dev\.csv is there .* force=True"):
        fetch_sts(tmp_path, server)
    assert mine.read_text() == "my own notes\n"
    fetch_sts(tmp_path, server, force=True)
    assert_only_complete_files(tmp_path)


def test_a_missing_file_is_not_asked_for_again(server, tmp_path):
    del server.files["sts-train.csv"]
    with pytest.raises(DataError, match=r"sts-train\.csv after 1 tries: the server answered 404.*by hand"):
        fetch_sts(tmp_path, server)
    assert len(server.requests) == 1


def test_a_lasting_server_error_ends_after_the_retries(server, tmp_path):
    server.behaviours = [error_500] * 9
    with pytest.raises(DataError, match="after 3 tries: the server answered 500"):
        fetch_sts(tmp_path, server)
    assert len(server.requests) == 3


def test_no_network_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch_module, "BACK_OFF", 0.01)
    with socket.socket() as unused:  # bound and not listening: connections are refused
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        with pytest.raises(DataError) as caught:
            fetch(tmp_path, url, tasks=["sts"], retries=1, timeout=0.3)
    message = str(caught.value)
    assert "no network connection" in message and url + "sts-train.csv" in message
    assert f"by hand from {fetch_module.COURSE_PAGE} and put it into {tmp_path}" in message


def test_every_file_of_the_course_is_listed():
    names = {task.file_name(split) for task in TASKS.values() for split in ("train", "dev", "test")}
    assert set(CHECKSUMS) == names


def test_an_unknown_task_is_named(tmp_path):
    with pytest.raises(DataError, match="no such task: mnli; the course has sst, cfimdb, quora, sts"):
        fetch(tmp_path, tasks=["mnli"])
