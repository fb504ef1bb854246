"""Times one PyTorch variant in one configuration and prints one JSON object.

A variant is a layout of torch_models.py (``eager``, ``sdpa``, ``fused``, ``fused-sdpa``) or
``compile:LAYOUT``.
"""

import argparse
import json
import resource
import statistics
import sys
import time

import torch

from torch_models import MultiSetTransformer, preset

WARM_UP = 2
MIN_REPETITIONS = 5


def status_bytes(field):
    """A memory field of /proc/self/status: VmRSS, or its peak VmHWM."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def median_ms(run, min_seconds, max_seconds):
    """Median time of ``run`` after a warm-up, and the number of repetitions."""
    for _ in range(WARM_UP):
        run()
    times, start = [], time.perf_counter()
    while True:
        before = time.perf_counter()
        run()
        now = time.perf_counter()
        times.append((now - before) * 1e3)
        enough = len(times) >= MIN_REPETITIONS and now - start >= min_seconds
        if enough or now - start >= max_seconds:
            return statistics.median(times), len(times)


def faster_adam(model, backward):
    """Adam with `foreach` or `fused`, whichever takes less time for a step of this model."""
    backward()
    best = None
    for option in ({"fused": True}, {"foreach": True}):
        adam = torch.optim.Adam(model.parameters(), lr=1e-4, **option)
        adam.step()
        times = []
        for _ in range(5):
            before = time.perf_counter()
            adam.step()
            times.append(time.perf_counter() - before)
        candidate = statistics.median(times), next(iter(option)), adam
        if best is None or candidate[0] < best[0]:
            best = candidate
    return best[1], best[2]


def measure(args):
    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision(args.matmul)
    torch.manual_seed(0)
    layout = args.variant.removeprefix("compile:")
    compiled = layout != args.variant
    model = MultiSetTransformer(preset(args.model, args.dim), layout)
    x, y = (torch.randn(args.batch, args.points, args.dim) for _ in range(2))
    target = torch.randn(args.batch)
    rss_before = status_bytes("VmRSS")
    call = torch.compile(model, dynamic=False) if compiled else model

    def forward():
        with torch.inference_mode():
            return call(x, y)

    def backward():
        model.zero_grad(set_to_none=True)
        torch.nn.functional.l1_loss(call(x, y), target).backward()

    def train_step():
        backward()
        adam.step()

    limits = args.min_seconds, args.max_seconds
    forward_ms, forward_repetitions = median_ms(forward, *limits)
    adam_kind, adam = faster_adam(model, backward)
    train_step_ms, train_repetitions = median_ms(train_step, *limits)
    return {
        "variant": args.variant,
        "model": args.model,
        "dim": args.dim,
        "latent": model.config.latent,
        "forward_ms": forward_ms,
        "train_step_ms": train_step_ms,
        "repetitions": [forward_repetitions, train_repetitions],
        "adam": adam_kind,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        # With torch.compile this includes the compiler, so it is no measure of a step.
        "rss_growth_bytes": status_bytes("VmHWM") - rss_before,
        "growth_includes_compiler": compiled,
        "parameters": sum(p.numel() for p in model.parameters()),
        "torch": torch.__version__,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--variant", required=True)
    parser.add_argument("--dim", type=int, required=True)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--points", type=int, default=125)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=["cpu"], default="cpu")
    parser.add_argument("--matmul", choices=["highest", "high"], default="highest", help="precision of float32 products")
    parser.add_argument("--min-seconds", type=float, default=2.0)
    parser.add_argument("--max-seconds", type=float, default=30.0)
    print(json.dumps(measure(parser.parse_args())))


if __name__ == "__main__":
    sys.exit(main())
