"""Downloads, from local servers that act as mirrors."""

import io
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from small_dataset import CONTENT, assert_small, small_source

from steingrad_lab import data
from steingrad_lab.data.sources import SOURCES


class Mirrors(ThreadingHTTPServer):
    """Serves `content[path]` and records all requests. A number as content is an HTTP error."""

    def __init__(self):
        self.content, self.requests = {}, []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        answer = self.server.content.get(self.path, 404)
        if isinstance(answer, int):
            self.send_error(answer)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer) + 5 * self.path.startswith("/cut")))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.fixture
def mirrors(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Mirrors() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def on_mirrors(monkeypatch, mirrors, *names):
    monkeypatch.setitem(SOURCES, "small", small_source(*(f"{mirrors.url}/{n}" for n in names)))


def test_missing_files_are_downloaded_once(places, mirrors, monkeypatch):
    on_mirrors(monkeypatch, mirrors, "good")
    mirrors.content = {f"/good/{name}": text for name, text in CONTENT.items()}
    assert_small(data.load("small"))
    assert_small(data.load("small"))
    assert mirrors.requests == ["/good/train.gz", "/good/test.gz"]
    # Only the downloaded files are left, without temporary ones.
    stored = {
        path.name: path.read_bytes() for path in (places / "cache" / "small-folder").iterdir()
    }
    assert stored == CONTENT


@pytest.mark.parametrize("bad", [b"another file", b"", CONTENT["train.gz"][:-1], 404, 503], ids=str)
def test_the_next_mirror_is_tried(bad, mirrors, monkeypatch):
    on_mirrors(monkeypatch, mirrors, "bad", "good")
    mirrors.content = {f"/good/{name}": text for name, text in CONTENT.items()}
    mirrors.content |= {f"/bad/{name}": bad for name in CONTENT}
    assert_small(data.load("small"))
    assert mirrors.requests == ["/bad/train.gz", "/good/train.gz", "/bad/test.gz", "/good/test.gz"]


def test_a_connection_that_breaks_off_counts_as_a_failure(mirrors, monkeypatch):
    on_mirrors(monkeypatch, mirrors, "cut", "good")
    mirrors.content = {f"/good/{name}": text for name, text in CONTENT.items()}
    mirrors.content |= {f"/cut/{name}": text for name, text in CONTENT.items()}
    assert_small(data.load("small"))


def test_when_all_fails_the_error_says_what_to_put_where(places, mirrors, monkeypatch):
    on_mirrors(monkeypatch, mirrors, "gone", "wrong")
    mirrors.content = {f"/wrong/{name}": b"<html>sign in</html>" for name in CONTENT}
    (places / "mine").mkdir()
    with pytest.raises(data.DataError) as error:
        data.load("small", places / "mine")
    message = str(error.value)
    for part in (
        "'small'",
        "train.gz, test.gz",
        *(str(places / root / "small-folder") for root in ("mine", "cache", "system")),
        f"{mirrors.url}/gone/train.gz: 404 Client Error: Not Found;",
        f"{mirrors.url}/wrong/train.gz: the downloaded file has a different hash",
        f"Put train.gz, test.gz into {places / 'mine' / 'small-folder'}",
        "STEINGRAD_DATA_DIR",
        "--data-dir",
    ):
        assert part in message
    assert "\n" not in message
    assert list((places / "mine" / "small-folder").iterdir()) == []
    assert mirrors.requests == ["/gone/train.gz", "/wrong/train.gz"]  # test.gz is not tried


def test_without_a_connection_the_cause_is_named(mirrors, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    monkeypatch.setitem(
        SOURCES, "small", small_source(address)
    )  # nobody listens on the closed port
    with pytest.raises(data.DataError, match=r"/train\.gz: NewConnectionError\)\. Put train"):
        data.load("small")


def test_offline_the_error_names_the_files_of_every_dataset(places):
    for name in data.NAMES[1:]:
        source = SOURCES[name]
        with pytest.raises(data.DataError, match="not downloaded") as error:
            data.load(name, download=False)
        for forms in source.files:
            assert " or ".join(file.name for file in forms) in str(error.value)
        assert str(places / "cache" / source.folder) in str(error.value)


def test_nothing_is_asked_for_when_downloads_are_off(mirrors, monkeypatch):
    on_mirrors(monkeypatch, mirrors, "good")
    with pytest.raises(data.DataError, match="not downloaded"):
        data.load("small", download=False)
    data.status()
    assert mirrors.requests == []


def test_downloads_go_to_the_data_dir_or_where_one_can_write(places, mirrors, monkeypatch):
    on_mirrors(monkeypatch, mirrors, "good")
    mirrors.content = {f"/good/{name}": text for name, text in CONTENT.items()}
    (places / "mine").mkdir()
    data.load("small", places / "mine")
    assert (places / "mine" / "small-folder" / "train.gz").exists()
    assert not (places / "cache").exists()
    (places / "blocked").mkdir()
    (places / "blocked" / "small-folder").write_text("a file, not a folder")
    data.load("small", places / "blocked")
    assert (places / "cache" / "small-folder" / "train.gz").exists()


@pytest.mark.parametrize("name", ["small", "digits"])
def test_a_misspelt_data_dir_is_not_made(places, mirrors, monkeypatch, name):
    on_mirrors(monkeypatch, mirrors, "good")
    with pytest.raises(data.DataError, match=r"mien, does not exist\. Correct --data-dir"):
        data.load(name, places / "mien")
    assert not (places / "mien").exists()
    assert mirrors.requests == []


def test_no_writable_folder_is_an_error_that_says_so(places, mirrors, monkeypatch):
    on_mirrors(monkeypatch, mirrors, "good")
    (places / "cache").write_text("a file, not a folder")
    with pytest.raises(data.DataError, match=r"no folder is writable: .*cache"):
        data.load("small")


def test_progress_is_shown_on_a_terminal_only(mirrors, monkeypatch, capsys, places):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    on_mirrors(monkeypatch, mirrors, "good")
    mirrors.content = {f"/good/{name}": text for name, text in CONTENT.items()}
    (places / "quiet").mkdir()
    (places / "loud").mkdir()
    data.load("small", places / "quiet")
    assert capsys.readouterr() == ("", "")
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", terminal)
    data.load("small", places / "loud")
    size = len(CONTENT["train.gz"])
    assert "train.gz" in terminal.getvalue()
    assert f"{size}/{size} bytes" in terminal.getvalue()
