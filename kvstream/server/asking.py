"""Whether a text asks something: a question, or a request in one of several languages."""

from __future__ import annotations

import re

_VERBS = (
    "summari[sz]e|explain|tell|list|find|give|describe|compare|name|identify|extract|count|answer|"
    "translate|quote|outline|show|generate|write|create|suggest|provide|re-?write|re-?phrase|"
    "paraphrase|classify|determine|analy[sz]e|detect|produce|convert|proofread|respond|propose|"
    "categori[sz]e|evaluate|shorten|simplify|condense|continue|infer|refine|reply|tl;?dr|eli5|"
    "recap|improve|reformat|refactor|transform|elaborate|calculate|recommend|highlight|"
    "fasse|übersetze|erstelle|schreibe|erkläre|nenne|beantworte|formuliere|generiere|bitte|"
    "résume[rz]?|traduis(?:ez)?|génère|générez|écri(?:s|vez)|rédigez?|expliquez?|donnez?|"
    "faça|crie|escreva|haz|кратко|сделай(?:те)?|изложи(?:те)?|"
    "vertaal|schrijf|vat\\s+(?:de|het|deze|dit)|podsumuj|przetłumacz|napisz|wyjaśnij|streść|"
    "sammanfatta|översätt|skriv|förklara|oppsummer|opsummer|لخص|ترجم|اشرح|اكتب|"
    "traduce|traduzca|traduza|traduci|genera|escribe|escriba|explica|riassumi|scrivi|resuma|"
    "переведи(?:те)?|напиши(?:те)?|перескажи(?:те)?|объясни(?:те)?|составь(?:те)?|придумай(?:те)?"
)
_NOUNS = (
    "return|review|correct|select|choose|state|title|label|tag|check|complete|make|draft|rank|rate|"
    "resume|fix|turn|debug|solve|format|polish|expand|estimate|discuss|sort|group|remove|replace"
)
"""Verbs that also begin titles: they ask only with an object."""
_OBJECT = (
    r"\s+(?:an?|the|this|that|these|those|all|each|every|it|me|any|which|who|what|how|my|its|one|"
    r"two|three|only|\d+|el|la|los|las|este|esta|lo)\b"
)
_REQUEST = re.compile(
    r"[\s*\-]*(?:\d+[.)]\s+)?(?:(?:only|just|now|then)\s+|"
    r"(?:given|based on|using|considering|from|with)\b[^.!?\n]{3,200}?,\s+)?"
    rf"(?:please\b|(?:question\b[^\n:.]{{0,40}}|q):|(?:{_VERBS})\b(?!\s*:\s*\S)|"
    rf"(?:{_NOUNS}){_OBJECT}|your (?:task|job|goal|mission) is\b|"
    rf"you (?:are|need) to (?:{_VERBS})\b|i (?:want|need|would like) you to\b|"
    r"i[’']d like you to\b|i (?:wonder|need)\b|i(?: want|[’']d like| would like) to know\b|"
    r"read (?:the|this) (?:following|text|passage|article|story|document)\b|"
    r"let me know\b|true or false\b|(?:can|could|would|will) you\b|"
    r"你?[请請]|你需要|你的任[务務]|[总總][结結]|概括|翻[译譯]|生成|列出|解[释釋]|提取)",
    re.IGNORECASE,
)
_POLITE_END = re.compile(
    r"(?:ください|下さい|しなさい|せよ|해\s?줘|주세요|하세요|하시오|özetle(?:yin)?|çevir(?:in)?|açıkla(?:yın)?|लिखें|करें|बताएं|\bplease)[.!。！:：]?$|_{3}"
)
_MANNER = re.compile(
    r"\W*(?:please\s+|you (?:are|need) to\s+)?(?:(?:answer|respond|reply|beantworte)\b|"
    r"(?:give|provide|tell|show|list|find|"
    r"state|make|return|write|explain)\b.*\b(?:answers?|questions?|repl(?:y|ies)|responses?|sources?)\b)",
    re.IGNORECASE,
)
"""A request about the manner of all answers, not about a text."""
_OF_TEXT = re.compile(
    r"\b(?:texts?|messages?|contents?|inputs?|following|conversations?|chats?|below|user)\b", re.I
)
_CLOSERS = re.compile(r"(?:</?\w[^<>]*>|[\s*_~`!)\]\u200b-\u200f\u2060\ufeff])+$")
"""Marks, tags and invisible characters behind a question mark."""
_MARKED = re.compile(
    r"(?:\#{1,6}[ ]+)?(?P<mark>[*_]{1,3}|<(?P<tag>p|b|i|h[1-6]|em|strong)>)?(?P<words>[^\n]+?)"
    r"(?(tag)</(?P=tag)>|(?(mark)(?P=mark)))"
)
_MARKS = ("?", "？", "؟")
_BARE = re.compile(
    r"[\W\d]*(?:who(?:m|se)?|what|when|where|why|how|which|wer|wen|wem|was|wann|wo|warum|wie|welche[rs]?|"
    r"qui|quand|où|pourquoi|comment|quel(?:le)?s?|quién(?:es)?|qué|cuándo|dónde|cómo|cuál)\b"
    r"[^\n]{2,150}[^\s.,:;!…\"”’']\s*$|[^\n]{2,150}(?:か|吗|呢)[。.]?\s*$",
    re.IGNORECASE,
)
"""A question without its mark, of one line."""
_ANNOUNCED = re.compile(
    r"(?!here|this|these|the\b|below|dear|hi\b|hello|hey|i\b|we\b|it\b)"
    r"(?:[^\s:：]+[ \t]+)+[^\s:：]+[ \t]?[:：]$|[^\n:： ]{5,60}[ \t]?[:：]$",
    re.IGNORECASE,
)
"""A line that ends with a colon and is no label, in any language."""
_PERSONA = re.compile(r"(?:you are|you[’']re|act as|as an?)\b[^.!?\n]*[.!]\s+", re.IGNORECASE)
_SPEAKER = re.compile(
    r"^[ \t|>*\[]*(?!q\b|question|query)\w[\w .'’-]{0,24}\W{0,3}[:：>](?:\s|$)", re.I | re.M
)
_ROLE = re.compile(
    r"[\s|>*\[]*(?:user|human|assistant|ai|bot|system|model|customer|agent)\W{0,3}[:：>]", re.I
)
"""The beginning of what somebody says in a conversation; a role alone shows that it is one."""
SENTENCE = re.compile(r"(?<=[.!?。！？])\s+")
_CLAUSE = re.compile(r"(?<=[.!?:])\s+|(?<=[。！？，：])\s*|\n\s*")
STATEMENT = re.compile(r"[.!。！][\"'”’)\]»]*\s*$|\n")


