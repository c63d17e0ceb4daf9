"""A real JupyterLab for tests: a server of its own on a free local port, and a page opened on one of its notebooks."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 90
LIGHT, DARK = "JupyterLab Light", "JupyterLab Dark"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def write_settings(directory: Path, theme: str) -> None:
    """Settings that keep the page quiet (no news, no update check) and choose a theme."""
    chosen = {
        "notification": {"fetchNews": "false", "checkForUpdates": False},
        "themes": {"theme": theme},
    }
    for name, values in chosen.items():
        path = directory / "@jupyterlab" / "apputils-extension" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))


@contextlib.contextmanager
def jupyterlab(folder: Path, scratch: Path, theme: str = LIGHT) -> Iterator[str]:
    """A JupyterLab serving ``folder``; yields an address with a place for a notebook's path: ``url.format(path=...)``.

    Nothing of the user's Jupyter configuration is read or written; kernels import the package from this checkout.
    """
    port, token = free_port(), secrets.token_hex(16)
    settings = scratch / "settings"
    write_settings(settings, theme)
    environment = os.environ | {
        "JUPYTER_CONFIG_DIR": str(scratch / "config"),
        "JUPYTER_DATA_DIR": str(scratch / "data"),
        "JUPYTER_RUNTIME_DIR": str(scratch / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(settings),
        "JUPYTERLAB_WORKSPACES_DIR": str(scratch / "workspaces"),
        "IPYTHONDIR": str(scratch / "ipython"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}",
        "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={folder}",
        "--LabApp.extension_manager=readonly", "--ServerApp.terminals_enabled=False",
    ]  # fmt: skip
    log = (scratch / "jupyterlab.log").open("w")
    server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=scratch)
    try:
        _wait_for(server, f"http://127.0.0.1:{port}/api?token={token}", scratch / "jupyterlab.log")
        yield f"http://127.0.0.1:{port}/lab/tree/{{path}}?reset&token={token}"
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        log.close()


def _wait_for(server: subprocess.Popen, url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise AssertionError(f"JupyterLab did not start:\n{log.read_text()[-4000:]}")


def open_notebook(page, url: str, path: str) -> None:
    """Open a notebook and wait until its kernel answers.

    The notebook's own indicator says "idle" even before there is a kernel; running cells then would only bring up the
    dialog that asks for one. The status bar tells the truth.
    """
    page.goto(url.format(path=path), timeout=90_000)
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=90_000)
    page.locator("#jp-main-statusbar", has_text="| Idle").wait_for(timeout=120_000)


def run_all_cells(page, timeout: float = 180_000) -> None:
    """Run > Run All Cells, and wait until no cell is waiting any more."""
    dialog = page.locator(".jp-Dialog")
    assert dialog.count() == 0, f"a dialog is in the way: {dialog.first.inner_text()}"
    page.click('li.lm-MenuBar-item:has-text("Run")')
    page.click('.lm-Menu-item:has-text("Run All Cells")')
    state = """() => ({
      prompts: [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].map(p => p.textContent.trim()),
      kernel: document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status,
      dialog: document.querySelector('.jp-Dialog')?.textContent,
    })"""
    finished = f"""() => {{
      const now = ({state})();
      const ran = now.prompts.some(p => /\\[\\d+\\]/.test(p));
      return now.kernel === 'idle' && ran && !now.prompts.some(p => p.includes('[*]'));
    }}"""
    try:
        page.wait_for_function(finished, timeout=timeout)
    except Exception as error:
        raise AssertionError(f"the cells did not finish: {page.evaluate(state)}") from error
