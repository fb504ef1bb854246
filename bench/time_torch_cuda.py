"""Prepares PyTorch variants of one configuration on a GPU and times them on request.

Many processes can prepare at once, since compiling is work for the CPU. A process that is ready
waits for requests on standard input and does not use the GPU. Its messages are JSON objects, one a
line on standard output:

    {"event": "prepared", "variant": ...}               a variant can be timed
    {"event": "failed", "variant": ..., "reason": ...}  a variant cannot be timed
    {"event": "ready", ...}                             once; requests are served from here on
    {"event": "timed", ...}                             reply to `time VARIANT SECONDS`
    {"event": "rates", ...}                             reply to `rates`
    {"event": "error", "reason": ...}                   reply to a request that failed

SIGINT ends the preparation; variants that are prepared can be timed.

A variant is MODE:LAYOUT, where LAYOUT is one of torch_models.py and MODE is

* ``plain``          one operation after the other
* ``graph``          the full step captured in a CUDA graph
* ``compile``        forward and backward through torch.compile
* ``compile-graph``  the compiled step captured in a CUDA graph
* ``autotune-graph`` the same, and the compiler tries out kernels for every product (minutes)
"""

import argparse
import json
import math
import os
import signal
import statistics
import sys
import time
import traceback

COMPILERS = {"compile": "default", "compile-graph": "default", "autotune-graph": "max-autotune-no-cudagraphs"}
MODES = ("plain", "graph", *COMPILERS)
WARM_UP_STEPS = 3
REPETITION_SECONDS = 0.02
MIN_REPETITIONS = 5


def separate_output():
    """A stream for messages alone; output of libraries goes to standard error."""
    protocol = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return protocol


class Step:
    """A training step of one variant: call it to run one."""

    def __init__(self, variant, config, state, data, device):
        import torch
        from torch_models import MultiSetTransformer, convert_state

        self.torch, self.data, self.device = torch, data, device
        mode, _, layout = variant.partition(":")
        if mode not in MODES:
            raise ValueError(f"unknown mode {mode!r}; known are {', '.join(MODES)}")
        self.model = MultiSetTransformer(config, layout)
        self.model.load_state_dict(convert_state(state, config.blocks, layout))
        self.model.to(device)
        self.on_gpu = device.type == "cuda"
        captured = mode.endswith("graph") and self.on_gpu
        self.adam = torch.optim.Adam(self.model.parameters(), lr=1e-4, fused=True, capturable=captured)
        self.call = self.model
        if mode in COMPILERS:
            self.call = torch.compile(self.model, dynamic=False, mode=COMPILERS[mode])
        self.losses = []  # of the first steps, which must agree between variants
        if captured:
            self.capture()
        else:
            for _ in range(WARM_UP_STEPS):
                self.losses.append(self.step().item())
            self.run = self.step
        self.check()

    def step(self):
        self.model.zero_grad(set_to_none=True)
        x, y, target = self.data
        loss = self.torch.nn.functional.l1_loss(self.call(x, y), target)
        loss.backward()
        self.adam.step()
        return loss.detach()

    def capture(self):
        """Warms up and captures on one side stream, so that all gradients accumulate on it."""
        cuda = self.torch.cuda
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(WARM_UP_STEPS):
                self.losses.append(self.step().item())
        cuda.current_stream().wait_stream(side)
        cuda.synchronize()
        # Without gradients the backward pass stores its results instead of adding to old ones.
        self.model.zero_grad(set_to_none=True)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, stream=side):
            loss = self.step()
        cuda.synchronize()

        def replay():
            graph.replay()
            return loss

        self.run = replay

    def check(self):
        """Another step must have a finite loss and move the parameters."""
        before = [p.detach().clone() for p in self.model.parameters()]
        self.losses.append(self.run().item())
        self.synchronize()
        moved = any(not self.torch.equal(old, new) for old, new in zip(before, self.model.parameters()))
        if not moved or not all(math.isfinite(loss) for loss in self.losses):
            raise RuntimeError(f"the step does not train: losses {self.losses}, parameters moved: {moved}")

    def synchronize(self):
        if self.on_gpu:
            self.torch.cuda.synchronize()


def median_seconds(run, synchronize, seconds):
    """Median time of a call after a warm-up, number of repetitions, and calls of a repetition.

    A repetition is many calls between two synchronisations, so that they queue up as in training.
    """
    synchronize()
    begin, calls = time.perf_counter(), 0
    while calls < 3 or time.perf_counter() - begin < 0.05:
        run()
        calls += 1
        synchronize()
    estimate = (time.perf_counter() - begin) / calls
    each = max(1, math.ceil(REPETITION_SECONDS / estimate))
    times, start = [], time.perf_counter()
    while len(times) < MIN_REPETITIONS or time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        for _ in range(each):
            run()
        synchronize()
        times.append((time.perf_counter() - begin) / each)
    return statistics.median(times), len(times), each


