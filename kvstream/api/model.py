"""A loaded model, which reads texts of any length under a budget and answers."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Unpack

from kvstream.api import options as api
from kvstream.api.answer import Answer, Progress, answer_of, value_of
from kvstream.api.checks import all_of, path_of, question_of, settings_of, several_of, text_of
from kvstream.api.memory import Memory, MemoryFile, with_entries
from kvstream.api.models import worker_memory
from kvstream.api.options import AnswerOptions, MemoryOptions, ModelOptions
from kvstream.api.source_objects import SourceLike, Text, is_path, several, sources_for
from kvstream.errors import SourceError, UsageError
from kvstream.events import Event, Started
from kvstream.run.request import Request
from kvstream.settings import ModelSettings, RunSettings
from kvstream.store.offered import EMBEDDED, OFFERS, is_local, refuse_misspelt

if TYPE_CHECKING:
    from kvstream.api.memories import Memories
    from kvstream.input.sources import SourceSet
    from kvstream.memory.contents import Memory as HeldMemory
    from kvstream.session.scouting import Scouting
    from kvstream.session.session import Session as Session


class TextOptions(api.SourceOptions, MemoryOptions, total=False):
    """How sources are read into a memory."""


class AskOptions(api.SourceOptions, api.ReadOptions, total=False):
    """How sources are read and questions are answered."""


def load(name: str | os.PathLike[str] = "pocket", **options: Unpack[ModelOptions]) -> Model:
    """Load a model: ``"pocket"`` (the embedded one), a hub name, a folder, a GGUF file, or a name
    such as ``"ollama:llama3.2:1b"``.

    Loading takes seconds, or longer if weights have to be fetched. Raises ModelError if the model
    cannot be loaded, UnsupportedModelError if its KV cache cannot be bounded, and UsageError.
    """
    name, skim_name = path_of("name", name), options.get("skim")
    refuse_misspelt(name, (EMBEDDED, *OFFERS))
    if skim_name is not None:
        options["skim"] = skim_name = path_of("skim", skim_name)
        refuse_misspelt(skim_name, (EMBEDDED, *OFFERS))
    settings = api.model_settings(name, options)
    if settings.revision is not None and is_local(name):
        raise UsageError(f"revision= is for models of the hub, and {name} is none; leave it out.")
    return Model.open(settings, skim_name)


class Model:
    """A language model whose KV cache never exceeds the budget. `load` creates it.

    Each `source` is a path (``str`` or ``PathLike``), an open file, an iterator of text or bytes,
    or a list of these. Pass text itself as `text`. Options have the names of the command line;
    budgets are entries per head (``1024``, ``"1k"``) or bytes (``"512MB"``).

    All methods that read raise SourceError if a source is missing or unreadable, BudgetError if
    the budget cannot hold the prompt, the question and a chunk, and UsageError for invalid options.
    """

    def __init__(
        self,
        session: Session,
        scouting: Scouting | None = None,
        settings: ModelSettings | None = None,
    ) -> None:
        self.session = session
        """The session of the answering model, for code that measures it."""
        self.scouting = scouting
        """The answering model with the scout that reads long texts for it; None without a scout."""
        self.chooses = False
        """Whether each reading chooses its scout by the time that it takes."""
        self.settings = settings or ModelSettings(model=session.model_name)
        """How the model was loaded."""

    @classmethod
    def open(cls, settings: ModelSettings, skim: str | None = None) -> Model:
        """Load a model from settings, which `load` makes from options. Raises as `load`.

        `skim` is a model, or ``"self"``, ``"words"`` or ``"auto"``.
        """
        if (scout := api.skim_settings(settings, skim)) is not None:
            from kvstream.session.scouting import Scouting

            both = Scouting.open(settings, scout)  # checks first that both fit in memory together
            return cls(both.answerer, both, settings)
        from kvstream.model.ahead import ahead

        with ahead(settings):
            from kvstream.session.scouting import Scouting
            from kvstream.session.session import Session

            session = Session.open(settings)
        alone = Scouting(session, session if skim == api.SELF else None)
        model = cls(session, alone if skim in (api.SELF, api.WORDS) else None, settings)
        model.chooses = skim == api.AUTO
        return model

    @property
    def name(self) -> str:
        """The name given to `load`."""
        return self.session.model_name

    def read(
        self,
        source: SourceLike | None = None,
        *,
        text: str | Iterable[str] | None = None,
        questions: Sequence[str] = (),
        progress: Progress = None,
        **options: Unpack[TextOptions],
    ) -> Memory:
        """Read texts under the budget, and return a memory that can be asked and saved.

        Memory is chosen for `questions`, which are asked later. Without questions, it keeps the
        entries that a prompt without a question attends to.
        """
        return value_of(self.reading(source, text=text, questions=questions, **options), progress)

    def reading(
        self,
        source: SourceLike | None = None,
        *,
        text: str | Iterable[str] | None = None,
        questions: Sequence[str] = (),
        **options: Unpack[TextOptions],
    ) -> Generator[Event, None, Memory]:
        """Yield the events of `read`, with a StepDone after each chunk; return the memory.

        Closing the generator before its end stops the reading.
        """
        values = {"command": "remember", **options}
        request = api.request_of(questions, **values)
        return (yield from self.memory_of(self._sources(source, text, request), request))

    def memory_of(self, sources: SourceSet, request: Request) -> Generator[Event, None, Memory]:
        """Yield the events of a reading by a request; return the memory. Raises as `read`."""
        api.refuse_passages(request.run.method)
        request = self._with_method(request)
        if _in_parts(request):
            return Memory(self.session, (yield from self._memory_of_parts(sources, request)))
        if scouting := self._scouting_for(request, sources):
            from kvstream.session.scouting import Scouted

            if scouting.scout is None:
                api.refuse_later_questions(api.WORDS)
            memory = yield from scouting.read(sources, request)
            if isinstance(memory, Scouted):
                return Memory(scouting.reader, memory.memory, skim=(scouting, memory))
            return Memory(self.session, memory)
        engine = yield from self.session.read(sources, request)
        return Memory(self.session, engine, checkpoint=request.checkpoint)

    def ask(
        self,
        source: SourceLike | None = None,
        question: str = "",
        *,
        text: str | Iterable[str] | None = None,
        progress: Progress = None,
        **options: Unpack[AskOptions],
    ) -> Answer:
        """Read texts under the budget, and answer one question."""
        if not question_of(question).strip():
            raise UsageError("No question: give it as question=, or use summarize().")
        request = api.request_of((question,), **options)
        return self._answer(self._sources(source, text, request), request, progress)

    def summarize(
        self,
        source: SourceLike | None = None,
        *,
        text: str | Iterable[str] | None = None,
        progress: Progress = None,
        **options: Unpack[AskOptions],
    ) -> Answer:
        """Read texts under the budget, and summarize them. `pocket` returns an extract.

        `reader` is trained to answer in a few words. For summaries load its base `smollm2`, as the
        command line does.
        """
        request = api.request_of((), **options)
        return self._answer(self._sources(source, text, request), request, progress)

    def _answer(self, sources: SourceSet, request: Request, progress: Progress) -> Answer:
        return answer_of(self.events(sources, request), progress)

    def stream(
        self,
        source: SourceLike | None = None,
        *,
        text: str | Iterable[str] | None = None,
        question: str | None = None,
        questions: Sequence[str] = (),
        **options: Unpack[AskOptions],
    ) -> Iterator[Event]:
        """Yield the events of a reading and its answers; without a question, of a summary.

        The events are Started, then StepDone for each chunk and Notice for each warning, then for
        each question AnswerStarted, AnswerToken for each piece of text, and Answered with the
        result. With ``method="passages"`` the words of the question alone choose what stays of the
        text: passages, which the model then reads.
        """
        request = api.request_of(all_of(question, questions), **options)
        return self.events(self._sources(source, text, request), request)

    def events(self, sources: SourceSet, request: Request) -> Iterator[Event]:
        """Yield the events of a reading and its answers by a request. Raises as `stream`."""
        request = self._with_method(request)
        if _in_parts(request):
            return self._answers_of_parts(sources, request)
        road = self._scouting_for(request, sources) or self.session
        return road.ask(sources, request)

    def compare(
        self,
        source: SourceLike | None = None,
        question: str = "",
        *,
        methods: Sequence[str],
        text: str | None = None,
        progress: Progress = None,
        **options: Unpack[AskOptions],
    ) -> dict[str, Answer]:
        """Answer one question with several methods under the same budget.

        Each method reads the text, so with several methods a source that can be read only once is
        refused.
        """
        methods = [text_of("methods", name) for name in several_of("methods", "names", methods)]
        if not methods:
            raise UsageError("methods= is empty; name at least one method.")
        api.refuse_twice(methods, "methods=")
        lasting = (is_path(each) or isinstance(each, Text) for each in several(source))
        once = isinstance(text, Iterator) or (text is None and not all(lasting))
        if len(methods) > 1 and once:
            raise UsageError(
                "Each method reads the text again, and an open file or an iterator can be read "
                "only once; give a path, or the text itself as text=."
            )
        options.setdefault("command", "compare")
        return {
            own["method"]: self.ask(
                source, question, text=text, progress=progress, **(options | own)
            )
            for own in api.by_method(settings_of(options.pop("set", None)), methods)
        }

    def plan(
        self,
        source: SourceLike | None = None,
        *,
        text: str | Iterable[str] | None = None,
        question: str | None = None,
        questions: Sequence[str] = (),
        **options: Unpack[AskOptions],
    ) -> Started:
        """Return the sizes, steps and memory of a reading without running it: the dry run.

        The length is estimated from the size of the sources and the first block of their text.
        """
        request = api.request_of(all_of(question, questions), **options)
        return self.plan_of(self._sources(source, text, request), request)

    def plan_of(self, sources: SourceSet, request: Request) -> Started:
        """Return the sizes, steps and memory of a reading by a request. Raises as `plan`."""
        request = self._with_method(request)
        if _in_parts(request):
            self._refuse_two()
        road = self._scouting_for(request, sources) or self.session
        return road.plan(sources, request)

    def recall(
        self, path: str | os.PathLike[str] | MemoryFile, **options: Unpack[AnswerOptions]
    ) -> Memory:
        """Load the memory of a file that this model made; `options` apply to its answers.

        With ``skim=``, that may be a text that fitted, so that the answering model read it alone.
        Raises SourceError if it is no memory file, ModelError if another model made it.
        """
        api.check_options(options, AnswerOptions.__annotations__)
        given = isinstance(path, MemoryFile)
        file = with_entries(path)
        answer = RunSettings(**api.answer_settings(options))
        alone = self._reader.model_name != file.model["name"] == self.name
        engine = (self.session if alone else self._reader).recall(file, answer)
        # If the caller does not hold the file, free its tensors: memory has copies of them.
        file = file if given else file.without_entries
        if alone:
            return Memory(self.session, engine, file)
        return self._memory(engine, answer, file)

    def _memory(
        self, engine: HeldMemory, answer: RunSettings, file: MemoryFile | None = None
    ) -> Memory:
        both = None if engine.beside is None else self.scouting
        skim = None if both is None else (both, both.recall(engine, answer))
        return Memory(self._reader, engine, file, skim=skim)

    def _answers_of_parts(self, sources: SourceSet, request: Request) -> Iterator[Event]:
        memory = yield from self._memory_of_parts(sources, request)
        from kvstream.answer.answering import answers as answers_of

        yield from answers_of(memory, request)

    def _memory_of_parts(
        self, sources: SourceSet, request: Request
    ) -> Generator[Event, None, HeldMemory]:
        """Yield the events of a reading in parts, here or on workers; return the joined memory."""
        from kvstream.session.sharding import read_shards

        self._refuse_two()
        if request.follow:
            raise UsageError("shards= needs a text with a known end; leave out follow=.")
        shards = request.shards or 1
        if request.workers is None:
            return (yield from read_shards(self.session, sources, request, shards))
        from kvstream.collection.sharding import read_shards as read_on_workers
        from kvstream.collection.worker import Workers

        api.require("ray", "ray", "Reading with workers")
        size = request.worker_memory or worker_memory(self.settings, (request,))
        place = Workers(request.workers, None, size)
        return (
            yield from read_on_workers(self.session, self.settings, sources, request, shards, place)
        )

    def _refuse_two(self) -> None:
        if self.scouting is not None:
            raise UsageError("shards= is for one model; load it without skim=.")

    @property
    def _reader(self) -> Session:
        """The session of the model that reads long texts: of two models, the one that skims."""
        return self.session if self.scouting is None else self.scouting.reader

    def _scouting_for(self, request: Request, sources: SourceSet) -> Scouting | None:
        """Return the scout with the answering model; None if no scout reads the text."""
        from kvstream.session.scouting import Scouting, choose_scout

        if request.run.method == api.PASSAGES_METHOD:
            return Scouting(self.session)
        if request.command in ("summarize", "compare"):
            return None
        if self.chooses and not api.beside_skimming(request):
            return choose_scout(self.session, sources.size_hint(), request)
        if self.scouting is not None:
            api.refuse_beside_skimming(request)
        return self.scouting

    def merge(
        self, paths: Sequence[str | os.PathLike[str] | MemoryFile], budget: int | str | None = None
    ) -> Memory:
        """Join the memories of several files, in order, under one budget in entries per head.

        Without `budget` the largest budget of the files is used. Each file gets room in proportion
        to its tokens read, and its method chooses which entries stay. In files of two models
        (``skim=``), the text of passages is shared in the same way, and `budget` is that of both
        models. Raises UsageError if the files differ in model, method, prompt or questions, or if
        two of them hold the same memory. A warning counts the sources that several files have.
        """
        from kvstream.api.memories import merge

        return self._memory(merge(self._reader, paths, budget), RunSettings())

    def memories(self, folder: str | os.PathLike[str]) -> Memories:
        """Return the memory files of a folder, which can be ranked by a question and asked."""
        from kvstream.api.memories import Memories

        return Memories(self.recall, folder)

    def count(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return len(self.session.tokenizer.encode(text_of("text", text)))

    def kv_bytes(self, **options: Unpack[MemoryOptions]) -> int:
        """Return the maximum bytes of the KV cache of a memory with these options.

        Raises BudgetError if the budget cannot hold one entry, UsageError.
        """
        return self.room_of(api.request_of((), **options))

    def room_of(self, request: Request) -> int:
        """Return the maximum bytes of the KV cache for a request, with that of a scout.

        Raises as `kv_bytes`.
        """
        run = api.with_method(request, known=True).run
        return sum(session.kv_bytes(run) for session in self.readers)

    @property
    def readers(self) -> tuple[Session, ...]:
        """The sessions of the models that can make a memory: the model, and its scout."""
        return tuple(dict.fromkeys((self.session, self._reader)))

    def _with_method(self, request: Request) -> Request:
        return api.with_method(
            request,
            learned=all(session.foresees for session in self.readers),
            extracts=self.session.default_extract,
        )

    def _sources(
        self, source: SourceLike | None, text: str | Iterable[str] | None, request: Request
    ) -> SourceSet:
        try:
            return sources_for(request, source, text)
        except SourceError as error:
            texts = (each for each in several(source) if isinstance(each, str))
            if any(len(text.split()) > 1 and not os.path.exists(text) for text in texts):
                raise SourceError(f"{error} If it is text itself, give it as text=.") from None
            raise

    def __repr__(self) -> str:
        return f"<kvstream.Model {self.name}>"


def _in_parts(request: Request) -> bool:
    """Return whether a text is to be read in parts. Raises UsageError."""
    if request.workers is not None and request.shards is None:
        raise UsageError("workers= needs shards=, the number of parts of the text.")
    return request.shards is not None
