"""The live page: who may read it, what it sends, how it ends, and what a browser shows."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

for module in ("starlette", "uvicorn"):
    pytest.importorskip(module, reason=f"{module} is not installed: pip install 'cvrcore[watch]'")

import browser  # noqa: E402

from cvrcore.guards import Incident  # noqa: E402
from cvrcore.tracking import Facts, Pick, RoundRecord, Snapshot  # noqa: E402
from cvrcore.watch import Board, WatchServer, WatchTracker  # noqa: E402
from cvrcore.watch.app import MAX_STREAMS  # noqa: E402

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[2]
EVIL = '<img src=x onerror="document.body.dataset.hacked=1">'


def record(t, n=20, **changes):
    picks = [
        Pick((3 * t + i) % n, f"node {(3 * t + i) % n}", i, 0.5, 0.25, i != 1) for i in range(3)
    ]
    snapshot = Snapshot([0, 1, 2], [0.0, 1.0, 2.0], [0.0, 1.0, 0.0], [0, 1, 2])
    base = {
        "picks": picks,
        "coalition_sizes": [10, 6, 4],
        "metrics": {"accuracy": t / 50},
        "seconds": {"select": 0.1, "train": 0.4, "round": 0.5},
        "snapshot": snapshot,
    }
    return RoundRecord(t, n, n, t <= 2, **{**base, **changes})


@pytest.fixture
def board():
    board = Board()
    board.begin(Facts("demo run", "fedcvr-bolt", 20, 10))
    board.status("running")
    for t in range(1, 6):
        board.put(record(t))
    return board


def request(url, path=None, host=None, method="GET"):
    """Return status, headers and body of one request; the Host header may be chosen."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
    try:
        connection.putrequest(method, parts.path if path is None else path, skip_host=True)
        if host != "":
            connection.putheader("Host", host or parts.netloc)
        connection.endheaders()
        answer = connection.getresponse()
        body = b"" if "event-stream" in answer.headers.get("Content-Type", "") else answer.read()
        return answer.status, answer.headers, body.decode()
    finally:
        connection.close()


def events(url, last, seconds=20):
    """Return (name, value) of the stream's events up to the first of the name `last`."""
    found, deadline = [], time.monotonic() + seconds
    with urllib.request.urlopen(f"{url}events", timeout=seconds) as stream:
        name = ""
        for line in stream:
            assert time.monotonic() < deadline
            text = line.decode().rstrip("\n")
            if text.startswith("event: "):
                name = text[7:]
            elif text.startswith("data: "):
                found.append((name, json.loads(text[6:])))
                if name == last:
                    return found
    return found


# -- who may read it ----------------------------------------------------------------


def test_only_the_token_opens_the_page(board):
    with WatchServer(board) as server, WatchServer(board) as other:
        assert request(server.url)[0] == 200
        token = urllib.parse.urlsplit(server.url).path.strip("/")
        assert len(token) >= 32
        assert token not in other.url
        for path in ("/", f"/{token[:-1]}/", f"/{token}x/", "/x/", "/x/events", f"/{token[::-1]}/"):
            status, _, body = request(server.url, path)
            assert status == 404, path
            assert "demo run" not in body


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "127.0.0.1.evil.example:{port}",
        "",
    ],
)
def test_another_host_is_refused(board, host):
    """As after DNS rebinding: the right address and token, under a foreign name."""
    with WatchServer(board) as server:
        port = urllib.parse.urlsplit(server.url).port
        for path in (None, urllib.parse.urlsplit(server.url).path + "events"):
            status, _, body = request(server.url, path, host.format(port=port))
            assert status in (400, 421)
            assert "demo" not in body
        assert request(server.url, host=f"localhost:{port}")[0] == 200


def test_it_listens_on_this_machine_alone(board):
    with WatchServer(board) as server:
        port = urllib.parse.urlsplit(server.url).port
        listening = [
            line.split()[1]
            for name in ("tcp", "tcp6")
            for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
            if line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"
        ]
        assert listening == [f"0100007F:{port:04X}"]