def asks(paragraph: str) -> bool:
    """Return whether a paragraph is a question or a request, outside of quotes and talks."""
    line = paragraph.rpartition("\n")[2]
    talks = _SPEAKER.match(line) and len(_SPEAKER.findall(paragraph)) > 1
    if talks or line.startswith(">") or _ROLE.match(line):
        return False
    paragraph = _PERSONA.sub("", paragraph, count=1) if _PERSONA.match(paragraph) else paragraph
    first = SENTENCE.split(paragraph, maxsplit=1)[0]
    if any(ends_as_question(text) for text in (paragraph, first)):
        return not _ROLE.match(paragraph)
    return _REQUEST.match(paragraph) is not None or _POLITE_END.search(paragraph) is not None


def ends_as_question(text: str) -> bool:
    """Return whether a text ends with a question mark, inside any marks and tags."""
    return _CLOSERS.sub("", text[-200:]).endswith(_MARKS)


def asks_without_mark(paragraph: str) -> bool:
    """Return whether a last paragraph begins as a question. (A first one can be a title.)"""
    return _BARE.match(paragraph) is not None


def announces(paragraph: str) -> bool:
    """Return whether a first paragraph may ask for something in any language: it ends with a colon,
    or is a question without its mark, which begins with a small letter. (A title does not.)"""
    bare = _BARE.match(paragraph) is not None and paragraph[:1].islower()
    return bare or _ANNOUNCED.match(paragraph) is not None


def unmarked(question: str) -> str:
    """Return a line without the marks of a heading, emphasis or a paragraph around it."""
    match = _MARKED.fullmatch(question)
    return match["words"] if match else question


def without_role(paragraph: str) -> str:
    """Return what somebody says in a conversation without the name of the role in front."""
    match = _ROLE.match(paragraph)
    return paragraph[match.end() :] if match else paragraph


def asks_of_a_text(system: str, message: str) -> bool:
    """Return whether a system message asks for work on a message that asks nothing itself."""
    if not (STATEMENT.search(message) or _OF_TEXT.search(system)):
        return False
    clauses = _CLAUSE.split(system)
    return ends_as_question(clauses[-1]) or any(
        (_REQUEST.match(clause) or _POLITE_END.search(clause)) and not _MANNER.match(clause)
        for clause in clauses
    )
