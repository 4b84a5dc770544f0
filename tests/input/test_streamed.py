"""Mail, notebooks and captions: what people wrote, without the codes around it."""

from __future__ import annotations

import base64
import binascii
import gzip
import io
import json
import mailbox
import quopri
import time
import tracemalloc
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from kvstream.errors import SourceError
from kvstream.input import captions as captions_of
from kvstream.input import documents
from kvstream.input.blocks import TextBlock
from kvstream.input.inspection import NamedStream
from kvstream.input.sources import SourceSet, open_sources

pytest.importorskip("lxml")
pytest.importorskip("ijson")


def opened(folder: Path, name: str, data: bytes | str) -> SourceSet:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return open_sources([str(path)])


def blocks_of(folder: Path, name: str, data: bytes | str) -> list[TextBlock]:
    return [block for block in opened(folder, name, data) if block.text.strip()]


def text_of(folder: Path, name: str, data: bytes | str) -> str:
    return "".join(block.text for block in opened(folder, name, data))


LETTER = b"From: Liv <liv@example.org>\nTo: Ole <ole@example.org>\nSubject: The boat\n"


def letter(body: bytes, headers: bytes = b"") -> bytes:
    return LETTER + headers + b"\n" + body


@pytest.mark.parametrize(
    ("headers", "body", "text"),
    [
        ("", b"It sails at nine.\n", "It sails at nine."),
        ("Content-Transfer-Encoding: base64", base64.encodebytes("Når på fjord?\n".encode() * 90),
         "Når på fjord?"),
        ("Content-Transfer-Encoding: BASE64 (7 bits)", b"SXQgc2Fp\r\nbHMgYXQg\r\nbmluZS4",
         "It sails at nine."),
        ("Content-Transfer-Encoding: quoted-printable",
         quopri.encodestring("Die Fähre fährt um neun, und nicht früher als sonst. ".encode() * 4),
         "Die Fähre fährt um neun"),
        ("Content-Type: text/plain; charset=iso-8859-1\nContent-Transfer-Encoding: 8bit",
         "Fähre".encode("latin-1"), "Fähre"),
        ("Content-Transfer-Encoding: x-uuencode",
         b"begin 644 a.txt\n" + binascii.b2a_uu(b"It sails at nine, and not at ten, as before. ")
         + binascii.b2a_uu(b"Liv") + b"`\n\nend\n",
         "It sails at nine, and not at ten, as before. Liv"),
        # The header is wrong.
        ("Content-Transfer-Encoding: base64", b"Not (yet) base64.\nMore\n", "Not (yet) base64."),
        ("Content-Type: text/plain; charset=koi8-r\nContent-Transfer-Encoding: base64",
         base64.encodebytes("Лодка".encode("koi8-r")), "Лодка"),
        ("Content-Type: text/plain; charset=us-ascii", "Fähre".encode(), "Fähre"),
        ("Content-Type: text/plain; charset=no-such", b"plain words", "plain words"),
        ("Content-Type: text/html; charset=utf-8",
         b"<style>p{}</style><p>The f&auml;rry <b>sails</b>.</p>", "The färry sails."),
        ("Content-Type: text/plain; format=flowed",
         b"One line that \ngoes on.\n\n> a quote \n> goes on\n-- \nLiv\n",
         "One line that goes on.\n\n> a quote goes on\n-- \nLiv"),
        ("Content-Type: text/plain; format=Flowed; delsp=Yes", b"no \nthing\n", "nothing"),
        ("Content-Transfer-Encoding: base64", b"SXQgc2FpbHM=\n____\nA list of mail\n",
         "It sails\n____\nA list of mail"),
        ("Content-Type: multipart/mixed; boundary=b", b"No boundary\nis here.\n",
         "No boundary\nis here."),
        ("Content-Type: message/delivery-status", b"Action: failed\n", "Action: failed"),
        ("Content-Type: text/plain; charset=iso-8859-8-i", "שלום".encode("iso8859-8"), "שלום"),
    ],
)  # fmt: skip
def test_the_body_of_a_mail_is_decoded(
    tmp_path: Path, headers: str, body: bytes, text: str
) -> None:
    data = letter(body, headers.encode() + b"\n" if headers else b"")
    unix = data.replace(b"\r\n", b"\n")
    for each in (data, *(unix.replace(b"\n", end) for end in (b"\r\n", b"\r"))):
        found = text_of(tmp_path, "a.eml", each)
        assert text in found
        assert "Transfer" not in found
        assert found.startswith("From: Liv <liv@example.org>\nTo: Ole")


