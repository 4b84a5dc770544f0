"""The set of a text's words, in fixed space."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvstream.input.blocks import TextBlock
from kvstream.tokenization.forms import BYTES, HASHES, WordForms, _set, folded, number_forms, words


def fed(*parts: str) -> WordForms:
    forms, start = WordForms(), 0
    for part in parts:
        forms.feed(TextBlock(part, start, 0))
        start += len(part.encode())
    return forms


def test_words_and_numbers_of_a_text_are_known_in_any_case() -> None:
    forms = fed("Harriet paid £1,150 on 3 March; call 555-0142. ÉTÉ")
    assert all(map(forms.has_word, ("Harriet", "HARRIET", "march", "été")))
    assert all(map(forms.has_number, ("1,150", "1150", "3", "555-0142", "5550142", "555/0142")))
    assert not any(map(forms.has_word, ("Harrie", "arriet", "April")))
    assert not any(map(forms.has_number, ("555-0199", "1151", "115")))


@pytest.mark.parametrize("text", ["by Défago.", "by De\u0301fago.", "by Defago.", "by DÉFAGO."])
def test_accents_make_no_other_word(text: str) -> None:
    forms = WordForms.unpacked(fed(text).packed())
    assert all(map(forms.has_word, ("Défago", "Defago", "defago", "DÉFAGO", "De\u0301fago")))
    assert not forms.has_word("Defagó" + "s")


def test_a_filter_of_words_with_accents_alone_still_knows_them() -> None:
    """Memory files written before accents were removed have such filters."""
    forms = WordForms()
    _set(forms._bits, {"défago"})
    assert forms.has_word("Défago")
    assert not forms.has_word("Defago")


def test_folding_leaves_other_scripts_as_they_are() -> None:
    assert folded("Défago ÇA Ångström") == "defago ca angstrom"
    for text in ("がぎ 語", "한국어", "हिन्दी", "plain £5 – “so”"):
        assert folded(text) == text


def test_a_word_that_two_blocks_share_is_one_word() -> None:
    for cut in range(1, 24):
        text = "Wexcombe 555-0142 Marlow"
        forms = fed(text[:cut], text[cut:])
        assert forms.has_word("Wexcombe"), cut
        assert forms.has_word("Marlow"), cut
        assert forms.has_number("5550142"), cut
        restored = WordForms.unpacked(forms.packed())
        assert restored.has_word("Marlow"), "the last word is there though the text may go on"
    forms = fed("one Wex", "combe two")
    assert not forms.has_word("Wex")
    assert not forms.has_word("combe")


def test_words_of_two_sources_do_not_join() -> None:
    forms = WordForms()
    forms.feed(TextBlock("the end", 0, 0))
    forms.feed(TextBlock("less sea", 7, 1))
    assert forms.has_word("end")
    assert forms.has_word("less")
    assert not forms.has_word("endless")


def test_the_room_is_fixed_and_mistakes_are_as_rare_as_is_said() -> None:
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghij", k=9)) for _ in range(60_000)]
    forms = fed(" ".join(words[:40_000]))
    assert forms._bits.nbytes == BYTES
    assert all(map(forms.has_word, words[:1000]))
    passed = sum(map(forms.has_word, words[40_000:])) / 20_000
    said = (np.unpackbits(forms._bits).sum() / (8 * BYTES)) ** HASHES
    assert passed == pytest.approx(said, abs=0.002)
    assert said < 0.002


def test_what_is_packed_comes_back_or_is_refused() -> None:
    forms = fed("Harriet Osgood")
    assert WordForms.unpacked(forms.packed()).packed() == forms.packed()
    for broken in (b"", b"no", forms.packed()[:-20]):
        with pytest.raises(ValueError, match="words"):
            WordForms.unpacked(broken)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ("谁把银钥匙埋了？", "后来，守塔人把银钥匙埋在树下。"),
        ("鍵はどこ?", "古い鍵を橋の下に隠した。"),
        ("コンピューターの値段", "新しいコンピューターは高い。"),
        ("ใครซ่อนกุญแจ", "ชาวประมงซ่อนกุญแจไว้ใต้สะพาน"),
        ("ໃຜເຊື່ອງກະແຈ", "ລາວເຊື່ອງກະແຈໄວ້"),
        ("សោ​នៅ​ឯណា", "គាត់លាក់សោនៅក្រោមស្ពាន"),
        ("သော့ဘယ်မှာလဲ", "သူသည်သော့ကိုဝှက်ထားသည်"),
        ("열쇠는 어디에 있나요?", "어부가 열쇠를 다리 밑에 숨겼다."),
        ("물이 어디서 나와요?", "그는 물을 마셨다."),
        ("चाबी कहाँ है?", "उसने चाबी छिपाई"),
    ],
)
def test_words_match_in_scripts_without_spaces(asked: str, text: str) -> None:
    assert set(words(asked)) & set(words(text))
    assert not set(words(asked)) & set(words("天气很好。今日は雨。ฝนตก 비가 왔다 बारिश हुई"))
    forms = WordForms.unpacked(fed(text[:5], text[5:]).packed())
    assert any(forms.has_word(word) for word in words(asked))


def test_korean_particles_leave_and_nouns_that_look_like_them_stay() -> None:
    for noun in ("열쇠", "고양이", "마을", "바다", "서울", "회의", "나무"):
        closed = (ord(noun[-1]) - ord("가")) % 28 > 0
        for particle in ("은", "이", "을", "과") if closed else ("는", "가", "를", "와"):
            assert words(noun + particle) == words(noun)
        assert words(f"{noun}에서는") == words(noun)
    assert words("마을 바다 서울 학교로 서울로") == ["마을", "바다", "서울", "학교", "서울"]


def test_words_of_mixed_scripts() -> None:
    assert words("max_tokens=12 Café, GPU版b") == ["max", "tokens", "12", "cafe", "gpu", "版", "b"]


def test_a_number_stands_for_all_its_digits_and_for_each_run() -> None:
    assert number_forms("7") == ["7"]
    assert number_forms("555-0199") == ["5550199", "555", "0199"]
