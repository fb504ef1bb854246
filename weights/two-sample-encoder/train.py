"""Trains the encoder of the adaptive two-sample test, and writes its weights.

Pairs are drawn by `cargo run --release --example encoder_pairs -p setwise-lab -- SEED FOLDER`, one
process a core, while this program reads and removes their files. It runs for a time, stores what is
needed to go on, and writes `model.safetensors` at the end:

    python3 train.py FOLDER --out RUN --seconds 500 --total 1200
    python3 train.py FOLDER --out RUN --seconds 500 --total 1200   # goes on

The network sees the pooled rows of a pair. The loss is the cross-entropy of telling the observed
labels of rows from random permutations of them, by the statistic of the test.
"""

from __future__ import annotations

import argparse
import json
import math
import queue
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

# Numbers of an entry and of a row in the files, and their units.
OF_ENTRY, OF_ROW = 3, 11
UNIT_SHARE, UNIT_REPEATS, UNIT = 1 / 60_000, 1 / 30_000, 1 / 3_000
# Widths of the network.
ENTRY, ROW, HEADS, POINTS, LAYERS, COSINES = 32, 64, 4, 16, 3, 8
ROW_GROUPS, GROUP = 4, 16
# Pairs are batched with others of about their columns; entries of a batch, padding included.
WIDTHS = [1, 2, 3, 5, 8, 12, 16, 24, 32]
BATCH_ENTRIES = 320_000
# Assignments of labels in the loss, the observed one among them.
ASSIGNMENTS = 48
LEARNING_RATE, WARM_UP = 1.5e-3, 300


@dataclass
class Pair:
    """Inputs of the pooled rows, those of P first."""

    rows_of_p: int
    entries: np.ndarray
    rows: np.ndarray


@dataclass
class Batch:
    """Pairs padded to common numbers of rows and columns."""

    entries: Tensor
    rows: Tensor
    counts: Tensor
    counts_of_p: Tensor
    dims: Tensor

    def to(self, device: str) -> Batch:
        return Batch(*(x.to(device, non_blocking=True) for x in vars(self).values()))


def read_pairs(content: bytes) -> Iterator[Pair]:
    """The pairs of a file: columns, rows of P, rows of Q, then entries and rows as 16-bit numbers."""
    at = 0
    while at < len(content):
        dim, n, m = (int(x) for x in np.frombuffer(content, np.uint32, 3, at))
        at += 12
        entries = np.frombuffer(content, np.int16, (n + m) * dim * OF_ENTRY, at)
        at += entries.nbytes
        rows = np.frombuffer(content, np.int16, (n + m) * OF_ROW, at)
        at += rows.nbytes
        yield Pair(n, entries.reshape(n + m, dim, OF_ENTRY), rows.reshape(n + m, OF_ROW))


def batch_of(pairs: list[Pair], width: int) -> Batch:
    rows = -(-max(len(pair.rows) for pair in pairs) // 64) * 64
    entries = np.zeros((len(pairs), rows, width, OF_ENTRY), np.int16)
    of_rows = np.zeros((len(pairs), rows, OF_ROW), np.int16)
    for i, pair in enumerate(pairs):
        count, dim, _ = pair.entries.shape
        entries[i, :count, :dim] = pair.entries
        of_rows[i, :count] = pair.rows
    numbers = (
        [len(pair.rows) for pair in pairs],
        [pair.rows_of_p for pair in pairs],
        [pair.entries.shape[1] for pair in pairs],
    )
    return Batch(
        torch.from_numpy(entries), torch.from_numpy(of_rows), *(torch.tensor(x) for x in numbers)
    )


def batches(pairs: list[Pair], width: int) -> Iterator[Batch]:
    """Batches of pairs with about the same number of rows."""
    chosen: list[Pair] = []
    for pair in sorted(pairs, key=lambda pair: len(pair.rows)):
        if chosen and (len(chosen) + 1) * (len(pair.rows) + 63) * width > BATCH_ENTRIES:
            yield batch_of(chosen, width)
            chosen = []
        chosen.append(pair)
    if chosen:
        yield batch_of(chosen, width)


def load(folder: Path, out: queue.Queue[Batch]) -> None:
    """Reads and removes files for ever."""
    pools: dict[int, list[Pair]] = {width: [] for width in WIDTHS}
    while True:
        found = False
        for path in sorted(folder.glob("*.pairs")):
            mine = path.with_suffix(".taken")
            try:
                path.rename(mine)
            except FileNotFoundError:
                continue  # Another thread has taken it.
            found = True
            for pair in read_pairs(mine.read_bytes()):
                pools[next(w for w in WIDTHS if w >= pair.entries.shape[1])].append(pair)
            mine.unlink()
            for width, pool in pools.items():
                if sum(len(pair.rows) for pair in pool) * width > 6 * BATCH_ENTRIES:
                    for batch in batches(pool, width):
                        out.put(batch)
                    pool.clear()
        if not found:
            time.sleep(0.01)


class Block(nn.Module):
    """Normalisation, hidden units, outputs."""

    def __init__(self, inputs: int, hidden: int, outputs: int):
        super().__init__()
        self.norm = nn.LayerNorm(inputs)
        self.hidden = nn.Linear(inputs, hidden)
        self.out = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.hidden(self.norm(x)).relu())


