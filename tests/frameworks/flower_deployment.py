"""A SuperLink and SuperNodes as processes on this host, with TLS and keys; not a test."""

import ast
import contextlib
import datetime
import ipaddress
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SLOW = 600  # seconds that one command may take where other work goes on beside
PEM = serialization.Encoding.PEM


def write_certificate(folder):
    """Write a key and a certificate of this host's own, good for an hour."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    none = serialization.NoEncryption()
    pkcs8 = serialization.PrivateFormat.PKCS8
    (folder / "link.key").write_bytes(key.private_bytes(PEM, pkcs8, none))
    (folder / "link.pem").write_bytes(certificate.public_bytes(PEM))


def write_node_key(folder, name):
    """Write the key pair of a SuperNode, as ssh-keygen would."""
    key = ec.generate_private_key(ec.SECP384R1())
    openssh, none = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    (folder / name).write_bytes(key.private_bytes(PEM, openssh, none))
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    (folder / f"{name}.pub").write_bytes(public)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Deployment:
    """One SuperLink and its SuperNodes; use it as a context manager.

    `folder` holds certificate and keys, which outlive the deployment.
    """

    def __init__(self, folder):
        self.folder = Path(folder)
        self.port = free_port()
        self.processes = {}
        home = self.folder / f"home-{self.port}"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.folder / "link.pem"}"\n'
        )
        self.env = {
            **os.environ,
            "FLWR_HOME": str(home),
            "PYTHONPATH": str(ROOT),  # the code under test, in every process
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "300",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",  # a second by default, for each message
        }

    def __enter__(self):
        pem, key = self.folder / "link.pem", self.folder / "link.key"
        self._start(
            "link", "flower-superlink", f"--port={self.port}", "--enable-supernode-auth",
            f"--ssl-ca-certfile={pem}", f"--ssl-certfile={pem}", f"--ssl-keyfile={key}",
            "--disable-runtime-dependency-installation",
        )  # fmt: skip
        deadline = time.monotonic() + SLOW
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return self
            time.sleep(0.2)
        self.__exit__()
        raise TimeoutError(f"the SuperLink did not start in {SLOW} s: {self.log('link')}")

    def __exit__(self, *details):
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)
            self._end(process)

    def _end(self, process):
        """Kill what is left of a process and of those it has started: Flower leaves some."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=20)

    def _start(self, name, *command):
        with open(self.folder / f"{name}-{self.port}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [BIN / command[0], *command[1:]],
                stdout=log,
                stderr=log,
                env=self.env,
                start_new_session=True,
            )

    def log(self, name, whole=False):
        text = (self.folder / f"{name}-{self.port}.log").read_text()
        return text if whole else text[-3000:]

    def flwr(self, *arguments, timeout=SLOW):
        done = subprocess.run(
            [BIN / "flwr", *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            env=self.env,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr + self.log("link")
        return done.stdout

    def register(self, name):
        """Make the SuperLink know the key of a node, under a name."""
        self.flwr("supernode", "register", str(self.folder / f"{name}.pub"), "here", "--name", name)

    def join(self, name, partition):
        self._start(
            name, "flower-supernode", f"--superlink=127.0.0.1:{self.port}",
            f"--root-certificates={self.folder / 'link.pem'}", f"--port={free_port()}",
            f"--auth-supernode-private-key={self.folder / name}",
            f"--node-config=partition-id={partition}",
        )  # fmt: skip

    def kill(self, name):
        """End a node at once and without a word."""
        self._end(self.processes.pop(name))

    def node_ids(self):
        """Return the ids of the nodes that are online."""
        nodes = json.loads(self.flwr("supernode", "list", "here", "--format", "json"))["nodes"]
        return {node["node-id"] for node in nodes if node["status"] == "online"}

    def run(self, timeout=1200, app="examples", **config):
        """Run an example; return who was picked and who failed, round by round."""
        settings = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        app = str(ROOT / app)
        said = self.flwr("run", app, "here", "--stream", "--run-config", settings, timeout=timeout)
        shown = r"round +\d+: clients (\[.*?\])(?:, failed ({.*}))?$"
        lines = re.findall(shown, said, re.MULTILINE)
        assert len(lines) == config["rounds"], said[-3000:]
        return [(ast.literal_eval(a), ast.literal_eval(b or "{}")) for a, b in lines]
