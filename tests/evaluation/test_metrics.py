"""Scores and intervals against values worked out by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from kvstream.evaluation import metrics
from kvstream.evaluation.confidence import difference_interval, mean_interval, wilson
from kvstream.evaluation.datasets import Question, item
from kvstream.evaluation.qa import choose, score
from kvstream_lab.summary import lead


def test_normalization_is_squads() -> None:
    assert metrics.normalize("The  Cat's a-sleep, an hour!") == "cats asleep hour"
    assert metrics.exact_match("the Eiffel Tower.", "Eiffel tower")
    assert not metrics.exact_match("Eiffel", "Eiffel tower")


@pytest.mark.parametrize(
    ("answer", "reference", "value"),
    [
        ("the cat sat on the mat", "a cat on the mat", 2 * 3 / (4 + 3)),
        ("cat cat cat", "cat dog", 2 * 1 / (3 + 2)),
        ("no", "yes", 0.0),
        ("", "yes", 0.0),
        ("The", "a", 1.0),  # both are empty without articles
    ],
)
def test_f1(answer: str, reference: str, value: float) -> None:
    assert metrics.f1(answer, reference) == pytest.approx(value)


@pytest.mark.parametrize(
    ("answer", "reference", "found"),
    [
        ("The passkey is 71785.", "71785", True),
        ("717777", "71777", False),
        ("in Draldbury, they say", "Draldbury", True),
        ("Draldburyham", "Draldbury", False),
    ],
)
def test_contains_takes_whole_words(answer: str, reference: str, found: bool) -> None:
    assert metrics.contains(answer, reference) is found


@pytest.mark.parametrize(
    ("answer", "value"), [("71785", 1.0), ("It is 71-785", 0.4), ("717777", 0.6), ("none", 0.0)]
)
def test_digits_count_in_their_places(answer: str, value: float) -> None:
    assert metrics.digit_accuracy(answer, "71785") == pytest.approx(value)


def test_rouge() -> None:
    scores = metrics.rouge("the cat sat down", ["a dog", "the cat ran"])
    # Shared: 2 of 4 and 3 words, 1 of 3 and 2 pairs; the longest common sequence is "the cat".
    assert scores["rouge_1"] == pytest.approx(2 * 2 / 7)
    assert scores["rouge_2"] == pytest.approx(2 * 1 / 5)
    assert scores["rouge_l"] == pytest.approx(2 * 2 / 7)
    assert metrics.rouge("running", ["runs"])["rouge_1"] == 1.0  # stemmed


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("not in the text", True),
        ("The text does not mention it.", True),
        ("That is not mentioned in the passage", True),
        ("in the text", False),
        ("They could not answer him.", False),
        ("It was not he.", False),
    ],
)
def test_abstaining(answer: str, said: bool) -> None:
    assert metrics.abstains(answer) is said


@pytest.mark.parametrize(
    ("right", "trials", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (0, 0, 0.0, 1.0)],
)
def test_wilson(right: int, trials: int, low: float, high: float) -> None:
    assert wilson(right, trials) == pytest.approx((low, high), abs=1e-4)


def test_interval_of_a_mean() -> None:
    mean, low, high = difference_interval([0.0, 0.0, 1.0, 1.0])
    # Standard error of four values of variance 1/3: sqrt(1/3/4).
    assert mean == 0.5
    assert high - mean == pytest.approx(1.96 * math.sqrt(1 / 12), abs=1e-4)
    assert mean - low == pytest.approx(high - mean)
    assert mean_interval([0.0, 0.0, 1.0, 1.0]) == (0.5, 0.0, 1.0), "scores are from 0 to 1"
    assert mean_interval([0.4, 0.6]) == difference_interval([0.4, 0.6])


def test_values_of_one_document_are_one_observation() -> None:
    alone = mean_interval([0.4, 0.6])
    doubled = mean_interval([0.4, 0.4, 0.6, 0.6], ["a", "a", "b", "b"])
    assert doubled == pytest.approx(alone)
    assert mean_interval([0.3, 0.5], ["a", "a"]) == (0.4, 0.4, 0.4)
    assert mean_interval([]) == (0.0, 0.0, 0.0)
    assert mean_interval([1.0] * 6) == (1.0, *wilson(6, 6)), "six of six are no certainty"
    assert mean_interval([0.0] * 6, list("aabbcc")) == (0.0, *wilson(0, 3))
    assert difference_interval([0.0] * 6) == (0.0, 0.0, 0.0), "equal results do not differ"
    assert difference_interval([1.0] * 6) == (1.0, 1.0, 1.0)
    for equal in ([0.2] * 3, [0.1] * 10, [1 / 3] * 7):
        assert len(set(mean_interval(equal))) == 1, "the rounding of their sum is no error"


def test_squad_like_records_in_all_their_spellings() -> None:
    plain = {"id": "1", "context": "c", "question": "q", "answers": ["x", "x", "y"]}
    assert item(plain, "f:1").questions == (Question("q", ("x", "y")),)
    hub = {"context": "c", "question": "q", "answers": {"text": ["x"], "answer_start": [0]}}
    assert item(hub, "f:1").questions[0].answers == ("x",)
    several = {"context": "c", "questions": ["q", "r"], "answers": [["x"], []]}
    assert [q.answers for q in item(several, "f:1").questions] == [("x",), ()]
    with pytest.raises(ValueError, match="2 questions and 1 lists"):
        item({**several, "answers": [["x"]]}, "f:1")


def test_longbench_records() -> None:
    trec = {
        "input": "Question: who?", "context": "c", "answers": ["Human"], "dataset": "trec_e",
        "all_classes": ["Human", "Place"], "_id": "7",
    }  # fmt: skip
    assert item(trec, "f:1").questions == (Question("Question: who?", ("Human",)),)
    second = {"context": "c", "question": "q", "answer": "B", "choice_A": "x", "choice_B": "y"}
    assert item(second, "f:1").questions[0].correct == 1


def test_leval_records() -> None:
    text = "Which one?\nA. red\nB. blue\nC. green"
    record = {"input": "c", "instructions": [text], "outputs": ["C"], "evaluation": "exam"}
    question = item(record, "f:1").questions[0]
    assert (question.text, question.options) == ("Which one?", ("red", "blue", "green"))
    assert question.correct == 2
    rouge = {"input": "c", "instructions": ["Sum up."], "outputs": ["x"], "evaluation": "rouge"}
    assert item(rouge, "f:1").questions[0].metric == "rouge_l"


@pytest.mark.parametrize(
    "right", [1, "1", "B", " b ", "(B)", "B. blue", "B) blue", "blue", "blue "]
)
def test_multiple_choice_names_the_right_option_in_many_ways(right: object) -> None:
    record = {"context": "c", "question": "q", "options": ["red", "blue"], "label": right}
    assert item(json.loads(json.dumps(record)), "f:1").questions[0].correct == 1


@pytest.mark.parametrize("right", [-1, 2, "", None, 0.5, "C", "AB", "a blue one"])
def test_a_choice_without_one_right_option_is_refused(right: object) -> None:
    """Test sets hide their labels (-1), and L-Eval has questions with several right options."""
    record = {"context": "c", "question": "q", "options": ["red", "blue"], "label": right}
    with pytest.raises(ValueError, match="names none, or not one, of the 2 options"):
        item(record, "f:1")
    exam = {"input": "c", "instructions": ["Which?\nA. red\nB. blue"], "evaluation": "exam"}
    with pytest.raises(ValueError, match="names none, or not one, of the 2 options"):
        item({**exam, "outputs": ["AB"]}, "f:1")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"options": {"A": "red", "B": "blue"}, "answer": "A"}, "its options are not a list"),
        ({"choices": {"text": ["red"], "label": ["A"]}, "answer": "A"}, "its options are not"),
        ({"answers": [["red", "blue"]]}, "an answer is not text"),
        ({"answers": [None]}, "an answer is not text"),
    ],
)
def test_names_of_keys_are_no_options(more: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        item({"context": "c", "question": "q", **more}, "n")


def test_what_is_no_text_is_found_in_its_line() -> None:
    """The error comes when records are loaded, not when the text is read."""
    good = {"context": "c", "question": "q", "answers": [{"text": "x"}]}
    assert item(good, "f:1").questions == (Question("q", ("x",)),)
    for wrong in ({"context": ["c", "d"]}, {"context": " "}, {"question": 5}, {"question": ""}):
        with pytest.raises(ValueError, match="is not text"):
            item({**good, **wrong}, "f:1")


def test_a_record_without_questions_is_not_drawn(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    empty = {"context": "c", "questions": [], "answers": []}
    asked = {"context": "c", "question": "q", "answers": ["x"]}
    path.write_text("\n".join(map(json.dumps, [empty, asked, empty])), encoding="utf-8")
    assert [len(i.questions) for i in choose([str(path)], [], None, 0)] == [1]


def test_questions_without_an_answer_are_not_scored_as_wrong() -> None:
    scored = score(Question("q", ()), "not in the text")
    assert scored["abstains"]
    assert "f1" not in scored


def test_the_lead_has_as_many_words() -> None:
    assert lead("One two three. Four five six. Seven.", 5) == "One two three. Four five"
    assert lead("One two.", 5) == "One two."
