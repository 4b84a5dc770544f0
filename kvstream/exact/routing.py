"""Decide from the words of a question whether words or structure answer it, without a model.

A question goes this way only if all of its words say so: a pattern matches it from its beginning
to its end. Whatever the patterns do not know is `OTHER`, and the model answers it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import PurePath
from typing import Literal

Kind = Literal["count", "table", "scope", "other"]


@dataclass(frozen=True)
class Asked:
    """What a question asks for."""

    kind: Kind
    words: str = ""
    """Of a count: the words to count; empty if the units themselves are counted."""
    unit: str = ""
    """Of a count: the units that are counted (a key of `UNITS`); empty: mentions of the words."""
    scope: str = ""
    """The part of the text that the question is about, as ``--only`` takes it; of other questions:
    the part that they may be about."""
    place: str = ""
    """Of a count: which places are asked for: ``first``, ``last`` or ``both``."""
    since: str = ""
    """The times that the question names, as ``--since`` and ``--until`` take them."""
    until: str = ""
    estimates: bool = False
    """Of other questions: whether it asks for a number that no words count."""


OTHER = Asked("other")
LONGEST = 300
"""Characters of a question that may be of another kind. A longer one gives more than its words."""
UNITS = {
    "line": r"lines?(?: of (?:code|text))?|log (?:lines?|entries)",
    "row": r"rows?",
    "record": r"records?|entries|entry",
    "message": r"messages?|e-?mails?|mails?",
    "function": r"functions?|methods?",
    "class": r"class(?:es)?",
    "page": r"pages?",
    "chapter": r"chapters?",
    "section": r"sections?|headings?",
    "part": r"parts?",
    "act": r"acts?",
    "scene": r"scenes?",
    "article": r"articles?",
    "paragraph": r"paragraphs?",
    "word": r"words?",
}
"""The units of a text that can be counted, with the words for each."""
HEADINGS = ("chapter", "section", "part", "act", "scene", "article")
_UNIT = "(?:" + "|".join(f"(?P<u_{name}>{words})" for name, words in UNITS.items()) + ")"
_UNIT_WORDS = f"(?:{'|'.join(UNITS.values())})"
_TEXT = (
    r"(?:texts?|files?|documents?|books?|novels?|stor(?:y|ies)|logs?|logfiles?|tables?|[ct]sv|data|"
    r"dataset|spreadsheet|sheet|code|source|script|module|program|chats?|conversation|thread|"
    r"mailbox|inbox|archive|folder|directory|reports?|papers?|articles?|letters?|manual|contract|"
    r"agreement|transcripts?|lists?|notebooks?|pdf|epub|e-?mails?|notes|page|thesis|essay|play|poem|law|"
    r"constitution|treaty|statute|regulation|directive|policy|guide|handbook|textbook|standard|"
    r"specification|diary|memoir|biography|export|dump|input)"
)
_THE = r"(?:the|this|that|these|those|my|our|all(?: of)? the)(?: whole| entire)?(?: [\w-]+)?"
_THIS = rf"(?:{_THE} {_TEXT}|it|here)"
_INSIDE = rf"(?: altogether| in total)?(?: (?:in|of|within|across|through(?:out)?) {_THIS})?"
WORDS = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
).replace(" ", "|")
ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth "
    "fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth last"
).replace(" ", "|")
OUTER = ("volume", "part", "book", "act")
INNER = ("chapter", "letter", "canto", "scene", "article", "appendix", "lecture", "section",
         "stave")  # fmt: skip
"""Kinds of numbered parts."""
_NUMBER = rf"(?:\d+(?:\.\d+)*|[ivxl]+|{WORDS})\b"
_KINDS = "|".join(OUTER + INNER)
_PART = rf"(?:(?:{_KINDS})s? (?:number |no\.? )?{_NUMBER}|appendix [a-z]\b)"
_MESSAGE = r"(?:messages?|e-?mails?|mails?)"
_NAME = r"(?-i:[A-Z][\w.@-]*(?: [A-Z][\w.@-]*)*)"
_TO = r" ?(?:-|–|to|through) ?"
PLACE = (
    r"(?:\b|(?<=under )|(?<=only at )|(?<=according to ))"
    rf"(?:{_PART}(?:{_TO}{_NUMBER}|(?:,| of| in|(?<=\d)) {_PART})?"
    rf"|the (?:{ORDINALS}) (?:(?!letter)(?:{_KINDS})|{_MESSAGE})\b(?! (?:from|by) )"
    r"|(?:the )?(?:first|last) \d+ (?:line|page)s\b"
    rf"|(?:page|line)s? \d+(?:(?:{_TO}| and )\d+)?\b"
    r"|(?:(?:the )?(?:chapter|section|part) (?:called |named |titled |on )?|(?<=under )"
    r"|(?<=only at )|(?<=according to ))"
    r"[\"'“‘][^\"'”’]+[\"'”’]"
    rf"|(?:the )?section (?:on )?{_NAME}|(?:the )?section (?:on|about) (?:the )?[\w-]+"
    r"|(?:(?:the )?(?:chapter|section|part) (?:called|named|titled|entitled) |(?<=the heading ))"
    r"(?-i:[A-Z])[\w’' -]*?(?= for (?:me|us)\b|[,:]|$)"
    r"|the (?-i:[A-Z][\w-]*)(?: (?!section|chapter)[\w-]+){0,4} (?:section|chapter)\b"
    r"|the (?!(?:next|previous|same|whole|entire|other|following) )[\w-]+(?: [\w-]+)? section\b"
    r"|the (?:abstract|introduction|preface|foreword|prologue|epilogue|afterword|conclusions?"
    r"|discussion|postscript|glossary)\b"
    rf"|(?:the |an? )?(?:(?:first|last|latest) )?{_MESSAGE} (?:from|by) {_NAME}"
    rf"|{_NAME}(?:'s|’s) {_MESSAGE}\b)"
)
_NAMED = re.compile(
    rf"{_KINDS}|heading|only at|abstract|introd|fore|face|logue|conclu|discuss|script|gloss|under"
    r"|page|line|mess|mail|accord",
    re.IGNORECASE,
)
_PERHAPS = rf"(?!.*(?:{_KINDS}).*(?:{_KINDS})).+ (?<!after )(?<!before )(?<!from )({_PART})"
"""A question that may be about a part, as in: who wrote chapter 3."""
_OWN = (
    r".* (?:does|did|has|is|was) (?!(?:the|an?|he|she|it|they|you|his|her|my)\b)(?P<name>[\w-]+)"
    r" (?!find|read|get|receive|see|keep)(?:[\w’'-]+ )+?in (?:his|her|their|its)"
    rf" (?P<which>(?:(?:first|last|latest) )?{_MESSAGE})"
)
"""A question for what somebody writes in a message."""
_SAYS = (
    r" (?:say|contain|describe|cover|state|mean|discuss|explain|require|argue|claim|name|list|"
    r"mention|recommend|define|give|show|tell|conclude|report|prohibit|forbid|allow|grant|"
    r"leave out|exclude|include|promise|permit|warn|suggest|present|introduce)s?\b"
    r"| (?:about|end|begin|start|called|titled|take place|set)$"
)
_ASKS = re.compile(
    r"(?:what|how|where|when|(?:what|which)(?: [\w-]+){1,3})"
    r"(?:'s| is| was| does| do| did) (?:the )?$",
    re.IGNORECASE,
)
_COMPARES = re.compile(
    r"\b(?:same|compared?|than|contradicts?|differ\w*|other (?:chapter|section|part)s?|rest|"
    r"elsewhere|besides|except|apart|long|length|author|wrote|size)\b"
)
_IN = re.compile(
    r"(?:^|.* )(?:in|on|under(?: the heading)?|from|of|within|during|throughout|between|\w+ing to"
    r"|at|only|using|by|according to) $",
    re.IGNORECASE,
)
_AT_LINE = re.compile(
    r"(?:what|which)(?: error| code| text| word| value| message| entry| command| warning)?"
    r"(?: is|'s| stands| happens| happened) on $",
    re.IGNORECASE,
)
_SHOWS = re.compile(
    r"(?:please |pls |who |(?:can|could) you )?(?:summari[sz]e|sum up|explain|describe|outline"
    r"|translate|retell|turn|put|walk me through|rewrite|shorten|narrates|tells) "
    r"(?:just |only )?(?:what (?:happens in )?)?"
    r"|(?:(?:what is|what's|give me|write) )?(?:the |a )?(?:gist|summary|essence|content) of ",
    re.IGNORECASE,
)
_LEAD = frozenset(
    re.findall(
        r"\S+",
        "i i'd i’d like want need wonder wondering to know the an any idea can could would "
        "you we do if please pls tell me us say check find out count for my our essay report "
        "article give show get let hey hi hello ok okay so and just quick quickly question "
        "total overall altogether determine calculate what is what's see exactly interested "
        "be it's its",
    )
)
"""Words before it that change nothing."""
_TITLE = (
    r".*( (?:in|of|from|within|throughout) (?:the )?(?:[\w’'-]+ ){0,2}?([\w’'-]+)"
    r"(?: (?:and|of) (?:the )?[\w’'-]+| [A-Z][\w’'-]*)?)$"
)
"""A title at the end, by one word of the file's name. What follows the title asks for more."""
_NUMBERED = rf"(?:{_KINDS}|{_MESSAGE})\b"
_ASKERS = frozenset(("know", "curious", "wonder", "wondering", "idea", "tell", "check"))
_IFS = frozenset(("if", "because", "since", "not", "when", "after", "before", "who", "that"))
_TAIL = re.compile(
    r"(?:[,?.!]| -| –)? (?:please|pls|thanks|thank you|(?:the )?exact number(?: please)?|exactly"
    r"|overall|(?:whatever|regardless of) [\w ]+|big or small \w+|in any case)$",
    re.IGNORECASE,
)
_SHORT = (
    (r"^(?:without|not counting) the header,? ", ""),
    (r"^([\w-]+)['’]s (?:message|mail) count$", r"how many messages did \1 send"),
    (r"^length of (.+?) in (line|word|page)s$", r"how many \2s are in \1"),
    (r"\bopening (?=chapter|part|section|scene|act)", "first "),
    (rf"\b1st (?={_NUMBERED})", "first "),
    (rf"\b2nd (?={_NUMBERED})", "second "),
    (rf"\b3rd (?={_NUMBERED})", "third "),
    (rf"\b4th (?={_NUMBERED})", "fourth "),
    (rf"\b5th (?={_NUMBERED})", "fifth "),
    (r"^(?:the |total )*(line|word|row|page|message) count\b(?: of| in)?", r"number of \1s in"),
    (r"\bch(?:ap)?(?:\.? ?(?=\d)|\. ?(?=[ivxl]+\b))", "chapter "),
    (r"\bpp?\. ?(?=\d)", "page "),
    (r"\bsec\. ?(?=\d)", "section "),
    (r"^(?:the )?(.+?)(?: -|,| –) how many(?: are there)?$", r"how many \1"),
    (
        r"^(?:the (?:word|name|phrase) )?(.+?)(?: -|,|:| –) (how (?:often|many times) "
        r"(?:does|do|did|is|was|are)) (?:(?:that|this|the) (?:name|word|phrase)|it|he|she|they) ",
        r"\2 the word \1 ",
    ),
)
"""Short forms, and what is read for them."""
_MARK = (
    r"(?:the )?(?:exact |literal )?(?:words?|phrases?|terms?|names?|strings?|text|expression|"
    r"keyword|token|symbol)"
)
_QUOTED = r"[\"'“‘«„`](?P<quoted>.+?)[\"'”’»“`]"
_X = rf"(?:(?P<mark>{_MARK}) )?(?:{_QUOTED}|(?P<words>.+?))"
_MENTION = r"(?:mention|occurrence|reference|hit|match|use|instance|appearance)(?:e?s)?"
_LEVELS = r"error|warn(?:ing)?|info|debug|fatal|critical|notice|trace"
_ASKING = re.compile(
    r"\b(?:how (?:many|often|frequently)|(?:the |an? )?(?:\w+ )?(?:number|count|no\.|frequency) of"
    r"|count (?!for\b)|where|when|in which|on which|does the"
    rf"|(?:all |total )*{_MENTION} (?:of|to))\b",
    re.IGNORECASE,
)
"""How the part of a question begins that asks for a count or a place."""
_MANY = (
    r"(?:(?:what(?: is|'s)|give me|show me|get|find|calculate|count) )?(?:the )?(?:exact |total )?"
    rf"(?:number|no\.|count|frequency) of (?={_MENTION} (?:of|to)|times|[\"“'‘]|{_UNIT_WORDS}\b"
    rf"|(?:{_LEVELS}) (?:lines|entries))"
    rf"|count (?:all |every |each )?(?:the )?"
    rf"(?={_MENTION} (?:of|to)|{_UNIT_WORDS}(?: (?:con|men|wi|th)|$)"
    rf"|(?:{_LEVELS}) (?:lines|entries)\b)"
    rf"|(?:all |total )*(?={_MENTION}s? of)"
)
_BE, _DO = r"(?:is|are|was|were|has|have|gets?|got)", r"(?:does|do|did)"
_TIMES = r"how (?:often|frequently|many times)"
_CONTAINS = (
    r"(?:(?:that |which )?(?P<verb>contain|mention|include|match|ha|say|show)(?:ve|s|ing|es)?"
    r"|(?P<with>with))"
)
_USED = r"(?P<used>used|said|written|repeated|cited)"
_LOGGED = r"(?P<logged>logged|reported|printed|recorded)"
_PASSIVE = (
    rf"(?:mentioned|(?P<named>named)|referenced|referred to|{_USED}|{_LOGGED})"
    rf"(?: by name)?{_INSIDE}"
)
_SHOWN = r"(?:appears?|comes? up|(?:show|turn|crop|pop)s? up)(?: by name)?"
_HAS = rf"(?:are|is) (?:there|(?:in|defined in) {_THIS})|exist|has {_THIS}|(?:in|of) {_THIS}"
_FOUND = rf" (?:are|is|were) there| {_DO} you (?:find|see)| can (?:you find|be found)| exist"
_SENDER = r"(?P<sender>[\w-]+(?: (?-i:[A-Z])[\w-]*)?)"
_SENT = r"(?:sen[dt]|posts?|posted|write|wrote|written)"
_COUNTS = (
    rf"{_TIMES} {_BE} {_X} (?:been )?(?:explicitly |ever )?{_PASSIVE}",
    rf"{_TIMES} {_X} {_BE} (?:been )?{_PASSIVE}",
    rf"{_TIMES} (?:{_DO} )?{_X} (?:(?P<shows>{_SHOWN})|(?P<occurs>occurs?))(?P<inside>{_INSIDE})",
    rf"{_TIMES} {_DO} (?:(?:some|any)(?:one|body) (?:say|write|mention)|they mention) {_X}"
    rf"{_INSIDE}",
    rf"{_TIMES} {_DO} .+ (?P<occurs>say) (?:(?P<mark>{_MARK}) )?(?:{_QUOTED}|(?P<words>[\w-]+))"
    rf"(?P<inside>{_INSIDE})",
    rf"{_TIMES} (?:{_BE} )?{_X} (?P<with>in|found in|seen in|present in) {_THIS}",
    rf"how many {_X} (?P<with>)(?P<u_line>lines?) {_HAS}{_INSIDE}",
    rf"how many (?P<words>{_LEVELS}) (?:(?P<u_line>lines?|entries))(?: {_HAS})?{_INSIDE}",
    rf"how many (?P<u_line>lines?) (?:have|with) (?:{_QUOTED}|(?P<words>\S*[^s\W])) in them",
    rf"{_TIMES} {_DO} (?:the (?:author|writer|narrator)|{_THIS}) "
    rf"(?:mention|refer to|reference|(?P<used>use|say|write|repeat)) {_X}{_INSIDE}",
    rf"how many (?:mentions?|references?|(?P<occurs>occurrences?|hits?|match(?:es)?)"
    rf"|(?P<used>uses?|instances?|appearances?)) (?:of|to|for) {_X}(?:{_FOUND})?"
    rf"(?P<inside>{_INSIDE})",
    rf"count (?:all |every |each )?(?P<used>){_X}{_INSIDE}",
    rf"how many {_UNIT} (?:{_HAS}|{_DO} {_THIS} (?:have|contain|define|include|hold)){_INSIDE}",
    rf"how many {_UNIT}(?: (?:in|of) {_THIS})? {_CONTAINS} {_X}{_INSIDE}",
    rf"how many {_UNIT}(?: in total)?",
    rf"how many {_UNIT} {_THIS} (?:has|have|holds?|contains?|defines?|includes?)",
    rf"how many (?P<u_line>lines?|entries)(?: of {_THIS})? (?:have|with|(?:are )?at) "
    r"(?:the )?level (?P<words>\w+)",
    rf"how many {_QUOTED} (?:entries|errors|hits|(?P<u_line>lines))(?:{_FOUND})?{_INSIDE}",
    rf"does (?P<mark>{_MARK}) (?:{_QUOTED}|(?P<words>[\w-]+)) (?:{_SHOWN}|occur) "
    rf"(?:a lot|often|much|frequently){_INSIDE}",
    rf"how many (?P<u_message>{_MESSAGE}) (?:did|has|have) {_SENDER} {_SENT}{_INSIDE}",
    rf"how many (?P<u_message>{_MESSAGE}) (?:(?:are|were|was|is) )?(?:{_SENT} )?(?:by|from) "
    rf"{_SENDER}{_INSIDE}",
    rf"how many times (?:(?:did|has) )?{_SENDER} {_SENT}(?: \w+thing| a message)?{_INSIDE}",
    rf"{_TIMES} (?:can|did) (?:you|i|we) (?:find|see) (?P<used>){_X}{_INSIDE}",
    rf"(?:in|on) how many {_UNIT} {_DO} {_X} (?:{_SHOWN}|occur){_INSIDE}",
    rf"(?:in|on) how many {_UNIT} {_BE} {_X} {_PASSIVE}",
    rf"how many {_UNIT} {_DO} {_X} (?:{_SHOWN}|occur) (?:in|on)",
)
_AROUND = re.compile(
    rf"(?:{_TEXT}|{_MARK}|{_MENTION}|how|many|often|frequently|count|lines?|entries|times|is|are|was"
    r"|were|do|does|did|has|have|been|we|you|i|they|gets?|see|find|found|seen|there|it|here|in|of"
    r"|the|this|that|all|with|contain(?:s|ing)?|says?|said|used|written|logged|appears?|comes?"
    r"|writes?|wrote|shows?|turns?|up|occurs?|mentioned|for|me|us)",
    re.IGNORECASE,
)
"""A word around a quotation that is counted."""
_WHERE = (
    r"(?:where|when|(?:in|on|at) (?:which|what) (?:lines?|pages?|(?P<u_chapter>chapter)|"
    rf"{_TEXT}))"
    rf"(?: in {_THIS})?"
)
_PLACES = (
    rf"{_WHERE} (?:{_BE}|has) {_X} (?:been )?(?P<at>(?:first|last) )?{_PASSIVE}",
    rf"{_WHERE} {_BE} {_X} {_PASSIVE} for the (?P<at>first|last) time{_INSIDE}",
    rf"{_WHERE} {_BE} {_X} (?P<at>first|last) (?P<with>seen|logged|reported|found){_INSIDE}",
    rf"{_WHERE} {_DO} {_X} (?P<at>first|last) (?:(?P<shows>{_SHOWN})|(?P<occurs>occurs?))"
    rf"(?P<inside>{_INSIDE})",
    rf"{_WHERE} {_DO} {_X} (?:(?P<shows>{_SHOWN})|(?P<occurs>occurs?)) "
    rf"(?:for the )?(?P<at>first|last)(?: time)?(?P<inside>{_INSIDE})",
    rf"(?:where|what) (?:is|was) the (?P<at>first|last) (?P<noun>mention|occurrence) of {_X}"
    rf"{_INSIDE}",
)
"""Questions for the first or the last place of words, or for both."""
_AND_WHERE = re.compile(
    r",? and (?:where|when|(?:in|on) (?:which|what) (?:lines?|pages?|chapters?))(?: (?:is|are|was|"
    r"were|does|do|did) (?:it|he|she|they|(?:his|her|its|the) (?:name|word|phrase))"
    r"(?: (?:first|last|for the (?:first|last) time|mentioned|appear|occur))*)?$",
    re.IGNORECASE,
)
"""What asks for places besides a count."""
_NUMBERS = re.compile(
    r"\b(?:how (?:many|often|frequently)|number|no|count|frequency|mention\w*|occurrence\w*"
    r"|first|last|a lot|length|total|figure|times)\b",
    re.IGNORECASE,
)
_WEEKDAY = r"(?:mon|tues|wednes|thurs|fri|satur|sun)day"
_DAY = rf"(?:\d{{4}}-\d\d-\d\d|{_WEEKDAY})"
_CLOCK = r"(?:noon|midnight|\d{1,2}:\d\d(?::\d\d)?(?: ?[ap]\.?m\b\.?)?|\d{1,2} ?[ap]\.?m\b\.?)"
_TIME = rf"(?:{_DAY}(?:[ T]|,? at )?{_CLOCK}|{_DAY}|{_CLOCK})"
_TIMED = re.compile(
    rf",? ?\b(?:(?:between|from) (?P<a>{_TIME}|\d\d?(?=[\w ]+[ap]\.?m)) "
    rf"(?:and|to|until|till) (?P<b>{_TIME})"
    rf"|(?:after|since) (?P<c>{_TIME}) (?:and|but) (?:before|until) (?P<d>{_TIME})"
    r"|(?:on|dated) (?P<on>\d{4}-\d\d-\d\d|(?-i:[A-Z][a-z]{2}) \d\d?)"
    rf"|(?:after|since|from) (?P<since>{_TIME})|(?:before|until|till|up to) (?P<until>{_TIME}))"
    r"(?: onwards?| on(?! (?:\w+day|\w{3} \d|\d{4}-)))?(?!\w)",
    re.IGNORECASE,
)
_EARLIER = r"^why\b|^how come\b|\bchang|\bdiffer|\bcompar|\bsame\b"
"""What is asked about a time and needs the text before it."""
_HOURS = {"noon": "12:00", "midnight": "00:00"}
_ENDS = (("a", "c", "on", "since"), ("b", "d", "on", "until"))
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = rf"(?:{'|'.join(_MONTHS)})[a-z]*\.?"
_ON = re.compile(
    rf",? ?\b(?:on )?(?:{_WEEKDAY},? )?(?:the )?"
    rf"(?P<date>\d{{4}}-\d\d-\d\d|(?:{'|'.join(_MONTHS)}) \d\d?)(?![\w-])",
    re.IGNORECASE,
)
"""The day of a span of hours, before or after it."""
_HAS_DAY = re.compile(r"-|[a-z]{3} \d|day", re.IGNORECASE)
_DATE = (
    rf"(?P<day>\d\d?)(?:st|nd|rd|th)?(?: of)? (?P<month>{_MONTH})\b(?:,? (?P<year>\d{{4}}))?"
    rf"|\b(?P<month2>{_MONTH}) (?P<day2>\d\d?)(?:st|nd|rd|th)?\b(?:,? (?P<year2>\d{{4}}))?"
    r"|(?P<day3>\d\d?)[./](?P<month3>\d\d?)[./](?P<year3>\d{4})"
)
_NO_WORDS = re.compile(
    r"(?:his|her|its|their|my|your|our|this|that|these|those|he|she|it|they|him|them|we|i|you|any|"
    r"each|every|no|more|less|fewer|at|only|all|both|(?:some|any)(?:one|body)?|people|\w+thing)\b|"
    r".* (?:who|that|which|when|while|whose|and|or|but|where|because|if|not|longer|shorter)\b",
    re.IGNORECASE,
)
"""Words that stand for others, so that counting them counts something else."""
_QUALIFIED = re.compile(
    r'"|\b(?:without|only|twice|before|after|than|least|most|neither|n?or|once|exactly|being)\b'
    r"|^(?:the |an? )?[a-z]+ [A-Z]"  # the dog Spitz is called Spitz elsewhere
)
"""What limits or describes the words, so that they do not stand in the text as they are."""
_LITERAL = re.compile(r"[A-Z\d]|.*[\w][_.:/@=-]+\w|.*\d")
_ASKS_COUNT = (
    r"\bhow (?:many|often|frequently)\b|\b(?:number|count|frequency|figure|total|length) of\b"
    r"|^times\b|\bcount$|^(?:the )?total\b|\bgive me a (?:figure|number|count)\b|\bfrequently\b"
)
"""What asks for a count, at any place of a question."""
_MEANS_MORE = (
    r"\b(?:he|she|they|him|them|his|her|hers|their|my|your|our|n?or|without|only|twice|than|more|most"
    r"|less|fewer|before|after|not|never|except|but|both|each|every|per|who|whose|which|why|where"
    r"|something|someone|nobody|about|day|week|month|year)\b"
)
"""Words with which a question for a count may ask for more than words show."""
_TALKS = (
    r"\b(?:mention(?:s|ed|ing)?|occurr?en[cs]es?|typed|spelled|(?:do|can) (?:we|you) see"
    r"|(?:word|phrase|term|string)(?! of\b))\b"
)
"""Words about a text as a text."""
_DOES_MORE = r"\b(?:to|read|uses?|used|find|found|listed|typed|spelled|show|come|turn|see|named)\b"
"""Words with which a question for all units may ask for some of them."""
_AROUND_COUNT = (
    r"how|many|often|frequently|frequency|number|count|counts|figure|total|altogether|times|length"
    r"|a|an|the|of|in|on|at|to|is|are|was|were|be|been|do|does|did|has|have|had|got|get|gets|we|i"
    r"|you|me|it|that|this|these|those|there|here|and|if|so|all|any|what|what's|would|will|could|can"
    r"|give|tell|need|want|like|know|please|pls|with|for|up|turn|turns|show|shows|come|comes|see"
    r"|find|found|read|use|used|uses|anyone|anybody|ever|once|least|header|holds?|list|listed"
    r"|typed|written|spelled|mention(?:s|ed|ing)?|occurr?en[cs]es?|occurs?|appears?|named"
    r"|contain(?:s|ing)?|word|phrase|term|string|name|extract|also|just|exactly|exact|-|–"
)
_ESTIMATES = (
    r"how often .*\b(?:in each|in every|per) (?:chapter|page|section|part|line|message)s?"
    r"|how many times (?!.*\b(?:an?|per|each|every) (?:day|week|month|year|hour|minute|second)\b).*"
    r"|how many [\w -]+? (?:are there|there are|exist|appear|occur|"
    rf"are (?:mentioned|named|listed|described))(?: in total)?{_INSIDE}"
)


