"""mtbert_lab.download against a local server that breaks off, stalls, refuses and sends wrong content."""

import hashlib
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from mtbert.data.tables import DataError
from mtbert.data.tasks import TASKS
from mtbert_lab import download
from mtbert_lab.download import fetch

COURSE_FILES = set(download.CHECKSUMS)
HEADER = "\tid\tsentence1\tsentence2\tsimilarity\n"
TRAIN = HEADER + "".join(
    f"{i}\tdemo{i:04d}\tLamp number {i} is green.\tLamp {i} has a green light.\t{i % 6}.0\n" for i in range(400)
)
DEV = HEADER + "0\tdemo9000\tA heron stands in the pond.\tA bird is in the water.\t3.2\n"
TEST = "\tid\tsentence1\tsentence2\n0\tdemo9500\tTwo boats leave.\tThe boats stay.\n"
FILES = {"sts-train.csv": TRAIN.encode(), "sts-dev.csv": DEV.encode(), "sts-test-student.csv": TEST.encode()}
BODY = FILES["sts-train.csv"]
HALF = len(BODY) // 2
HTML = b"<!DOCTYPE html><html><body>Please log in.</body></html>"


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Answers as the next behaviour in `server.behaviours` says, and correctly when none is left."""

    def do_GET(self):
        name = self.path.rsplit("/", 1)[1]
        self.server.requests.append(name)
        behave = self.server.behaviours.pop(0) if self.server.behaviours else correct
        behave(self, self.server.files.get(name))

    def answer(self, status, body, length=None):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def correct(handler, body):
    handler.answer(404 if body is None else 200, body or b"not here")


def break_off(handler, body):
    handler.answer(200, body[:HALF], length=len(body))


def stall(handler, body):
    handler.answer(200, body[:HALF], length=len(body))
    handler.server.released.wait(5)


def error_500(handler, body):
    handler.answer(500, b"oops")


def wrong_bytes(handler, body):
    handler.answer(200, body.replace(b"green", b"brown"))


def too_short_content_length(handler, body):
    handler.answer(200, body, length=HALF)


def html(handler, body):
    handler.answer(200, HTML)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(download, "RETRIES", 2)
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)
    monkeypatch.setattr(download, "CHECKSUMS", {name: sha256(body) for name, body in FILES.items()})


@pytest.fixture
def server(monkeypatch):
    """A local course repository with three small STS files, whose checksums are the known ones."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.files, server.behaviours, server.requests = dict(FILES), [], []
    server.released = threading.Event()
    monkeypatch.setattr(download, "COURSE_URL", f"http://127.0.0.1:{server.server_port}/data/")
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()


def assert_only_complete_files(folder):
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES


def test_downloads_every_file_once(server, tmp_path):
    paths = fetch(tmp_path / "new")
    assert [path.name for path in paths] == list(FILES)
    assert_only_complete_files(tmp_path / "new")
    (tmp_path / "other").touch()
    assert {path.stat().st_mode for path in paths} == {(tmp_path / "other").stat().st_mode}, "others may read it"
    fetch(tmp_path / "new")
    assert server.requests == list(FILES)


@pytest.mark.parametrize("behaviour", [break_off, stall, error_500])
def test_tries_again_after_temporary_failures(server, tmp_path, monkeypatch, behaviour):
    if behaviour is stall:
        monkeypatch.setattr(download, "TIMEOUT", 0.3)
    server.behaviours = [behaviour] * 2
    fetch(tmp_path)
    assert_only_complete_files(tmp_path)
    assert server.requests[:4] == ["sts-train.csv"] * 3 + ["sts-dev.csv"]


@pytest.mark.parametrize("behaviour, cause", [(break_off, "IncompleteRead"), (error_500, "500 Server Error")])
def test_a_lasting_failure_ends_after_the_retries(server, tmp_path, behaviour, cause):
    server.behaviours = [behaviour] * 9
    with pytest.raises(DataError, match=rf"could not download .*sts-train\.csv in 3 tries: .*{cause}.*by hand"):
        fetch(tmp_path)
    assert len(server.requests) == 3 and list(tmp_path.iterdir()) == []


