"""Write a log of gigabytes: quiet days, and one with the incidents of ``incidents.py``.

    python docs/research/lab/large_log.py large.log --bytes 2e9
    /usr/bin/time -v kvstream summarize large.log

The script prints the words that identify the incidents.
"""

from __future__ import annotations

import argparse
import datetime

from incidents import made_log

FIRST = datetime.date(2024, 5, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("path")
    parser.add_argument("--bytes", type=float, default=2e9)
    parser.add_argument("--lines", type=int, default=200_000, help="lines of a day")
    parser.add_argument("--seed", type=int, default=4, help="a multiple of 4")
    options = parser.parse_args()
    quiet = "\n".join(made_log(options.seed, options.lines, incidents=False)[0]) + "\n"
    lines, marks = made_log(options.seed, options.lines)
    loud = "\n".join(lines) + "\n"
    days = round(options.bytes / len(quiet))
    bad = days * 2 // 3
    with open(options.path, "w") as file:
        for day in range(days):
            date = str(FIRST + datetime.timedelta(day))
            text = loud if day == bad else quiet
            file.write(date + text[10:].replace(f"\n{FIRST}", f"\n{date}"))
    print(f"{days} days, incidents on {FIRST + datetime.timedelta(bad)}: {marks}")


if __name__ == "__main__":
    main()
