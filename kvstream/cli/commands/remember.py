"""``kvstream remember``: read once, keep the memory in a file."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvstream.cli.shared import early
from kvstream.cli.shared.arguments import sources_or_usage
from kvstream.cli.shared.options import (
    FileType,
    ReadingOptions,
    SectionedCommand,
    complete_files,
    option,
    reading_options,
)
from kvstream.cli.shared.output import refuse_clashes
from kvstream.cli.shared.recalling import open_memory
from kvstream.cli.shared.running import (
    announce,
    check_checkpoint,
    drained,
    open_session,
    open_sources,
    prepared,
    reading_line,
    show_plan,
)
from kvstream.errors import SourceError
from kvstream.reporters.format import size

if TYPE_CHECKING:
    from kvstream.input.sources import SourceSet
    from kvstream.memory.base import Memory


ANSWERS = "nothing is answered here. Give it to kvstream ask --memory FILE."
WITHOUT = dict.fromkeys(
    ("extract", "passages", "strict", "reread", "temp", "top_p", "top_k", "repetition_penalty"),
    ANSWERS,
)


@click.command("remember", cls=SectionedCommand, without=WITHOUT)
@click.argument("sources", nargs=-1, metavar="[SOURCE]...", type=str, shell_complete=complete_files)
@option(
    "-Q", "--question", multiple=True, metavar="TEXT", section="Questions", envvar=(),
    help="A question that will be asked: memory is chosen for it. May be given many times.",
)  # fmt: skip
@option(
    "--memory", type=FileType(), metavar="FILE", envvar=(),
    section="Questions", help="Read on into the memory of this file.",
)  # fmt: skip
@reading_options
@click.pass_context
def command(
    ctx: click.Context,
    sources: tuple[str, ...],
    question: tuple[str, ...],
    memory: Path | None,
    options: ReadingOptions,
) -> None:
    """Stream texts through the model under the budget, and save what remains.

    The file is as small as the budget, however long the text was. kvstream ask --memory FILE and
    kvstream chat --memory FILE answer from it; the sources may be gone by then. Without -Q nobody
    knows yet what will be asked, and memory is chosen by a catalyst that asks nothing;
    --method keydiff --set keydiff.pool=15 then often remembers more.

    \b
      kvstream remember book.txt -o book.kvs --budget 4k
      kvstream ask --memory book.kvs "Who hid the letter?"
      kvstream remember --memory book.kvs sequel.txt -o both.kvs
    """
    if len(options.runs) > 1:
        raise click.UsageError("A memory is made by one method; --method names several.", ctx)
    target = options.output or memory
    if target is None or str(target) == "-":
        raise click.UsageError("Where to? Name the memory file with -o FILE.kvs.", ctx)
    if memory is not None and question:
        raise click.UsageError(
            "What a memory was made for cannot change: -Q goes with the first reading.", ctx
        )
    if memory is not None and options.dry_run:
        raise click.UsageError(
            "--dry-run tells what a first reading would take; that of a memory is settled.", ctx
        )
    if any(not text.strip() for text in question):
        raise click.UsageError("A question is empty.", ctx)
    paths = sources_or_usage(ctx, sources)
    remember(ctx, paths, question, memory, target, options)


def remember(
    ctx: click.Context,
    paths: tuple[str, ...],
    questions: tuple[str, ...],
    base: Path | None,
    target: Path,
    options: ReadingOptions,
) -> None:
    """Read `paths`, into the memory of `base` if there is one, and write `target`."""
    from kvstream.memory.file import check_writable
    from kvstream.memory.saving import save

    others = {"--checkpoint": options.checkpoint, "--stats": options.stats}
    refuse_clashes({"-o": target, **others}, {}, paths)
    refuse_clashes(others, {"--memory": base})
    check_writable(target)
    early.check(options)
    with ExitStack() as stack:
        # -o is the memory's; what is printed goes to stdout.
        output, reporter, interrupts = prepared(stack, replace(options, output=None))
        interrupts.then = "keeping what was read so far"
        sources = open_sources(paths, options, interrupts)
        request = replace(options.request("remember", questions), interrupted=interrupts)
        if base is None:
            check_checkpoint(options, reporter)
            announce(reporter, options)
            session = open_session(options)
            if options.dry_run:
                plan = session.plan(sources, request)
                reporter.close()
                show_plan(plan, options.run, output, as_json=options.as_json)
                return
            after = None
        else:
            if _finished(base, target, options, sources):
                reporter.close()
                if not options.quiet:
                    reporter.tell(
                        f"{target} is complete: an earlier run wrote it and was ended before it "
                        f"removed {options.checkpoint}, which is removed now. Nothing was read."
                    )
                return
            session, after, _ = open_memory(ctx, base, options, reporter)
            check_checkpoint(options, reporter)
        memory = drained(session.read(sources, request, after), interrupts, reporter)
        digest = save(memory, target)
        if options.checkpoint is not None and not interrupts():
            options.checkpoint.unlink(missing_ok=True)
        reporter.close()
        written = target.stat().st_size
        if options.as_json:
            output.write(json.dumps(summary(memory, target, digest, written)) + "\n")
            output.flush()
        if not options.quiet:
            asked = ", ".join(f'"{q}"' for q in memory.plan.questions) or "any question"
            reporter.tell(f"Wrote {target} ({size(written)}), for {asked}.")
            reporter.tell(reading_line(memory))


def _finished(base: Path, target: Path, options: ReadingOptions, sources: SourceSet) -> bool:
    """Whether a run was ended after it wrote `target`, before it removed its checkpoint.

    Removes it then. Raises SourceError where the sources are others by now.
    """
    path = options.checkpoint
    if path is None or not (path.exists() and target.exists() and base.exists()):
        return False
    from kvstream.memory.saving import look

    left, there = look(path), look(target)
    position = left.position
    if position is None or not position.complete or position.base is None:
        return False
    if left.content.digest != there.content.digest:
        return False
    for _ in sources:
        pass
    read = [(r.bytes, r.sha256) for r in sources.records]
    kept = [(r["bytes"], r["sha256"]) for r in left.content.state["trace"]["sources"]]
    if kept[-len(read) :] != read:
        raise SourceError(
            f"{path} is left from a run that was finished, and the sources are others now. Remove "
            "the file to read them."
        )
    path.unlink()
    return True


def summary(memory: Memory, target: Path, digest: str, written: int) -> dict[str, Any]:
    """What ``--json`` prints of a memory that was written."""
    reader, trace, plan = memory.reader, memory.trace, memory.plan
    peak, retained = reader.cache.peak, memory.retained
    return {
        "command": "remember",
        "model": memory.model,
        "method": memory.run.method,
        "memory": {
            "file": str(target),
            "bytes": written,
            "sha256": digest,
            "kind": "questions" if plan.questions else "question-free",
            "questions": list(plan.questions),
            "sources": [vars(record) for record in trace.records],
        },
        "budget": {"tokens": reader.sizes.budget, "bytes": reader.cache.capacity_bytes},
        "peak": {
            "kv_tokens": peak.tokens, "kv_bytes": peak.bytes, "scratch_bytes": peak.scratch,
        },
        "tokens": {"read": trace.read, "retained": retained, "evicted": trace.read - retained},
        "schedule": {
            "memory": memory.run.growth, "chunk": memory.run.chunk, "steps": reader.steps,
        },
        "timing": {
            "load_s": memory.load_s,
            "prefill_s": memory.prefill_s,
            "select_s": reader.select_seconds,
            "tokens_per_s": memory.tokens_per_s,
        },
        "warnings": memory.warnings,
    }  # fmt: skip
