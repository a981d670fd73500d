"""The server of the page, as a user starts and ends it."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from functools import partial
from time import perf_counter, sleep


@contextmanager
def running_server(folder, *models, ending=signal.SIGINT, log=None):
    """Its address. It is ended by Ctrl-C while it computes an answer: with exit code 0, in seconds, and nothing is left.

    `log` gets the lines that it printed after its address.
    If the process ended under the thread that computes, torch would abort it.
    """
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # background jobs of a shell ignore it
    with subprocess.Popen(
        [sys.executable, "-m", "inline_attention", "explore", *models], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, env={**os.environ, "TMPDIR": str(folder)}, preexec_fn=heard,
    ) as server:  # fmt: skip
        try:
            line = next(line for line in server.stdout if line.startswith("http"))
            assert line.startswith("http://127.0.0.1:"), line
            address = line.split()[0]
            yield address
            ask_for_times(address, ["vit_small_patch16_224", "deit_tiny_patch16_224"])
            sleep(1)  # so that it is being computed
            begun = perf_counter()
            server.send_signal(ending)
            assert server.wait(20) == 0, "Ctrl-C is how it is ended"
            assert perf_counter() - begun < 15
            said = server.stdout.read()
            assert "Traceback" not in said
            if log is not None:
                log += said.splitlines()
            assert not list(folder.glob("inline-explore-*")), "uploads are deleted"
        finally:
            server.kill()


def ask_for_times(address, models):
    """Begin an answer that would take half a minute, and do not wait for it."""
    with urllib.request.urlopen(f"{address}config") as answered:
        config = json.load(answered)
    timing = next(entry for entry in config["dependencies"] if entry["api_name"] == "time")
    image = next(entry["props"]["value"] for entry in config["components"] if entry["id"] == timing["inputs"][0])
    asked = {"data": [image, models, 512], "fn_index": timing["id"], "session_hash": "test"}
    request = urllib.request.Request(
        f"{address}gradio_api/queue/join", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answered:
        assert "event_id" in json.load(answered)
