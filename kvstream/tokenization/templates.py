"""A time limit for chat templates, which are programs that come with a model."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from kvstream.errors import ModelError

MOST_S = 5.0
"""Maximum seconds for a template. Templates of real models take milliseconds."""


class EndlessTemplateError(Exception):
    """A template did not end within the time limit."""


@contextmanager
def time_limit() -> Iterator[None]:
    """Raise EndlessTemplateError after MOST_S. Every line that is executed checks the clock."""
    end = time.monotonic() + MOST_S

    def look(frame: FrameType, event: str, argument: Any) -> Any:
        if time.monotonic() > end:
            raise EndlessTemplateError(f"it ran for more than {MOST_S:g} s")
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(before)


def check_template(template: str | None, names: Mapping[str, Any], model: str) -> None:
    """Render a short chat. Raises ModelError if the template raises or does not end."""
    if template is None:
        return
    from transformers.utils.chat_template_utils import render_jinja_template

    turns = [{"role": "user", "content": "Hello"}]
    tokens = {name: names.get(name, "") for name in ("bos_token", "eos_token")}
    try:
        with time_limit():
            render_jinja_template(
                [turns], chat_template=template, add_generation_prompt=True, **tokens
            )
    except Exception as error:  # a template may raise anything
        first = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise ModelError(
            f"The chat template of {model} cannot be used: {first}. A question would be put in a "
            "form that the model was not trained on; choose another file of this model."
        ) from error
