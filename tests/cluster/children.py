"""
Processes that the cluster's tests start, signal and talk to, one line at a time.

Run as ``python children.py ROLE DIRECTORY BEAT LEASE``.
"""

import sys
import threading
from pathlib import Path

import numpy as np

from perdure.cluster.control import Control
from perdure.core.leases import Timing
from perdure.errors import FencedError, PerdureError

RUN = "run"


def say(*words):
    print(*words, flush=True)


def minter(directory, timing):
    control = Control(directory, timing=timing, wait_seconds=60)
    say("ready")
    for line in sys.stdin:
        say(*(control.mint(0, "a test") for _ in range(int(line))))


def writer(directory, timing):
    """Commits on every line; a commit is a line in a file, written under the guard."""
    lease = Control(directory, timing=timing, wait_seconds=10).acquire("the child")
    lease.start_beating()
    say("acquired", lease.generation)
    for line in sys.stdin:
        try:
            if line.strip() == "mint":
                say("minted", lease.mint("a test"))
                continue
            with lease.guard(), (directory / "commits").open("a") as commits:
                commits.write(f"{lease.generation}\n")
                if line.strip() == "hold":
                    say("inside")
                    sys.stdin.readline()
            say("committed", lease.generation)
        except FencedError as error:
            say("fenced", error.current_generation)
            sys.exit(error.exit_code)


def learner(directory, timing):
    """Publishes every step and takes whatever comes, until it is killed."""
    from perdure.cluster.learner import Learner

    lease = Control(directory, timing=timing).acquire("the child")
    lease.start_beating()
    leading = Learner(
        directory,
        RUN,
        generation=lease.generation,
        mint=lease.mint,
        timing=timing,
        learner_step=100,
        on_event=lambda name, **fields: say("event", name, *fields.values()) if name.startswith("member") else None,
    )
    lease_lost = threading.Event()
    say("leading", lease.generation)
    step = 100
    while not lease_lost.is_set():
        leading.publish({"w": np.full(4, step, np.float32)}, step)
        for sample in leading.collect(samples=1, timeout_seconds=5):
            say("took", sample.stamp.generation, sample.info["number"])
        step += 1


def actor(directory, timing, name="actor"):
    """Sends numbered samples, one every few milliseconds, with whatever weights it has."""
    from perdure.cluster.actor import Actor

    pause = threading.Event()
    try:
        with Actor(directory, RUN, name, timing=timing, capacity_items=64) as collecting:
            weights = None
            number = 0
            while not collecting.should_stop:
                newer = collecting.weights(weights, timeout_seconds=0.01)
                if newer and (weights is None or newer.lineage != weights.lineage):
                    say("lineage", newer.lineage)
                weights = newer or weights
                if weights:
                    number += 1
                    collecting.send({"x": np.full((3, 2), number)}, weights, {"number": number}, timeout_seconds=0.1)
                pause.wait(0.01)
            say("stopped", number)
    except FencedError as error:
        say("fenced")
        sys.exit(error.exit_code)


def main():
    role, directory, beat, lease = sys.argv[1:5]
    timing = Timing(beat_seconds=float(beat), lease_seconds=float(lease))
    try:
        globals()[role](Path(directory), timing, *sys.argv[5:])
    except PerdureError as error:
        say("error", error.kind)
        raise


if __name__ == "__main__":
    main()
