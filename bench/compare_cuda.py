"""`compare --device cuda`: PyTorch's training step against setwise's on one NVIDIA GPU.

Compiling takes PyTorch most of a minute per model on one core, so all configurations prepare at
once, each in separate processes (time_torch_cuda.py). When all are ready they are timed one at a
time, alternating with `setwise bench`. Nothing else runs on the GPU.
"""

import json
import os
import queue
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import roofline

BENCH = Path(__file__).resolve().parent
GOAL = 4
REPLY_SECONDS = 60
GRACE_SECONDS = 15
# A variant whose time exceeds the best by this ratio in the first round is not timed again.
MAX_RATIO = 1.25
# Variants start from the same parameters and data. A larger relative difference between losses of
# the first steps is reported.
LOSS_TOLERANCE = 0.02

VARIANTS = ["plain:eager", "plain:stacked-sdpa", "graph:sdpa", "graph:fused-sdpa", "graph:stacked",
            "graph:stacked-sdpa", "compile-graph:stacked-sdpa", "compile-graph:stacked", "compile-graph:fused-sdpa"]
QUICK_VARIANTS = [variant for variant in VARIANTS if not variant.startswith("compile")]


class Failed(Exception):
    """A request or a command without a result; the text is the reason."""


class TimedLog:
    """Logs progress with the time since the start."""

    def __init__(self, write):
        self.start, self.write = time.monotonic(), write

    def __call__(self, text):
        self.write(f"[{time.monotonic() - self.start:6.1f} s] {text}")


