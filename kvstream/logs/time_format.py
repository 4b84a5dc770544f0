"""Format the times of a log."""

from __future__ import annotations

import time

from kvstream.logs.shape import Shape
from kvstream.logs.summary import LogSummary


class Clock:
    """Formats times in the zone of the first one, with the day only if the log spans several."""

    def __init__(self, log: LogSummary) -> None:
        self.log = log
        first, last = self._local(log.total.low), self._local(log.total.high)
        buckets = log.total.buckets
        self.days = self.years = False
        if first is not None and last is not None and buckets and not log.by_line:
            self.days = int(first // 86400) != int(last // 86400)
            self.days = self.days or (max(buckets) - min(buckets)) * log.width > 1.5 * 86400
            # Only of years that gmtime supports.
            years = {time.gmtime(min(max(at, 0.0), 2e11)).tm_year for at in (first, last)}
            self.years = log.parser.dated and len(years) > 1

    def _local(self, moment: float | None) -> float | None:
        return None if moment is None else moment + self.log.zone

    def __call__(self, moment: float | None, line: int, *, full: bool = False) -> str:
        full = full and self.log.parser.has_days
        year = self.log.parser.dated and (full or self.years)
        form = ("%Y-" if year else "") + "%m-%d " if self.days or full else ""
        return self._as(f"{form}%H:%M:%S", moment, line)

    def _as(self, form: str, moment: float | None, line: int) -> str:
        local = self._local(moment)
        if local is None or self.log.by_line:
            return f"line {line:,}"
        try:
            return time.strftime(form, time.gmtime(local))
        except (ValueError, OverflowError, OSError):  # the year is out of range
            return f"line {line:,}"

    def after(self, low: float | None, moment: float | None, line: int) -> str:
        """Format a time that is shown after the time `low`, with the day only if it differs."""
        first, last = self._local(low), self._local(moment)
        if first is None or last is None or first // 86400 != last // 86400:
            return self(moment, line)
        return self._as("%H:%M:%S", moment, line)

    def bucket(self, bucket: int) -> str:
        """Format the beginning of a bucket."""
        start = bucket * self.log.width
        return self(start, max(int(start), 1))

    def buckets(self, shape: Shape, start: int, end: int) -> str:
        """Format the span of buckets, limited to the lines of the template."""
        low, high = start * self.log.width, (end + 1) * self.log.width
        if shape.low is not None and shape.high is not None:
            low, high = max(low, shape.low), min(high, shape.high)
        first, last = self(low, max(int(low), 1)), self(high, int(high))
        if first == last:
            return f"from {first}"
        return f"from {first} to {self.after(low, high, int(high))}"
