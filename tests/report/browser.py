"""Drives a real browser without a window, over its DevTools protocol."""

import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",  # the tests may run as root, in a container
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--remote-debugging-port=0",
)
SECONDS = 60


def find_browser() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab, and everything that it complained about."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0
        self._session: dict[str, str] = {}
        self._events: list[dict[str, Any]] = []
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask for something and wait for the answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params, **self._session}
        self._socket.send(json.dumps(message))
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        answer = json.loads(self._socket.recv(timeout=SECONDS))
        method, params = answer.get("method"), answer.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"].get("text")))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(str([arg.get("value") for arg in params["args"]]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"][:100])
        if method:
            self._events.append(answer)
        return answer

    def show(
        self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False
    ) -> "Page":
        """Open a file at that size, and wait until it is loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.prefer(dark=dark)
        self._events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._receive()
        return self

    def prefer(self, *, dark: bool) -> None:
        """Set the colour scheme that the user prefers."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def run(self, script: str) -> Any:
        """Return what an expression is in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, *, text: str = "", code: int = 0) -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                text=text if kind == "keyDown" else "",
                windowsVirtualKeyCode=code,
            )

    def settle(self) -> None:
        """Wait until what was changed has been drawn."""
        self.run("new Promise(d => requestAnimationFrame(() => requestAnimationFrame(d)))")

    def photograph(self, path: Path) -> None:
        """Write the whole page as a picture."""
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def print_pdf(self) -> bytes:
        """Return the page as printed."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])


@contextlib.contextmanager
def open_browser(program: str) -> Iterator[Page]:
    """Start a browser with an empty profile, and end it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stderr is not None
            said: list[str] = []
            for line in process.stderr:
                said.append(line)
                if line.startswith("DevTools listening on "):
                    address = line.removeprefix("DevTools listening on ").strip()
                    break
            else:
                raise RuntimeError(f"the browser did not start: {''.join(said[-5:])}")
            with connect(address, max_size=None, proxy=None) as socket:
                yield Page(socket)
        finally:
            process.terminate()
            process.communicate(timeout=SECONDS)
