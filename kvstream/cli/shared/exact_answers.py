"""Answers without a model: counts, and figures of the rows of a table."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import strftime
from typing import Any, TypeVar

from kvstream.api import exact
from kvstream.api.exact import Aim, asks_of_rows, count_of, route
from kvstream.cli.app import INTERRUPTED
from kvstream.cli.options.table import Options
from kvstream.cli.shared.inputs import can_be_read_again, open_sources, sources_or_usage
from kvstream.cli.shared.interrupts import Interrupts
from kvstream.cli.shared.model_choice import QueryModel, query_model
from kvstream.cli.shared.output import refuse_closed
from kvstream.cli.shared.running import SOME_FAILED, check_files, opened_output, reading, receipt
from kvstream.cli.shared.saying import say
from kvstream.cli.shared.watching import UNMATCHED, UNMET
from kvstream.errors import BudgetError, SourceError, UsageError
from kvstream.reporters.citation_lines import MAP, news_head, place_of, wrapped
from kvstream.reporters.format import about, fit, in_line, json_line, number, strip, visible
from kvstream.store.reader import QUERIES

FORMS = 8
"""Spellings that are shown; the JSON has all."""
ESTIMATED = "Words alone do not count this, so the model estimates."
COUNTED_ELSEWHERE = "The model estimates this count; kvstream count FILE WORDS is exact."
NOT_OF_COUNTS = "The plan is for a model. If the text allows it, kvstream counts this without one."
LITERAL = "{!r} is counted literally. --inflections counts forms of a word; for patterns use grep."
IN_ALL = (
    "Counted in all of the text: a pipe is read once. If {0} is a part of it, write the text to a "
    'file and use --only "{0}".'
)
NO_RUN = (
    "Warning: No model read the text, so --report and --stats write nothing; --json has the whole "
    "answer."
)
WITHOUT = "Counted without a model:"
NO_FILES = "Warning: The counted answers are not in {}; only those of a model are there."
STOPPED = "showing what was counted so far"
NO_FIGURE = (
    "No row, column or operation that kvstream computes fits this question about the table, and a "
    "model would guess the figure."
)
LARGER = f" A larger model reads other words, too (kvstream models get {next(iter(QUERIES))})."
COLUMNS = 20
"""Columns that a message names."""
JOINED = " (?:and|or|on|at|with|because|for|during) "
"""What joins words that are hardly a phrase, if none of the text has them."""
PATTERN = frozenset("*?[](){}|\\^$+")
T = TypeVar("T")
Readings = list[tuple[Sequence[str], Options]]
"""Readings of a model: paths with options."""


def answer_exactly(paths: Sequence[str], options: Options) -> tuple[int, Readings, bool]:
    """Answer what needs no model; return the exit code, what is left for a model to read, and
    whether anything was answered.
    """
    asked = options.request.questions
    aims = {question: route(question) for question in asked}
    if not any(each.kind == "count" or asks_of_rows(q, paths) for q, each in aims.items()):
        return 0, [(paths, _for_model(paths, options, aims))], False
    paths = sources_or_usage(paths)
    rest: dict[tuple[str, ...], list[str]] = {}
    notes: dict[str, None] = {}
    failures: dict[str, str] = {}
    with ExitStack() as stack:
        check_files(options, paths)
        interrupts = stack.enter_context(Interrupts(say))
        interrupts.then = STOPPED
        output: Any = None
        writer = query_model(replace(options, each=False))
        for name, (records, more) in for_each(
            paths,
            options,
            failures,
            lambda some: _answers(some, options, aims, interrupts, writer),
            interrupts,
        ):
            if records and output is None:
                refuse_closed(options.output)
                # If a model answers, too, the file or folder of -o is for its answers.
                modeled = name or len(records) < len(aims)
                output = opened_output(stack, replace(options, output=None) if modeled else options)
            answers = [
                {"command": "ask", "question": question, "model": None, **records[question]}
                for question in asked
                if question in records
            ]
            if answers and name and options.json:  # as for documents that a model reads
                line = {"document": name, "file": None, "present": False, "answers": answers}
                output.write(json_line(line, output))
                answers = []
            for place, record in enumerate(answers):
                labels = [f"==> {in_line(name)} <=="] * (name != "" and not place)
                labels += [f"Question: {record['question']}"] * (len(asked) > 1)
                show(record, output, as_json=options.json, labels=labels)
            notes |= dict.fromkeys(more)
            rest.setdefault(tuple(q for q in aims if q not in records), []).append(name)
        answered = output is not None
        apart = answered and (options.each or any(rest))
        if apart and options.output not in (None, Path("-")):
            notes[NO_FILES.format(options.output)] = None
        if options.json and failures:
            output = output or opened_output(stack, replace(options, output=None))
            for name, reason in failures.items():
                output.write(json_line({"document": name, "error": reason}, output))
    if interrupts.pressed and options.each:
        return INTERRUPTED, [], answered
    if rest.keys() == {()} and (options.report or options.stats):
        notes[NO_RUN] = None
    for note in notes:
        if not options.quiet or note.startswith("Warning: "):
            say(note)
    readings: Readings = []
    for questions, names in rest.items():
        if questions:
            some = {question: aims[question] for question in questions}
            own = replace(options, one_of_several=len(asked) > 1)
            readings.append((names if options.each else paths, _for_model(paths, own, some)))
    return SOME_FAILED if failures else 0, readings, answered


def for_each(
    paths: Sequence[str],
    options: Options,
    failures: dict[str, str],
    read: Callable[[Sequence[str]], T],
    interrupts: Interrupts,
) -> Iterator[tuple[str, T]]:
    """Yield what `read` returns for all sources, with --each for every source, with its name.

    With --each, `failures` gets a source that cannot be read, and why; the others are read, up to
    an interrupt.
    """
    names = [""]
    if options.each:
        from kvstream.api.collection import files_of

        names = [p for p in paths if p == "-" or (os.path.exists(p) and not can_be_read_again(p))]
        if files := [path for path in paths if path not in names]:
            files, messages = files_of(files, plain=options.request.plain)
            names = [*files, *names]
            for message in messages:
                say(f"Warning: {message}")
    for place, name in enumerate(names):
        if interrupts.pressed:
            say(f"Interrupted: {len(names) - place:,} of {len(names):,} documents not read.")
            return
        try:
            value = read([name] if name else paths)
        except SourceError as error:
            failures[name] = str(error)
            if len(failures) == len(names):
                raise
            say(f"Failed: {about(name, str(error))}")
            continue
        yield name, value


def _answers(
    paths: Sequence[str], options: Options, aims: Mapping[str, Aim], interrupts: Interrupts,
    writer: QueryModel | None,
) -> tuple[dict[str, dict[str, Any]], list[str]]:  # fmt: skip
    """Return the answers about one text, and notes. A pipe is read once: for one question, or for
    the questions that rows answer, if these are all. `writer`: see `query_model`.
    """
    options = options.asking(shards=None, checkpoint=None)  # of a reading by a model
    piped = not all(map(can_be_read_again, paths))
    rows = ("", "row", "record")
    of_rows = [q for q, a in aims.items() if a.kind != "count" or a.unit in rows]
    answers, columns, notes = _of_rows(paths, options, of_rows, interrupts, writer)
    counts = {q: a for q, a in aims.items() if a.kind == "count" and q not in answers}
    if piped and len(counts) == len(aims) > 1:
        raise UsageError(
            "Standard input is read only once, and each of these questions needs a pass; ask one, "
            "or write the text to a file first."
        )
    for question, each in counts.items() if not piped or len(counts) == len(aims) else ():
        title = re.search(r" in ([A-Z][\w-]+)\W*$", question)  # of a part, or of all of the text
        named = title[1] if title and title[1] not in each.words and not each.scope else each.scope
        here = _of_part(paths, options, {question: replace(each, scope=named)})
        if (each.scope or each.since or each.until) and here is options:
            continue  # the text has no such part
        if each.unit in ("row", "record") and {*each.words.split()} & {*columns}:
            continue  # a condition, such as a negative price
        record = count(paths, here, each, interrupts)
        phrase = f'"{each.words}"' in question or not re.search(JOINED, each.words)
        if record is not None and (record["count"] or phrase or not each.unit):  # else two words
            if piped and named != each.scope:
                record["warnings"].append(IN_ALL.format(named))
            answers[question] = record
            notes.append(_how(record))
    for question in aims:
        if question not in answers and asks_of_rows(question) and columns:
            names = f"{', '.join(columns[:COLUMNS])}{', ...' * (len(columns) > COLUMNS)}"
            if exact.asks_figure(question):  # which a model would invent
                text = f"{NO_FIGURE} Columns: {names}.{LARGER * (writer is None)}"
                answers[question] = {"answer": text, "value": None, "citations": [], "warnings": []}
                continue
            notes.append(
                f'Warning: nothing in the table fits "{question}", so the model guesses. Columns: '
                f"{names}."
            )
    return {q: answers[q] for q in aims if q in answers}, notes


def count(
    paths: Sequence[str], options: Options, aim: Aim, interrupts: Interrupts, **how: Any
) -> dict[str, Any] | None:
    """Return the JSON object of a count, or None if the text has no such units. `how`: see
    `count_of`.
    """
    sources = open_sources(paths, options, interrupts)
    if not options.json:
        sources.without_digests()
    with reading(interrupts):
        record = count_of(sources, aim, stop=interrupts, **how)
    if record is None:
        return None
    for note in () if options.quiet else sources.notes:
        say(note)
    if not options.quiet and not record["count"] and PATTERN.intersection(aim.words):
        say(LITERAL.format(aim.words))
    return _with_receipt(record, sources, options)


def _with_receipt(record: dict[str, Any], sources: Any, options: Options) -> dict[str, Any]:
    return {**record, "receipt": receipt(sources)} if options.json else record


def follow_count(paths: Sequence[str], options: Options) -> int | None:
    """Count words in a text that grows, and print the count when it changes, until an answer
    matches --until-answer; return the exit code, or None if the questions ask for more.
    """
    request = options.request
    aim = route(request.questions[0])
    more = aim.place or aim.scope or aim.since or aim.until or len(request.questions) > 1
    if more or aim.kind != "count" or not aim.words or aim.unit not in ("", "line"):
        return None
    check_files(options, paths)
    last: dict[str, Any] = {"count": None}
    met = False
    with ExitStack() as stack:
        refuse_closed(options.output)
        output: Any = opened_output(stack, options)
        interrupts = stack.enter_context(Interrupts(say))
        interrupts.gentle, interrupts.then = True, ""

        def so_far(record: dict[str, Any]) -> None:
            nonlocal last, met
            if request.every is not None:
                request.every.due(record["bytes"])  # begins the next interval
            if met or record["count"] == last["count"]:
                return
            passage = record["citations"][-1] if record["citations"] else None
            news = {"time": strftime("%Y-%m-%d %H:%M:%S"), "passage": passage}
            head = {"command": "ask", "question": request.questions[0], "model": None}
            last = _with_receipt({**head, **record, "news": news}, sources, options)
            show(last, output, as_json=options.json, labels=[news_head(news)])
            output.flush()
            # '0 lines contain "HALTED".' is no answer that has HALTED.
            text = last["answer"] if last["count"] else re.sub('"[^"]*"', "", last["answer"])
            met = re.search(options.until_answer or "(?!)", text) is not None

        by_time = request.every is not None and request.every.seconds is not None
        sources = open_sources(
            paths, options, lambda: met or interrupts(), tell=say,
            due=request.due if by_time else lambda: True,
        )  # fmt: skip
        with reading(interrupts):
            record = count_of(sources, aim, so_far=so_far)
        if record is not None:
            so_far(record)
        for warning in () if met else sources.unread_warnings:
            say(f"Warning: {warning}")
        for note in () if options.quiet else [*sources.notes, _how(last)]:
            say(note)
    if options.report or options.stats:
        say(NO_RUN)
    if options.until_answer is None or met:
        return 0
    say(UNMATCHED)
    return UNMET


def _of_rows(
    paths: Sequence[str], options: Options, questions: Sequence[str], interrupts: Interrupts,
    writer: QueryModel | None,
) -> tuple[dict[str, dict[str, Any]], Sequence[str], list[str]]:  # fmt: skip
    """Return the answers to questions that the rows of a table answer, its columns, and notes.

    A text that is no table, and a table whose rows cannot be told apart, are left to the model.
    """
    of_rows = [question for question in questions if asks_of_rows(question, paths)]
    piped = list(paths) == ["-"]
    if not of_rows or not (piped or all(map(can_be_read_again, paths))):
        return {}, (), []
    run, head = options.request.run, None
    interrupts.reading = False  # a figure of a part of the rows would be wrong
    try:
        if piped:  # a pipe is read once, so its beginning must decide
            from kvstream.cli.shared.log_summaries import head_of_pipe  # a count needs no log pages

            text = head_of_pipe(None, plain=options.request.plain)
            head = exact.row_questions(text, questions, writer, run)
            if len(head.queries) < len(questions) or not head.header:
                return {}, () if head.queries else head.header or (), []
        sources = open_sources(paths, options, interrupts)
        table = exact.row_questions(sources, of_rows, writer, run, head)
    except SourceError:
        return {}, (), []  # no table; or the reading by a model reports it
    except BudgetError as error:
        say(f"Warning: no query was computed. {error}")
        return _of_rows(paths, options, questions, interrupts, None)
    try:
        answers = table.answers()
    except SourceError as error:
        if piped:
            raise
        return {}, (), [f"Figures of the table cannot be computed: {error}"]
    notes = [*sources.notes] if answers else []
    for question, record in answers.items():
        model = writer.name if writer and question in table.by_model else None
        by = f"Written by {model}" if model else "Without a model"
        notes.append(f"{by}, computed from the rows: {record['query']}")
        record = {**record, "warnings": [*sources.warnings, *record["warnings"]], "model": model}
        answers[question] = _with_receipt(record, sources, options)
    return answers, table.header or (), notes


def _for_model(paths: Sequence[str], options: Options, aims: Mapping[str, Aim]) -> Options:
    """Return the options of a reading that answers these questions."""
    counts = any(each.kind == "count" and each.place in ("", "senders") for each in aims.values())
    if counts or any(each.estimates for each in aims.values()):
        say(ESTIMATED)
    # The hints of one counted question were told before it was left to a model.
    silent = not options.each and [each.kind for each in aims.values()] == ["count"]
    own = options.asking(questions=tuple(q for q in options.request.questions if q in aims))
    tell = (lambda hint: None) if silent else say
    return _of_part(paths, own, aims, tell, whole=options.each)


def note_estimates(questions: Iterable[str], *, plan: bool = False) -> None:
    """Say that a model answers what is counted only for `ask` with a text, or that the `plan` of a
    model is not for what is counted.
    """
    aims = [*map(route, questions)]
    if any(each.kind == "count" for each in aims):
        say(NOT_OF_COUNTS if plan else COUNTED_ELSEWHERE)
    elif any(each.estimates for each in aims):
        say(ESTIMATED)


def _of_part(
    paths: Sequence[str],
    options: Options,
    aims: Mapping[str, Aim],
    tell: Callable[[str], None] = say,
    *,
    whole: bool = False,
) -> Options:
    """Return options that read only the part that one question names, if the text has it.

    A time without a day is certain only if all of the text is of one day; else a hint names the
    options. `tell` gets what a user should know. If `whole`, a model reads all of each document.
    """
    again = bool(paths) and all(map(can_be_read_again, paths))
    request = options.request
    if request.only or request.since or request.until or not again:
        return options
    every = ["several questions"] * (len(aims) > 1) + ["--each"] * whole
    every += [f"--{name}" for name in ("shards", "checkpoint") if getattr(request, name)]
    if every:
        if part := next((a.scope for a in aims.values() if a.scope and a.kind != "other"), ""):
            tell(f'All of the text is read for {every[0]}; --only "{part}" reads a part.')
        return options
    [each] = aims.values()
    times = {name: getattr(each, name) for name in ("since", "until") if getattr(each, name)}
    read = partial(open_sources, paths, stop=lambda: False)
    timed = bool(times) and exact.has_times(read(options))
    dated = all("-" in time or time[:1].isalpha() for time in times.values())
    sure = (
        each.kind != "other" and timed and (dated or exact.has_times(read(options), one_day=True))
    )
    if times and not sure:
        if not options.quiet and timed:
            flags = " ".join(f'--{name} "{time}"' for name, time in times.items())
            tell(f"The question names a time, but other times are read, too; {flags} reads a part.")
        if each.kind != "scope":
            return options
        times = {}
    if not (each.scope or times):
        return options
    narrow = options.asking(**times, **({"only": each.scope} if each.scope else {}))
    try:
        sources = read(narrow)
        next(iter(sources))
    except (SourceError, UsageError) as error:
        if each.kind == "count" and exact.PART.search(each.scope):
            raise  # a model would guess the count
        part = each.scope or " ".join(f"{name} {time}" for name, time in times.items())
        if each.kind != "other" and (exact.PART.search(each.scope) or timed):
            tell(f"The question names {part}, but all of the text is read. {error}")
        return options
    if each.kind == "other":
        tell(f'The question names {each.scope}, but all of the text is read; --only "{each.scope}" '
            "reads it alone.")  # fmt: skip
        return options
    if not options.quiet:
        span = "".join(f", {name} {time}" for name, time in times.items() if each.scope)
        tell(f"Reads only {sources.scope.name}{span}, which the question names.")
    return narrow


def show(
    record: Mapping[str, Any], output: Any, *, as_json: bool, labels: Sequence[str] = ()
) -> None:
    """Write an answer below its labels; only a terminal gets more than the answer."""
    if as_json:
        output.write(json_line(record, output))
        output.flush()
        return
    terminal = output.isatty()
    lines = [*labels, *record["answer"].split("\n")]
    if record["command"] == "count" and not terminal:  # for scripts, as grep -c
        lines = [":".join([*labels, str(record["count"])])]
    if terminal:
        lines += _details(record, shutil.get_terminal_size().columns)
        lines = [visible(line) for line in lines]
    output.write("".join(f"{line}\n" for line in lines))
    output.flush()
    for warning in record["warnings"]:
        say(f"Warning: {warning}")


def _how(record: Mapping[str, Any]) -> str:
    """Return how something was counted, with the forms of its words if there are several."""
    several = f" ({_forms(record, ', ')})" if len(record.get("forms", {})) > 1 else ""
    return f"{WITHOUT} {record['counted']}{several}."


def _forms(record: Mapping[str, Any], between: str) -> str:
    """Return how often each of the most frequent forms of the words was counted."""
    forms = [f"{form} {number(times)}" for form, times in record["forms"].items()]
    more = [f"{len(forms) - FORMS:,} more"] if len(forms) > FORMS else []
    return between.join([*forms[:FORMS], *more])


def _details(record: Mapping[str, Any], width: int) -> Iterator[str]:
    """Yield what was counted, the places, and the spread; or the rows of a figure."""
    if record.get("forms"):
        yield ""
        yield from wrapped(f"counted: {_forms(record, ' · ')}", width)
    names = ("first:  ", "last:   ") if "count" in record else ("",) * len(record["citations"])
    answer = record["answer"]
    for name, citation in zip(names, record["citations"], strict=False):
        if citation["text"] not in answer:
            yield f"{name} {citation['source']}{place_of(citation)}".lstrip()
            text = _from_word(citation["text"], record.get("forms", {}), width - 4)
            yield from (f"    {line}" for line in wrapped(text, width - 4, 2))
    if record.get("count", 0) > 1 and "spread" in record:
        parts = _columns(record["spread"], min(MAP, width - 9))
        yield f"{'spread:':8} {strip(parts, '·')}"


def _from_word(text: str, forms: Iterable[str], width: int) -> str:
    """Return a text from shortly before the first of these forms, if that is beyond one line."""
    places = [place for form in forms if (place := text.find(form)) >= 0]
    if not places or min(places) < width:
        return text
    first = text.rfind(" ", 0, max(1, min(places) - width // 2)) + 1
    return f"... {text[first:]}"


def _columns(counts: Sequence[int], width: int) -> list[float]:
    """Return the counts of parts of equal size in at most `width` columns: sums of whole parts."""
    if len(counts) <= width:
        return fit([float(count) for count in counts], width)
    sums = [0.0] * width
    for place, count in enumerate(counts):
        sums[place * width // len(counts)] += count
    return sums
