"""Write documents with questions and answers at their ends, to train a gate of `edgeinfinite`.

    python docs/research/lab/question_texts.py ../shared/data FOLDER [COUNT]

Half of the questions are those that people asked about a text. The other half are made from books
by rule, in the words that pocket is trained with. What follows "Answer:" can only be known from
tokens that have left the window.
"""

import argparse
from pathlib import Path

from kvstream_lab.synthetic.corpus import Corpus
from kvstream_lab.training.rows import Mixture, RowMaker

LEAST, MOST = 2200, 3600
"""Minimum and maximum number of tokens of a document without its questions."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("count", nargs="?", type=int, default=160)
    options = parser.parse_args()
    data, folder, count = options.data, options.folder, options.count
    maker = RowMaker(Corpus(data), 9, Mixture(refusals=0.005))
    folder.mkdir(parents=True, exist_ok=True)
    written = 0
    while written < count:
        documents = maker.documents
        pieces = (documents.of_people if written % 2 else documents.of_a_book)(2900)
        asked, _ = maker.choose(pieces, 1400)
        text = "".join(piece.text for piece in pieces)
        if asked and LEAST < len(maker.encode(text)) < MOST:
            text += "".join(f"\nQuestion: {q}\nAnswer: {a}" for q, a in asked)
            (folder / f"{written:03}.txt").write_text(text)
            written += 1


if __name__ == "__main__":
    main()