def rates(torch, device):
    """The card's rates: a large product in the precision of the steps, and a large copy."""
    on_gpu = device.type == "cuda"
    synchronize = torch.cuda.synchronize if on_gpu else (lambda: None)
    n, numbers = (8192, 1 << 28) if on_gpu else (256, 1 << 20)
    a, b = (torch.randn(n, n, device=device) for _ in range(2))
    product, *_ = median_seconds(lambda: torch.mm(a, b), synchronize, 0.2)
    del a, b
    source = torch.randn(numbers, device=device)
    target = torch.empty_like(source)
    copy, *_ = median_seconds(lambda: target.copy_(source), synchronize, 0.2)
    return {"flop_per_second": 2 * n**3 / product, "bytes_per_second": 2 * 4 * numbers / copy,
            "product": f"{n} × {n} by {n} × {n}", "copy_bytes": 4 * numbers}


def first_line(error):
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:400]


class Server:
    """Prepares variants and serves requests."""

    def __init__(self, args, protocol):
        import torch
        from torch_models import MultiSetTransformer, preset

        self.args, self.protocol, self.torch = args, protocol, torch
        torch.set_num_threads(1)
        # TF32 in products. SDPA and Inductor follow the same setting.
        torch.set_float32_matmul_precision("high")
        self.device = torch.device(args.device)
        self.config = preset(args.model, args.dim)
        # The same numbers in every process: drawn on the CPU.
        torch.manual_seed(0)
        self.state = MultiSetTransformer(self.config, "eager").state_dict()
        sets = [torch.randn(args.batch, args.points, args.dim) for _ in range(2)]
        self.data = [t.to(self.device) for t in (*sets, torch.randn(args.batch))]
        self.steps = {}

    def send(self, event, **fields):
        print(json.dumps({"event": event, **fields}), file=self.protocol, flush=True)

    def prepare(self, variant):
        begin = time.monotonic()
        try:
            step = Step(variant, self.config, self.state, self.data, self.device)
        except Exception as error:
            traceback.print_exc()
            self.send("failed", variant=variant, reason=first_line(error))
        else:
            self.steps[variant] = step
            self.send("prepared", variant=variant, seconds=round(time.monotonic() - begin, 1), losses=step.losses)
        self.release()

    def release(self):
        """Frees unused GPU memory, and leaves the stream of a capture that failed."""
        if self.device.type == "cuda":
            try:
                self.torch.cuda.set_stream(self.torch.cuda.default_stream())
                self.torch.cuda.empty_cache()
            except Exception:
                traceback.print_exc()  # the next variant reports the reason

    def prepare_all(self):
        waiting = list(self.args.variants)
        try:
            while waiting:
                self.prepare(waiting[0])
                waiting.pop(0)
        except KeyboardInterrupt:
            for variant in waiting:
                self.send("failed", variant=variant, reason="not prepared within the time limit")
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def ready(self):
        torch = self.torch
        fields = {"torch": torch.__version__, "cuda": torch.version.cuda}
        if self.device.type == "cuda":
            properties = torch.cuda.get_device_properties(self.device)
            fields.update(gpu=properties.name, multiprocessors=properties.multi_processor_count,
                          gpu_memory_bytes=properties.total_memory, reserved_bytes=torch.cuda.memory_reserved())
        model = next(iter(self.steps.values())).model if self.steps else None
        self.send("ready", variants=list(self.steps), latent=self.config.latent, hidden=self.config.hidden,
                  blocks=self.config.blocks, equivariant=self.config.equivariant,
                  parameters=model and sum(p.numel() for p in model.parameters()), **fields)

    def reply(self, command):
        if command[0] == "rates":
            measured = rates(self.torch, self.device)
            self.release()
            return self.send("rates", **measured)
        _, variant, seconds = command
        step = self.steps[variant]
        median, repetitions, calls = median_seconds(step.run, step.synchronize, float(seconds))
        last_loss = step.run().item()
        self.release()
        self.send("timed", variant=variant, train_step_ms=median * 1e3, repetitions=repetitions,
                  steps_per_repetition=calls, last_loss=last_loss)

    def serve(self):
        for line in sys.stdin:
            command = line.split()
            if not command or command[0] == "quit":
                break
            try:
                self.reply(command)
            except Exception as error:
                traceback.print_exc()
                self.send("error", reason=first_line(error))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--dim", type=int, required=True)
    parser.add_argument("--variants", type=lambda text: text.split(","), required=True)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--points", type=int, default=125)
    parser.add_argument("--device", default="cuda", help="cpu runs the same steps without a graph")
    args = parser.parse_args()
    protocol = separate_output()
    server = Server(args, protocol)
    server.prepare_all()
    server.ready()
    server.serve()
    protocol.flush()
    # The compiler's processes and the GPU's context end here; an orderly exit takes seconds.
    os._exit(0)


if __name__ == "__main__":
    main()
