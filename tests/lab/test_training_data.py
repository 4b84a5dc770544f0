"""Training data of pocket: facts contain their answers, rows are valid, splits are stable."""

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvstream.evaluation.splits import is_heldout
from kvstream.run.prompt import REFUSAL
from kvstream.store import pocket
from kvstream_lab.synthetic import keys, questions, training_facts
from kvstream_lab.synthetic.corpus import HUMAN_FILES, Corpus, split_sentences
from kvstream_lab.training.rows import ANSWER, PAD, RowMaker
from kvstream_lab.training.shards import write_shards

PROSE = (
    "Captain Brenner closed the heavy door. The old woman lived in a small house near the river. "
    "In the morning Lord Ashby wrote a letter to his sister because the roads were blocked. "
    '"I shall not go to London," said Miss Fenwick. Three days later the soldiers left the town. '
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data folder with synthetic texts, in the layout that Corpus reads."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "books").mkdir()
    (folder / "qa").mkdir()
    for number in range(12):
        text = "\n\n".join([PROSE] * 60)
        (folder / "books" / f"author-book-{number}.txt.gz").write_bytes(
            gzip.compress(text.encode())
        )
    for name in (*HUMAN_FILES, "qamr_sentences"):
        records = [
            {
                "id": f"{name}-{i}",
                "doc_id": f"{name}:{i}",
                "context": f"Harl built the tower of {i} stones in the north.",
                "question": "Who built the tower?",
                "answers": [] if "unanswerable" in name else ["Harl", "a mason"],
            }
            for i in range(20)
        ]
        lines = "\n".join(map(json.dumps, records))
        (folder / "qa" / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    return folder


def test_the_split_never_changes():
    assert [is_heldout(f"name-{i}") for i in range(40)].count(True) in range(1, 10)
    assert sum(is_heldout(f"doc:{i}") for i in range(5000)) == pytest.approx(500, abs=80)
    held = [i for i in range(60) if is_heldout(f"name-{i}")]
    assert held == [i for i in range(60) if is_heldout(f"name-{i}")]


def test_no_book_is_on_both_sides(data):
    seen, held = Corpus(data).book_files(), Corpus(data, heldout=True).book_files()
    assert not set(seen) & set(held)
    assert len(seen) + len(held) == 12


def test_a_passage_has_all_accepted_answers(data):
    passage = Corpus(data).human("squad_dev_train")[0]
    assert passage.questions == [("Who built the tower?", "Harl")]
    assert passage.accepted == {"Who built the tower?": ("Harl", "a mason")}
    assert not Corpus(data).human("squad2_unanswerable")[0].accepted


def test_every_fact_answers_its_questions():
    rng = random.Random(0)
    for relation in training_facts.relations():
        for _ in range(10):
            planted = training_facts.fact(rng, relation=relation)
            assert planted.questions, planted.text
            for question, answer in planted.questions:
                assert answer.lower() in planted.text.lower()
                assert "{" not in question + planted.text


@pytest.mark.parametrize("make", [keys.passkey, training_facts.anything])
def test_other_plants_answer_their_questions(make):
    rng = random.Random(1)
    for _ in range(300):
        planted = make(rng)
        for _question, answer in planted.questions:
            assert answer.lower() in planted.text.lower()


def test_two_steps_do_not_name_the_person():
    rng = random.Random(2)
    for _ in range(50):
        first, second = training_facts.two_steps(rng)
        for question, answer in second.questions:
            assert first.person not in question
            assert answer.lower() in second.text.lower()


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        (
            "Captain Brenner closed the heavy door.",
            ("Who closed the heavy door?", "Captain Brenner"),
        ),
        (
            "Captain Brenner closed the heavy door.",
            ("What did Captain Brenner close?", "the heavy door"),
        ),
        (
            "The surgeon lived in a small house.",
            ("Where did the surgeon live?", "in a small house"),
        ),
        ('"I shall not go," said Miss Fenwick.', ('Who said "I shall not go"?', "Miss Fenwick")),
        ("In 1998 Orlin built a bridge.", ("When did Orlin build a bridge?", "In 1998")),
    ],
)
def test_rules_ask_about_plain_sentences(sentence, expected):
    assert expected in questions.from_sentence(sentence, random.Random(0))


def test_rules_leave_pronouns_and_fragments_alone():
    for sentence in ("He closed the heavy door at once.", "And yet, after all, so it was."):
        assert questions.from_sentence(sentence, random.Random(0)) == []


def test_sentences_add_up_to_the_text():
    text = 'Mr. Ash came in. He sat down!\n\n"Well?" said Dr. Brown. No answer.'
    parts = split_sentences(text)
    assert "".join(parts) == text
    assert parts[0] == "Mr. Ash came in."