def test_the_page_may_load_and_do_nothing_else(board):
    with WatchServer(board) as server:
        first, second = request(server.url), request(server.url)
        policy = first[1]["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        nonce = re.search(r"script-src 'nonce-([\w-]+)'", policy)[1]
        assert nonce not in second[1]["Content-Security-Policy"]
        assert first[2].count(f'nonce="{nonce}"') == 2
        assert first[1]["Referrer-Policy"] == "no-referrer"
        assert first[1]["Cache-Control"] == "no-store"
        body = first[2].replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//\w+\.\w+|@import|innerHTML|eval\(", body)
        for method in ("POST", "PUT", "DELETE"):
            assert request(server.url, method=method)[0] == 405


# -- what it sends ------------------------------------------------------------------


def test_a_new_page_gets_all_and_an_open_one_gets_the_rest(board):
    with WatchServer(board) as server:
        thread = threading.Timer(0.6, lambda: (board.put(record(6)), board.status("finished")))
        thread.start()
        names, rounds, found = [], [], None
        for name, value in follow(server.url, 6):
            names.append(name)
            if name == "rounds":
                rounds += [r["round"] for r in value]
            if name == "snapshot":
                found = value
        thread.join(10)
        assert names[0] == "reset"
        assert rounds == [1, 2, 3, 4, 5, 6]
        assert found["clients"] == [0, 1, 2]


def follow(url, until, seconds=20):
    """Yield events until a round of that number came."""
    deadline = time.monotonic() + seconds
    with urllib.request.urlopen(f"{url}events", timeout=seconds) as stream:
        name, seen = "", False
        for line in stream:
            assert time.monotonic() < deadline
            text = line.decode().rstrip("\n")
            if text.startswith("event: "):
                name = text[7:]
            elif text.startswith("data: "):
                value = json.loads(text[6:])
                yield name, value
                seen |= name == "rounds" and value[-1]["round"] == until
                if seen:
                    return


def test_too_many_pages_are_refused(board):
    with WatchServer(board) as server:
        streams = [
            urllib.request.urlopen(f"{server.url}events", timeout=10) for _ in range(MAX_STREAMS)
        ]
        try:
            for stream in streams:
                stream.readline()
            path = urllib.parse.urlsplit(server.url).path + "events"
            assert request(server.url, path)[0] == 503
        finally:
            for stream in streams:
                stream.close()


# -- how it ends --------------------------------------------------------------------


def test_stopping_ends_open_pages_within_seconds(board):
    server = WatchServer(board)
    streams = [urllib.request.urlopen(f"{server.url}events", timeout=10) for _ in range(3)]
    for stream in streams:
        stream.readline()
    began = time.monotonic()
    assert server.stop()
    assert time.monotonic() - began < 5
    for stream in streams:
        assert b"event: bye" in stream.read()
        stream.close()
    assert not [t for t in threading.enumerate() if t.name == "cvrcore-watch"]


def test_a_tracker_serves_until_the_run_ends():
    told = []
    tracker = WatchTracker(told.append)
    tracker.start(Facts("demo run", "uniform", 20, 3))
    url = tracker.url
    assert told == [f"watch this run: {url}"]
    tracker.round(record(1))
    assert [name for name, _ in events(url, "rounds")][-1] == "rounds"
    tracker.finish({"final": 0.5})
    assert tracker.url is None
    with pytest.raises(OSError):  # noqa: PT011 - refused, whatever the system calls it
        request(url)


# -- the command --------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("torch", reason="the command needs cvrcore[fl]")
    import fl

    folder = tmp_path_factory.mktemp("runs") / "run"
    config = fl.make_config("digits", "fedcvr-bolt", rounds=12).replace(
        data__n_clients=20, selection__n_select=4, training__epochs=1, engine__name="serial",
        selection__options={"warmup": 3, "max_norm": 0.5},
    )  # fmt: skip
    fl.run(config, folder, track=["details"])
    return folder


class Command:
    """``cvrcore watch`` in a process of its own; Ctrl-C ends it."""

    def __init__(self, folder, *options):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fl", "watch", str(folder), *options],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=ROOT,
        )  # fmt: skip
        line = self.process.stdout.readline()
        self.url = re.search(r"http://127\.0\.0\.1:\d+/\S+/", line)[0]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self.process.stdout.close()

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)
        text, _ = self.process.communicate(timeout=20)
        return self.process.returncode, text


def test_the_command_shows_a_run_and_stops_on_ctrl_c(folder):
    with Command(folder) as command:
        found = dict(events(command.url, "snapshot"))
        assert [r["round"] for r in found["rounds"]] == list(range(1, 13))
        assert found["status"]["state"] == "finished"
        last = found["rounds"][-1]
        assert all(p["probability"] > 0 and p["coalition"] is not None for p in last["picks"])
        code, text = command.interrupt()
    assert code == 0
    assert "Traceback" not in text


