"""The progress line of a training."""

from __future__ import annotations

import sys
import time
from collections import deque

# Number of losses in the mean that is shown.
_WINDOW = 50
# Characters of the bar.
_BAR = 24


class Progress:
    """Writes progress to standard error.

    A terminal or a notebook gets one line that is rewritten, other streams get ten lines in total.
    """

    def __init__(self, steps: int, shown: bool) -> None:
        self._steps, self._shown = steps, shown
        self._losses: deque[float] = deque(maxlen=_WINDOW)
        self._live = _is_live() if shown else False
        self._start = self._last = time.monotonic()
        self._written = False

    def step(self, done: int, loss: float) -> None:
        """Shows a finished step."""
        if not self._shown:
            return
        self._losses.append(loss)
        now = time.monotonic()
        if self._live:
            if now - self._last < 0.1 and done < self._steps:
                return
            # The spaces at the end cover the rest of a longer line.
            self._write(f"\r{self._text(done, now)}   ")
        elif done * 10 // self._steps > (done - 1) * 10 // self._steps:
            self._write(self._text(done, now) + "\n")
        self._last = now

    def close(self) -> None:
        """Ends the line."""
        if self._live and self._written:
            self._write("\n")

    def _text(self, done: int, now: float) -> str:
        rate = done / max(now - self._start, 1e-9)
        filled = done * _BAR // self._steps
        bar = "█" * filled + "·" * (_BAR - filled) if self._live else ""
        loss = sum(self._losses) / len(self._losses)
        left = _clock((self._steps - done) / rate)
        return f"{done:{len(str(self._steps))}}/{self._steps} {bar} loss {loss:<10.4g} {rate:7.1f} steps/s, {left} left"

    def _write(self, text: str) -> None:
        # Standard error may be closed or None.
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
            self._written = True
        except (AttributeError, OSError, ValueError):
            self._shown = self._live = False


def _is_live() -> bool:
    isatty = getattr(sys.stderr, "isatty", None)
    return "ipykernel" in sys.modules or bool(isatty and isatty())


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
