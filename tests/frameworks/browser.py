"""Headless Chromium by the WebDriver protocol, with the standard library alone; not a test."""

import json
import shutil
import socket
import subprocess
import time
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


def missing():
    """Return which program is missing, or None."""
    found = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    absent = [name for name, path in found.items() if path is None]
    return (
        f"{' and '.join(absent)} not installed (Debian: chromium, chromium-driver)"
        if absent
        else None
    )


class Browser:
    """One window; use it as a context manager. Every wait is bounded."""

    def __init__(self, folder, width=1400, height=1000):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self._base = f"http://127.0.0.1:{port}"
        self._log = open(folder / "chromedriver.log", "wb")  # noqa: SIM115 - closed in __exit__
        self._driver = subprocess.Popen(
            [shutil.which("chromedriver"), f"--port={port}"],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        arguments = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            f"--window-size={width},{height}", f"--user-data-dir={folder / 'profile'}",
        ]  # fmt: skip
        options = {"binary": shutil.which("chromium"), "args": arguments}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options,
                  "goog:loggingPrefs": {"browser": "ALL"}}  # fmt: skip
        try:
            self._until(lambda: self._call("GET", "/status")["ready"], 30)
            made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        except BaseException:
            self.__exit__()
            raise
        self._base += f"/session/{made['sessionId']}"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if "/session/" in self._base:
            try:
                self._call("DELETE", "")
            except OSError:
                pass
        self._driver.terminate()
        try:
            self._driver.wait(10)
        except subprocess.TimeoutExpired:
            self._driver.kill()
            self._driver.wait(10)
        self._log.close()

    def open(self, url):
        self._call("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector):
        script = (
            "const e = document.querySelector(arguments[0]); return e.innerText ?? e.textContent"
        )
        return self.run(script, selector)

    def until(self, script, seconds=20):
        """Wait until a script returns something true, and return it."""
        return self._until(lambda: self.run(script), seconds)

    def emulate(self, **features):
        """Set media features such as prefers-color-scheme."""
        listed = [{"name": n.replace("_", "-"), "value": v} for n, v in features.items()]
        body = {"cmd": "Emulation.setEmulatedMedia", "params": {"features": listed}}
        self._call("POST", "/goog/cdp/execute", body)

    def resize(self, width, height):
        body = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("POST", "/goog/cdp/execute",
                   {"cmd": "Emulation.setDeviceMetricsOverride", "params": body})  # fmt: skip

    def messages(self):
        """Return what the console of the browser says, errors among them."""
        return [one["message"] for one in self._call("POST", "/se/log", {"type": "browser"})]

    def _until(self, ask, seconds):
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = ask()
            except OSError:
                found = None
            if found or time.monotonic() > deadline:
                assert found, f"not within {seconds} s"
                return found
            time.sleep(0.1)

    def _call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._base + path, data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())["value"]