def test_headers_of_a_mail_are_decoded(tmp_path: Path) -> None:
    data = (
        b"Received: from a by b\nFrom: =?utf-8?q?J=C3=B6rg?= <j@example.org>\n"
        b"Subject: =?iso-8859-1?b?RuRocmU=?=\n =?utf-8?q?_am=1B_Montag?=\n"
        b"Date: Mon, 5 May 2025 09:00:00 +0200\nMIME-Version: 1.0\n\nText.\n"
    )
    [head, text] = blocks_of(tmp_path, "mail", data)
    assert head.text.split("\n")[:3] == [
        "From: Jörg <j@example.org>", "Date: Mon, 5 May 2025 09:00:00 +0200",
        "Subject: Fähre am Montag",
    ]  # fmt: skip
    assert text.text.strip() == "Text."
    assert text.place == "Fähre am Montag, Jörg <j@example.org>, Mon, 5 May 2025 09:00:00 +0200"


def test_a_file_in_the_text_of_an_old_mail_is_an_attachment(tmp_path: Path) -> None:
    lines = b"".join(binascii.b2a_uu(bytes(45)) for _ in range(3))
    sources = opened(
        tmp_path, "a.eml", letter(b"See it.\nbegin 644 a b.gif\n" + lines + b"`\nend\nBye.\n")
    )
    text = "".join(block.text for block in sources)
    assert text.endswith("See it.\n[Attachment: a b.gif]\nBye.\n\n")
    assert sources.notes[0].endswith("1 attachment was left out.")
    talk = "We begin it.\nbegin 644 words\nhere.\n"
    assert talk in text_of(tmp_path, "a.eml", letter(talk.encode()))


def test_headers_in_a_smaller_variant_of_their_encoding(tmp_path: Path) -> None:
    word = base64.b64encode("朱镕基".encode("gb18030")).decode()
    text = text_of(tmp_path, "a.eml", f"From: a@b\nSubject: =?gb2312?b?{word}?=\n\nText.\n")
    assert "Subject: 朱镕基\n" in text


def test_messages_of_an_mbox_without_empty_lines_between(tmp_path: Path) -> None:
    begin = "From liv@example.org Mon Jun  3 10:00:00 2024\n"
    quote = f"\nHe wrote:\n\n{begin}no header, but talk.\n"
    message = f"{begin}From: Liv <liv@example.org>\nSubject: One\n\nIt sails.\n"
    text = text_of(tmp_path, "a.mbox", f"\ufeff{message}{message}{quote}")
    assert text.count("Date: Mon Jun  3") == text.count("Subject: One") == 2
    assert begin in text


def test_a_page_that_a_browser_saved_with_its_pictures(tmp_path: Path) -> None:
    data = (
        "From: <Saved by Blink>\nSubject: Boats\nContent-Type: multipart/related; boundary=b\n\n"
        "--b\nContent-Type: text/html\n\n<p>It sails.</p>\n--b\nContent-Type: text/css\n\np {}\n"
        "--b--\n"
    )
    sources = opened(tmp_path, "a", data)
    assert "It sails.\n[Attachment: text/css]" in "".join(block.text for block in sources)


def made(**parts: Any) -> EmailMessage:
    message = EmailMessage()
    message["From"], message["Subject"] = "Liv <liv@example.org>", parts.get("subject", "Boat")
    message.set_content(parts.get("text", "It sails at nine.\n"))
    if "html" in parts:
        message.add_alternative(parts["html"], subtype="html")
    for name in parts.get("files", ()):
        message.add_attachment(b"\0\1secret" * 99, maintype="image", subtype="png", filename=name)
    if "inside" in parts:
        message.add_attachment(parts["inside"])
    return message


def test_a_mail_that_is_forwarded_as_a_file_is_read(tmp_path: Path) -> None:
    outer = made(text="See below.\n", inside=made(subject="Inner", text="It sails at nine.\n"))
    data = outer.as_bytes()
    assert b"Content-Disposition: attachment" in data  # as most programs write
    sources = opened(tmp_path, "a.eml", data)
    text = "".join(block.text for block in sources)
    assert text.index("See below.") < text.index("Subject: Inner") < text.index("sails at nine.")
    assert sources.notes == []


def test_what_a_mail_does_not_show_is_not_read(tmp_path: Path) -> None:
    head = "From: Liv <liv@example.org>\nMIME-Version: 1.0\nContent-Type: text/html\n"
    page = (
        '<div style="mso-hide:all; DISPLAY : none">Preview.<p>Gone.</p></div><p>Seen.</p>'
        '<p style="display:nonesuch">Here.</p>'
    )
    text = text_of(tmp_path, "a.eml", f"{head}\n{page}\n")
    assert text.split()[-2:] == ["Seen.", "Here."]
    assert "Gone." not in text
    saved = f"{head}Content-Location: https://example.org/\n\n{page}\n"
    assert "Gone." in text_of(tmp_path, "b.eml", saved)  # a script may show it
    assert "Gone." in text_of(tmp_path, "a.html", f"<html>{page}")