def test_a_link_in_the_folder_is_replaced_and_not_written_through(server, tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("my own notes\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("sts-train.csv.part", ".sts-train.csv.part", "sts-train.csv"):
        (folder / name).symlink_to(mine)
    fetch(folder, force=True)
    assert mine.read_text() == "my own notes\n"
    assert (folder / "sts-train.csv").read_bytes() == BODY and not (folder / "sts-train.csv").is_symlink()


def test_a_file_that_the_server_lacks_is_named(server, tmp_path):
    del server.files["sts-dev.csv"]
    with pytest.raises(DataError, match=r"sts-dev\.csv in 3 tries: 404 .*by hand"):
        fetch(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["sts-train.csv"]  # the next call goes on from there


@pytest.mark.parametrize(
    ("behaviour", "received"),
    [(wrong_bytes, BODY.replace(b"green", b"brown")), (too_short_content_length, BODY[:HALF]), (html, HTML)],
)
def test_wrong_content_is_an_error_with_both_digests(server, tmp_path, behaviour, received):
    server.behaviours = [behaviour]
    with pytest.raises(DataError) as caught:
        fetch(tmp_path)
    for part in ("sts-train.csv", sha256(BODY), sha256(received), download.COURSE_PAGE):
        assert part in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("behaviour", [html, too_short_content_length])
def test_without_a_checksum_the_file_must_be_readable(server, tmp_path, monkeypatch, behaviour):
    monkeypatch.setitem(download.CHECKSUMS, "sts-train.csv", None)
    server.behaviours = [behaviour]
    with pytest.raises(DataError, match=r"sts-train\.csv"):
        fetch(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_without_a_checksum_is_told(mtbert, server, tmp_path, monkeypatch):
    monkeypatch.setitem(download.CHECKSUMS, "sts-train.csv", None)
    result = mtbert("data", "fetch", tmp_path)
    assert_only_complete_files(tmp_path)
    assert result.stdout.splitlines() == [str(tmp_path / name) for name in FILES]
    path = tmp_path / "sts-train.csv"
    assert result.stderr == f"{path}: read as a table alone, as no checksum is known; sha256 {sha256(BODY)}\n"


@pytest.mark.parametrize("known", [True, False])
def test_another_file_of_the_name_is_kept_unless_forced(mtbert, server, tmp_path, monkeypatch, known):
    if not known:
        monkeypatch.setitem(download.CHECKSUMS, "sts-dev.csv", None)
    mine = tmp_path / "sts-dev.csv"
    mine.write_text("my own notes\n")
    with pytest.raises(DataError, match=r"sts-dev\.csv is not the course's file.* --force"):
        fetch(tmp_path)
    assert mine.read_text() == "my own notes\n"
    assert mtbert("data", "fetch", tmp_path, "--force").exit_code == 0
    assert_only_complete_files(tmp_path)
    assert sorted(server.requests) == sorted(FILES)


def test_no_network_is_an_error_that_says_what_to_do(tmp_path, monkeypatch):
    with socket.socket() as unused:  # bound and not listening: connections are refused
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setattr(download, "COURSE_URL", f"http://127.0.0.1:{unused.getsockname()[1]}/")
        with pytest.raises(DataError) as caught:
            fetch(tmp_path)
    message = str(caught.value)
    assert "Connection refused" in message and download.COURSE_URL + "sts-train.csv" in message
    assert f"by hand from {download.COURSE_PAGE} and put it into {tmp_path}" in message


def test_every_file_of_the_course_is_listed():
    assert {task.path(split, "").name for task in TASKS.values() for split in ("train", "dev", "test")} == COURSE_FILES
