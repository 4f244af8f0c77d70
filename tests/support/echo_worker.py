"""A worker for ``test_workers.py``: does what it is told."""

import os
import signal
import subprocess
import sys
import time

from experiments.processes.workers import serve
from solver import PartitionError


def handle(job):
    match job["do"]:
        case "echo":
            sys.stdout.write("not an answer")
            return {
                "said": job["word"],
                "pid": os.getpid(),
                "threads": os.environ["OMP_NUM_THREADS"],
            }
        case "refuse":
            raise PartitionError("the input is wrong; write another")
        case "fail":
            raise ValueError("something\nbroke")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            sys.stderr.write("last words")
            sys.stderr.flush()
            os._exit(7)
        case "spawn":
            # Outlives its parent unless somebody ends it.
            return {"pid": subprocess.Popen(["sleep", "60"]).pid}
        case "sleep":
            time.sleep(60)
    return {}


if __name__ == "__main__":
    serve(handle)
