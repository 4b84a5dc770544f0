"""Common clients of OpenAI-compatible servers: the openai package, llm, curl."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("fastapi", reason="needs the extra serve")

from serving import FACT, FILLER, QUESTION

LONG = f"{FACT}{FILLER * 40}\n\n{QUESTION}"


GUIDE = Path(__file__).resolve().parents[2] / "docs/guide/server.md"


def of_guide(kind: str, url: str, *, every: bool = False) -> str:
    """Return the guide's first fenced block of a kind, with the URL of the test's server.

    With `every` return all blocks of the kind, joined by ---.
    """
    found = re.findall(rf"^```{kind}\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    assert found
    return ("---".join(found) if every else found[0]).replace("http://127.0.0.1:8100", url)


@pytest.fixture
def client(server):
    openai = pytest.importorskip("openai", reason="needs the extra test")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_the_openai_package_lists_models(client) -> None:
    assert [model.id for model in client.models.list()] == ["pocket", "book", "other"]
    assert client.models.retrieve("book").owned_by == "kvstream"


def test_the_openai_package_asks(client, server) -> None:
    messages = [{"role": "user", "content": LONG}]
    whole = client.chat.completions.create(model="pocket", messages=messages, user="me")
    answer = whole.choices[0].message.content
    assert answer == server.ask(LONG).json()["choices"][0]["message"]["content"]
    assert whole.kvstream["tokens"]["evicted"] > 0
    assert whole.usage.prompt_tokens > 300
    with client.chat.completions.create(
        model="pocket",
        messages=messages,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"kvstream": {"question": QUESTION}},
    ) as stream:
        chunks = list(stream)
    assert chunks[-1].usage.completion_tokens > 0
    assert any(getattr(chunk, "kvstream", None) for chunk in chunks)


def test_the_openai_package_understands_errors(client, server, start) -> None:
    import openai

    messages = [{"role": "user", "content": QUESTION}]
    with pytest.raises(openai.NotFoundError, match="nobody"):
        client.chat.completions.create(model="nobody", messages=messages)
    with pytest.raises(openai.BadRequestError, match="tools") as caught:
        client.chat.completions.create(
            model="book",
            messages=messages,
            tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
        )
    assert caught.value.param == "tools"
    guarded = start(key="secret-key")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(base_url=f"{guarded.url}/v1").models.list()
    assert list(
        client.with_options(base_url=f"{guarded.url}/v1", api_key="secret-key").models.list()
    )


def test_the_openai_package_hears_of_an_error_in_a_stream(client, start) -> None:
    import openai

    slow = start(timeout=1.0, cache=0)
    stream = client.with_options(base_url=f"{slow.url}/v1").chat.completions.create(
        model="pocket",
        messages=[{"role": "user", "content": FILLER * 10_000 + "\n\n" + QUESTION}],
        stream=True,
    )
    with pytest.raises(openai.APIError, match="timeout"):
        list(stream)


def test_llm_asks_a_memory(server, tmp_path, monkeypatch) -> None:
    """llm uses its configuration for OpenAI-compatible models, as shown in the guide."""
    program = pytest.importorskip("llm.cli", reason="needs the extra test").cli
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    (tmp_path / "extra-openai-models.yaml").write_text(of_guide("yaml", server.url))

    def llm(*arguments: str, stdin: str = "") -> str:
        done = CliRunner().invoke(program, arguments, input=stdin)
        assert done.exit_code == 0, done.output
        return done.stdout.strip()

    expected = server.ask(QUESTION, model="book").json()["choices"][0]["message"]["content"]
    assert llm("-m", "book", QUESTION) == expected
    assert llm("-m", "book", "--no-stream", QUESTION) == expected
    long = server.ask(LONG).json()["choices"][0]["message"]["content"]
    assert llm("-m", "kvstream", stdin=LONG) == long
    # The next question continues the conversation.
    before = server.health()["requests"]["done"]
    assert llm("-m", "kvstream", "-c", "What lay under the stone?")
    assert server.health()["requests"]["done"] == before + 1


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_curl_command_of_the_guide(server) -> None:
    script = next(
        part for part in of_guide("sh", server.url, every=True).split("---") if "curl" in part
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=60, check=True)
    assert json.loads(done.stdout)["choices"][0]["finish_reason"] == "stop"


def test_the_openai_snippet_of_the_guide(server, tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("openai", reason="needs the extra test")
    (tmp_path / "book.txt").write_text(FACT + FILLER * 40)
    monkeypatch.chdir(tmp_path)
    exec(compile(of_guide("python", server.url), "server.md", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_asks(server) -> None:
    body = {"model": "book", "messages": [{"role": "user", "content": QUESTION}]}

    def curl(*more: str, stream: bool) -> str:
        data = json.dumps({**body, "stream": stream})
        url = f"{server.url}/v1/chat/completions"
        return subprocess.run(
            ["curl", "-sN", url, "-H", "Content-Type: application/json", "-d", data, *more],
            capture_output=True, text=True, timeout=60, check=True,
        ).stdout  # fmt: skip

    whole = json.loads(curl(stream=False))
    lines = curl(stream=True).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    pieces = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert (
        "".join(p["choices"][0]["delta"].get("content", "") for p in pieces)
        == (whole["choices"][0]["message"]["content"])
    )
