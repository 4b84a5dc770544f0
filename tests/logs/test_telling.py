"""What a model writes about the page of a log is checked against the page."""

from __future__ import annotations

import pytest

from kvstream.logs.telling import checked

PAGE = """2,000 lines, 18:01:47 to 18:10:55; 110 templates; 2 fatal

Errors and warnings
      2 FATAL TaskListener: Task: <*> - exited : NoRouteToHostException
        L1020  18:06:26 to 18:06:28; new; on node = MININT-FNANLI5
  1,347 ERROR disk: /dev/sdb1 is full
        L912  03:15:11
"""


@pytest.mark.parametrize(
    "sentence",
    [
        "The disk was full at 03:15:11 (L912).",
        "There are 1347 errors of the disk at L912.",
        "TaskListener exited at L1020 with NoRouteToHostException.",
        "Node MININT-FNANLI5 is named in L1020.",
    ],
)
def test_what_is_on_the_page_stays(sentence: str) -> None:
    assert checked(sentence, PAGE) == (sentence, [])


@pytest.mark.parametrize(
    "sentence",
    [
        "The disk was full at 03:15:12.",
        "It began at L913.",
        "There are 1348 errors.",
        "The NameNode failed.",
        "It is the service orders_db.",
        "Later Hadoop stopped.",
    ],
)
def test_a_sentence_with_another_number_or_name_is_removed(sentence: str) -> None:
    assert checked(f"The disk is full (L912). {sentence}", PAGE) == (
        "The disk is full (L912).",
        [sentence],
    )


def test_a_paragraph_that_names_no_line_is_removed() -> None:
    assert checked("The disk is full.", PAGE) == ("", ["The disk is full."])


def test_nothing_written_is_nothing() -> None:
    assert checked(" \n", PAGE) == ("", [])
