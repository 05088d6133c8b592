"""A server and a worker on a folder of their own, for `soak.py`: started, killed, and looked at from outside."""

import collections
import os
import pathlib
import random
import signal
import socket
import subprocess

SETTINGS = {
    "SPARSETUNE_DEVICES__USE": "[]",
    "SPARSETUNE_LEARNING__MIN_GROUPS": "4",
    "SPARSETUNE_LEARNING__MIN_TRIALS": "40",
    "SPARSETUNE_LEARNING__CHECK_S": "5",
    "SPARSETUNE_LEARNING__RETRAIN_TRIALS": "100",
    "SPARSETUNE_LEARNING__THREADS": "1",
    "SPARSETUNE_WORKER__LEASE_MS": "5000",
    "SPARSETUNE_WORKER__MAX_ATTEMPTS": "1000",
    # One machine plays all clients.
    "SPARSETUNE_SERVER__UPLOADS_PER_CLIENT": "4",
}
PATIENCE_S = 60


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Service:
    """The two processes, on one folder and one port for good."""

    def __init__(self, binary, folder, processes):
        self.binary, self.folder, self.port = str(binary), folder, free_port()
        self.environment = {**os.environ, **SETTINGS}
        self.logs = {name: open(folder / f"{name}.log", "ab") for name in ("server", "worker")}
        self.processes = processes
        for name in ("server", "worker"):
            self.start(name)
        # With a device, which the worker brings.
        self.ready()

    def start(self, name):
        data = ["--data", str(self.folder / "data")]
        words = {
            "server": ["serve", "--listen", f"127.0.0.1:{self.port}", *data],
            "worker": ["worker", "--device", "cpu", *data],
        }[name]
        log = self.logs[name]
        self.processes[name] = subprocess.Popen([self.binary, *words], env=self.environment, stdout=log, stderr=log)

    def ready(self):
        subprocess.run(
            [self.binary, "ready", "--server", f"http://127.0.0.1:{self.port}", "--wait", str(PATIENCE_S)],
            check=True, stdout=subprocess.DEVNULL,
        )

    def evaluator(self):
        worker = self.processes["worker"].pid
        try:
            children = pathlib.Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
        except OSError:
            return None
        # Any thread of the worker may have started it.
        for task in pathlib.Path(f"/proc/{worker}/task").glob("*/children"):
            try:
                children += task.read_text().split()
            except OSError:
                pass
        return int(random.choice(children)) if children else None

    def kill(self, name):
        """Kills at once and without notice; whether there was anything to kill."""
        if name == "evaluator":
            pid = self.evaluator()
            if pid is None:
                return False
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                return False
            return True
        self.processes[name].kill()
        self.processes[name].wait()
        self.start(name)
        return True

    def stop(self):
        ends = {}
        for name, process in self.processes.items():
            process.terminate()
        for name, process in self.processes.items():
            try:
                ends[name] = process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                ends[name] = "did not end"
        return ends

    def sizes(self):
        data = self.folder / "data"
        sizes = collections.Counter()
        for path in data.rglob("*"):
            try:
                if path.is_file():
                    kind = "database" if path.name.endswith(".db") else "its log" if "-wal" in path.name else "blobs and other files"
                    sizes[kind] += path.stat().st_size
            except OSError:
                pass
        for name, process in self.processes.items():
            try:
                status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
                sizes[f"memory of the {name}"] = int(status.split("VmRSS:")[1].split()[0]) << 10
                sizes[f"descriptors of the {name}"] = len(os.listdir(f"/proc/{process.pid}/fd"))
            except (OSError, IndexError):
                pass
        return sizes