def route(question: str, names: Iterable[str] = ()) -> Asked:
    """Return what a question asks for; `names` are those of the texts."""
    text = " ".join(question.split()).rstrip("?!. ")
    if len(text) > LONGEST:
        return OTHER
    text = _TAIL.sub("", _TAIL.sub("", text).rstrip("?!. ")).rstrip("?!. ")
    for short, long in _SHORT:
        text = pattern_of(short).sub(long, text)
    title = re.match(_TITLE, text)
    if title and any(title[2].casefold() in _stem(name) for name in names):
        text = f"{text[: title.start(1)]} in this text"
    dated = pattern_of(_DATE).sub(_iso, text) if any(map(str.isdigit, text)) else text
    if (found := _span(dated)) is not None:
        rest, since, until = found
        certain = not pattern_of(_EARLIER).search(text)
        asked = _count(rest) or Asked("scope" if certain else "other")
        return replace(asked, since=since, until=until)
    if (counted := _count(text)) is not None:
        return counted
    if own := pattern_of(_OWN).fullmatch(text) if _NAMED.search(text) else None:
        return Asked("scope", scope=f"{own['which']} from {own['name']}")
    if (place := _place(text)) is not None:
        own = re.fullmatch(rf"({_NAME})['’]s ({_MESSAGE})", place[0], re.IGNORECASE)
        return Asked("scope", scope=f"{own[2]} from {own[1]}" if own else place[0])
    if hint := pattern_of(_PERHAPS).fullmatch(text) if _NAMED.search(text) else None:
        return Asked("other", scope=hint[1])
    asks = _NUMBERS.search(text) and pattern_of(_ESTIMATES).fullmatch(_core(text))
    return Asked("other", estimates=bool(asks))


