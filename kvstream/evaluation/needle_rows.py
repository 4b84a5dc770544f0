"""Rows of the trials of `kvstream.evaluation.needle`, one for each length, depth and case."""

from __future__ import annotations

from collections.abc import Sequence

from kvstream.evaluation.confidence import mean_interval, wilson
from kvstream.evaluation.records import CASE_KEYS, Record, grouped
from kvstream.evaluation.sweep import NEAR

ROW_KEYS = (*CASE_KEYS, "kind", "tokens", "depth", "needles")


def rows(records: Sequence[Record]) -> list[Record]:
    """Return a row for each length, depth and case: the object that ``--json`` prints."""
    return [_row(group) for group in grouped(records, ROW_KEYS)]


def _row(group: list[Record]) -> Record:
    head = {"bench": "needle", **{k: group[0].get(k) for k in ROW_KEYS}}
    done = [r for r in group if "error" not in r]
    if not done:
        return {**head, "trials": 0, "right": 0, "error": group[0]["error"]}
    right = sum(bool(r["right"]) for r in done)
    low, high = wilson(right, len(done))
    asked = sum(1 if r["method"] == NEAR else int(r["needles"]) for r in done)
    row = {
        **head,
        "trials": len(done),
        "right": right,
        "share": round(right / len(done), 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "exact": sum(bool(r["exact"]) for r in done),
        "digits": None,
        "found": round(sum(r["found"] for r in done) / asked, 4),
        "retained": round(sum(r["retained"] for r in done) / len(done)),
        "seconds": round(sum(r["seconds"] for r in done) / len(done), 3),
    }
    # Only for right answers: a wrong one depends on something else.
    cited = [bool(r["cited"]) for r in done if r["right"] and r.get("cited") is not None]
    row["cited"] = round(sum(cited) / len(cited), 4) if cited else None
    digits = [r["digits"] for r in done if r.get("digits") is not None]
    if digits:
        row["digits"] = round(sum(digits) / len(digits), 4)
    overlap = [r["f1"] for r in done if "f1" in r]  # records of older versions have none
    if overlap:
        mean, low, high = mean_interval(overlap)
        row["f1"] = round(mean, 4)
        if low < high:  # one document, or equal scores, do not tell how scores vary
            row |= {"f1_low": round(low, 4), "f1_high": round(high, 4)}
    return row


def pooled(rows: Sequence[Record]) -> list[Record]:
    """Return the rows of each case and length, pooled over the depths."""
    keys = [key for key in ROW_KEYS if key != "depth"]
    return [_together(group) for group in grouped(rows, keys)]


def _together(group: list[Record]) -> Record:
    trials, right = sum(r["trials"] for r in group), sum(r["right"] for r in group)
    out = {
        **{k: v for k, v in group[0].items() if k not in ("f1_low", "f1_high")},
        "depth": None,
        "trials": trials,
        "right": right,
        **dict.fromkeys(("share", "low", "high")),
    }
    if trials:  # otherwise no trial ran, which is not a share of 0
        out["share"] = right / trials
        out["low"], out["high"] = wilson(right, trials)
    cited = [(r["cited"], r["right"]) for r in group if r.get("cited") is not None]
    if cited:
        out["cited"] = sum(share * count for share, count in cited) / sum(n for _, n in cited)
    for key in ("digits", "f1", "retained", "seconds"):
        # A stopped run may have fewer trials at one depth than at another.
        values = [(r[key], r["trials"]) for r in group if r.get(key) is not None]
        if values:
            out[key] = sum(v * n for v, n in values) / sum(n for _, n in values)
            if key == "retained":
                out[key] = round(out[key])
    return out


def so_far(records: Sequence[Record]) -> str:
    """Return a line to show during the run: the results of the last record's case and length."""
    last = records[-1]
    same = [
        r
        for r in records
        if all(r.get(k) == last.get(k) for k in ROW_KEYS if k != "depth") and "error" not in r
    ]
    right = sum(bool(r["right"]) for r in same)
    return f"{last['method']} at {last['tokens']:,} tokens: {right} of {len(same)} right"