class Worker:
    """A process that prepares and times some variants of one case."""

    def __init__(self, case, variants, python, args, folder, log):
        self.case, self.variants, self.log = case, variants, log
        self.messages = queue.Queue()
        self.ready = None  # its message "ready"
        self.error_file = folder / f"{case.model}-{case.dim}-{variants[-1].replace(':', '-')}.log"
        command = [python, BENCH / "time_torch_cuda.py", "--model", case.model, "--dim", case.dim,
                   "--variants", ",".join(variants), "--batch", args.batch, "--points", args.points,
                   "--device", "cpu" if args.dry_run else "cuda"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
                       "TORCHINDUCTOR_COMPILE_THREADS": str(args.compile_threads)}
        with open(self.error_file, "w") as errors:
            self.process = subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                text=True, env=environment, start_new_session=True)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        """Body of the reader thread: logs progress and queues replies."""
        for line in self.process.stdout:
            try:
                message = json.loads(line)
            except json.JSONDecodeError:
                continue
            where = f"{self.case}: {message.get('variant')}"
            if message["event"] == "prepared":
                self.case.prepared[message["variant"]] = message
                self.log(f"{where} prepared in {message['seconds']} s")
            elif message["event"] == "failed":
                self.case.failures[message["variant"]] = message["reason"]
                self.log(f"{where} failed: {message['reason']}")
            else:
                self.messages.put(message)
        self.messages.put(None)

    def receive(self, seconds):
        try:
            message = self.messages.get(timeout=max(seconds, 0.01))
        except queue.Empty:
            raise Failed(f"no reply within {seconds:.0f} s") from None
        if message is None:
            self.messages.put(None)
            raise Failed(f"the process ended: {self.exit_reason()}")
        if message["event"] == "error":
            raise Failed(message["reason"])
        return message

    def request(self, command):
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except OSError:
            raise Failed(f"the process ended: {self.exit_reason()}") from None
        return self.receive(REPLY_SECONDS)

    def exit_reason(self):
        try:
            status = self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            status = "unknown"
        lines = [line.strip() for line in self.error_file.read_text(errors="replace").splitlines() if line.strip()]
        return f"status {status}, {lines[-1][:300] if lines else 'nothing on standard error'}"

    def fail(self, reason):
        """Ends the process; its variants that have no result are failures."""
        self.end()
        self.ready = None
        for variant in self.variants:
            self.case.failures.setdefault(variant, reason)

    def end(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except OSError:
            pass
        self.process.wait()


class Case:
    """One model in one dimension, and its measurements."""

    def __init__(self, model, dim):
        self.model, self.dim = model, dim
        self.workers = []
        self.prepared = {}  # variant -> its message "prepared"
        self.torch = {}  # variant -> one result per round
        self.setwise = []
        self.failures = {}  # variant or setwise -> reason

    def __str__(self):
        return f"{self.model}, d = {self.dim}"

    def median(self, variant):
        return statistics.median(result["train_step_ms"] for result in self.torch[variant])

    def best(self):
        """(ms, variant) of the fastest variant, or (None, None)."""
        return min(((self.median(v), v) for v in self.torch), default=(None, None))

    def setwise_median(self):
        return statistics.median(r["train_step_ms"] for r in self.setwise) if self.setwise else None

    def shape(self):
        """Sizes of the model in PyTorch and in setwise, each or None."""
        theirs = next((w.ready for w in self.workers if w.ready and w.ready["parameters"]), None)
        return theirs, self.setwise[0] if self.setwise else None

    def work(self, args):
        """The work of a step, or None if neither side ran."""
        known = next((shape for shape in self.shape() if shape), None)
        if known is None:
            return None
        return roofline.step(self.dim, self.model.endswith("-equi"), known["latent"], known["hidden"], known["blocks"],
                             known["parameters"], args.batch, args.points)

    def remarks(self):
        by_reason = {}
        for name, reason in self.failures.items():
            by_reason.setdefault(reason, []).append(name)
        for reason, names in by_reason.items():
            yield f"{self}: {', '.join(names)} failed: {reason}"
        theirs, ours = self.shape()
        for key in ("latent", "hidden", "blocks", "parameters"):
            if theirs and ours and theirs[key] != ours.get(key):
                yield f"{self}: not the same model, {key} is {theirs[key]} in PyTorch and {ours.get(key)} in setwise"
        losses = {variant: message["losses"] for variant, message in self.prepared.items()}
        for step, each in enumerate(zip(*losses.values())):
            middle = statistics.median(each)
            for variant, loss in zip(losses, each):
                if abs(loss - middle) > LOSS_TOLERANCE * abs(middle):
                    yield f"{self}: the loss of step {step + 1} is {loss:.4f} in {variant} and {middle:.4f} in the median"

    def as_json(self, args, rates):
        work = self.work(args)
        best_ms, variant = self.best()
        record = {"model": self.model, "dim": self.dim, "torch": self.torch, "setwise": self.setwise,
                  "prepared": self.prepared, "failures": self.failures, "best_variant": variant,
                  "best_torch_ms": best_ms, "setwise_ms": self.setwise_median(), "work": work and vars(work)}
        if work and rates:
            floor, bound = work.floor_ms(rates["flop_per_second"], rates["bytes_per_second"])
            record.update(floor_ms=floor, bound=bound)
        return record


def start_workers(case, python, args, folder, log):
    """A process for each compiled variant. The first also has the variants without a compiler."""
    plain = [v for v in args.variants if v.startswith(("plain:", "graph:"))]
    compiled = [v for v in args.variants if v not in plain]
    groups = [plain + compiled[:1], *([v] for v in compiled[1:])]
    for variants in filter(None, groups):
        try:
            case.workers.append(Worker(case, variants, python, args, folder, log))
        except OSError as error:
            case.failures.update({variant: f"{python}: {error.strerror}" for variant in variants})


def wait_for_workers(cases, args, log):
    """Waits until processes are ready or have failed. The limit interrupts their preparation."""
    deadline = time.monotonic() + args.ready_seconds
    workers = [worker for case in cases for worker in case.workers]

    def collect(waiting, deadline):
        late = []
        for worker in waiting:
            try:
                worker.ready = worker.receive(deadline - time.monotonic())
            except Failed as failure:
                if worker.process.poll() is None:
                    late.append(worker)
                    continue
                log(f"{worker.case}: {failure}")
                worker.fail(str(failure))
        return late

    late = collect(workers, deadline)
    for worker in late:
        log(f"{worker.case}: not ready after {args.ready_seconds:.0f} s, interrupted")
        worker.process.send_signal(signal.SIGINT)
    for worker in collect(late, time.monotonic() + GRACE_SECONDS):
        worker.fail(f"not ready within {args.ready_seconds:.0f} s")
    log(f"{sum(w.ready is not None for w in workers)} of {len(workers)} processes are ready")


def measure_rates(cases, log):
    """The card's rates, from the first process that measures them."""
    for worker in (w for case in cases for w in case.workers if w.ready):
        try:
            rates = worker.request("rates")
        except Failed as failure:
            log(f"rates: {failure}")
            continue
        log(f"rates: {rates['flop_per_second'] / 1e12:.0f} TFLOP/s, {rates['bytes_per_second'] / 1e12:.2f} TB/s")
        return rates
    return None


def time_torch(case, args, log):
    """Times every variant of the case once, after the first round only those near the best."""
    best, _ = case.best()
    for worker in case.workers:
        for variant in list(worker.ready["variants"] if worker.ready else ()):
            if variant in case.failures or (best and case.median(variant) > MAX_RATIO * best):
                continue
            try:
                result = worker.request(f"time {variant} {args.seconds}")
            except Failed as failure:
                log(f"    {variant} failed: {failure}")
                case.failures[variant] = str(failure)
                case.torch.pop(variant, None)
                if "no reply" in str(failure):  # the process may still use the GPU
                    worker.fail(str(failure))
                    break
                continue
            case.torch.setdefault(variant, []).append(result)
            log(f"    {variant}: {result['train_step_ms']:.3f} ms")


def time_setwise(case, setwise, args, log):
    if "setwise" in case.failures:
        return
    command = [setwise, "bench", "--model", case.model, "--dim", case.dim, "--batch", args.batch,
               "--points", args.points, "--seconds", args.seconds, "--json"]
    command += [] if args.dry_run else ["--device", "cuda", "--precision", "tf32"]
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=REPLY_SECONDS)
        if done.returncode != 0:
            lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            raise Failed(lines[-1] if lines else f"exit status {done.returncode}")
        result = json.loads(done.stdout.strip().splitlines()[-1])
        requested = {"model": case.model, "dim": case.dim, "batch": args.batch, "points": args.points}
        for key, value in requested.items():
            if result.get(key) != value:
                raise Failed(f"requested {key} {value}, measured {result.get(key)}")
        if not args.dry_run and not str(result.get("device")).startswith("cuda"):
            raise Failed(f"ran on {result.get('device')}")
        if result.get("train_step_ms") is None:
            raise Failed("no time of a training step in its output")
    except subprocess.TimeoutExpired:
        case.failures["setwise"] = f"took longer than {REPLY_SECONDS} s"
    except (IndexError, json.JSONDecodeError):
        case.failures["setwise"] = "its output is not a JSON object"
    except OSError as error:
        case.failures["setwise"] = f"{setwise}: {error.strerror}"
    except Failed as failure:
        case.failures["setwise"] = str(failure)
    else:
        case.setwise.append(result)
        log(f"    setwise: {result['train_step_ms']:.3f} ms")
        return
    log(f"    setwise failed: {case.failures['setwise']}")