def _span(text: str) -> tuple[str, str, str] | None:
    """Return a question without its span of time, and the ends of that; None if it has not one."""
    spans = [*_TIMED.finditer(text)] if re.search("\\d|day|noon|night", text) else []
    hours = [span for span in spans if not span["on"]] or spans
    if len(hours) != 1:
        return None
    rest = f"{text[: hours[0].start()]}{text[hours[0].end() :]}"
    ends = [" ".join(filter(None, hours[0].group(*names))) for names in _ENDS]
    since, until = (_HOURS.get(end.lower(), end) for end in ends)
    if re.fullmatch(r"\d\d?(?::\d\d)*", since) and "m" in until[-2:].lower():
        later = int(since.split(":")[0]) % 12 > int(re.findall(r"\d+", until)[0]) % 12
        since += " pm" if ("p" in until.lower()) != later else " am"  # between 3 and 4 pm
    days = [*_ON.finditer(rest)]
    if len(days) == 1 and not any(map(_HAS_DAY.search, ends)):
        rest = f"{rest[: days[0].start()]}{rest[days[0].end() :]}"
        since, until = (end and f"{days[0]['date']} {end}" for end in (since, until))
    elif len(spans) > 1:
        return None
    return rest.strip(" ,"), since, until


def _iso(found: re.Match[str]) -> str:
    """Return a date as ``2026-05-14`` or ``May 14``; as it is if day and month may be swapped."""
    parts = found.groupdict()
    day, month, year = (
        next(filter(None, (parts[f"{name}{n}"] for n in ("", "2", "3"))), "")
        for name in ("day", "month", "year")
    )
    if month.isdigit():
        if int(month) > 12:
            day, month = month, day
        elif int(day) < 13 and "/" in found[0] and day != month:
            return found[0]
    elif not year:
        return f"{month[:3].capitalize()} {int(day)}"
    else:
        month = str(1 + _MONTHS.index(month[:3].lower()))
    return f"{year}-{int(month):02}-{int(day):02}"