@pytest.mark.parametrize(
    "drawn", ['<span class="katex-html" aria-hidden="true">', '<nobr aria-hidden="true">']
)
def test_a_formula_that_is_drawn_beside_its_mathml_is_read_once(tmp_path: Path, drawn: str) -> None:
    end = "</nobr>" if "nobr" in drawn else "</span>"
    math = f"<math><msup><mi>x</mi><mn>2</mn></msup></math>{drawn}<i>x</i><i>2</i>{end}"
    text = text_of(tmp_path, "a.html", f"<html><p>If {math} <i aria-hidden='true'>fits</i>.</p>")
    assert text == "If x^2 fits.\n"


@pytest.mark.parametrize(
    "header",
    [
        "Subject: " + "=?a?q?x" * 9000,
        'Content-Type: text/plain; a="' + ";" * 60_000,
        "Content-Transfer-Encoding: quoted-printable\n\na" + " " * 60_000 + "b",
        "\nFrom " + "a Wed May  1 10:00 " * 5000,
    ],
)
def test_a_line_without_an_end_takes_no_minute(tmp_path: Path, header: str) -> None:
    began = time.process_time()
    assert text_of(
        tmp_path, "a.eml", f"From a Wed May  1 10:00:00 2024\nTo: a\n{header}\n\nText.\n"
    ).endswith("Text.\n\n")
    assert time.process_time() - began < 3  # a quarter of what is read once took 4 to 10 s


def test_a_cue_of_tags_without_ends_takes_no_minute(tmp_path: Path) -> None:
    began = time.process_time()
    text_of(tmp_path, "a.vtt", "WEBVTT\n\n00:01.000 --> 00:02.000\n" + "<v a" * 20_000)
    assert time.process_time() - began < 3


def test_a_long_line_of_captions_is_not_held_until_it_ends() -> None:
    texts = ["word " * 300_000] * 3 + ["end\n", "next"]
    lines = list(captions_of._lines(iter(texts)))
    assert max(map(len, lines)) < 2 * captions_of.LONGEST
    assert " ".join(lines).split() == "".join(texts).split()


def test_open_elements_of_captions_take_no_time_of_each_other(tmp_path: Path) -> None:
    began = time.process_time()
    body = "<div>a" * 20_000 + "<p begin='1s'>Yes</p>" + "</div>" * 20_000
    text = text_of(tmp_path, "a.ttml", f"<tt xmlns='http://www.w3.org/ns/ttml'>{body}</tt>")
    assert text == "Yes\n"
    assert time.process_time() - began < 3


def test_a_number_of_a_notebook_may_have_any_length(tmp_path: Path) -> None:
    for number in ("1" * 5000, "-0." + "1" * 99_000, "1" * 200_000):
        cell = f'{{"cell_type": "markdown", "metadata": {{"x": {number}}}, "source": "Yes"}}'
        text = text_of(tmp_path, "a.ipynb", f'{{"cells": [{cell}], "nbformat": 4}}')
        assert text.strip() == "Yes"  # ijson crashed


def test_a_mail_of_many_parts_is_read_once(tmp_path: Path) -> None:
    message = made(html="<p>It sails at <b>nine</b>.</p>", files=["a.png", "bå.png"])
    sources = opened(tmp_path, "a.eml", message.as_bytes())
    text = "".join(block.text for block in sources)
    assert text.count("sails at") == 1
    assert "[Attachment: a.png]" in text
    assert "[Attachment: bå.png]" in text
    assert "secret" not in text
    assert sources.notes == [f"{tmp_path / 'a.eml'}: 2 attachments were left out."]


def test_the_only_alternative_with_text_is_read(tmp_path: Path) -> None:
    message = made(text="\n", html="<p>It sails at nine.</p>")
    assert "It sails at nine." in text_of(tmp_path, "a.eml", message.as_bytes())


def test_a_page_behind_a_plain_text_that_says_less_is_read(tmp_path: Path) -> None:
    page = f"<p>It sails at nine.</p>{'<p>Bring a coat.</p>' * 30}"
    text = text_of(tmp_path, "a.eml", made(text="This is a page.\n", html=page).as_bytes())
    assert text.count("This is a page.") == text.count("sails at") == 1
    assert text.count("Bring a coat.") == 30
    same = made(text="Bring a coat.\n" * 30, html=page)
    assert text_of(tmp_path, "a.eml", same.as_bytes()).count("Bring a coat.") == 30