def attention(queries: Tensor, keys: Tensor, values: Tensor, present: Tensor | None) -> Tensor:
    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (HEADS, ROW // HEADS)).transpose(1, 2)

    scores = (heads(queries) @ heads(keys).transpose(-1, -2)).float() / math.sqrt(ROW // HEADS)
    if present is not None:
        scores = scores.masked_fill(~present[:, None, None], -1e9)
    return (scores.softmax(-1).to(values.dtype) @ heads(values)).transpose(1, 2).flatten(2)


class Layer(nn.Module):
    """Rows attend to points that attend to all rows; rows and entries look at each other."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(ROW)
        self.inducing_points = nn.Parameter(0.3 * torch.randn(POINTS, ROW))
        self.keys_values = nn.Linear(ROW, 2 * ROW)
        self.point_keys_values = nn.Linear(ROW, 2 * ROW)
        self.queries = nn.Linear(ROW, ROW)
        self.rows = Block(2 * ROW + 2 * ENTRY, 2 * ROW, ROW)
        self.column_summary = nn.Linear(ENTRY, ENTRY)
        self.entries = Block(2 * ENTRY + ROW, 2 * ENTRY, ENTRY)

    def forward(self, x: Tensor, r: Tensor, columns: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        present = columns[:, None, :, None]
        mean = (x * present).sum(2) / columns.sum(1)[:, None, None]
        largest = x.masked_fill(~present, -1e4).amax(2)
        normed = self.attention_norm(r)
        keys, values = self.keys_values(normed).chunk(2, -1)
        points = attention(self.inducing_points.expand(len(r), -1, -1), keys, values, rows)
        keys, values = self.point_keys_values(points).chunk(2, -1)
        context = attention(self.queries(normed), keys, values, None)
        r = r + self.rows(torch.cat([r, context, mean, largest], -1))
        summary = (self.column_summary(x) * rows[..., None, None]).sum(1)
        summary = (summary / rows.sum(1)[:, None, None])[:, None].expand_as(x)
        of_row = r[:, :, None].expand(*x.shape[:3], ROW)
        return x + self.entries(torch.cat([x, summary, of_row], -1)), r


class Encoder(nn.Module):
    """Columns of rows, and of each entry."""

    def __init__(self) -> None:
        super().__init__()
        self.entry_input = nn.Linear(COSINES + OF_ENTRY, ENTRY)
        self.row_input = nn.Linear(OF_ROW, ROW)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.row_output_norm, self.entry_output_norm = nn.LayerNorm(ROW), nn.LayerNorm(ENTRY)
        self.row_output = nn.Linear(ROW, ROW_GROUPS * GROUP)
        self.entry_output = nn.Linear(ENTRY, GROUP)
        self.row_scale = nn.Parameter(torch.tensor(-2.0))
        self.entry_scale = nn.Parameter(torch.tensor(-2.0))

    def forward(self, batch: Batch, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        share = batch.entries[..., :1] * UNIT_SHARE + 0.5
        score = math.sqrt(2) * torch.erfinv((2 * share - 1).clamp(-0.9999, 0.9999))
        orders = math.pi * torch.arange(1, COSINES + 1, device=share.device)
        repeats, values = batch.entries[..., 1:2] * UNIT_REPEATS, batch.entries[..., 2:] * UNIT
        x = self.entry_input(torch.cat([(share * orders).cos(), score, repeats, values], -1))
        r = self.row_input(batch.rows * UNIT)
        for layer in self.layers:
            x, r = layer(x, r, columns, rows)
        of_rows = self.row_output(self.row_output_norm(r)) * self.row_scale.exp()
        of_entries = self.entry_output(self.entry_output_norm(x)) * self.entry_scale.exp()
        return of_rows.float(), of_entries.float()


def assignments(rows: Tensor, batch: Batch) -> Tensor:
    """Centred labels, the observed ones first: `[pairs, assignments, rows]`."""
    count, first = batch.counts[:, None, None], batch.counts_of_p[:, None, None]
    keys = torch.rand(len(rows), ASSIGNMENTS, rows.shape[1], device=rows.device)
    places = keys.masked_fill(~rows[:, None], 2.0).argsort(-1).argsort(-1)
    labels = places < first
    labels[:, 0] = torch.arange(rows.shape[1], device=rows.device) < batch.counts_of_p[:, None]
    deviation = (first * (count - first) / count).sqrt()
    return (labels.float() - first / count) * rows[:, None] / deviation


def statistics(model: Encoder, batch: Batch) -> Tensor:
    """The statistic of each assignment: `[pairs, assignments]`."""
    device = batch.rows.device
    rows = torch.arange(batch.rows.shape[1], device=device) < batch.counts[:, None]
    columns = torch.arange(batch.entries.shape[2], device=device) < batch.dims[:, None]
    with torch.autocast(device.type, dtype=torch.bfloat16):
        of_rows, of_entries = model(batch, rows, columns)
    features = torch.cat([of_rows, of_entries.flatten(2)], -1)
    count = batch.counts[:, None]
    mean = (features * rows[..., None]).sum(1) / count
    variance = ((features - mean[:, None]) ** 2 * rows[..., None]).sum(1) / count
    squares = (assignments(rows, batch) @ features) ** 2 - variance[:, None]
    groups = squares.unflatten(-1, (-1, GROUP)).sum(-1)
    # Groups of rows, then one group a column, each with a share of one over their number.
    prior = batch.dims.float().log()[:, None, None]
    of_columns = groups[..., ROW_GROUPS:] - prior
    of_columns = of_columns.masked_fill(~columns[:, None], -1e9)
    return torch.cat([groups[..., :ROW_GROUPS], of_columns], -1).logsumexp(-1)


def weights(model: Encoder) -> dict[str, np.ndarray]:
    """Tensors by the names the test reads; weights are `[inputs, outputs]`."""
    state = {name: x.detach().float().cpu() for name, x in model.state_dict().items()}
    scales = {part: float(state.pop(f"{part}_scale").exp()) for part in ("row", "entry")}
    tensors: dict[str, np.ndarray] = {}
    for name, x in state.items():
        module, _, kind = name.rpartition(".")
        if kind not in ("weight", "bias"):
            tensors[name] = x.numpy()
        elif "norm" in module:
            tensors[f"{module}.{'scale' if kind == 'weight' else 'shift'}"] = x.numpy()
        else:
            scale = scales.get(module.removesuffix("_output"), 1.0)
            part, values = ("weights", x.T) if kind == "weight" else ("bias", x)
            tensors[f"{module}.{part}"] = scale * values.numpy()
    return tensors


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    header, content = {}, b""
    for name, x in sorted(tensors.items()):
        data = np.ascontiguousarray(x, np.float32).tobytes()
        place = [len(content), len(content) + len(data)]
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": place}
        content += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder that pairs are drawn to")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--seconds", type=float, default=500, help="time of this part")
    parser.add_argument("--total", type=float, default=1200, help="time of all parts")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    checkpoint = options.out / "checkpoint.pt"
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    model = Encoder().to(options.device)
    optimiser = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    done = {"steps": 0, "pairs": 0, "seconds": 0.0}
    averaged = {name: x.clone() for name, x in model.state_dict().items()}
    if checkpoint.exists():
        stored = torch.load(checkpoint, map_location=options.device)
        model.load_state_dict(stored["model"])
        optimiser.load_state_dict(stored["optimiser"])
        done, averaged = stored["done"], stored["averaged"]
    waiting: queue.Queue[Batch] = queue.Queue(maxsize=60)
    for _ in range(2):
        threading.Thread(target=load, args=(options.folder, waiting), daemon=True).start()

    def store() -> None:
        content = {"model": model.state_dict(), "optimiser": optimiser.state_dict()}
        partial = checkpoint.with_suffix(".partial")
        torch.save(content | {"done": done, "averaged": averaged}, partial)
        partial.rename(checkpoint)

    start, reported, loss_mean = time.monotonic(), 0.0, math.nan
    before = done["seconds"]
    while (elapsed := time.monotonic() - start) < options.seconds:
        done["seconds"] = before + elapsed
        share = min(done["seconds"] / options.total, 1.0)
        rate = LEARNING_RATE * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share)))
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1.0, (done["steps"] + 1) / WARM_UP)
        values = statistics(model, waiting.get().to(options.device))
        observed = torch.zeros(len(values), dtype=torch.long, device=values.device)
        loss = nn.functional.cross_entropy(values, observed)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        with torch.no_grad():
            for name, x in model.state_dict().items():
                averaged[name].lerp_(x, 0.005)
        done["steps"] += 1
        done["pairs"] += len(values)
        if elapsed - reported > 30:
            reported = elapsed
            store()
            print(f"{done['seconds']:.0f} s, {done['pairs']} pairs, loss {loss_mean:.3f}", flush=True)
        if done["steps"] % 20 == 1:
            latest = loss.item()
            loss_mean = latest if math.isnan(loss_mean) else 0.9 * loss_mean + 0.1 * latest
    store()
    model.load_state_dict(averaged)
    write_safetensors(options.out / "model.safetensors", weights(model))


if __name__ == "__main__":
    main()
