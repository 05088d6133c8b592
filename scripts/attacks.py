#!/usr/bin/env python3
"""Tries on a real server what a hostile test once found, and says what came of it, a line each. Linux; needs numpy and scipy.

    scripts/attacks.py [--binary target/release/sparsetune] [NUMBER...]

Each attempt starts a server of its own on a folder of its own, without tokens, on loopback, with the CPU as the device. Exits with 1 if one
succeeded. Where the host cannot do an attempt (no control group for memory), it says so.
"""

import argparse
import concurrent.futures
import contextlib
import gzip
import http.client
import io
import json
import os
import pathlib
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
import urllib.parse
import zipfile

import numpy
import scipy.io
import scipy.sparse

MATRIX = "%%MatrixMarket matrix coordinate real general\n3 3 4\n1 1 2\n2 2 3\n3 1 1\n3 3 4\n"
JOB = {"problem": {"op": "spmm", "n": 8}, "search": {"top_k": 4, "seconds": 5}}
attempts = {}


def attempt(number, what):
    def keep(function):
        attempts[number] = (what, function)
        return function
    return keep


class Server:
    def __init__(self, binary, folder, group=None, arguments=(), **settings):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.data, self.log = folder / "data", folder / "log"
        environment = {**os.environ, "SPARSETUNE_DEVICES__USE": '["cpu"]'}
        environment |= {f"SPARSETUNE_{name}": str(value) for name, value in settings.items()}
        command = [binary, "serve", "--listen", f"127.0.0.1:{self.port}", "--data", str(self.data), *arguments]
        enter = (lambda: (group / "cgroup.procs").write_text(str(os.getpid()))) if group else None
        self.process = subprocess.Popen(command, env=environment, stdout=open(self.log, "ab"), stderr=subprocess.STDOUT, preexec_fn=enter)
        until = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.ask("GET", "/v1/devices")[1]["items"]:
                    break
            time.sleep(0.05)

    def ask(self, method, path, body=None, headers=None, timeout=120):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        if isinstance(body, dict):
            body, headers = json.dumps(body), {"content-type": "application/json", **(headers or {})}
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text) if text[:1] in (b"{", b"[") else text, answer

    def upload(self, body, name="m.mtx", **headers):
        return self.ask("POST", f"/v1/matrices?name={urllib.parse.quote(name)}", body, headers)[:2]

    def tuned(self, digest, n=8):
        body = {**JOB, "matrix": digest, "problem": {"op": "spmm", "n": n}}
        status, job, _ = self.ask("POST", "/v1/jobs", body)
        assert status in (200, 201, 202), (status, job)
        return self.ended(job["id"])

    def ended(self, job):
        until = time.monotonic() + 180
        while time.monotonic() < until:
            _, found, _ = self.ask("GET", f"/v1/jobs/{job}")
            if found["state"] in ("succeeded", "failed", "cancelled"):
                return found
            time.sleep(0.1)
        raise TimeoutError(f"job {job}")

    def children(self):
        found = []
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(pid) for pid in task.read_text().split()]
        return found

    def evaluator(self):
        """The process of the device; others read uploads."""
        for pid in self.children():
            with contextlib.suppress(OSError):
                if b"evaluator" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        return None

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait(60)

    def blobs(self):
        return [path for path in (self.data / "blobs").rglob("*") if len(path.name) == 64]

    def bytes(self):
        return sum(path.stat().st_size for path in self.data.rglob("*") if path.is_file())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def npz(entries):
    """A COO file of `entries` entries in one place, as scipy writes it."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in {
            "row": numpy.zeros(entries, "<i4"), "col": numpy.zeros(entries, "<i4"), "data": numpy.zeros(entries, "u1"),
            "format": numpy.array(b"coo"), "shape": numpy.array([1, 1], "<i8"),
        }.items():
            with archive.open(name + ".npy", "w", force_zip64=True) as member:
                numpy.lib.format.write_array(member, array)
    return out.getvalue()


@contextlib.contextmanager
def memory_group(most):
    """A control group with this much memory, of either version."""
    first = pathlib.Path("/sys/fs/cgroup/memory")
    parent, limit = (first, "memory.limit_in_bytes") if first.is_dir() else (pathlib.Path("/sys/fs/cgroup"), "memory.max")
    group = parent / f"sparsetune-attacks-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(most))
    except OSError as error:
        group = None
        print(f"    no control group: {error}")
    try:
        yield group
    finally:
        if group:
            with contextlib.suppress(OSError):
                group.rmdir()


@attempt(1, "an npz of 10^8 entries in one place, in 2 GB")
def duplicates(make, folder):
    body = npz(10**8)
    with memory_group(2 << 30) as group:
        if group is None:
            return None, "not tried"
        with make(folder, group=group) as server:
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                began = time.monotonic()
                answers = list(pool.map(lambda _: server.upload(body, "m.npz")[0], range(4)))
                took = time.monotonic() - began
            alive = server.process.poll() is None and server.ask("GET", "/healthz")[0] == 200
        time.sleep(0.2)
    fine = alive and all(status in (201, 200, 413, 503) for status in answers)
    return fine, f"{len(body)} bytes, four at once: {answers} in {took:.1f} s; the server {'lives' if alive else 'is gone'}"


@attempt(2, "72 bytes for 16,777,216 rows; gzip in gzip")
def rows_and_gzip(make, folder):
    with make(folder) as server:
        before = server.bytes()
        status, _ = server.upload("%%MatrixMarket matrix coordinate real general\n16777216 1 1\n1 1 1\n")
        grown = server.bytes() - before
        bomb = gzip.compress(gzip.compress(bytes(1 << 30), 9), 9)
        began = time.monotonic()
        inner, _ = server.upload(bomb, "m.mtx.gz.gz")
        took = time.monotonic() - began
        left = server.bytes() - before - grown
    fine = grown < 16 << 20 and inner in (413, 422, 400, 415) and took < 10
    return fine, f"{status}, {grown} bytes stored; {len(bomb)} bytes that unpack to {1 << 30}: {inner} in {took:.2f} s, {left} bytes left behind"


@attempt(3, "a lost and a foreign database")
def lost_database(make, folder):
    with make(folder) as server:
        digests = []
        for rows in range(3, 23):
            text = f"%%MatrixMarket matrix coordinate real general\n{rows} {rows} 1\n1 {rows} 1\n"
            digests.append(server.upload(text)[1]["digest"])
        server.stop()
        count = len(server.blobs())
        database = server.data / "sparsetune.db"
        alone = folder / "alone.db"
        alone.write_bytes(database.read_bytes())
        with contextlib.closing(sqlite3.connect(alone)) as opened:
            rows = opened.execute("SELECT count(*) FROM matrices").fetchone()[0]
        database.rename(folder / "away.db")
        for leftover in server.data.glob("sparsetune.db-*"):
            leftover.unlink()
    with make(folder) as other:
        time.sleep(1)
        refused = other.process.poll()
        kept = len(other.blobs())
        said = [line for line in other.log.read_text().splitlines() if "another" in line or "belong" in line][-1:]
    (folder / "data/sparsetune.db").unlink(missing_ok=True)
    (folder / "away.db").rename(folder / "data/sparsetune.db")
    with make(folder) as back:
        known = sum(back.ask("GET", f"/v1/matrices/{digest}")[0] == 200 for digest in digests)
    fine = refused not in (None, 0) and kept == count and known == len(digests) and rows == len(digests)
    return fine, (f"after SIGTERM the file alone has {rows} of {len(digests)}; without it the start ends with {refused}, {kept} of {count} blobs "
                  f"are there; with it again {known} matrices; said: {said}")


@attempt(4, "SIGKILL of the evaluator in the middle of jobs")
def killed_evaluator(make, folder):
    with make(folder) as server:
        rows = 3000
        random = scipy.sparse.random(rows, rows, 0.01, format="coo", random_state=1)
        out = io.BytesIO()
        scipy.io.mmwrite(out, random)
        digest = server.upload(out.getvalue())[1]["digest"]
        kills = 0
        states = []
        for n in (8, 32, 64):
            body = {**JOB, "matrix": digest, "problem": {"op": "spmm", "n": n}}
            job = server.ask("POST", "/v1/jobs", body)[1]["id"]
            for _ in range(3):
                time.sleep(0.4)
                pid = server.evaluator()
                if pid:
                    os.kill(pid, signal.SIGKILL)
                    kills += 1
            states.append(server.ended(job)["state"])
        quarantined = len(server.ask("GET", "/v1/quarantine")[1]["items"])
        plans = [server.ask("GET", f"/v1/plans?matrix={digest}&op=spmm&n={n}&device=cpu&predicted=false")[1] for n in (8, 32, 64)]
        baselines = sum(bool((plan.get("plan") or {}).get("baseline") or (plan.get("plan") or {}).get("vendor")) for plan in plans)
    fine = quarantined == 0 and states == ["succeeded"] * 3
    return fine, f"{kills} SIGKILLs in three jobs: {states}, {quarantined} in quarantine, {baselines} plans of 3 with a baseline"


@attempt(5, "damaged blobs")
def damaged(make, folder):
    with make(folder) as server:
        digest = server.upload(MATRIX)[1]["digest"]
        server.stop()
    blob = next(path for path in server.blobs() if path.name == digest)
    whole = blob.read_bytes()
    told = {}
    for name, bytes_ in {"flipped": whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:], "cut": whole[: len(whole) // 2]}.items():
        blob.chmod(0o600)
        blob.write_bytes(bytes_)
        with make(folder) as server:
            ended = server.tuned(digest, 8 if name == "flipped" else 16)
            error = json.dumps(ended.get("error"))
            again = server.upload(MATRIX)[0]
            healed = server.tuned(digest, 24 if name == "flipped" else 40)["state"]
            told[name] = (ended["state"], str(folder) in error, again, healed, error[:110])
            server.stop()
    fine = all(state == "failed" and not path and healed == "succeeded" for state, path, _, healed, _ in told.values())
    return fine, "; ".join(f"{name}: {t[0]} ({t[4]}), uploaded again {t[2]}, then {t[3]}" for name, t in told.items())


@attempt(6, "slow bodies, and 1,100 event streams")
def denial(make, folder):
    with make(folder, SERVER__BODY_IDLE_S=5) as server:
        digest = server.upload(MATRIX)[1]["digest"]
        slow = []
        for _ in range(4):
            one = socket.create_connection(("127.0.0.1", server.port))
            one.sendall(b"POST /v1/matrices HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000000\r\n\r\n%%")
            slow.append(one)
        time.sleep(0.5)
        began, tries = time.monotonic(), 0
        while time.monotonic() - began < 60:
            tries += 1
            status = server.upload(MATRIX + "\n" * tries)[0]
            if status in (200, 201):
                break
            time.sleep(0.5)
        waited = time.monotonic() - began
        job = server.tuned(digest)["id"]
        held, refused = [], 0
        for _ in range(1100):
            try:
                one = socket.create_connection(("127.0.0.1", server.port), timeout=5)
                one.sendall(f"GET /v1/jobs/{job}/events HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: text/event-stream\r\n\r\n".encode())
                held.append(one)
            except OSError:
                refused += 1
        health = [server.ask("GET", "/healthz", timeout=10)[0] for _ in range(5)]
        for one in held + slow:
            one.close()
    fine = status in (200, 201) and health == [200] * 5
    return fine, f"beside four slow bodies an upload is {status} after {waited:.1f} s; with {len(held)} streams asked for ({refused} refused) /healthz answers {health}"


@attempt(7, "two processes for one device")
def two_processes(make, folder):
    with make(folder) as server, make(folder) as other:
        said = [line.split("] ")[-1][-160:] for line in other.log.read_text().splitlines() if "name" in line.lower() and ("use" in line or "owner" in line)][-1:]
        digest = server.upload(MATRIX)[1]["digest"]
        state = server.tuned(digest)["state"]
        end = other.process.poll()
    return state == "succeeded", f"the second {'ended with ' + str(end) if end is not None else 'runs beside it'}; a job ended {state}; said: {said}"


@attempt(8, "gzip of several members, and junk behind it")
def members(make, folder):
    with make(folder) as server:
        half = len(MATRIX) // 2
        two = gzip.compress(MATRIX[:half].encode()) + gzip.compress(MATRIX[half:].encode())
        answers = {
            "body": server.upload(two, "m.mtx.gz")[0],
            "content-encoding": server.ask("POST", "/v1/matrices", two, {"content-encoding": "gzip"})[0],
            "body and junk": server.upload(two + b"junk", "m.mtx.gz")[0],
            "content-encoding and junk": server.ask("POST", "/v1/matrices", two + b"junk", {"content-encoding": "gzip"})[0],
        }
    fine = answers["body"] in (200, 201) and answers["content-encoding"] in (200, 201) and all(
        answers[name] in (400, 422) for name in answers if "junk" in name)
    return fine, str(answers)


@attempt(9, "refusals with a body on the way, and the next request")
def refusals(make, folder):
    with make(folder) as server:
        broken = announced = 0
        for number in range(1000):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
            path = ["/v1/nowhere", "/v1/jobs", "/v1/models/train"][number % 3]
            try:
                connection.request("POST", path, b"x" * [10, 70_000, 300_000][number // 3 % 3], {"content-type": "text/plain"})
                answer = connection.getresponse()
                answer.read()
                if answer.getheader("connection") == "close":
                    announced += 1
                else:
                    connection.request("GET", "/healthz")
                    broken += connection.getresponse().read() is None
            except (OSError, http.client.HTTPException):
                broken += 1
            connection.close()
    return broken == 0, f"1000 refusals: {announced} announced the end of the connection, {broken} next requests broke"


@attempt(10, "a lease in the future, as a clock set back leaves it")
def clock(make, folder):
    with make(folder) as server:
        digest = server.upload(MATRIX)[1]["digest"]
        server.tuned(digest)
        server.stop()
    with contextlib.closing(sqlite3.connect(folder / "data/sparsetune.db")) as store:
        ahead = int(time.time() * 1000) + 86_400_000
        store.execute("UPDATE jobs SET state = 'running', owner = 'gone', lease_until = ?, plan = NULL, finished_at = NULL, stage = 'measuring'", (ahead,))
        store.commit()
        job = store.execute("SELECT id FROM jobs").fetchone()[0]
    with make(folder) as server:
        began = time.monotonic()
        state = server.ended(job)["state"]
    return state == "succeeded", f"a job whose lease ends in a day: {state} after {time.monotonic() - began:.1f} s"


@attempt(11, "Rutherford-Boeing with both triangles; what scipy's hb_write makes")
def boeing(make, folder):
    with make(folder) as server:
        head = f"{'both triangles':<72}{'key':<8}\n{3:14d}{1:14d}{1:14d}{1:14d}\n{'rsa':<14}{2:14d}{2:14d}{4:14d}{0:14d}\n"
        both = head + f"{'(3I8)':<16}{'(4I8)':<16}{'(4E16.8)':<20}\n" + "%8d%8d%8d\n" % (1, 3, 5) + "%8d%8d%8d%8d\n" % (1, 2, 1, 2)
        both += "%16.8E%16.8E%16.8E%16.8E\n" % (2, 1, 1, 2)
        doubled = server.upload(both, "m.rb")
        read = 0
        for seed in range(20):
            matrix = scipy.sparse.random(30 + seed, 30 + seed, 0.1, format="csc", random_state=seed)
            out = io.StringIO()
            scipy.io.hb_write(out, matrix)
            read += server.upload(out.getvalue(), "m.hb")[0] in (200, 201)
    return doubled[0] == 422 and read == 20, f"both triangles: {doubled[0]} ({str(doubled[1].get('detail'))[:90]}); {read} of 20 of scipy's files are read"


@attempt(12, "hosts, slow JSON, GETs that write, a folder that cannot be written")
def minor(make, folder):
    with make(folder, SERVER__BODY_IDLE_S=2) as server:
        def raw(text, wait=10):
            with socket.create_connection(("127.0.0.1", server.port), timeout=wait) as one:
                one.sendall(text)
                return one.recv(4096)[9:12].decode()
        hosts = [raw(b"GET /v1/jobs HTTP/1.1\r\nhost: a\r\nhost: b\r\nconnection: close\r\n\r\n"), raw(b"GET /v1/jobs HTTP/1.1\r\nconnection: close\r\n\r\n")]
        slow = raw(b"POST /v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{", 60)
        digest = server.upload(MATRIX)[1]["digest"]
        with contextlib.closing(sqlite3.connect(folder / "data/sparsetune.db")) as store:
            count = lambda: sum(store.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for (name,) in store.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall())
            before = count()
            for n in range(1, 200):
                server.ask("GET", f"/v1/plans?matrix={digest}&op=spmm&n={n}&device=cpu")
            rows = count() - before
        server.stop()
    (folder / "data").chmod(0o500)
    with make(folder) as closed:
        time.sleep(1)
        end = closed.process.poll()
        said = closed.log.read_text().splitlines()[-1][-150:]
    (folder / "data").chmod(0o700)
    fine = hosts == ["400", "400"] and slow == "408" and rows <= 1
    root = " (root may write anyway)" if os.geteuid() == 0 else ""
    return fine, f"two hosts and none {hosts}; JSON that stops {slow}; 199 look-ups made {rows} rows; a read-only folder: ended with {end}{root}: {said}"


@attempt(13, "a bundle that lists 4,000,000 members, in 1 GB")
def members_of_a_bundle(make, folder):
    fields = [("sign", "S4"), ("more", "V24"), ("name_bytes", "<u2"), ("rest", "V16"), ("name", "S8")]
    records, count, place = numpy.zeros(4_000_000, fields), 4_000_000, 4_000_000 * 54
    records["sign"], records["name_bytes"], records["name"] = b"PK\x01\x02", 8, numpy.char.mod("%08d", numpy.arange(count)).astype("S8")
    end = struct.pack("<4sQ12xQQQQ4sIQI", b"PK\x06\x06", 44, count, count, place, 0, b"PK\x06\x07", 0, place, 1)
    body = records.tobytes() + end + struct.pack("<4s4xHHIIH", b"PK\x05\x06", 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    with memory_group(1 << 30) as group:
        if group is None:
            return None, "not tried"
        with make(folder, group=group) as server, concurrent.futures.ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda _: server.ask("POST", "/v1/bundles", body)[0], range(2)))
            alive = server.process.poll() is None and server.ask("GET", "/healthz")[0] == 200
    return alive and set(answers) <= {413, 422, 503}, f"{len(body)} bytes, two at once: {answers}; the server {'lives' if alive else 'is gone'}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/sparsetune")
    parser.add_argument("numbers", nargs="*", type=int)
    options = parser.parse_args()
    failed = 0
    for number, (what, function) in attempts.items():
        if options.numbers and number not in options.numbers:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                fine, told = function(lambda folder, **more: Server(options.binary, folder, **more), pathlib.Path(folder))
            except Exception as error:
                fine, told = False, f"the attempt broke off: {error!r}"
        failed += fine is False
        print(f"{number:>2} {'held' if fine else 'not tried' if fine is None else 'FAILED':<9} {what}\n    {told}", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