def _stem(name: str) -> list[str]:
    """Return the words of a file's name."""
    return [word for word in re.findall(r"[^\W\d_]+", PurePath(name).stem.casefold()) if word[3:]]


@cache
def pattern_of(pattern: str) -> re.Pattern[str]:
    """Compile a pattern when a question needs it: all of them take longer than a short count."""
    return re.compile(pattern, re.IGNORECASE)


def _count(text: str) -> Asked | None:
    """Return the count that a question asks for, perhaps of a part of the text; or None."""
    if not _NUMBERS.search(text):
        return None
    if (place := _place(text)) is not None:
        before = re.sub(r"\w+ $", "", text[: place.start()])
        found = _counted(_core(f"{before}{text[place.end() :]}".strip(" ,")))
        if found:
            return replace(found, scope=place[0])
    where = _AND_WHERE.search(text)
    found = _counted(_core(text[: where.start()] if where else text))
    if found and where:
        place = re.search("first|last", where[0])
        return replace(found, place=place[0] if place else "both")
    return found


def _counted(text: str) -> Asked | None:
    return _by_patterns(text) or _by_words(text)


def _by_words(text: str) -> Asked | None:
    """Return the count that the words of a question ask for, in whatever order.

    All words but those that are counted must be known: what asks, what talks of a text as a text,
    its units, and what changes nothing.
    """
    if not pattern_of(_ASKS_COUNT).search(text) or pattern_of(_MEANS_MORE).search(text):
        return None
    quoted = [*pattern_of(_QUOTED).finditer(text)]
    if len(quoted) > 1:
        return None
    rest = f"{text[: quoted[0].start()]} {text[quoted[0].end() :]}" if quoted else text
    words = re.findall(r"[^\s,;:!?()]+(?<![.-])|(?<=\s)-(?=\s)", rest)
    known = [_is_known(word) for word in words]
    unknown = [place for place, each in enumerate(known) if not each]
    units = [n for n, p in UNITS.items() if any(re.fullmatch(p, w, re.IGNORECASE) for w in words)]
    units = [unit for unit in units if unit != "word"]
    unit = units[0] if units else ""
    whole = re.match(r"(?:in|on) (?:how many|what number)", text, re.IGNORECASE)
    if len(units) > 1 or (quoted and unknown) or (whole and not unit):
        return None
    talks = pattern_of(_TALKS).search(rest) is not None or (unit and "contain" in rest.lower())
    if quoted:
        talks = talks or "written" in words
        return Asked("count", quoted[0]["quoted"], unit) if talks else None
    if not unknown:
        more = talks or pattern_of(_DOES_MORE).search(text)
        return Asked("count", unit=unit) if unit and not more else None
    first, last = unknown[0], unknown[-1]
    if " ".join(words[max(0, first - 2) : first]).lower() in ("how many", "number of"):
        return None  # as in: how many people are mentioned
    said = " ".join(words[first : last + 1])
    if last - first > 2 or len(unknown) != last - first + 1 or _QUALIFIED.search(said):
        return None
    before = words[first - 1].lower() if first else ""
    marked = re.fullmatch(_MARK, before, re.IGNORECASE) is not None
    named = re.search(r"\bnamed\b", rest) and said[0].isupper() and before not in ("the", "a")
    if marked or named or (talks and before not in ("a", "an")):
        return Asked("count", said, unit)
    return None