def test_the_command_refuses_a_folder_without_a_run(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "fl", "watch", str(tmp_path)], cwd=ROOT, timeout=60,
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 2
    assert "holds no run: config.json is missing" in done.stderr


# -- in a browser -------------------------------------------------------------------


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    absent = browser.missing()
    if absent:
        pytest.skip(absent)
    with browser.Browser(tmp_path_factory.mktemp("browser")) as window:
        yield window


def test_a_browser_shows_the_run_of_a_folder(window, folder):
    with Command(folder) as command:
        window.open(command.url)
        window.until("return document.body.dataset.rounds === '12'")
        assert window.text("h1") == "fedcvr-bolt on digits, seed 0"
        assert window.text("#state") == "finished"
        assert "12 / 12" in window.text("#tiles")
        history = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
        picked = window.run(
            "return [...document.querySelectorAll('#why tbody tr')].map(r => +r.cells[0].innerText)"
        )
        assert sorted(picked) == sorted(history[-1]["picked"])
        assert window.text("#chart .strong") == str(float(f"{history[-1]['accuracy']:.4g}"))
        assert "warm-up" in window.run("return document.getElementById('chart').textContent")
        assert window.run("return document.querySelectorAll('#plane circle').length") > 10
        n_sizes = window.run("return document.querySelectorAll('#sizes rect').length")
        assert n_sizes == len(history[-1]["coalition_sizes"])
        assert window.run("return document.querySelectorAll('#time rect').length") > 12
        assert "guard: norm" in window.text("#incidents-say")
        assert window.messages() == []  # nothing was blocked, nothing failed
        # Exactly the picked cells of the last column of the map are painted: look at each pixel.
        column = window.run(
            """const c = document.getElementById('map'), pen = c.getContext('2d');
            const dx = c.width / 12, dy = c.height / 20;
            return [...Array(20).keys()].map((k) =>
              [...pen.getImageData(11.5 * dx, (k + 0.5) * dy, 1, 1).data].join());"""
        )
        usual = max(set(column), key=column.count)
        painted = [k for k, pixel in enumerate(column) if pixel != usual]
        assert painted == sorted(history[-1]["picked"])


def test_a_browser_follows_a_run_live_and_sees_it_end(window, board):
    server = WatchServer(board)
    window.open(server.url)
    window.until("return document.body.dataset.rounds === '5'")
    assert window.text("#state") == "running"
    board.put(record(6))
    window.until("return document.body.dataset.rounds === '6'")
    assert "Round 6" in window.text("#why-say")
    server.stop()
    window.until("return document.getElementById('state').innerText === 'disconnected'")


def test_names_of_clients_are_text_and_never_markup(window):
    board = Board()
    board.begin(Facts(EVIL, EVIL, 20, 3))
    picks = [Pick(1, EVIL, 0, 0.5, 0.5, False, EVIL), Pick(2, "</script>" + EVIL, 1, 1.0, 0.5)]
    incidents = [Incident(0, 1, EVIL, EVIL)]
    board.put(record(1, picks=picks, incidents=incidents, metrics={EVIL: 0.5}))
    board.status("running", EVIL)
    with WatchServer(board) as server:
        window.open(server.url)
        window.until("return document.body.dataset.rounds === '1'")
        assert window.run("return document.body.dataset.hacked === undefined")
        assert window.run("return document.querySelectorAll('img').length") == 0
        assert EVIL in window.text("h1")
        assert EVIL in window.text("#why")


@pytest.mark.parametrize("width", [1400, 420])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_every_width_and_scheme(window, board, width, scheme):
    def luminance(colour):
        red, green, blue = map(int, re.findall(r"\d+", colour)[:3])
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    with WatchServer(board) as server:
        window.resize(width, 900)
        window.emulate(prefers_color_scheme=scheme)
        window.open(server.url)
        window.until("return document.body.dataset.rounds === '5'")
        assert window.run("return document.documentElement.scrollWidth") <= width
        paper, ink = window.run(
            "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]"
        )
        darker = luminance(paper) < luminance(ink)
        assert darker == (scheme == "dark")
        assert abs(luminance(paper) - luminance(ink)) > 120
