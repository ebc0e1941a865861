"""A real S3 server on this machine, which can be away, slow or out of order."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import boto3
from botocore.config import Config
from moto.server import ThreadedMotoServer

logging.getLogger("werkzeug").setLevel(logging.ERROR)
KEYS = {"key": "testing", "secret": "testing"}

Ask = Callable[[str, str], str | None]  # of method and path with query: a status instead, or None


class Server:
    """A server of S3's protocol; what it has outlives its outages."""

    def __init__(self) -> None:
        self._port = 0
        self._server: ThreadedMotoServer | None = None
        self.requests: list[tuple[str, str]] = []
        self.delay_s = 0.0
        self.ask: Ask = lambda method, path: None
        self.start()
        self._client = boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
            config=Config(s3={"addressing_style": "path"}),
        )
        self._client.create_bucket(Bucket="runs")

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def options(self) -> dict[str, Any]:
        """What fsspec has to be told to reach it, and not to wait for it for long."""
        wait = {"connect_timeout": 1, "read_timeout": 10}
        client = {"region_name": "us-east-1"}
        return {
            **KEYS,
            "endpoint_url": self.url,
            "config_kwargs": wait,
            "client_kwargs": client,
            "default_block_size": 5 << 20,
        }

    def start(self) -> None:
        """Be there, again at the same address."""
        server = ThreadedMotoServer("127.0.0.1", self._port, verbose=False)
        server.start()
        self._port = server.get_host_and_port()[1]
        assert server._server is not None
        inner = server._server.app

        def app(environ: dict[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]:
            method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
            path += "?" + environ.get("QUERY_STRING", "")
            self.requests.append((method, path))
            if self.delay_s:
                time.sleep(self.delay_s)
            status = self.ask(method, path)
            if status is not None:
                length = int(environ.get("CONTENT_LENGTH") or 0)
                while length > 0 and (read := environ["wsgi.input"].read(min(length, 1 << 20))):
                    length -= len(read)
                respond(status, [("Content-Length", "0")])
                return [b""]
            return inner(environ, respond)

        server._server.app = app
        self._server = server

    def stop(self) -> None:
        """Be away: connections are refused."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """An outage."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    @contextlib.contextmanager
    def failing(self, ask: Ask) -> Iterator[None]:
        """Some requests go wrong."""
        self.ask = ask
        try:
            yield
        finally:
            self.ask = lambda method, path: None

    def uploads(self) -> list[str]:
        """What has been begun and not finished."""
        found = self._client.list_multipart_uploads(Bucket="runs")
        return [upload["Key"] for upload in found.get("Uploads", [])]

    def buckets(self) -> list[str]:
        """All there are."""
        return [bucket["Name"] for bucket in self._client.list_buckets()["Buckets"]]

    def objects(self, prefix: str) -> list[str]:
        """What lies below a prefix."""
        found = self._client.list_objects_v2(Bucket="runs", Prefix=f"{prefix}/")
        return [one["Key"].removeprefix(f"{prefix}/") for one in found.get("Contents", [])]

    def upload(self, key: str) -> None:
        """Begin an upload that nobody will finish."""
        self._client.create_multipart_upload(Bucket="runs", Key=key)


class Gate:
    """Lets the first request of a kind wait until it is told to go on."""

    def __init__(self, is_meant: Callable[[str, str], bool]) -> None:
        self._is_meant = is_meant
        self.is_reached, self.is_open = threading.Event(), threading.Event()

    def __call__(self, method: str, path: str) -> str | None:
        if self._is_meant(method, path):
            self.is_reached.set()
            self.is_open.wait(30)
        return None
