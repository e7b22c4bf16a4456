"""The summary: a template by default, a model's words where they can be trusted, and never a failed demo."""

import json
import threading
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from agents_demo.aggregate import Figures
from agents_demo.summary import Endpoint, endpoint_from, foreign_numbers, summarise, template
from agents_demo.weekly import Row, WeeklyReport

TOTAL = Figures(
    12_141, 286, 3438, Decimal(128_000), Decimal(-1631), Decimal("244249.30"), Decimal("-8767.50")
)
REPORT = WeeklyReport(
    "orders.csv", 12_220, 79, TOTAL, (Row("2011-W06", TOTAL),), (Row("United Kingdom", TOTAL),)
)
KEY = "secret-key-of-the-test"


class FakeModel:
    """An endpoint on loopback that answers as it is told to."""

    def __init__(self) -> None:
        self.status = 200
        self.headers: dict[str, str] = {}
        self.body = b""
        self.behaviour = "answer"
        self.released = threading.Event()
        self.asked: list[tuple[str, dict[str, str], dict[str, object]]] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def says(self, words: object) -> None:
        self.body = json.dumps({"choices": [{"message": {"role": "assistant", "content": words}}]}).encode()

    def stop(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                fake.asked.append((self.path, dict(self.headers), json.loads(self.rfile.read(length))))
                if fake.behaviour == "stall":
                    fake.released.wait(20)
                    return
                if fake.behaviour == "hang up":
                    return
                self.send_response(fake.status)
                for name, value in fake.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                try:
                    self.wfile.write(fake.body)
                    if fake.behaviour == "trickle":
                        while not fake.released.wait(0.05):
                            self.wfile.write(b" ")
                except OSError:
                    pass  # the client has given up, as it should

            def do_GET(self) -> None:
                self.do_POST()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
                pass

        return Handler


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeModel]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    fake = FakeModel()
    yield fake
    fake.stop()


def _fallback(model: FakeModel, *, timeout: float = 10) -> str:
    """The note of a summary that fell back to the template."""
    summary = summarise(REPORT, Endpoint(model.url, "test-model", KEY, timeout=timeout))
    assert summary.text == template(REPORT)
    assert not summary.by_model
    assert summary.note.startswith("Worded by the built-in template: the model at 127.0.0.1:")
    assert KEY not in summary.note
    return summary.note


def test_without_an_endpoint_the_template_words_it() -> None:
    """Offline, and the same words each time."""
    summary = summarise(REPORT, None)
    assert summary.text == template(REPORT)
    assert summary.note == "Worded by the built-in template."
    for said in ("12,220", "79", "286", "235,481.80", "2011-W06", "United Kingdom", "3.6 %"):
        assert said in summary.text


def test_a_report_without_lines_has_a_summary_too() -> None:
    """A file with a header alone."""
    assert "No line is left" in template(WeeklyReport("empty.csv", 0, 0, Figures(), (), ()))


def test_only_address_and_model_together_configure_an_endpoint() -> None:
    """A key that lies in the environment for other programs must send nothing anywhere."""
    assert endpoint_from({}) is None
    assert endpoint_from({"OPENAI_API_KEY": KEY}) is None
    assert endpoint_from({"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "http://h/v1"}) is None
    assert endpoint_from({"OPENAI_API_KEY": KEY, "SLATEBOARD_DEMO_MODEL": "m"}) is None
    full = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "http://h/v1/", "SLATEBOARD_DEMO_MODEL": "m"}
    endpoint = endpoint_from(full)
    assert endpoint == Endpoint("http://h/v1", "m", KEY)
    assert KEY not in repr(endpoint)


def test_a_models_words_are_used(model: FakeModel) -> None:
    """As one line; it was sent figures, not order lines, and the key as a bearer token."""
    model.says("Net revenue was 235,481.80\n over 1 week,  with 286 cancellations.\x1b[J")
    summary = summarise(REPORT, Endpoint(model.url, "test-model", KEY))
    assert summary.by_model
    assert summary.text == "Net revenue was 235,481.80 over 1 week, with 286 cancellations.?[J"
    assert summary.note.startswith("Worded by test-model at 127.0.0.1:")
    ((path, headers, body),) = model.asked
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert body["model"] == "test-model"
    assert "235,481.80" in json.dumps(body)


def test_no_key_sends_no_authorization(model: FakeModel) -> None:
    """Local endpoints want none."""
    model.says("Fine.")
    assert summarise(REPORT, Endpoint(model.url, "test-model")).by_model
    assert "Authorization" not in model.asked[0][1]


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
def test_an_error_status_falls_back(model: FakeModel, status: int) -> None:
    """And says which; the body of an error is nobody's summary."""
    model.says("Not a summary.")
    model.status = status
    assert f"answered with status {status}" in _fallback(model)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(model: FakeModel, status: int) -> None:
    """It would carry key and figures to another place."""
    model.status, model.headers = status, {"Location": f"{model.url}/elsewhere"}
    assert f"status {status}" in _fallback(model)
    assert len(model.asked) == 1


@pytest.mark.parametrize("behaviour", ["stall", "trickle"])
def test_an_answer_that_does_not_come_in_time_falls_back(model: FakeModel, behaviour: str) -> None:
    """Also one that sends a byte now and then, which never trips a socket's own timeout."""
    model.behaviour = behaviour
    assert "did not answer within 0.3 s" in _fallback(model, timeout=0.3)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>Bad gateway</html>",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b"{}",
        b'{"choices": []}',
        b'{"choices": [{"message": null}]}',
        b'{"choices": {"0": 1}}',
        b"[" * 50_000,
    ],
)
def test_junk_falls_back(model: FakeModel, body: bytes) -> None:
    """Whatever a proxy or another program on that port says."""
    model.body = body
    assert "no chat completion" in _fallback(model)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (None, "without a text"),
        (["a"], "without a text"),
        (" \n", "without a text"),
        ("word " * 400, "more than 1200 characters"),
        ("x" * 70_000, "more than 65536 bytes"),
        ("Net revenue was 235,481.81.", "a figure that the report does not have (235,481.81)"),
        ("Net revenue rose by 12 %.", "(12)"),
    ],
)
def test_words_that_cannot_be_used_fall_back(model: FakeModel, words: object, said: str) -> None:
    """Most of all those with a figure of the model's own."""
    model.says(words)
    assert said in _fallback(model)


def test_a_closed_connection_falls_back(model: FakeModel) -> None:
    """The endpoint hangs up before it answers."""
    model.behaviour = "hang up"
    assert "could not be asked" in _fallback(model)


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1:1/v1", "file:///etc", "nonsense", "http://[", "http://user:pw@127.0.0.1:1/v1"],
)
def test_an_address_that_cannot_be_asked_falls_back(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Nobody there, no web address, or not even one; a password in it is not repeated."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    summary = summarise(REPORT, Endpoint(address, "test-model"))
    assert summary.text == template(REPORT)
    assert not summary.by_model
    assert "pw" not in summary.note


def test_figures_are_recognised_however_they_are_spelled() -> None:
    """Thousands commas and trailing zeros are no difference; another digit is."""
    given = '{"a": "235,481.80", "b": 3}'
    assert foreign_numbers("235481.8 in 3 weeks.", given) == []
    assert foreign_numbers("235,481.80, then 3, and 4.", given) == ["4"]