def describe_machine(cases, log):
    """The GPU, its driver and PyTorch, as far as they are known."""
    ready = next((w.ready for case in cases for w in case.workers if w.ready), {})
    host = {key: ready.get(key) for key in ("gpu", "multiprocessors", "gpu_memory_bytes", "torch", "cuda")}
    host["cores"] = os.cpu_count()
    fields = ("name", "driver_version", "clocks.sm", "clocks.max.sm", "power.limit", "memory.used")
    try:
        done = subprocess.run(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"],
                              capture_output=True, text=True, timeout=20, check=True)
        host.update(zip(("smi_name", *fields[1:]), done.stdout.strip().splitlines()[0].split(", ")))
    except (OSError, IndexError, subprocess.SubprocessError) as error:
        log(f"nvidia-smi: {error}")
    return host


def milliseconds(value):
    return "–" if value is None else f"{value:.2f} ms"


def table(cases):
    lines = [f"| quantity | model | d | latent | best PyTorch variant | PyTorch | setwise | ratio | goal {GOAL} |",
             "| --- | --- | ---: | ---: | --- | ---: | ---: | ---: | --- |"]
    for case in cases:
        (theirs, variant), ours = case.best(), case.setwise_median()
        latent = next((shape["latent"] for shape in case.shape() if shape), "?")
        ratio = theirs / ours if theirs and ours else None
        reached = "–" if ratio is None else "reached" if ratio >= GOAL else "missed"
        lines.append(f"| training step | {case.model} | {case.dim} | {latent} | {variant or '–'} | {milliseconds(theirs)} "
                     f"| {milliseconds(ours)} | {'–' if ratio is None else f'{ratio:.2f}'} | {reached} |")
    return "\n".join(lines)


