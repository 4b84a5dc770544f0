"""One way through: sources in, events out. A session is a loaded model that can be asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kvstream.errors import ModelError
from kvstream.events import Event, Started
from kvstream.memory.base import Memory
from kvstream.memory.checkpoint import Checkpoint
from kvstream.memory.saving import Kind, recall
from kvstream.model.bounded import BoundedModel
from kvstream.model.loading import POCKET, folder, load
from kvstream.rereading.look import Reread, second_look
from kvstream.run.plan import RunPlan
from kvstream.run.prompt import Layout
from kvstream.session.intervals import Intervals
from kvstream.session.reading import Reading, started
from kvstream.settings import ModelSettings, RunSettings
from kvstream.tokenization.loading import Tokenizer, TokenStream, load_tokenizer

if TYPE_CHECKING:
    from kvstream.input.sources import SourceSet


class Session:
    """A model, its tokenizer, and what they cost to load."""

    def __init__(self, model: BoundedModel, tokenizer: Tokenizer, load_s: float = 0.0) -> None:
        self.model, self.tokenizer, self.load_s = model, tokenizer, load_s

    @classmethod
    def open(cls, settings: ModelSettings) -> Session:
        """Load tokenizer and model and probe them. Raises ModelError, UnsupportedModelError."""
        started = time.perf_counter()
        tokenizer = load_tokenizer(
            settings.name if settings.name == POCKET else folder(settings),
            revision=settings.revision,
            offline=settings.offline,
            trust_remote_code=settings.trust_remote_code,
        )
        model = load(settings)
        rows = model.model.get_input_embeddings().weight.shape[0]
        # Special tokens beyond it are common and do no harm: no text gives their ids.
        most = tokenizer.highest + 1
        if most > rows and settings.quantize is None:
            raise ModelError(
                f"The tokenizer of {settings.name} has ids up to {most - 1:,}, and its embedding "
                f"has {rows:,} rows; they are of two models: download both again."
            )
        return cls(model, tokenizer, time.perf_counter() - started)

    @property
    def model_name(self) -> str:
        return self.model.name

    @property
    def default_extract(self) -> bool:
        """Whether summaries are extracted rather than written: pocket cannot write one."""
        return self.model.name == POCKET

    def settle(
        self,
        questions: Sequence[str],
        run: RunSettings,
        *,
        command: str = "ask",
        system: str | None = None,
        **more: Any,
    ) -> RunPlan:
        """Settle a run before its first token; `more` as in `RunPlan.of`. Raises BudgetError."""
        return RunPlan.of(
            self.model, self.tokenizer, questions, run, command=command, system=system, **more
        )

    def plan(
        self,
        sources: SourceSet,
        questions: Sequence[str],
        run: RunSettings,
        *,
        command: str = "ask",
        system: str | None = None,
        **more: bool,
    ) -> Started:
        """Sizes, steps and memory of a run, without running it; `more` as in `RunPlan.of`.

        The length is estimated as at the start of the run, from the first block of the text.
        """
        setting = self.settle(questions, run, command=command, system=system, **more)
        estimate = TokenStream(self.tokenizer, sources).estimate()
        return started(setting.reader(self.model, run, estimate), run)

    def ask(
        self,
        sources: SourceSet,
        questions: Sequence[str],
        run: RunSettings,
        *,
        command: str = "ask",
        system: str | None = None,
        extract: int = 0,
        strict: bool = False,
        reread: Reread | None = None,
        checkpoint: Checkpoint | None = None,
        rolling: Intervals | None = None,
        layout: Layout | None = None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> Iterator[Event]:
        """Read the sources under the budget, then answer every question from what remains.

        With `extract` the answer is that many passages of the sources, those that memory holds on
        to most; with `strict` one that rests on little is withheld; with `reread` it is given from
        a second look. With a `checkpoint` the reading goes on from there and is saved there; with
        `rolling` everything is asked on the way, too; a `layout` replaces the program's own words
        around the text and the questions. Raises SourceError where nothing could be read.
        """
        setting = self.settle(
            questions,
            run,
            command=command,
            system=system,
            extract=bool(extract),
            whole_answers=rolling is not None,
            layout=layout,
        )
        asked = setting.questions or ("",)

        def on_the_way(memory: Memory) -> Iterator[Event]:
            for number, question in enumerate(asked):
                yield from memory.answer(question, number, extract=extract, strict=strict)

        memory = yield from self.read(
            sources,
            setting,
            run,
            command=command,
            extract=bool(extract),
            checkpoint=checkpoint,
            rolling=rolling,
            on_the_way=on_the_way,
            interrupted=interrupted,
        )
        if reread is not None:
            yield from second_look(self, memory, asked, reread, system=system, strict=strict)
            return
        for number, question in enumerate(asked):
            last = number + 1 == len(asked)
            yield from memory.answer(question, number, last=last, extract=extract, strict=strict)

    def read(
        self,
        sources: SourceSet,
        setting: RunPlan,
        run: RunSettings,
        **more: Any,
    ) -> Generator[Event, None, Memory]:
        """Read the sources under the budget; what remains is returned. Raises SourceError.

        `more` are further fields of a `Reading`.
        """
        reading = Reading(
            self.model, self.tokenizer, sources, setting, run, load_s=self.load_s, **more
        )
        return reading.events()

    def recall(self, kind: Kind, answer: RunSettings) -> Memory:
        """The memory of a file. Raises ModelError, UsageError, SourceError."""
        memory = recall(kind, self.model, self.tokenizer, answer)
        memory.load_s = self.load_s
        return memory