def _is_known(word: str) -> bool:
    """Return whether a word of a question for a count is none of those that are counted."""
    return any(
        pattern_of(pattern).fullmatch(word) for pattern in (_AROUND_COUNT, _UNIT_WORDS, _TEXT)
    )


def _by_patterns(text: str) -> Asked | None:
    if quoted := pattern_of(_QUOTED).search(text):
        around = f"{text[: quoted.start()]} {text[quoted.end() :]}"
        near = re.findall(r"[^\s,.-]+", around)
        asks = bool(near) and near[0].lower() in ("how", "count")
        if asks and all(map(_AROUND.fullmatch, near)):
            lines = re.search(r"\blines? (?:with|that|have|has|contain)|\" lines", text)
            return Asked("count", quoted["quoted"], "line" if lines else "")
    for pattern in map(pattern_of, _COUNTS + _PLACES):
        if (found := pattern.fullmatch(text)) is None:
            continue
        parts = found.groupdict()
        unit = next((n for n in UNITS if parts.get(f"u_{n}")), "")
        place = (parts["at"] or "both").strip().lower() if "at" in parts else ""
        if (sender := parts.get("sender")) and not _NO_WORDS.match(sender):
            return Asked("count", unit="message", scope=f"messages from {sender}")
        if not parts.get("words") and not parts.get("quoted"):
            return None if sender else Asked("count", unit=unit)
        if (words := _words(parts)) is not None:
            return Asked("count", words, unit, place=place)
    return None


