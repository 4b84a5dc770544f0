"""Measure how many digits of a passkey come back when the model has to write a number.

See docs/research/papers.md.

    python docs/research/lab/digits.py streaming cascade cascade:run=1+contest=attention \\
        --text ../shared/data/books/*.gz --heldout --depths 0.5,0.6,0.7,0.75,0.8

As in section 4.4 of the Cascading KV cache paper, the model must write five digits, whatever it
would write otherwise. Digits in their right places count, so chance is a tenth. A document holds a
passkey at each depth, and every case reads the same documents. The script prints the share of right
digits with its 95% interval (over documents), how often each of the five digits was right, and how
many keys were right as a whole. The row "-" is the model with nothing read. Cases are written as
for likelihood.py.
"""

from __future__ import annotations

from kvstream.evaluation.intervals import mean_interval
from kvstream.session.session import Session
from kvstream.settings import RunSettings
from likelihood import Document, case_of, document, opened, options, reading

PLACES = 5
"""Digits of a passkey."""


def places(
    session: Session, doc: Document, run: RunSettings, *, read: bool = True
) -> list[list[bool]]:
    """Return for each question which digits are right after reading the document, or nothing."""
    reader, prompt = reading(session, doc, run, read=read)
    tokens = [session.tokenizer.encode(f" {n}", continuing=True)[-1] for n in range(10)]
    found = []
    for question, answer in zip(doc.questions, doc.said, strict=True):
        before, right = answer[:-PLACES], answer[-PLACES:]
        assert set(right) <= set(tokens), "digits are no tokens of their own here"
        said_now = reader.answer(
            [*prompt.tail(question), *before],
            lambda logits: tokens[int(logits[tokens].argmax())],
            frozenset(),
            PLACES,
        )
        found.append([a == b for a, b in zip(said_now, right, strict=True)])
    return found


def main() -> None:
    parser = options(__doc__ or "")
    parser.set_defaults(trials=16, keep=640, chunk_size=256)
    asked = parser.parse_args()
    session, filler = opened(asked)
    depths = [float(d) for d in asked.depths.split(",")]
    found: dict[str, list[list[list[bool]]]] = {}
    for trial in range(asked.trials):
        doc = document(session, filler, "passkey", asked.tokens, depths, 1, 1, trial)
        for case in ("-", *asked.cases):
            nothing = case == "-"
            run = case_of(asked.cases[0] if nothing else case, asked)
            found.setdefault(case, []).append(places(session, doc, run, read=not nothing))
    keys = asked.trials * len(depths)
    print(f"{keys} passkeys, {asked.trials} documents of {asked.tokens:,} tokens")
    for case, documents in found.items():
        shares = [sum(map(sum, d)) / (PLACES * len(d)) for d in documents]
        mean, low, high = mean_interval(shares)
        answers = [answer for d in documents for answer in d]
        by_place = " ".join(f"{sum(a[i] for a in answers):3}" for i in range(PLACES))
        whole = sum(all(a) for a in answers)
        print(f"{case:45} {mean:4.0%} ({low:.0%} to {high:.0%})  {by_place}  whole {whole}")


if __name__ == "__main__":
    main()
