"""A headless Chromium, spoken to over its debugging pipe: what a page shows, prints to its console and asks for."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Browser", "Shown", "needs_chromium"]

Json = dict[str, Any]

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium (Debian)")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars", "--disable-extensions"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)
TIMEOUT = 60.0


@dataclass(slots=True, kw_only=True)
class Shown:
    """What a page did and showed.

    Attributes:
        console: Everything on its console, and every exception.
        requests: The URLs that it asked for, its own and data URLs left out.
        width: Width of its content, in CSS pixels: wider than the window, it scrolls sideways.
        screenshot: A PNG of the window, or of the whole page.
        names: Role and name of each node that assistive technology is told about.
    """

    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    width: int = 0
    screenshot: bytes = b""
    names: list[tuple[str, str]] = field(default_factory=list)


class Browser:
    """A running browser; use it as a context."""

    def __init__(self, profile: Path) -> None:
        """Start it.

        Args:
            profile: An empty folder for what it keeps.
        """
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()
        script = 'exec {in}<&"$1" {out}>&"$2"; shift 2; exec "$@" 3<&$in 4>&$out'  # it reads from 3 and writes to 4
        words = [
            "bash",
            "-c",
            script,
            "bash",
            str(commands),
            str(answers),
            str(CHROMIUM),
            *OPTIONS,
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        environment = os.environ | {"HOME": str(profile)}
        self._process = subprocess.Popen(
            words,
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        os.close(commands)
        os.close(answers)
        self._read = b""
        self._number = 0
        self._events: list[Json] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._to)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from)

    def show(self, page: Path, *, width: int, height: int, theme: str = "light", media: str = "") -> Shown:
        """Load a file in a tab of its own.

        Args:
            page: The file.
            width: Of the window, in CSS pixels.
            height: Likewise.
            theme: ``light`` or ``dark``, as the system's setting.
            media: ``print`` for the page as it is printed.
        """
        target = self._ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        tab = self._ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log", "Accessibility"):
            self._ask(f"{domain}.enable", tab=tab)
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._ask("Emulation.setDeviceMetricsOverride", metrics, tab=tab)
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self._ask("Emulation.setEmulatedMedia", {"media": media, "features": features}, tab=tab)
        self._events.clear()
        self._ask("Page.navigate", {"url": page.as_uri()}, tab=tab)
        self._wait_for("Page.loadEventFired")
        found = self._ask("Runtime.evaluate", {"expression": "document.documentElement.scrollWidth"}, tab=tab)
        picture = self._ask("Page.captureScreenshot", {"format": "png"}, tab=tab)["data"]
        nodes = self._ask("Accessibility.getFullAXTree", tab=tab)["nodes"]
        shown = Shown(
            console=list(self._console()),
            requests=list(self._requests(page)),
            width=found["result"]["value"],
            screenshot=base64.b64decode(picture),
            names=[(node["role"]["value"], node["name"]["value"]) for node in nodes if "name" in node],
        )
        self._ask("Target.closeTarget", {"targetId": target})
        return shown

    def _console(self) -> Iterator[str]:
        for event in self._events:
            if event["method"] in {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}:
                yield json.dumps(event["params"])

    def _requests(self, page: Path) -> Iterator[str]:
        for event in self._events:
            if event["method"] == "Network.requestWillBeSent":
                url = event["params"]["request"]["url"]
                if url != page.as_uri() and not url.startswith("data:"):
                    yield url

    def _ask(self, method: str, parameters: Json | None = None, *, tab: str | None = None) -> Json:
        self._number += 1
        message: Json = {"id": self._number, "method": method, "params": parameters or {}}
        if tab:
            message["sessionId"] = tab
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        while (answer := self._next()).get("id") != self._number:
            self._events.append(answer)
        assert "error" not in answer, (method, answer)
        result: Json = answer["result"]
        return result

    def _wait_for(self, method: str) -> None:
        while not any(event["method"] == method for event in self._events):
            self._events.append(self._next())

    def _next(self) -> Json:
        end = time.monotonic() + TIMEOUT
        while b"\0" not in self._read:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self._from, 1 << 16) if ready else b""
            assert part, f"the browser said nothing for {TIMEOUT:.0f} s, or ended"
            self._read += part
        message, _, self._read = self._read.partition(b"\0")
        value: Json = json.loads(message)
        return value
