"""A Dask cluster of processes of their own, as on several machines, which can be killed."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager


class DaskCluster:
    """A scheduler and its workers, without nannies: nobody starts again what is killed."""

    def __init__(self, folder):
        self._folder = folder
        self.workers = []
        file = folder / "scheduler.json"
        # Should nobody be left to end it, it ends when there is nothing to do.
        options = ("--port", "0", "--scheduler-file", file, "--idle-timeout", "300s")
        self.scheduler = self._start("scheduler", *options)
        deadline = time.monotonic() + 60
        while not (file.exists() and file.read_text().endswith("}")):
            assert time.monotonic() < deadline, "the scheduler does not start"
            time.sleep(0.05)
        self.address = json.loads(file.read_text())["address"]

    def add_worker(self, **environment):
        """Start a worker with one thread, and perhaps another environment."""
        options = ("--no-nanny", "--nthreads", "1", "--local-directory", self._folder)
        # The same for workers, which would look for a scheduler that is gone without end.
        options += ("--death-timeout", "60s", "--lifetime", "30m")
        self.workers.append(self._start("worker", self.address, *options, **environment))
        return self.workers[-1]

    def _start(self, kind, *options, **environment):
        command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", "--host", "127.0.0.1"]
        with (self._folder / f"{kind}.log").open("a") as log:
            return subprocess.Popen(
                [*command, "--no-dashboard", *map(str, options)],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=os.environ | environment,
            )

    def end(self):
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()


@contextmanager
def dask_cluster(folder, num_workers=2):
    """Start a cluster; its workers may still be on their way."""
    cluster = DaskCluster(folder)
    try:
        for _ in range(num_workers):
            cluster.add_worker()
        yield cluster
    finally:
        cluster.end()


def kill(process):
    """Kill a process as the system does for want of memory."""
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
