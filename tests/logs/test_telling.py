"""What a model writes about the page of a log is checked against the page."""

from __future__ import annotations

import pytest

from kvstream.logs.telling import check

PAGE = """2,000 lines, 18:01:47 to 18:10:55; 110 templates; 2 fatal

Errors and warnings
      2 FATAL TaskListener: Task: <*> - exited : NoRouteToHostException
        L1020  18:06:26 to 18:06:28; new; on node = MININT-FNANLI5
  1,347 ERROR disk: /dev/sdb1 is full
        L912  03:15:11
        1 WARNING  03:15:09  server.log:77  disk: /dev/sdb1 is at 99%
"""


@pytest.mark.parametrize(
    "sentence",
    [
        "The disk was full at 03:15:11 (L912).",
        "There are 1347 errors of the disk at L912.",
        "TaskListener exited at L1020 with NoRouteToHostException.",
        "Node MININT-FNANLI5 is named in L1020.",
        "The disk was full at 03:15 (line 912).",
        "First the disk was at 99% (server.log:77), then it was full (L912).",
        "Lines 77 and 912 are about /dev/sdb1.",
    ],
)
def test_what_is_on_the_page_stays(sentence: str) -> None:
    assert check(sentence, PAGE) == (sentence, [])


@pytest.mark.parametrize(
    "sentence",
    [
        "The disk was full at 03:15:12 (L912).",
        "It began at L913.",
        "There are 1348 errors (L912).",
        "The NameNode failed (L1020).",
        "It is the service orders_db (L912).",
        "Later Hadoop stopped (L1020).",
        "There were 1347 errors.",
        "The disk was full at 18:06:26 (L912).",
        "TaskListener exited because the disk was full (L912).",
        "The disk was full for 15 minutes (L912).",
        "Of 2,000 lines one is L912.",
    ],
)
def test_a_sentence_without_a_row_that_has_its_numbers_and_names_is_removed(sentence: str) -> None:
    assert check(f"The disk is full (L912). {sentence}", PAGE) == (
        "The disk is full (L912).",
        [sentence],
    )


def test_a_row_of_a_file_with_spaces_in_its_name_can_be_cited() -> None:
    page = PAGE.replace("server.log:77", "my old server.log:77")
    sentence = "The disk was at 99% (my old server.log:77)."
    assert check(sentence, page) == (sentence, [])


def test_a_paragraph_that_names_no_line_is_removed() -> None:
    assert check("The disk is full.", PAGE) == ("", ["The disk is full."])


def test_nothing_written_is_nothing() -> None:
    assert check(" \n", PAGE) == ("", [])
