"""Calls from many threads, and from forked processes."""

import multiprocessing
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import setwise


def test_ten_threads_get_the_results_of_one(small):
    rng = np.random.default_rng(4)
    samples = [rng.normal(size=(60 + 7 * i, 2)) for i in range(10)]

    def call(i):
        p, q = samples[i], samples[-i]
        return setwise.kl(p, q), setwise.mi(p, p**2), small(p, q)

    jobs = [i % 9 + 1 for i in range(100)]
    expected = [call(i) for i in jobs]
    with ThreadPoolExecutor(10) as threads:
        assert list(threads.map(call, jobs)) == expected


def test_other_python_threads_run_while_a_call_computes():
    p = np.random.default_rng(0).normal(size=(20_000, 4))
    done = threading.Event()

    def compute():
        setwise.kl(p, p + 0.1)
        done.set()

    thread = threading.Thread(target=compute)
    thread.start()
    ticks = 0
    while not done.is_set():
        time.sleep(0.001)
        ticks += 1
    thread.join()
    assert ticks > 20


def _child(queue):
    p = np.random.default_rng(1).normal(size=(3000, 3))
    queue.put(setwise.kl(p, p + 0.2).value)


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_starts_its_own_threads():
    p = np.random.default_rng(1).normal(size=(3000, 3))
    expected = setwise.kl(p, p + 0.2).value  # starts the threads of this process
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(queue,))
    child.start()
    try:
        assert queue.get(timeout=60) == expected
    finally:
        child.kill()
        child.join()
