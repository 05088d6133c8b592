"""Hosts for `simulate.py`: network namespaces on one bridge, what runs in them, and the store behind them: PostgreSQL, PgBouncer and an
S3 server, with a proxy before it that fails on demand. Linux and root; standard library only."""

import asyncio
import multiprocessing
import os
import pathlib
import random
import shutil
import signal
import subprocess
import time

BRIDGE, NET = "stsim", "10.77.0"
# Debian's `nobody`: PostgreSQL and PgBouncer refuse root.
NOBODY = 65534
KEY, SECRET, BUCKET = "AKIDOFTHESIMULATION", "a-secret-of-the-simulation", "simulation"


class Impossible(Exception):
    """This machine does not permit the simulation."""


def run(*words, check=True):
    done = subprocess.run(words, capture_output=True, text=True)
    if check and done.returncode:
        raise Impossible(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Network:
    """One bridge in this namespace, and a namespace for each host. A host is cut off by taking its end at the bridge down: what is sent
    is lost without a word, as when a cable is pulled."""

    def __init__(self):
        if os.geteuid() != 0 or not shutil.which("ip"):
            raise Impossible("network namespaces need root and the command `ip` (package iproute2)")
        self.hosts = {}
        run("ip", "link", "del", BRIDGE, check=False)
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "addr", "add", f"{NET}.1/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")

    def host(self, name):
        """Makes a host; its address."""
        number = len(self.hosts) + 2
        space, near, address = f"{BRIDGE}-{name}", f"{BRIDGE}{number}", f"{NET}.{number}"
        # What an earlier run that was killed has left.
        run("ip", "netns", "del", space, check=False)
        run("ip", "link", "del", near, check=False)
        run("ip", "netns", "add", space)
        run("ip", "link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", space)
        run("ip", "link", "set", near, "master", BRIDGE, "up")
        for words in (["addr", "add", f"{address}/24", "dev", "eth0"], ["link", "set", "eth0", "up"], ["link", "set", "lo", "up"]):
            run("ip", "-n", space, *words)
        self.hosts[name] = (space, near, address)
        return address

    def cut(self, name, off):
        run("ip", "link", "set", self.hosts[name][1], "down" if off else "up")

    def within(self, name):
        return ["ip", "netns", "exec", self.hosts[name][0]]

    def remove(self):
        for space, near, _ in self.hosts.values():
            run("ip", "link", "del", near, check=False)
            run("ip", "netns", "del", space, check=False)
        run("ip", "link", "del", BRIDGE, check=False)


class Process:
    """A program on a host, which can be started again as it was."""

    def __init__(self, network, host, words, log, environment=None, user=None):
        self.words = [*network.within(host), *map(str, words)]
        self.log, self.user = log, user
        self.environment = {**os.environ, **(environment or {})}
        self.process = None
        self.start()

    def start(self):
        as_user = {"user": self.user, "group": self.user, "extra_groups": []} if self.user and not self.words[0] == "ip" else {}
        words = self.words
        if self.user:
            # The namespace is entered as root, the program started as the user.
            at = 4
            words = [*words[:at], "setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups", *words[at:]]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                words, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **as_user
            )

    @property
    def pid(self):
        return self.process.pid

    def signal(self, number):
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            pass

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.wait()

    def end(self, patience=40):
        """SIGTERM; its exit status, or `None` if it did not end."""
        self.signal(signal.SIGTERM)
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            return None


def tree(pid):
    """A process and its descendants."""
    found, left = [], [pid]
    while left:
        one = left.pop()
        found.append(one)
        for task in pathlib.Path(f"/proc/{one}/task").glob("*/children"):
            try:
                left += [int(child) for child in task.read_text().split()]
            except OSError:
                pass
    return found


def processor_seconds(pids):
    """What these processes have used, with the children that they have waited for."""
    ticks = 0
    for pid in pids:
        try:
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += sum(map(int, fields[11:15]))
        except OSError:
            pass
    return ticks / os.sysconf("SC_CLK_TCK")


class Postgres:
    """A server with its own cluster, and PgBouncer (transaction mode) on the same host."""

    def __init__(self, network, folder, pooler=True, clients=120):
        self.network, self.folder, self.address = network, folder, network.host("db")
        binaries = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
        if not binaries or not pathlib.Path("/usr/sbin/pgbouncer").exists():
            raise Impossible("PostgreSQL and PgBouncer are needed: the packages postgresql and pgbouncer")
        self.binaries = binaries[-1]
        folder.mkdir()
        os.chown(folder, NOBODY, NOBODY)
        as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        data = folder / "data"
        run(*as_nobody, str(self.binaries / "initdb"), "-D", str(data), "-U", "sparsetune", "-A", "trust", "--locale=C", "-E", "UTF8")
        with open(data / "pg_hba.conf", "a") as rules:
            rules.write(f"host all all {NET}.0/24 trust\n")
        words = [self.binaries / "postgres", "-D", data, "-h", self.address, "-k", folder, "-c", f"max_connections={clients + 80}",
                 "-c", "shared_buffers=256MB", "-c", "max_wal_size=4GB", "-c", "log_checkpoints=on"]
        self.server = Process(network, "db", words, folder / "postgres.log", user=NOBODY)
        self.wait()
        run(str(self.binaries / "createdb"), "-h", self.address, "-U", "sparsetune", "sparsetune")
        self.pooler = None
        if pooler:
            (folder / "pgbouncer.ini").write_text(
                f"[databases]\n* = host={self.address} port=5432\n[pgbouncer]\nlisten_addr = {self.address}\nlisten_port = 6432\n"
                f"auth_type = trust\nauth_file = {folder}/users\npool_mode = transaction\nmax_client_conn = 2000\n"
                f"default_pool_size = {clients // 2}\nunix_socket_dir = \nquery_wait_timeout = 30\n"
            )
            (folder / "users").write_text('"sparsetune" ""\n')
            self.pooler = Process(network, "db", ["/usr/sbin/pgbouncer", folder / "pgbouncer.ini"], folder / "pgbouncer.log", user=NOBODY)

    def url(self, pooled):
        return f"postgres://sparsetune@{self.address}:{6432 if pooled else 5432}/sparsetune"

    def wait(self, patience=120):
        until = time.monotonic() + patience
        while run_status(str(self.binaries / "pg_isready"), "-q", "-h", self.address, "-t", "1"):
            if time.monotonic() > until:
                raise Impossible("PostgreSQL did not start")
            time.sleep(0.1)

    def ask(self, query, patience=20):
        """Rows of one statement as lists of texts; an error or no answer in time raises."""
        words = [str(self.binaries / "psql"), "-h", self.address, "-U", "sparsetune", "-qAtX", "-F", "\t", "-c", query]
        environment = {**os.environ, "PGCONNECT_TIMEOUT": "2"}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=patience)
        if done.returncode:
            raise OSError(done.stderr.strip())
        return [line.split("\t") for line in done.stdout.splitlines()]

    def stop(self, number):
        """Ends the server by a signal and starts it again."""
        self.server.signal(number)
        self.server.process.wait()
        if number == signal.SIGKILL:
            # Its children end once they notice; the next start refuses until they have.
            time.sleep(1)
        self.server.start()

    def pids(self):
        return tree(self.server.pid) + (tree(self.pooler.pid) if self.pooler else [])