def _words(parts: dict[str, str | None]) -> str | None:
    """Return the words to count, or None if these words stand for something else."""
    if quoted := parts.get("quoted"):
        return quoted
    words = re.sub(r" (?:in (?:them|it)|for (?:me|us))$", "", parts["words"] or "")
    if _QUALIFIED.search(words):
        return None
    if parts.get("mark"):
        return words
    bare = re.sub(r"^(?:the|a|an) (?=.)", "", words)
    if _NO_WORDS.match(bare) or len(bare.split()) > 5 or re.fullmatch(_TEXT, bare):
        return None
    literal = _LITERAL.match(bare) is not None
    verb = parts.get("verb") or ""
    if (
        parts.get("used") is not None
        or parts.get("with") is not None
        or parts.get("logged")
        or verb in ("ha", "say", "show")
    ):
        return bare if literal and parts.get("used") is None and bare.isupper() else None
    if verb in ("contain", "include", "match") and re.match(r"an? ", words):
        return None
    if (parts.get("noun") and not literal and " " in bare) or (
        parts.get("named") and bare != words
    ):
        return None  # a mention that is explained, a ship that was named
    if parts.get("occurs") and not (literal or parts.get("inside")):
        return None
    if parts.get("shows") and not (literal or parts.get("inside") or " " not in words):
        return None
    return bare


