"""Memory files at the command line: opening, asking, and comparing with the options."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvstream.api import options as api
from kvstream.api.memory import Memory, MemoryFile, inspect
from kvstream.cli.options.option import first_typed, typed
from kvstream.cli.options.table import Options
from kvstream.cli.options.types import NONE
from kvstream.cli.shared import running
from kvstream.cli.shared.model_choice import POCKET, open_model, settled
from kvstream.cli.shared.running import check_files, plainly, prepared
from kvstream.errors import KvstreamError, UsageError
from kvstream.events import Answered, AnswerStarted, Notice
from kvstream.reporters.format import in_line
from kvstream.reporters.plain import Teller
from kvstream.settings import ModelSettings
from kvstream.store import reader


def ask(path: Path, options: Options) -> int:
    """Answer from a memory file and return the exit code."""
    if options.dry_run:
        raise UsageError("--dry-run has no effect with --memory, which reads no text.")
    questions = options.request.questions
    refuse_reading()
    running.check_early(options)
    if os.path.isdir(path):
        return ask_folder(path, options)
    code = 0
    check_files(options, memory=path)
    with ExitStack() as stack:
        output, reporter, _ = prepared(stack, plainly(options), answers=True)
        memory = open_memory(path, options, reporter)
        writer = running.answer_writer(stack, output, options)
        for number, question in enumerate(questions, 1):
            for event in memory.stream(question, last=number == len(questions), **options.answers):
                code = running.show(event, writer, reporter) or code
    return code


def ask_folder(folder: Path, options: Options) -> int:
    """Answer from the memory files of a folder that match a question; return the exit code."""
    from kvstream.api.memories import memory_files, models_of

    questions = options.request.questions
    if options.request.extract:
        raise UsageError("--extract is for one memory file; name one of the folder.")
    files = memory_files(folder)
    for file in files:
        check_files(options, memory=file)
    _refuse_fixed(files)
    if (found_models := models_of(files)) is not None:
        options = _of_models(*found_models, folder, options)
    code = 0
    with ExitStack() as stack:
        output, reporter, _ = prepared(stack, plainly(options), answers=True)
        memories = open_model(options, reporter, fixed=True).memories(folder)
        writer = running.answer_writer(stack, output, options)
        for number, question in enumerate(questions):
            answers = memories.answers(question, **options.answers)
            for problem in memories.problems:
                reporter.show(Notice(problem))
            best = answers[0][1]
            for event in (AnswerStarted(question, number), Answered(best.result)):
                code = running.show(event, writer, reporter) or code
            if not options.quiet:
                count = len(files) - len(memories.problems)
                message = f"Ranked {count:,} memories; asked the first {len(answers)}:"
                reporter.tell("Asked 1 memory:" if count == 1 else message)
                for each, answer in sorted(answers, key=lambda row: -row[0].score):
                    mark = ">" if answer is best else " "
                    reporter.tell(f"{mark} {in_line(each.path.name)}: {answer.text}")
    return code


def refuse_reading() -> None:
    """Refuse options of sources, because a memory file is asked without any. Raises UsageError."""
    if option := first_typed(("text", "max_unpacked", "only", "since", "until")):
        raise UsageError(
            f"{option} is for reading sources, but a memory file answers without them; leave "
            f"{option} out."
        )


def open_memory(path: Path, options: Options, reporter: Teller) -> Memory:
    """Load the model and the memory of a file. Raises SourceError, ModelError, UsageError."""
    file = inspect(path)
    _refuse_changes(file, options)
    options = _of_models(str(file.model["name"]), file.answering, file.path, options)
    if options.skim in (NONE, api.SELF):  # another scout is loaded in its original form
        options = loaded_as(options, file)
    memory = open_model(options, reporter, fixed=True).recall(file)
    if not options.quiet:
        reporter.tell(str(file))
    tell_of_loading(reporter, memory, file)
    return memory


def loaded_as(options: Options, file: MemoryFile) -> Options:
    """Return options that load the model of a file so that nothing of its memory is rounded."""
    return replace(options, loading=ModelSettings(**file.loading(vars(options.loading))))


def tell_of_loading(reporter: Teller, memory: Memory, *files: MemoryFile) -> None:
    """Show the warnings that loading added to those of the files."""
    earlier = {warning for file in files for warning in file.warnings}
    for warning in memory.warnings:
        if warning not in earlier:
            reporter.show(Notice(warning))


def _of_models(maker: str, answering: str | None, path: Path, options: Options) -> Options:
    """Return the options with the models of a memory. Raises UsageError for another `--skim`."""
    skim, scout = options.skim, api.SELF if answering == maker else maker
    if skim == api.AUTO:  # the model that made the memory can also answer alone
        alone = answering is None or (options.model_given and options.model == scout)
        skim = NONE if alone else scout
    elif skim != NONE and (answering is None or skim != scout):
        by = f"{maker} for {answering}" if answering else f"{maker} alone"
        raise UsageError(f"{path} was read by {by}; leave --skim {skim} out.")
    options = replace(options, skim=skim)
    if not options.model_given and skim != NONE and answering is not None:
        options = options.with_model(answering)
    return settled(of_maker(maker, options), alone=True)


def of_maker(maker: str, options: Options) -> Options:
    """Return the options with the model that made a memory, if it is here and no other was named.

    With --trust-remote-code, only use kvstream's own models: a file must not choose code to run.
    """
    from kvstream.api.models import is_here

    trusting = options.loading.trust_remote_code
    own = maker == POCKET or maker in reader.NAMES  # loading a reader explains how to fetch it
    if options.model_given or not (own or (not trusting and is_here(maker))):
        return options
    return options.with_model(maker)


def _refuse_changes(file: MemoryFile, options: Options) -> None:
    learned = file.options.get("method") == api.QUESTIONS_LEARNED  # then auto chose it
    request = replace(options.request, questions=file.questions, command="remember")
    values = api.options_of(api.with_method(request, learned=learned))

    for name, then in file.options.items():
        now = values[name]
        by_preset = typed("preset") and name in ("set", "schedule", "chunk", "start")
        if (typed(name) or by_preset) and then != now:
            option = "--preset" if by_preset else f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{file.path} was made with {option} {_text(then)}, and {_text(now)} was given; "
                f"leave {option} out, or read the sources again."
            )


def _refuse_fixed(files: Sequence[Path]) -> None:
    fixed: set[str] = set()
    for path in files:
        with suppress(KvstreamError):  # a broken file is reported when it is ranked
            fixed = {"preset", *inspect(path).options}
            break  # all files have the same option names
    if option := first_typed(sorted(fixed)):
        raise UsageError(
            f"{option} is fixed in a memory file when it is made; leave {option} out, or read the "
            "sources again."
        )


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items()) or "(nothing)"
    return "(nothing)" if value is None else str(value)