def variant_table(cases, variants):
    lines = ["| model | d | " + " | ".join(variants) + " | setwise |",
             "| --- | ---: |" + " ---: |" * (len(variants) + 1)]
    for case in cases:
        cells = [f"{case.median(v):.2f}" if v in case.torch else "–" for v in variants]
        ours = case.setwise_median()
        cells.append("–" if ours is None else f"{ours:.2f}")
        lines.append(f"| {case.model} | {case.dim} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def roofline_table(cases, args, rates):
    lines = ["| model | d | GFLOP | attention's share | scores again | GB | floor | set by | of the floor: PyTorch | setwise |",
             "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: | ---: |"]
    for case in cases:
        work = case.work(args)
        if work is None:
            continue
        floor, bound = work.floor_ms(rates["flop_per_second"], rates["bytes_per_second"])
        reached = ["–" if ms is None else f"{floor / ms:.1%}" for ms in (case.best()[0], case.setwise_median())]
        lines.append(f"| {case.model} | {case.dim} | {work.flop / 1e9:.1f} | {work.attention_flop / work.flop:.0%} "
                     f"| +{work.recomputed_flop / 1e9:.1f} | {work.bytes / 1e9:.2f} | {floor:.3f} ms | {bound} "
                     f"| {reached[0]} | {reached[1]} |")
    return "\n".join(lines)


def write_record(args, cases, host, rates, log):
    """Writes all measurements, after every configuration: an interrupted run keeps its results."""
    if not args.json:
        return
    record = {"machine": host, "device": "cpu" if args.dry_run else "cuda", "precision": "tf32", "batch": args.batch,
              "points": args.points, "rounds": args.rounds, "seconds": args.seconds, "variants": args.variants,
              "rates": rates, "cases": [case.as_json(args, rates) for case in cases]}
    try:
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    except OSError as error:
        log(f"{args.json}: {error.strerror}")


def print_report(args, cases, host, rates):
    print(table(cases))
    print(f"\nMilliseconds of a training step by variant:\n\n{variant_table(cases, args.variants)}")
    if rates:
        print(f"\nThe card reached {rates['flop_per_second'] / 1e12:.0f} TFLOP/s (TF32 product, {rates['product']}) and "
              f"{rates['bytes_per_second'] / 1e12:.2f} TB/s (copy of {rates['copy_bytes'] / 1e9:.1f} GB, read and written). "
              f"By these, a step of perfect kernels:\n\n{roofline_table(cases, args, rates)}")
    print(f"\nBatch {args.batch}, {args.points} points per set, TF32 products, median of up to {args.rounds} round(s). "
          f"GPU: {host.get('gpu') or 'none'}, driver {host.get('driver_version', 'unknown')}. "
          f"PyTorch {host.get('torch')}, CUDA {host.get('cuda')}.")
    remarks = [remark for case in cases for remark in case.remarks()]
    if remarks:
        print("\n" + "\n".join(f"- {remark}" for remark in remarks))


def run(args, python, setwise, write):
    """Runs the comparison. True if every configuration has a ratio."""
    log = TimedLog(write)
    cases = [Case(model, dim) for model in args.models for dim in args.dims]
    folder = args.logs or Path(tempfile.mkdtemp(prefix="setwise-bench-"))
    folder.mkdir(parents=True, exist_ok=True)
    log(f"standard error of the processes: {folder}")
    host, rates = {}, None

    def stop(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        for case in cases:
            start_workers(case, python, args, folder, log)
        wait_for_workers(cases, args, log)
        host = describe_machine(cases, log)
        rates = measure_rates(cases, log)
        for case in cases:
            for number in range(args.rounds):
                log(f"{case}, round {number + 1} of {args.rounds}")
                time_torch(case, args, log)
                time_setwise(case, setwise, args, log)
            write_record(args, cases, host, rates, log)
    except KeyboardInterrupt:
        log("interrupted; the report has the measurements so far")
    finally:
        for case in cases:
            for worker in case.workers:
                worker.end()
    write_record(args, cases, host, rates, log)
    print_report(args, cases, host, rates)
    log("done")
    return all(case.torch and case.setwise for case in cases)