def _frames(text: str) -> bool:
    """Return whether words before a question say only that somebody asks it."""
    words = {*re.findall(r"[\w'’.]+", text.casefold())}
    return (
        _LEAD.issuperset(words)
        or re.search(r"\bfor (?:an?|my|our) \w+: *$", text, re.IGNORECASE) is not None
        or (not words.isdisjoint(_ASKERS) and words.isdisjoint(_IFS))
    )


def _place(text: str) -> re.Match[str] | None:
    """Return the one part that a question names, if it is certainly asked about that part."""
    places = list(pattern_of(PLACE).finditer(text)) if _NAMED.search(text) else []
    if len(places) != 1:
        return None
    place, before, after = places[0], text[: places[0].start()], text[places[0].end() :]
    if _COMPARES.search(f"{before} {after}"):
        return None
    both = re.search(r"(\d+) and (\d+)$", place[0])
    if both and not before.endswith("between ") and int(both[2]) != int(both[1]) + 1:
        return None
    if re.match(
        r" (?:onwards?|on|to(?! (?:me\b|us\b|(?-i:[A-Z])))|until|through"
        r"|and(?! (?:tell|list|say|explain|name)\b)|or|than|but)\b"
        r"|[\w’'-]",
        after,
    ):
        return None
    if not before and re.match(r"[,:]| [-–] | in (?:\w+ )?(?:sentence|word|line)s?$", after):
        return place
    whole = re.match(rf" of (?:(?P<text>{_THIS}\b)|(?P<title>\"))?", after)
    if whole and not (whole["text"] or whole["title"]):
        return None
    if place[0].lower() in ("part i", "part one", "book i") and after[:1] not in ("", ",", ":"):
        return place if whole else None
    if _SHOWS.fullmatch(before) or (
        _ASKS.fullmatch(before)
        and re.match(_SAYS, after[whole.end() if whole and whole["text"] else 0 :])
    ):
        return place
    lone = re.match(r"line \d+$", place[0], re.IGNORECASE)
    if lone and re.search(r"\bon $", before) and not whole:  # the line of a bus, perhaps
        return place if _AT_LINE.match(before) else None
    if before.lower().endswith("of ") and after[:1] not in ("", ",") and not whole:
        return None  # as in: the role of article 5 in a history
    return place if _IN.fullmatch(before) else None


def _core(text: str) -> str:
    """Return a question as ``how many ...`` or ``how often ...``, without polite words before."""
    text = re.sub("^in total,? ", "", text, flags=re.IGNORECASE)
    found = _ASKING.search(text)
    if found and _frames(text[: found.start()]):
        text = text[found.start() :]
    many = pattern_of(_MANY).match(text)
    text = f"how many {text[many.end() :]}" if many else text
    return re.sub(r"^count (?=how )", "", text, flags=re.IGNORECASE)
