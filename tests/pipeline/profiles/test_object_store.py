"""Traces into an object store: signatures checked by a service of our own, refusals, a service that is away."""

from __future__ import annotations

import hashlib
import hmac
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flightwatch.core.clock import ManualClock
from flightwatch.core.errors import BadRecord, ConfigError, Refused, TransientError
from flightwatch.pipeline.control.database import open_control
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.profiles.landing import Landing
from flightwatch.pipeline.profiles.object_store import ObjectStore, checked_place, place_of
from flightwatch.pipeline.profiles.records import Profiles, RankNews, Wanted

KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}


class Service:
    """An S3-compatible service that checks every signature and checksum."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.fails = 0
        service = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self, status: int, body: bytes = b"") -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def allowed(self, body: bytes) -> bool:
                sent = self.headers
                if sent["x-amz-content-sha256"] != hashlib.sha256(body).hexdigest():
                    return False
                return sent["Authorization"].rsplit("=", 1)[1] == service.signature(self.command, self.path, dict(sent))

            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if service.fails:
                    service.fails -= 1
                    self.answer(503)
                elif not self.allowed(body):
                    self.answer(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
                else:
                    service.objects[self.path] = body
                    self.answer(200)

            def do_GET(self) -> None:
                if not self.allowed(b""):
                    self.answer(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
                elif self.path in service.objects:
                    self.answer(200, service.objects[self.path])
                else:
                    self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @staticmethod
    def signature(method: str, path: str, headers: dict[str, str]) -> str:
        """Compute the signature as the specification says, from what arrived."""
        given = {name.lower(): value for name, value in headers.items()}
        fields = dict(part.strip().split("=", 1) for part in given["authorization"].split(" ", 1)[1].split(","))
        names = fields["SignedHeaders"].split(";")
        assert {"host", "x-amz-content-sha256", "x-amz-date"} <= set(names)
        key, day, region, name, end = fields["Credential"].split("/")
        assert (key, name, end) == ("key", "s3", "aws4_request")
        lines = [method, path, ""] + [f"{one}:{given[one].strip()}" for one in names]
        canonical = "\n".join([*lines, "", ";".join(names), given["x-amz-content-sha256"]])
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        text = "\n".join(["AWS4-HMAC-SHA256", given["x-amz-date"], f"{day}/{region}/{name}/{end}", digest])
        secret = b"AWS4secret"
        for part in (day, region, name, end):
            secret = hmac.new(secret, part.encode(), hashlib.sha256).digest()
        return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def store(service: Service) -> ObjectStore:
    return ObjectStore(service.endpoint, "eu-1", KEYS, ManualClock())


def trace(folder: Path) -> tuple[Path, str]:
    path = folder / "rank3.json.gz"
    path.write_bytes(b"\x1f\x8b" + bytes(range(256)) * 20)
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def test_there_and_back(service: Service, store: ObjectStore, tmp_path: Path) -> None:
    path, digest = trace(tmp_path)
    store.put("s3://traces/team=a/p1/rank3.json.gz", path, digest)
    assert list(service.objects) == ["/traces/team%3Da/p1/rank3.json.gz"]
    back = tmp_path / "back"
    store.get("s3://traces/team=a/p1/rank3.json.gz", back, digest)
    assert back.read_bytes() == path.read_bytes()
    with pytest.raises(BadRecord, match="not the trace that was stored"):
        store.get("s3://traces/team=a/p1/rank3.json.gz", back, "0" * 64)
    with pytest.raises(Refused, match=r"404 \(NoSuchKey\)"):
        store.get("s3://traces/none", back, None)


def test_what_the_service_refuses_is_said_in_its_words(service: Service, tmp_path: Path) -> None:
    path, digest = trace(tmp_path)
    wrong = ObjectStore(service.endpoint, "eu-1", KEYS | {"AWS_SECRET_ACCESS_KEY": "other"}, ManualClock())
    with pytest.raises(Refused, match=r"403 \(SignatureDoesNotMatch\)"):
        wrong.put("s3://traces/x", path, digest)
    nobody = ObjectStore(service.endpoint, "eu-1", {}, ManualClock())
    with pytest.raises(Refused, match="AWS_SECRET_ACCESS_KEY in the environment"):
        nobody.put("s3://traces/x", path, digest)
    away = ObjectStore("http://127.0.0.1:9", "eu-1", KEYS, ManualClock())
    with pytest.raises(TransientError, match="does not answer"):
        away.put("s3://traces/x", path, digest)


def test_a_token_of_a_session_is_signed_too(service: Service, tmp_path: Path) -> None:
    path, digest = trace(tmp_path)
    ObjectStore(service.endpoint, "eu-1", KEYS | {"AWS_SESSION_TOKEN": "t"}, ManualClock()).put(
        "s3://traces/x", path, digest
    )
    assert service.objects


@pytest.mark.parametrize(
    "url", ["http://a/b", "s3://", "s3://UPPER/x", "s3://bucket/../x", "s3://b u/x", "s3://ab/x y"]
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError):
        place_of(url)


def test_only_what_is_on_the_list_is_used() -> None:
    allowed = ("s3://traces/team", "s3://other-bucket")
    assert checked_place("s3://traces/team/x/", allowed) == "s3://traces/team/x"
    assert checked_place("s3://other-bucket", allowed)
    for url in ("s3://traces/teams", "s3://traces", "s3://third-bucket/team"):
        with pytest.raises(ConfigError, match=r"profiles\.object_stores"):
            checked_place(url, allowed)
    for endpoint in ("ftp://x", "http://x/path", "http://user@x"):
        with pytest.raises(ConfigError, match="s3_endpoint"):
            ObjectStore(endpoint, "eu-1", KEYS, ManualClock())


def test_traces_land_when_the_service_is_back_and_stay_where_it_refuses(
    service: Service, store: ObjectStore, tmp_path: Path
) -> None:
    control = open_control(f"sqlite://{tmp_path}/control.db", ControlSettings())
    profiles, clock = Profiles(control), ManualClock()
    path, digest = trace(tmp_path)
    names = [
        profiles.create(Wanted("llama", "", [3], 5, {}, 10**9, 60, "me", "", to=to))
        for to in ("s3://traces/team", "", "s3://gone-bucket")
    ]
    copies = []
    for name in names:
        copy = tmp_path / name / path.name
        copy.parent.mkdir()
        copy.write_bytes(path.read_bytes())
        copies.append(copy)
        profiles.tell(name, [RankNews(3, "done", artifact=str(copy), sha256=digest, bytes=copy.stat().st_size)])
    landing = Landing(profiles, store, ("s3://traces/team",), clock)
    service.fails = 1
    for _ in range(4):
        landing.step()
        clock.advance(20)
    rows = [profiles.get(name)["ranks"][0] for name in names]
    assert [row["artifact"] for row in rows] == [
        f"s3://traces/team/{names[0]}/rank3.json.gz", str(copies[1]), str(copies[2])
    ]  # fmt: skip
    assert "stays in the folder" in rows[2]["reason"]
    assert [copy.exists() for copy in copies] == [False, True, True]
    assert len(service.objects) == 1
    assert profiles.to_land() == [profiles.get(names[0])]
    control.close()