def test_the_calendar_of_an_invitation_is_read(tmp_path: Path) -> None:
    message = made(text="Please come.\n")
    message.add_alternative("DTSTART:20250612T090000Z\n", subtype="calendar")
    text = text_of(tmp_path, "a.eml", message.as_bytes())
    assert "Please come." in text
    assert "DTSTART:20250612T090000Z" in text


def test_a_message_of_apple_mail_ends_before_its_marks(tmp_path: Path) -> None:
    message = letter(b"It sails at=20nine.\n", b"Content-Transfer-Encoding: quoted-printable\n")
    data = b"%-10d\n" % len(message) + message + b'<?xml version="1.0"?>\n<plist>mark</plist>\n'
    text = text_of(tmp_path, "1.emlx", data)
    assert text.startswith("From: ")
    assert "It sails at nine." in text
    assert "mark" not in text


def test_each_message_of_an_mbox_has_its_place(tmp_path: Path) -> None:
    box = mailbox.mbox(tmp_path / "box.mbox")
    for day, text in enumerate(("First.\n\nFrom here we sail.\n", "Second.\n", "Third.\n"), 1):
        message = made(subject=f"Day {day}", text=text, files=["x.png"] if day == 2 else [])
        message["Date"] = f"Mon, {day} May 2025 10:00:00 +0000"
        box.add(message)
    box.flush()
    data = (tmp_path / "box.mbox").read_bytes()
    assert b">From here" in data
    for name, each in (("box", data), ("box.mbox", data), ("box.gz", gzip.compress(data))):
        blocks = blocks_of(tmp_path, name, each)
        places = list(dict.fromkeys(str(block.place).partition(",")[0] for block in blocks))
        assert places == ["Day 1", "Day 2", "Day 3"]
        assert "\nFrom here we sail." in "".join(block.text for block in blocks)
    sources = open_sources(["-"], stdin=io.BytesIO(data))
    assert sum("Second." in block.text for block in sources) == 1
    assert sources.notes == ["standard input: 1 attachment was left out."]


def test_a_mail_that_is_damaged_or_odd_is_read(tmp_path: Path) -> None:
    whole = made(html="<p>It sails.</p>", files=["a.png"], inside=made(text="Inner.\n")).as_bytes()
    for end in range(0, len(whole), 37):
        (tmp_path / "a.eml").write_bytes(whole[:end] or b"x")
        try:
            for _ in open_sources([str(tmp_path / "a.eml")]):
                pass
        except SourceError as error:
            assert "no text" in str(error)  # noqa: PT017
    for body in (b"=?bad?=", b"\xff\xfe\xfa", b"--b\n--b--\n--b\n", b"From: \n" * 9):
        for headers in (
            b"Content-Type: multipart/mixed\n", b'Content-Type: multipart/mixed; boundary="b"\n',
            b"Content-Type: ;;;\n", b"Subject: =?x-no?q?=ff?=\n", b"Content-Type: text/html\n",
            b"Content-Transfer-Encoding: uuencode\n", b"\xe4: \xff\n",
            b'Content-Type: text/plain; charset="a\0b"\n',
        ):  # fmt: skip
            assert text_of(tmp_path, "a.eml", letter(body, headers)).startswith("From: Liv")


def test_a_large_attachment_is_not_held(tmp_path: Path) -> None:
    lines = base64.encodebytes(b"\0" * 8_000_000)
    data = letter(
        b"--b\n\nIt sails.\n--b\nContent-Type: image/png\n\n" + lines + b"--b--\n",
        b"Content-Type: multipart/mixed; boundary=b\n",
    )
    (tmp_path / "a.eml").write_bytes(data)
    sources = open_sources([str(tmp_path / "a.eml")])
    tracemalloc.start()
    text = "".join(block.text for block in sources)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "It sails." in text
    assert peak < 5_000_000