def run_status(*words):
    return subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode


class Bucket:
    """s3s-fs on a host of its own, and the proxy that its clients go through, in a process of this namespace."""

    PORT = 9100

    def __init__(self, network, folder, program):
        if not program.exists():
            raise Impossible(f"{program} is missing: scripts/test installs the S3 server s3s-fs")
        self.address = network.host("s3")
        (folder / BUCKET).mkdir(parents=True)
        words = [program, "--host", self.address, "--port", "9000", "--access-key", KEY, "--secret-key", SECRET, folder]
        self.server = Process(network, "s3", words, folder.parent / "s3.log")
        # Of 1000 requests that change something, and of the others, so many are refused with this status.
        self.refused = {status: multiprocessing.Value("i", 0) for status in (503, 409)}
        self.told = multiprocessing.Value("i", 0)
        self.proxy = multiprocessing.Process(target=serve_proxy, args=((f"{NET}.1", self.PORT), (self.address, 9000), self.refused, self.told), daemon=True)
        self.proxy.start()

    def environment(self):
        return {
            "SPARSETUNE_DATA__BLOBS": f"s3://{BUCKET}/store", "SPARSETUNE_S3__ENDPOINT": f"http://{NET}.1:{self.PORT}",
            "SPARSETUNE_S3__REGION": "us-east-1", "SPARSETUNE_S3__ACCESS_KEY_ID": KEY, "SPARSETUNE_S3__SECRET_ACCESS_KEY": SECRET,
            "SPARSETUNE_S3__ALLOW_HTTP": "true",
        }

    def end(self):
        self.proxy.kill()
        self.server.kill()


def serve_proxy(address, upstream, refused, told):
    """Passes requests on, one after another on each connection, or answers 503 (any) and 409 (PUT) in the server's place."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def message(reader):
        head = await reader.readuntil(b"\r\n\r\n")
        headers = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
        return head, headers

    async def body(reader, headers, writer, bodiless=False):
        if b"chunked" in headers.get(b"transfer-encoding", b"") and not bodiless:
            while True:
                line = await reader.readuntil(b"\r\n")
                size = int(line.split(b";")[0], 16)
                writer.write(line + await reader.readexactly(size + 2))
                if size == 0:
                    break
        left = 0 if bodiless else int(headers.get(b"content-length", b"0"))
        while left > 0:
            piece = await reader.read(min(left, 1 << 16))
            if not piece:
                raise ConnectionError("cut off")
            left -= len(piece)
            writer.write(piece)
            await writer.drain()

    class Nowhere:
        def write(self, _):
            pass

        async def drain(self):
            pass

    async def client(reader, writer):
        above = None
        try:
            while True:
                head, headers = await message(reader)
                method = head.split(b" ", 1)[0]
                status = next((s for s, share in refused.items() if (s == 503 or method == b"PUT") and random.randrange(1000) < share.value), None)
                if status:
                    with told.get_lock():
                        told.value += 1
                    if b"expect" not in headers:
                        await body(reader, headers, Nowhere())
                    code = {503: b"SlowDown", 409: b"ConditionalRequestConflict"}[status]
                    text = b"<Error><Code>" + code + b"</Code><Message>simulated</Message></Error>"
                    writer.write(b"HTTP/1.1 %d Simulated\r\ncontent-type: application/xml\r\ncontent-length: %d\r\n\r\n" % (status, len(text)) + text)
                    await writer.drain()
                    continue
                if above is None:
                    above = await asyncio.open_connection(*upstream)
                above[1].write(head)
                await body(reader, headers, above[1])
                await above[1].drain()
                while True:
                    answer, about = await message(above[0])
                    writer.write(answer)
                    code = int(answer.split(b" ", 2)[1])
                    if code != 100:
                        break
                await body(above[0], about, writer, bodiless=method == b"HEAD" or code in (204, 304))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass
        finally:
            writer.close()
            if above:
                above[1].close()

    async def serve():
        server = await asyncio.start_server(client, *address, limit=1 << 20, backlog=512)
        await server.serve_forever()

    asyncio.run(serve())
