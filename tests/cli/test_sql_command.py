from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import cast

import pytest

from flightwatch.cli import main
from flightwatch.cli.instance import InstanceLock
from flightwatch.core.vocabulary import ExitCode
from flightwatch.pipeline.store.client import open_store
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.people import People, answer_request
from flightwatch.pipeline.store.settings import StoreSettings
from tests.pipeline.store.blocks import insert


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed single-machine store with two rows."""
    folder = tmp_path_factory.mktemp("data")
    store = open_store(f"chdb:///{folder}/store", StoreSettings())
    migrate(store)
    now_ms = time.time_ns() // 1_000_000
    insert(
        store,
        "device_samples",
        {"ts": now_ms, "node": "a", "device": 0, "temp_c": 61.5, "link_tx_bytes_total": 2**64 - 1},
        {"ts": now_ms, "node": "b", "device": 0},
    )
    store.close()
    return folder


def ask(data_dir: Path, *arguments: str) -> int:
    return main(["sql", *arguments, "--data-dir", str(data_dir)])


QUERY = "SELECT node, temp_c, link_tx_bytes_total FROM flightwatch.device_samples ORDER BY node"
ROWS = [
    {"node": "a", "temp_c": 61.5, "link_tx_bytes_total": 2**64 - 1},
    {"node": "b", "temp_c": None, "link_tx_bytes_total": None},
]


def test_a_closed_store_answers_in_every_format(data_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert ask(data_dir, QUERY, "--format", "json") == ExitCode.DONE
    assert [json.loads(line) for line in capfd.readouterr().out.splitlines()] == ROWS
    assert ask(data_dir, QUERY, "--format", "csv") == ExitCode.DONE
    assert capfd.readouterr().out.splitlines()[2] == '"b",,'
    assert ask(data_dir, QUERY) == ExitCode.DONE
    assert "NULL" in capfd.readouterr().out


def test_a_refused_query_is_one_sentence_and_exit_code_1(data_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert ask(data_dir, "DROP TABLE flightwatch.device_samples") == ExitCode.FAILED
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == "flightwatch sql: only SELECT is allowed here\n"
    assert ask(data_dir, "SELECT nope FROM flightwatch.events") == ExitCode.FAILED
    assert "Traceback" not in capfd.readouterr().err


def test_the_owner_of_the_store_reads_all_its_tables(data_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert ask(data_dir, "SELECT count() AS n FROM flightwatch.dead_letters", "--format", "json") == ExitCode.DONE
    assert json.loads(capfd.readouterr().out) == {"n": 0}


def test_usage_is_exit_code_2(data_dir: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["sql", "SELECT 1", "--format", "xml"])
    assert stopped.value.code == ExitCode.USAGE


def test_nothing_there_is_said_plainly(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert ask(tmp_path / "nowhere", "SELECT 1") == ExitCode.FAILED
    assert "there is no store" in capfd.readouterr().err
    assert not (tmp_path / "nowhere").exists()


class _Handler(BaseHTTPRequestHandler):
    people: People

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = answer_request(self.people, body)
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def address_string(self) -> str:
        return "local"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        del format, args


@pytest.fixture
def running(data_dir: Path) -> Iterator[Path]:
    """An instance that has the store open and answers on the socket."""
    store = open_store(f"chdb:///{data_dir}/store", StoreSettings())
    handler = type("Handler", (_Handler,), {"people": People(store)})
    path = data_dir / "flightwatch.sock"
    path.unlink(missing_ok=True)
    server = ThreadingUnixStreamServer(str(path), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield data_dir
    server.shutdown()
    server.server_close()
    thread.join()
    store.close()


def test_the_running_instance_answers(running: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert ask(running, QUERY, "--format", "json") == ExitCode.DONE
    assert [json.loads(line) for line in capfd.readouterr().out.splitlines()] == ROWS
    assert ask(running, "SELECT * FROM system.tables") == ExitCode.FAILED
    assert capfd.readouterr().err == "flightwatch sql: the table system.tables is not open to you\n"


def test_a_socket_left_over_does_not_count(data_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = data_dir / "flightwatch.sock"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert ask(data_dir, "SELECT 1 AS x", "--format", "json") == ExitCode.DONE
    assert json.loads(capfd.readouterr().out) == {"x": 1}
    path.unlink()


def test_malformed_requests_are_told_so(data_dir: Path) -> None:
    store = open_store(f"chdb:///{data_dir}/store", StoreSettings())
    people = People(store)
    for body in (b"", b"[]", b"{}", b'{"query": 1}', b'{"query": "SELECT 1", "format": "xml"}', b"\xff"):
        answer = answer_request(people, body)
        assert answer.status == 400
        assert json.loads(answer.body)["error"]["message"]
    assert answer_request(people, b'{"query": "SELECT 1 AS x"}').body == b'{"x":1}\n'
    store.close()


def test_an_instance_that_starts_keeps_its_store_to_itself(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = InstanceLock(data_dir)
    lock.acquire()
    try:
        assert ask(data_dir, QUERY) == ExitCode.FAILED
        assert f"(pid {os.getpid()}) is starting or stopping: try again in a moment" in capsys.readouterr().err
        assert main(["status", "--data-dir", str(data_dir)]) == ExitCode.FAILED
        assert "is starting or stopping" in capsys.readouterr().err
    finally:
        lock.release()
    assert ask(data_dir, QUERY) == ExitCode.DONE


def test_what_is_not_utf8_is_refused(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(data_dir, "SELECT '\udcff'") == ExitCode.FAILED
    assert "the query is not valid UTF-8" in capsys.readouterr().err
    assert ask(data_dir, "SELECT 'ü数'") == ExitCode.DONE


def test_a_deeply_nested_request_is_malformed() -> None:
    assert answer_request(cast("People", None), b"[" * 100_000).status == 400