@pytest.mark.parametrize("length", [128, 256, 1024])
def test_rows_are_documents_and_answered_questions(data, length):
    maker = RowMaker(Corpus(data), seed=3)
    encoding = pocket.encoding()
    for _ in range(15):
        ids, codes = maker.row(length)
        assert ids.shape == codes.shape == (length,)
        assert ids[0] == maker.bos
        assert codes[0] == PAD
        assert (codes == ANSWER).any()
        text = encoding.decode(ids.tolist())
        document = text.split("\nQuestion:")[0]
        for asked in text.split("\nQuestion:")[1:]:
            if pocket.EOS in asked and asked.count("\nAnswer:") == 1:
                answer = asked.split("\nAnswer: ")[1].split(pocket.EOS)[0]
                assert answer == REFUSAL or answer.split()[-1] in document


def test_rows_depend_on_the_seed_alone(data):
    first, again, other = (RowMaker(Corpus(data), seed).row(256)[0] for seed in (5, 5, 6))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_evicted_documents_keep_what_is_needed(data):
    maker = RowMaker(Corpus(data), seed=7)
    needed = maker.encode(" The pass key is 71785.")
    parts = [(maker.encode(PROSE), False), (needed, True), (maker.encode(PROSE * 3), False)]
    kept = maker._evict(parts, 120)
    assert len(kept) <= 130
    text = maker.encoding.decode(kept)
    assert "The pass key is 71785." in text


def test_documents_kept_as_asked_are_like_the_question(data):
    maker = RowMaker(Corpus(data), seed=7)
    needed = maker.encode(" The pass key is 71785.")
    near = maker.encode(" The zinc locket of Ottilie Grumbold was crooked.")
    parts = [(maker.encode(PROSE * 2), False), (near, False), (maker.encode(PROSE * 3), False)]
    parts += [(needed, True), (maker.encode(PROSE), False)]
    asked = set(maker.encode("Who had the zinc locket of Ottilie Grumbold?"))
    for _ in range(20):
        kept = maker._as_asked(parts, asked, 120)
        assert len(kept) == 120
        text = maker.encoding.decode(kept)
        assert "The pass key is 71785." in text
        assert "zinc locket of Ottilie Grumbold" in text
    assert len(maker._as_asked(parts, asked, 20)) > 20, "what is needed stays, and does not fit"


def test_shards_are_made_ahead_and_no_further(data, tmp_path):
    write_shards(Corpus(data), tmp_path, 1, (128,), ahead=2, tokens=1024, forever=False)
    files = sorted(tmp_path.glob("00128-*.npz"))
    assert len(files) == 2
    with np.load(files[0]) as shard:
        assert shard["ids"].shape == shard["codes"].shape == (8, 128)


@pytest.mark.long
def test_one_command_goes_from_data_to_weights(data, tmp_path):
    """The command runs in a separate process, which starts the processes that make rows."""
    lengths = ["--lengths", "128:1", "--late-lengths", "128:1", "--step-tokens", "256"]
    small = ["--layers", "2", "--width", "256", "--heads", "4", "--inner", "64", "--tokens", "512"]
    command = [sys.executable, "docs/research/lab/train.py", "pocket", "--data", str(data)]
    done = subprocess.run(
        [*command, "--out", str(tmp_path), *lengths, *small, "--trials", "0"],
        capture_output=True, text=True, timeout=300, check=False,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["tokens"] >= 512
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert model.config.num_hidden_layers == 2
    text = "It goes by itself: 12,345."
    ids = AutoTokenizer.from_pretrained(tmp_path / "model").encode(text, add_special_tokens=False)
    assert ids == pocket.encoding().encode(text)
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert all(digest in card for digest in Corpus(data).hashes().values())
    assert '"width": 256' in card
    assert "| Began from | initial weights" in card


def test_keys_of_a_ring_differ_in_name_and_are_asked_by_it():
    rng = random.Random(3)
    for _ in range(50):
        ring = keys.keyring(rng, 4)
        first = [planted.questions[-1] for planted in ring]
        assert len({question for question, _ in first}) == 4
        for planted in ring:
            assert all(answer in planted.text for _, answer in planted.questions)


def test_a_question_whose_sentence_was_taken_away_is_refused(data):
    """A question with its answer in the rest of the text is not refused and keeps its answer."""
    maker = RowMaker(Corpus(data), seed=3)
    text = PROSE * 2 + "The mill of Harl burned in May. Its owner, Dame Ulla, left for Brask. "
    asked = [
        ("When did the mill burn?", "May"),
        ("Who owned the mill?", "Dame Ulla"),
        ("Where did the owner go?", "Brask"),
        ("Who closed the door?", "Captain Brenner"),
    ]
    refused = 0
    for _ in range(40):
        left, questions_left = maker.documents._without_an_answer(text, asked)
        for question, answer in questions_left:
            before = dict(asked)[question]
            assert answer == (before if before in left else REFUSAL)
            refused += answer == REFUSAL
    assert refused > 20