def notebook(*cells: dict[str, Any], form: int = 4) -> str:
    if form == 3:
        return json.dumps(
            {"metadata": {"name": ""}, "nbformat": 3, "worksheets": [{"cells": cells}]}
        )
    return json.dumps(
        {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1
    )


def output(**data: Any) -> dict[str, Any]:
    kinds = {kind.replace("_", "/"): value for kind, value in data.items()}
    return {"output_type": "display_data", "metadata": {"width": "9"}, "data": kinds}


PICTURE = base64.b64encode(bytes(range(256)) * 99).decode()


def test_cells_and_text_outputs_of_a_notebook_are_read(tmp_path: Path) -> None:
    cells = (
        {"cell_type": "markdown", "metadata": {}, "source": ["# Boats\n", "They sail."],
         "attachments": {"a.png": {"image/png": PICTURE}}},
        {"cell_type": "code", "execution_count": 1, "metadata": {},
         "outputs": [
             {"output_type": "stream", "name": "stdout", "text": ["loss: ", "0.25\n"]},
             output(image_png=PICTURE, text_plain=["<Figure>"], text_html="<b>no</b>"),
             output(text_html="<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr>"),
             output(image_svg="<svg>"),
             {"output_type": "error", "ename": "KeyError", "evalue": "'x'",
              "traceback": ["Traceback", "KeyError: 'x'"]},
         ],
         "source": "train()"},
        {"cell_type": "markdown", "source": f"![x](data:image/png;base64,{PICTURE}) end "
         f"[y](data:application/pdf;base64,{PICTURE})"},
    )  # fmt: skip
    sources = opened(tmp_path, "a.ipynb", notebook(*cells))
    blocks = list(sources)
    text = "".join(block.text for block in blocks)
    assert text == (
        "# Boats\nThey sail.\n\n"
        "train()\n\nOutput:\nloss: 0.25\n<Figure>\na | b\na: 1 | b: 2\nTraceback\n"
        "KeyError: 'x'\n\n![x](picture) end [y](file)\n\n"
    )
    assert [block.place for block in blocks] == [f"Boats, cell {i}" for i in (1, 2, 3)]
    told = ("left out 4 × picture.", "left out 1 × file in base64.")
    assert sources.notes == [f"{tmp_path / 'a.ipynb'}: {what}" for what in told]


def test_outputs_of_which_the_plain_text_is_only_a_name(tmp_path: Path) -> None:
    name = "<IPython.core.display.HTML object>"
    outputs = [output(text_plain=name, text_html="<b>9 boats</b>"),
               output(text_plain=name, application_json="{}"),
               output(application_json="{}", text_html="<script>1</script>"),
               {"output_type": "stream", "text": "\r 0%\r99%\r\n"}]  # fmt: skip
    cells = ({"cell_type": "markdown", "source": "```\n# no heading\n```"},
             {"cell_type": "code", "source": "x", "outputs": outputs})  # fmt: skip
    sources = opened(tmp_path, "a.ipynb", notebook(*cells))
    blocks = list(sources)
    assert blocks[1].text == f"x\n\nOutput:\n9 boats\n{name}\n 0%\n99%\n\n"
    assert [block.place for block in blocks] == ["cell 1", "cell 2"]
    assert sources.notes[0].endswith("left out 2 × output that is no text.")


def test_a_guessed_encoding_of_a_page_is_told(tmp_path: Path) -> None:
    text = "<p>Das Mädchen hörte über die Brücke.</p>" * 9
    sources = opened(tmp_path, "a.html", text.encode("cp1252"))
    assert "hörte" in "".join(block.text for block in sources)
    [told] = sources.warnings
    assert told.endswith("a.html is not UTF-8 and declares no other encoding; read as cp1252.")


@pytest.mark.parametrize("name", ["a.html", "a.eml", "a.mbox"])
def test_a_name_makes_no_text_of_binary_data(tmp_path: Path, name: str) -> None:
    for data in (b"\x7fELF" + bytes(range(256)) * 20, "<p>Ada\1 sails.".encode("utf-16-le")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(SourceError, match="is binary"):
            open_sources([str(tmp_path / name)])


def test_a_notebook_of_format_3_is_read(tmp_path: Path) -> None:
    cells = (
        {"cell_type": "heading", "level": 2, "source": ["Boats"]},
        {"cell_type": "code", "input": ["1 + 1"], "language": "python",
         "outputs": [{"output_type": "pyout", "text": ["2"], "png": PICTURE}]},
    )  # fmt: skip
    sources = opened(tmp_path, "a.ipynb", notebook(*cells, form=3))
    assert "".join(block.text for block in sources) == "## Boats\n\n1 + 1\n\nOutput:\n2\n\n"
    assert sources.notes == [f"{tmp_path / 'a.ipynb'}: left out 1 × picture."]


def test_numbers_that_python_writes_beside_json(tmp_path: Path, monkeypatch: Any) -> None:
    metadata = {"x": [float("nan"), float("inf"), -float("inf"), True]}
    cell = {"cell_type": "code", "source": "NaN is -Infinity", "metadata": metadata}
    for size in (1, 2, 7, 1 << 16):
        monkeypatch.setattr("kvstream.input.notebook.BLOCK", size)
        assert text_of(tmp_path, "a.ipynb", json.dumps({"cells": [cell]})) == "NaN is -Infinity\n\n"


def test_a_damaged_document_ends_no_folder_and_no_pipe(tmp_path: Path) -> None:
    deep = b"MIME-Version: 1.0\n" + b"Content-Type: message/rfc822\n\n" * 2000
    for name, data in (("a.ipynb.gz", b'{"cells": [x'), ("b.eml", deep), ("b.eml.gz", deep)):
        packed = gzip.compress(data) if name.endswith(".gz") else data
        (tmp_path / name).write_bytes(packed)
        with pytest.raises(SourceError, match="cannot be read as"):
            list(open_sources(["-"], stdin=io.BytesIO(packed)))
    (tmp_path / "c.txt").write_text("It rained.\n")
    sources = open_sources([str(tmp_path)])
    assert "".join(block.text for block in sources).endswith("It rained.\n")
    assert "3 × document that cannot be read" in sources.warnings[0]


def test_half_characters_of_a_notebook(tmp_path: Path, monkeypatch: Any) -> None:
    source = "\ud83d\ude00 \ud83d \ude00\ud83d\\ud83d\\"
    for size in (1, 2, 7, 1 << 16):
        monkeypatch.setattr("kvstream.input.notebook.BLOCK", size)
        text = text_of(tmp_path, "a.ipynb", json.dumps({"cells": [{"source": source}]}))
        assert text == "\U0001f600 \ufffd \ufffd\ufffd\\ud83d\\\n\n"


def test_what_is_no_notebook_is_refused(tmp_path: Path) -> None:
    for data in ("{", '{"cells": [', '{"cells": []}', "[1, 2]", notebook({"source": 1})[:60]):
        with pytest.raises(SourceError) as refused:
            text_of(tmp_path, "a.ipynb", data)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("opens", "depth"), [("[", 5000), ('{"a":', 5000), (f'{{"{"k" * 10**5}":', 90)],
    ids=["lists", "maps", "long names"],
)  # fmt: skip
def test_deep_nesting_does_not_fill_the_ram(tmp_path: Path, opens: str, depth: int) -> None:
    value = opens * depth + "1" + ("]" if opens == "[" else "}") * depth
    cell = f'{{"cell_type": "code", "source": "It rained.", "metadata": {value}}}'
    tracemalloc.start()
    try:
        assert text_of(tmp_path, "a.ipynb", f'{{"cells": [{cell}]}}') == "It rained.\n\n"
        assert tracemalloc.get_traced_memory()[1] < 60e6
    finally:
        tracemalloc.stop()


def test_huge_outputs_are_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvstream.input.notebook.LONGEST_STRING", 1 << 17)
    long = '"\\u00e5\n' * 25_000
    lines = [f"step {i}\n" for i in range(10_000)]
    stream = {"output_type": "stream", "text": lines}
    cells = (
        {"outputs": [output(image_png=PICTURE * 400)], "cell_type": "code", "source": "a"},
        {"outputs": [{"output_type": "stream", "text": long}], "cell_type": "code", "source": "b"},
        {"outputs": [stream], "cell_type": "code", "source": "end()"},
    )  # fmt: skip
    path = tmp_path / "a.ipynb"
    path.write_text(notebook(*cells))
    sources = open_sources([str(path)])
    tracemalloc.start()
    steps, end = 0, False
    for block in sources:
        steps += block.text.count("\n")
        end = end or block.text.startswith("end()")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 21_000 < steps < 23_000  # the string of the second cell is cut
    assert end
    assert peak < 3_000_000
    assert [note.split(": ")[1] for note in sources.notes] == [
        "left out 1 × picture.", "left out 1 × end of a text, after 131,072 characters.",
    ]  # fmt: skip


def captions(folder: Path, name: str, data: bytes | str) -> list[tuple[str, str]]:
    return [(str(b.place), b.text.strip()) for b in blocks_of(folder, name, data)]


def test_rolling_captions_give_their_words_once(tmp_path: Path) -> None:
    text = (
        "WEBVTT\nKind: captions\nLanguage: en\n\nNOTE a remark\nof two lines\n\nSTYLE\n::cue {}\n\n"
        "00:01.000 --> 00:03.000 align:start position:0%\n \nthe<00:01.400><c> boat</c>\n\n"
        "00:03.000 --> 00:03.010\nthe boat\n \n\n"
        "00:03.010 --> 01:00:06.000\nthe boat\nsails<00:03.400><c> at</c>\n\n"
        "01:00:06.000 --> 01:00:07.000\nsails at\nsails at nine\n"
    )
    for data in (text, "\ufeff" + text.replace("\n", "\r\n")):
        assert captions(tmp_path, "a.vtt", data) == [
            ("00:00:01", "the boat"), ("00:00:03", "sails at"), ("01:00:06", "sails at nine"),
        ]  # fmt: skip


def test_a_growing_line_without_spaces_gives_its_words_once(tmp_path: Path) -> None:
    lines = ["铜钥匙在", "铜钥匙在灯塔里", "不", "不行", "กุญแจอยู่", "กุญแจอยู่ในหอ"]
    cues = (f"00:0{n}.000 --> 00:0{n + 1}.000\n{line}\n" for n, line in enumerate(lines))
    assert [words for _, words in captions(tmp_path, "a.vtt", "\n".join(["WEBVTT\n", *cues]))] == [
        "铜钥匙在", "灯塔里", "不", "不行", "กุญแจอยู่", "ในหอ",
    ]  # fmt: skip


SRT = (
    "1\n00:00:01,000 --> 00:00:02,000\n<i>No.</i>\n\n"
    "2\n00:00:02,000 --> 00:00:03,000\nNo. I stay.\n\n"
    "3\n00:00:09,500 --> 00:00:10,000\n{\\an8}- Liv &amp; Ole\n- 5 < 6\n\n- a lost line\n\n"
    "4\n00:00:11,000 --> 00:00:12,000\n\n5\n00:00:13,000 --> 00:00:14,000\n2001\n"
)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_subtitles_in_srt(tmp_path: Path, encoding: str, newline: str) -> None:
    data = SRT.replace("\n", newline).encode(encoding)
    assert captions(tmp_path, "a.srt", data) == [
        ("00:00:01", "No."), ("00:00:02", "No. I stay."),
        ("00:00:09", "- Liv & Ole - 5 < 6 - a lost line"), ("00:00:13", "2001"),
    ]  # fmt: skip


def test_other_captions(tmp_path: Path) -> None:
    assert captions(tmp_path, "a.sbv", "0:00:01.000,0:00:03.000\nIt sails[br]at nine.\n") == [
        ("00:00:01", "It sails at nine.")
    ]
    voices = "WEBVTT\n\nintro\n00:01.000 --> 00:02.000\n<v.loud Liv>Come!\n"
    assert captions(tmp_path, "a.vtt", voices) == [("00:00:01", "Liv: Come!")]
    tabs = "WEBVTT\n\n00:01.000\t-->\t00:02.000\nOne.\n"
    assert captions(tmp_path, "a.vtt", tabs) == [("00:00:01", "One.")]
    close = "1\n00:00:01,000 --> 00:00:02,000\nOne.\n2\n00:00:02,000 --> 00:00:03,000\nTwo.\n"
    assert captions(tmp_path, "a.srt", close) == [("00:00:01", "One."), ("00:00:02", "Two.")]
    whole = " 1\r\r 00:00:01 --> 00:00:02\r<ruby>灯<rt>とう</rt></ruby>\r\r"
    assert captions(tmp_path, "a.srt", whole) == [("00:00:01", "灯")]
    latin = SRT.replace("No.", "Né.").encode("latin-1")
    assert captions(tmp_path, "a.srt", latin)[0] == ("00:00:01", "Né.")


TTML = """<?xml version="1.0"?>
<tt xmlns="http://www.w3.org/ns/ttml" xmlns:m="http://www.w3.org/ns/ttml#metadata"
    xmlns:p="http://www.w3.org/ns/ttml#parameter" p:frameRate="25" p:tickRate="1000">
 <head><metadata><m:title>A title</m:title>
  <m:agent xml:id="liv"><m:name type="full">Liv Dahl</m:name></m:agent></metadata></head>
 <body><div begin="1h">
  <p begin="00:00:01.5" end="3s">The boat<br/>sails &amp; turns.</p>
  <p begin="4s" m:agent="liv"><m:desc>hidden</m:desc>At <span>nine</span>
    5 &lt; 6</p>
 </div><div timeContainer="seq">
  <p dur="60s">One.</p><p dur="00:00:01:05">Two.</p><p>Three.</p></div>
 <div><p><span begin="7000t">It</span> <span begin="200f">rains.</span></p></div></body></tt>
"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_captions_in_xml(tmp_path: Path, encoding: str) -> None:
    told = [
        ("01:00:01", "The boat sails & turns."), ("01:00:04", "Liv Dahl: At nine 5 < 6"),
        ("00:00:00", "One."), ("00:01:00", "Two."), ("00:01:01", "Three."), ("00:00:07", "It"),
        ("00:00:08", "rains."),
    ]  # fmt: skip
    for name in ("a.ttml", "a.dfxp", "a"):
        assert captions(tmp_path, name, TTML.encode(encoding)) == told
    latin = TTML.replace('"1.0"', '"1.0" encoding="iso-8859-1"').replace("One", "Né")
    assert captions(tmp_path, "a", latin.encode("latin-1"))[2] == ("00:00:00", "Né.")
    note = "<!-- " + "a note " * 99 + "-->"
    assert captions(tmp_path, "a.ttml", note + TTML.partition("?>")[2]) == told


def test_long_cues_and_times_without_sense(tmp_path: Path) -> None:
    cue = f'<p begin="{{}}">{"the letter " * 9000}</p>'
    data = "<tt><body>" + "".join(map(cue.format, ("1s", f"{'9' * 400}:00:00", f"{'9' * 400}s")))
    text = "".join(block.text for block in opened(tmp_path, "a.ttml", data + "</body></tt>"))
    assert text.split() == ["the", "letter"] * 27_000


def test_damaged_captions_in_xml_are_read_up_to_the_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.ttml"
    path.write_text(TTML.replace("Two.", "Tom & Co"))
    sources = open_sources([str(path)])
    assert [block.text for block in sources][-1] == "One.\n"
    [warning] = sources.warnings
    assert "is damaged XML" in warning
    assert "line 11" in warning
    path.write_text("<!DOCTYPE tt [<!ENTITY a 'b'>]>" + TTML.partition("?>")[2])
    with pytest.raises(SourceError, match="it declares entities"):
        list(open_sources([str(path)]))
    with pytest.raises(SourceError, match="cannot be read as CAPTIONS"):
        list(open_sources([NamedStream("-", io.BytesIO(b"<tt a=>"))]))


@pytest.mark.parametrize("kind", ["mail", "captions", "notebook"])
def test_a_stream_is_estimated_and_bounded_in_time(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes({"mail": letter(b"It sails.\n" * 99), "captions": SRT.encode(),
                      "notebook": notebook({"source": "a" * 999}).encode()}[kind])  # fmt: skip
    size = sum(len(part.text) for part in documents.parts_of(kind, path, [], []))
    assert documents.estimate(kind, path) == pytest.approx(size, rel=0.01)
    monkeypatch.setattr("kvstream.input.limits.SECONDS", -10.0)
    with pytest.raises(SourceError, match="takes more than"):
        list(documents.parts_of(kind, path, [], []))


def test_the_kind_of_a_stream_is_that_of_its_first_bytes(tmp_path: Path) -> None:
    encoded = base64.encodebytes(b"It sails.").decode()
    mail = f"Content-Transfer-Encoding: base64\nSubject: The boat\nFrom: Liv\n\n{encoded}"
    cell = '"cells": [{"cell_type": "raw", "source": "It sails."}]'
    made = {
        "eml": [mail, "Subject: The\n boat\nX-Mailer: b\nMIME-Version: 1.0\n" + mail],
        "ipynb": [f'{{"metadata": {{"kernelspec": {{"name": "a"}}}}, {cell}}}',
                  f'{{"nbformat_minor": 5, {cell}}}'],
        "html": [f"<!-- {'a ' * 400}--><!-- b --><?xml-a?>\n<html><p>It sails.",
                 "<body><p>It sails."],
    }  # fmt: skip
    for suffix, texts in made.items():
        for text in texts:
            (block, *_) = [b for b in blocks_of(tmp_path, "a", text) if "It sails." in b.text]
            assert "<" not in block.text
            packed = gzip.compress(text.encode())
            assert text_of(tmp_path, f"a.{suffix}.gz", packed).strip().endswith("It sails.")
    for suffix, text in (("html", "<p>It sails.</p>"), ("eml", "Subject: a\n\nIt sails.\n")):
        packed = gzip.compress(text.encode())
        assert None not in [b.place for b in blocks_of(tmp_path, f"b.{suffix}.gz", packed)]


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("[Script Info]\n[Events]\nDialogue: 0,0:00:01.00,0:00:02.00,,,0,0,0,,one\\Ntwo\n", "ASS"),
        ('{"wireMagic": "pb3", "events": [{"segs": [{"utf8": "one"}]}]}', "JSON"),
        ("[ar:Liv]\n[00:12.00]one <00:12.50>two\n", "LRC"),
        ('<?xml version="1.0"?>\n<timedtext format="3"><body/></timedtext>', "XML"),
        ("{0}{25}one|two\n", "MicroDVD"),
    ],
)
def test_captions_that_are_read_as_text_are_told(tmp_path: Path, text: str, form: str) -> None:
    sources = opened(tmp_path, "a", text)
    assert "".join(block.text for block in sources) == text
    [warning] = sources.warnings
    assert f"has captions in {form}, which are read as text" in warning


def test_a_text_that_only_looks_like_them_is_plain(tmp_path: Path) -> None:
    for text in ("From London we went.\n", "Subject: boats\nThey sail.\n", '{"cell": 1}\n',
                 "1\n2\n3\n", "WEBVTTX\n", "From: a\nb\n",
                 "Note: b\nReceived: c\n", "<?php a() ?>\n<html>\n",
                 "[re: boats] They sail.\n"):  # fmt: skip
        [block] = opened(tmp_path, "a.txt", text)
        assert (block.text, block.place) == (text, None)
        assert opened(tmp_path, "a.txt", text).warnings == []
