"""Many at once: threads, and processes that were forked."""

import multiprocessing
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import setwise


def test_ten_threads_get_what_one_gets(small):
    rng = np.random.default_rng(4)
    samples = [rng.normal(size=(60 + 7 * i, 2)) for i in range(10)]
    ask = lambda i: (setwise.kl(samples[i], samples[-i]), setwise.mi(samples[i], samples[i] ** 2), small(samples[i], samples[-i]))  # noqa: E731
    jobs = [i % 9 + 1 for i in range(100)]
    expected = [ask(i) for i in jobs]
    with ThreadPoolExecutor(10) as threads:
        assert list(threads.map(ask, jobs)) == expected


def test_the_interpreter_runs_on_while_a_call_computes():
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
def test_a_forked_process_computes_with_threads_of_its_own():
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
