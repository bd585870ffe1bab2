"""Runs a headless Chromium for the report's tests: what a page logs, and its layout at a window size."""

import functools
import html
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_MEASURE = """<!DOCTYPE html><title>measure</title><style>iframe { border: 0 }</style>
<iframe src="PAGE" width="WIDTH" height="HEIGHT"></iframe><pre id="found"></pre>
<script>
window.onload = () => {
  const page = document.querySelector("iframe").contentDocument, root = page.documentElement;
  const box = node => { const b = node.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; };
  const drawings = [...page.querySelectorAll("svg")].map(svg => ({
    box: box(svg),
    texts: [...svg.querySelectorAll("text")].map(text => [text.textContent, ...box(text)]),
  }));
  document.getElementById("found").textContent = JSON.stringify({
    width: root.clientWidth, wanted: root.scrollWidth, drawings: drawings, text: page.body.innerText,
    links: [...page.querySelectorAll("a")].map(a => [a.download, a.href]),
    tables: [...page.querySelectorAll(".wide")].map(one => [one.clientWidth, one.scrollWidth]),
    pictures: [...page.querySelectorAll("svg image")].length,
  });
};
</script>"""


def chromium() -> str:
    """Return Chromium's path; on Ubuntu, which has it only as a snap, skip the test if it is missing."""
    found = shutil.which("chromium")
    if found is None and "ID=ubuntu" in Path("/etc/os-release").read_text().splitlines():
        pytest.skip("Ubuntu has no package chromium")
    assert found is not None, "there is no chromium: scenarios/setup.sh installs it"
    return found


def run(folder: Path, address: str, size: tuple[int, int], *options: str) -> tuple[str, str]:
    """Open a page; return its elements once everything is loaded, and Chromium's stderr."""
    command = [chromium(), "--headless", "--disable-gpu", "--enable-logging=stderr", "--log-level=0", "--dump-dom"]
    command += ["--no-sandbox"] if os.geteuid() == 0 else []
    command += [f"--user-data-dir={folder / 'profile'}", f"--window-size={size[0]},{size[1]}", *options, address]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=180)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, err
    return out, err


def console(said: str) -> list[str]:
    """Return the lines of Chromium's output with a page's console messages, which include refused requests."""
    return [line for line in said.splitlines() if ":CONSOLE" in line]


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Do not log requests: the server records them."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        super().do_GET()


@contextmanager
def served(folder: Path):
    """Serve a folder over HTTP on this machine; yield the server's address and the list of paths requested so far."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, directory=str(folder)))
    server.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", server.asked  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def measured(folder: Path, page: Path, size: tuple[int, int]) -> tuple[dict[str, Any], list[str]]:
    """Return the layout of a page in a window of that size, and every path that it made the browser request."""
    shutil.copy(page, folder / "page.html")
    wrapper = _MEASURE.replace("PAGE", "page.html").replace("WIDTH", str(size[0])).replace("HEIGHT", str(size[1]))
    (folder / "wrapper.html").write_text(wrapper)
    with served(folder) as (address, asked):
        out, _ = run(folder, f"{address}/wrapper.html", (size[0] + 100, size[1] + 100))
    match = re.search(r'<pre id="found">(.*?)</pre>', out, re.DOTALL)
    assert match is not None, out[-2000:]
    assert match[1], "the page was not measured"
    found: dict[str, Any] = json.loads(html.unescape(match[1]))
    return found, [path for path in asked if path not in ("/wrapper.html", "/page.html", "/favicon.ico")]
