"""Decide from the words of a question whether words or structure answer it, without a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from kvstream.exact.wording import CLASSES, ORDINALS, QUOTE, WORDS, read


@dataclass(frozen=True)
class Aim:
    """What a question asks for."""

    kind: Literal["count", "scope", "other"]
    words: str = ""
    """Of a count: the words to count; empty if the units themselves are counted."""
    unit: str = ""
    """Of a count: the units that are counted (a key of `UNITS`); empty: mentions of the words."""
    scope: str = ""
    """The part of the text that the question is about, as ``--only`` takes it; of other questions:
    the part that they may be about."""
    place: str = ""
    """Of a count: which places are asked for: ``first``, ``last``, ``ends`` (both) or ``all``. With
    a unit of `HEADINGS` ``all`` asks for the parts, without unit and words for all headings.
    Without words other units are listed; ``senders``: how many messages are from each.
    """
    since: str = ""
    """The times that the question names, as ``--since`` and ``--until`` take them."""
    until: str = ""
    estimates: bool = False
    """Of other questions: whether it asks for a number that no words count."""
    rest: str = ""
    """Of a count: what else the question asks, which is not answered."""
    each: tuple[str, ...] = ()
    """Of a count: each of the words, if `words` are several, such as ``Ana and Ilse``."""


OTHER = Aim("other")
LONGEST = 300
"""Characters of a question that may be of another kind. A longer one gives more than its words."""
UNITS = {
    "line": r"lines?(?: of (?:code|text))?|log (?:lines?|entries)",
    "row": "rows?",
    "record": "records?|entries|entry",
    "message": "messages?|msgs?|texts|posts?|e-?mails?|mails?",
    "function": "functions?|methods?",
    "class": "class(?:es)?",
    "error": "errors?(?: messages)?",
    "warning": "warnings?(?: messages)?",
    "page": "pages?",
    "chapter": "chapters?",
    "section": "sections?",
    "heading": "headings?",
    **{name: f"{name}s?" for name in ("part", "act", "scene", "article", "paragraph", "word")},
}
"""The units of a text that can be counted, with the words for each."""
FILE = "file"
"""What a question for places may ask for, beside `UNITS`."""
OF_LOG = {"error": ("error", "fatal"), "warning": ("warning",)}
"""The units of a log, with the levels of their lines."""
HEADINGS = ("heading", "chapter", "section", "part", "act", "scene", "article")
OUTER = ("volume", "part", "book", "act")
INNER = ("chapter", "letter", "canto", "scene", "article", "appendix", "lecture", "section",
         "stave")  # fmt: skip
"""Kinds of numbered parts."""
_MESSAGE = re.compile(r"mess|mail|msg|text|post", re.IGNORECASE)
_SHORT = (
    (r"^(?:ch(?:ap)?|chapt)\b\.? ?", "chapter "),
    (r"^(?:sec\b\.?|§+) ?", "section "),
    (r"^pp?\b\.? ?(?=\d)", "page "),
    (r"^art\b\.? ?", "article "),
    (r"\bopening\b", "first"),
    (r"\b(?:final|latest|closing)\b", "last"),
    (r"\b(?:msg|post)(?=s?\b)", "message"),
)
"""Forms of the name of a part, and those that ``--only`` takes."""
PART = re.compile(rf"\b(?:{'|'.join(OUTER + INNER)}|page|line|message|e-?mail|mail)", re.IGNORECASE)
"""What the name of a part has, if it is not a title alone."""
_NO_WORDS = re.compile(
    r"(?:his|her|its|their|my|your|our|this|that|these|those|he|she|it|they|him|them|we|i|you|any|"
    r"only|each|every|per|compare|no|none|zero|more|less|fewer|how|who|what|which|where|when|why|"
    r"both|either|people|(?:some|any|every|no)(?:one|body)?|\w+thing)\b|.* (?:or|nor|not|without|"
    r"only|twice|most|least|than|neither|mention(?:ed)?|compared|called|after|before|appear|show|"
    r"seen|found|named)\b",
    re.IGNORECASE,
)
"""Words that stand for others, or are limited, so that counting them counts something else."""
_WEEKDAY = r"(?:mon|tues|wednes|thurs|fri|satur|sun)day"
_NAMES = (
    f"{CLASSES['mention']} {CLASSES['unit']} {CLASSES['ask']} places? positions? locations? "
    "passages? sentences? that which all every of the me up"
).replace(" ", "|")
_NOT = (
    r"(?:n['’]t|\b(?:not|no))\b(?! (?:guess|sure|know|idea))|\bw/o\b|"
    r"\b(?:none|never|nothing|without|lack(?:s|ed|ing)?|"
    r"(?-i:miss(?:es|ing)?)|omit\w*|absent|except\w*|exclud\w*|ignor\w*|avoid\w*|skip\w*|devoid|"
    r"free (?:of|from)|fail(?:s|ed|ing)? to|(?:leav\w*|left) out|hardly|barely|rarely|but|besides|"
    r"nicht|ohne|kein\w*)\b"
)
"""What denies that a unit has the words."""
_LIMITS = (
    r"^(?:who(?:m|se)?|why|how (?:does|do|did|is|are|was|were|come|long|far|old|well|big)) |"
    r"\b(?:average|distinct|unique|different|once|twice|most|least|fewest|neither|nor|than|compared|"
    r"should|might|must|will(?! you)|would(?! (?:you|like|love|it be))|percent\w*|fraction|"
    r"into(?= \w)|(?<!as )per(?= \w)|(?:start|beg[iu]n|end)(?:s|ed|n?ing)? with|"
    r"(?:kinds?|types?|sorts?|classes) of|"
    r"yesterday|today|tonight|o['’]?clock|(?:last|this|that|next|on|an?|each|every) "
    rf"(?:{_WEEKDAY}|hour|day|week|month|year|morning|afternoon|evening|night)|"
    r"at the (?:very )?(?:start|beginning)|in (?:the )?(?:\w+ )?titles|"
    r"(?:mention|nam|us)ed (?!exactly|precisely|only)\w+ly)\b"
    r"|\b(?:do|does|did|ha[sd]|have) (?:(?-i:[A-Z])[\w-]+|he|she) (?:say|said|use|write|utter)"
    rf"|\b(?:which|what|all|every|list|show|give|name|find)(?: (?:all|every|of|the|me))* "
    rf"(?:(?!(?:{_NAMES})\b)[\w-]+ |(?<=all ))"
    r"(?:with|for|that|which|about|ha[sv]e?|contains?|(?:mention|use)s?(?! of))\b"
)
"""What limits a count beside its words, other than a part and times that are read."""
_OTHERS = rf"\bhow many (?:(?!(?:{_NAMES})\b)[\w-]+|sentences|passages)"
"""What is counted instead of mentions."""
_AWAY = "after|before|since|until|till|outside|beyond|past|through|up to|except(?: in)?"
"""What stands before a part that is not read alone."""
_OF_SOME = (
    r"\b(?:he|she|(?:is|are|was|were|came?|sent) (?:from|to|by)|did .+ (?:send|post))\b"
    r"|\b(?:contain|mention|includ)\w* \w|\b(?:in|of) .+ are (?!there|in\b)\w"
)
"""What limits a count of all units."""
_SEEN = "(?:mentioned|named|referred to|talked about|used(?=.*[\"“'‘]))"
_MORE = "more(?: often| frequently| times)?"
_BOTH = r"how many times are \1 and \2 mentioned"
_END = r"(the (?:very )?(?:first|last|latest|final) (?:message|msg|text|post|e-?mail|mail{0})s?)"
_PLAINER = (
    (
        rf"^(?:what(?:['’]s| is| was| are| were) {_END.format('|line|paragraph|row')}|(?:when was|"
        rf"who (?:wrote|sent|posted)) {_END.format('')}(?: sent| written| posted)?)(?=\W*$)",
        r"what does \1\2 say",
    ),
    (
        r"^(?:what|when) (?:is|was) ((?-i:[A-Z])[\w-]+)['’]s (last|first) (message|mail|e-?mail|"
        r"post)(?=\W*$)",
        r"what does the \2 \3 from \1 say",
    ),
    (
        r"^(?:when did|what did|what was the last thing) ((?-i:[A-Z])[\w-]+) (?:last (?:write|post)"
        r"|(?:write|post) last|wrote|posted)(?=\W*$)",
        r"what does the last message from \1 say",
    ),
    (
        r"^(?:who|what|which(?: \w+)?(?: of (?:them|the two))?) (?:(?:is|was|gets) "
        rf"{_SEEN}|appears|occurs|comes up|(?:has|gets)(?= more mention)) (?:{_MORE}|(?:the )?"
        r"most(?: often)?)(?: mentions)?(?: in (?:the|this) \w+)?(?:,|:| -) ([^:;]+ or [^:;?]+)",
        r"how many times are \1 mentioned",
    ),
    (rf"^(?:is|are|was|were) (.+?) {_SEEN} {_MORE} than (?!.* times\b)([^?]+)", _BOTH),
    (rf"^(?:does|do) (.+?) (?:appear|occur|come up|get mentioned) {_MORE} than ([^?]+)", _BOTH),
    (r"^are there more (?:mentions|occurrences) of (.+?) than (?:of )?([^?]+)", _BOTH),
    (r"\b(?:has|have|contains?) the most (?:mentions|occurrences|uses) of\b", "mentions"),
    (
        r"^(how many (?:messages|msgs|texts|posts|e-?mails|mails) did .+) (?:write|post)\b",
        r"\1 send",
    ),
    (
        r"^(how many (?:messages|msgs|texts|posts|e-?mails|mails|lines)) (?:are|were|have been) "
        r"(?:sent|written|posted|received|exchanged|logged)"
        r"(?=\W*$| (?:on|after|since|before|until|between) )",
        r"\1 are there",
    ),
    (r"\b(?-i:(TODO|FIXME|HACK|XXX)s)\b", r"\1"),
    (
        r"^how many (?-i:(TODO|FIXME|HACK|XXX))(?: (?:comments?|are|is|there|left|remaining|still"
        r"|open|in|the|this|that|code|file|script|module|text|do|does|we|i|have|it|contain))*(?=\W*$)",
        r"how many times is \1 mentioned",
    ),
    (r" overall(?=\W*$)| gets?(?= (?:mentioned|named|used|written)\b)", ""),
)
"""Words of a question, and those that say the same."""
_WRITES = (
    r"(?:(?:please )?summari[sz]e )?what (?:(?:does|did|do|has|have) )?(?P<name>(?-i:[A-Z])[\w.-]*"
    r"(?: (?-i:[A-Z])[\w.-]*)*) (?:writes?|wrote|written|sends?|sent|posts?|posted)"
    r"(?: in (?:the|this) (?:chat|mailbox|thread|conversation))?"
)
"""A question about all messages from somebody."""
_SENDERS = (
    r"(?:(?:who|which (?:person|user|member|participant|sender)) (?:has |have )?(?:sent|sends?|"
    r"wrote|written|writes?|posted|posts?) (?:the )?most(?: of the)? {0}"
    r"|(?:how many|(?:the )?number of|count(?: the)?) {0} (?:(?:did|has|have|does) (?:each|every)"
    r"(?:[- ]?one)?(?: person| user| member| participant| sender| of (?:them|us))? (?:sen[dt]|"
    r"write|written|post(?:ed)?)|(?:per|by|(?:for|from) each) (?:person|user|sender|author|name))"
    r"|how many (?:different )?(?:people|persons|users|participants|senders) (?:wrote|sent|posted)"
    r"(?: {0})?|(?:list|who are|name)(?: all)?(?: the)? (?:participants|senders))"
).format("(?:messages|texts|msgs|posts|e-?mails|mails)") + (
    r"(?: (?:of|in|to) (?:the|this|that|our) (?:\w+ )?(?:chat|conversation|thread|mailbox|group|"
    r"list|channel|export|inbox))?"
)
"""A question for the senders of messages."""
_FILES = (
    r"(?:(?:in )?(?:which|what|how many)(?: of (?:the|these|my))?|(?:list|show|find)(?: me)?"
    r"(?: all| every)?(?: the)?) (?:files?|documents?)(?: that| which)? (?:"
    r"(?:mention(?:s|ing)?|contain(?:s|ing)?(?= (?:the )?(?:word|term|name|phrase|[\"“„']|"
    r"(?-i:[A-Z_]))))|(?:is|are|was|were|do(?:es)?)(?=.* (?:mentioned|named|appear|occur)$)) "
    r"(?P<words>.+?)(?: (?:mentioned|named|appear|occur))?"
)
"""A question for the files that have words."""
_PLAIN = (
    r"how (?:often|many times) (?:is|are|was|were|does|do|did) (?:(?:the|an?) )?"
    r"(?P<words>(?-i:[a-z'’-]+(?: [a-z'’-]+){0,2})) (?:get )?mentioned"
    rf"(?: (?:in|on) (?P<part>{PART.pattern} \d[\w.]*))?"
)
"""A plain count of things, whatever these are."""
_GERMAN = (
    r"(?P<how>wie (?:oft|häufig)|wo|in welche[mn] kapiteln?) (?:wird|werden|kommt|kommen|taucht|"
    r"tauchen) (?:das wort |der name )?(?P<words>.+?)(?P<first> zuerst| zum ersten mal)?"
    r"(?: (?:im|in diesem) (?:buch|text|roman))? (?:erwähnt|genannt|vor|auf)"
)
_PARTS = "chapters?|sections?|headings?|parts?|acts?|scenes?|articles?"
_OF_TEXT = (
    r"(?: (?:are|is|do|does|has|have|there|in|of|contain|exist|called|named|it|the|this|that|my|"
    r"whole|book|novel|story|text|file|document|play|paper|report|manual|contract|script|module|code|"
    r"please|pls))*"
)
_LISTING = (
    r"(?:(?:please|can|could|you|i|want|would|like|need|to|see|tell|know) )*"
    r"(?:(?:in(?:to)? )?(?:which|what(?:['’]s)?|list|show|give|name|print)(?: (?:are|is|me|us|an?|"
    rf"the|list|of|all|every|full|in|names?|titles?|headings?|\w+['’]s|{WORDS}|\d+))* "
    rf"(?:(?P<unit>{_PARTS.replace('?', '')}|functions|classes)|outline)|"
    r"(?!how (?:often|many times))(?:.*? )?(?:table of contents|contents page"
    rf"|(?P<one>{_PARTS}) (?:names|titles|headings|list))|welche (?P<german>kapitel) gibt es)"
    + _OF_TEXT
)
"""A question for the headings, or the definitions in code."""
_OF_LEVEL = (
    r"(?:please |pls )?(?:how many|(?:what is )?(?:the )?(?:total )?number of|"
    r"count(?: all)?(?: the)?) (?P<unit>(?:error|warning)(?:s| messages))"
    r"(?: (?:are|were|was|is|there|have|has|had|been|did|do|does|"
    r"occur(?:red)?|happen(?:ed)?|logged|reported|written|in|the|this|that|my|whole|entire|server|"
    r"log|logs|logfile|file|contain|show|total|we|it|you|i|get|got|see|all|altogether))*"
)
"""A question for the number of lines of a log with a level."""
_LEVEL_PLACES = (
    r"(?:(?:(?:what|when|which|where)(?:['’]s| is| was)|(?:show|give|print|find)(?: me)?) (?:the )?"
    r"(?:very )?(?:(?P<first>first|earliest)|(?P<last>last|latest|most recent)) "
    r"(?P<one>error|warning)|(?:list|show|print|give|find)(?: me)?(?: all)?(?: of)?(?: the)? "
    r"(?P<all>error|warning)s?)(?: messages?| lines?)?(?: (?:logged|reported|there|in|of|the|this|"
    r"log|logs|logfile|file))*"
)
"""A question for the first or last of them, or for all."""
_CUTS = (
    rf"(?:,? and|[?,]) (?:where|when|(?:in|on) (?:which|what) (?:lines?|pages?|(?P<unit>{_PARTS})))"
    r"(?: (?:exactly|is|are|was|were|do|does|did|it|he|she|they|his|her|its|the|name|word|phrase|"
    r"for|first|last|time|place|mention|mentioned|named|appear|occur))*$",
    r",? (?:and|with)(?: the| their)? (?:places|positions|lines|pages|(?:line|page) numbers)$"
    r"|,? and (?:which|what|how)(?: (?:are|they|their|the|names|titles|called|named|ones))*$",
    r",? (?:(?:in|for|of) (?:each|every)(?: single)?|per|by|each) "
    rf"(?P<unit>{_PARTS})(?: of the \w+)?$|(?P<most>(?: the)? most(?: often)?)$",
    r"(?:,? and|[?]) (?:and )?(?P<rest>(?:wh(?:o|om|ose|at|ich|ere|en|y)|(?:in|on) (?:which|what)|"
    r"how(?! (?:often|many)(?: times| exactly| precisely| then| does it occur)*$))(?: .+)?)$",
)
"""What a question asks besides a count: for places, for names, for parts, for anything else."""
_ITEM = (
    r"(?:[\"“„'‘][^\"”“'’]+[\"”“'’]|(?:(?:the|an?) )?(?:(?:word|name|term|phrase) )?"
    r"(?:(?-i:[A-Z])[\w.-]*(?: (?-i:[A-Z])[\w.-]*)*|[\w.-]+))"
)
_AND = r",? (?:and|or|&|vs\.?|versus) (?:for |of )?"
_SEVERAL = rf"(?<![\w\"“„'‘])(?P<first>{_ITEM})(?:, {_ITEM})*{_AND}{_ITEM}(?![\w\"”'’])"
"""Several words to count."""
_MENTIONS = rf"\b(?:{CLASSES['mention']} {CLASSES['term']})\b".replace(" ", "|")
"""What a question for places of words has, if it names what has them."""
_ELSEWHERE = (
    r"where (?:is|are|was|were|does|do|did) (?:the )?(?-i:[A-Z])"
    rf"(?!.*\b(?:{CLASSES['text'].replace(' ', '|')}|lines?|pages?)\b)"
)
_THING = r"\b(?:(?:which|what) [\w-]+ (?:is|are|was|were|do|does|did)|places? where)\b"
"""What asks for a place in the world or for a thing, unless a word for mentions follows."""
_NOT_EACH = (
    r"\b(?:together|alone|same)\b| and (?:only|give|tell|show|list|let|say|find|print|report)\b"
)
_BEFORE = re.compile("(?:the |an? )?(?:word |name |term |phrase )?(?=.)", re.IGNORECASE)
_SINGULAR = {"are": "is", "were": "was", "do": "does", "have": "has", "words": "word",
             "names": "name"}  # fmt: skip
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DATES = rf"(?:\d{{4}}-\d\d-\d\d|(?:{'|'.join(MONTHS)}) \d\d?)"
_DAY = rf"(?:{_DATES}|{_WEEKDAY})"
_CLOCK = (
    r"(?:noon|midnight|\d{1,2}:\d\d(?::\d\d)?(?: ?[ap]\.?m\b\.?)?"
    r"|\d{1,2} ?(?:[ap]\.?m\b\.?|o['’]?clock(?! (?:[ap]\.?m|at|in) )))"
)
_TIME = rf"(?:{_DAY}(?:[ T]|,? at )?{_CLOCK}|{_DAY}|{_CLOCK})"
_TIMES_OF = re.compile(
    rf",? ?\b(?:(?:between|from) (?P<a>{_TIME}|\d\d?(?=[\w ]+(?:[ap]\.?m|o['’]?clock))) "
    rf"(?:and|to|until|till) (?P<b>{_TIME})"
    rf"|(?:after|since) (?P<c>{_TIME}) (?:and|but) (?:before|until) (?P<d>{_TIME})"
    rf"|(?:on|dated|from(?! {_DATES}(?: (?:on|at|to|until|till)|[ T]{_CLOCK}))) (?P<on>{_DATES})"
    rf"|(?:after|since|from) (?P<since>{_TIME})|(?:before|until|till|up to) (?P<until>{_TIME}))"
    r"(?: onwards?| on)?(?!\w)",
    re.IGNORECASE,
)
_EARLIER = r"^why\b|^how come\b|\bchang|\bdiffer|\bcompar|\bsame\b"
"""What is asked about a time and needs the text before it."""
EXCLUSIVE = " exclusive"
"""Behind a day after which a span begins, and behind a time before which it ends."""
_HOURS = {"noon": "12:00", "midnight": "00:00"}
_ENDS = (("a", "c", "on", "since"), ("b", "d", "on", "until"))
MONTH = rf"(?:{'|'.join(MONTHS)})[a-z]*\.?"
_BEHIND = (
    rf"(?<!^)\b(?:in (?!(?:this|these|my|our|your|it|them)\b|(?!{MONTH})(?-i:[A-Z]))|"
    r"(?:at|on|by|with|as|during|for|under|before|after|since|until|till|near|around|within|from|"
    r"between|outside|followed) )(?!(?:(?:the|this|these|an?|whole|entire|full|of|any|same) )*(?:"
    + " ".join(CLASSES[name] for name in ("text", "unit", "term", "mention", "ask")).replace(
        " ", "|"
    )
    + r"|all|them|me|us|you|which|what|well|start|beginning|cover|level|speech|song|letter|lecture|"
    r"passage|excerpt|project|program|(?:first|last) time)\b)\w"
    r"|\b(?:when|while|because) (?!(?:is|are|was|were|do|does|did)\b)\w|\bonly\W*$"
)
"""What limits a count behind its words, if it is no name of the text."""
_SUMS = r"\b(?:sum|total|mean|median|(?:larg|high|low|small)est|max(?:imum)?|min(?:imum)?)\b"
_COUNTS = (
    r"\b(?:mention\w*|appear\w*|occur\w*|used?|hits?|match\w*|instances?|number|counts?|words?|"
    r"terms?|names?|phrases?|times|often|how many)\b"
)
"""What asks for a figure, and what for a count."""
_TIMES = (
    r"\bhow (?:often|many (?:times|lines?|messages?|errors?|warnings?|failures?|exceptions?))\b"
)
"""What asks for a number, however the rest is worded."""
_ON = re.compile(
    rf",? ?\b(?:on )?(?:{_WEEKDAY},? )?(?:the )?"
    rf"(?P<date>{_DATES})(?![\w-])",
    re.IGNORECASE,
)
"""The day of a span of hours, before or after it."""
_HAS_DAY = re.compile(r"-|[a-z]{3} \d|day", re.IGNORECASE)
_KINDS = f"{CLASSES['part']} subsections? items? rules? steps? lessons? units? sonnets? slides?"
_ENTRY = rf"(?:the )?(?:{_KINDS.replace(' ', '|')})s? \d"
"""What may be a heading with a number, such as clause 3; not the name of a thing."""
_DATE = (
    rf"\b(?P<day>\d\d?)(?:st|nd|rd|th)?(?: of)? (?P<month>{MONTH})\b(?:,? (?P<year>\d{{4}}))?"
    rf"|\b(?P<month2>{MONTH}) (?P<day2>\d\d?)(?:st|nd|rd|th)?\b(?:,? (?P<year2>\d{{4}}))?"
    r"|\b(?P<day3>\d\d?)[./](?P<month3>\d\d?)[./](?P<year3>\d{4})"
)


def route(question: str) -> Aim:
    """Return what a question asks for."""
    text = " ".join(question.split())
    if len(text) > LONGEST:
        return OTHER
    for pattern, plainer in _PLAINER:
        text = pattern_of(pattern).sub(plainer, text)
    bare = text.rstrip("?!. ")
    if (span := _span(_with_dates(bare))) is not None:
        rest, since, until = span
        aim = _aim(rest)
        if aim.kind != "count":
            part = aim.scope * (aim.kind == "scope")
            earlier = pattern_of(_EARLIER).search(bare)
            aim = Aim("other" if earlier else "scope", scope=part, estimates=aim.estimates)
        return replace(aim, since=since, until=until)
    if german := pattern_of(_GERMAN).fullmatch(bare):
        words = german["words"].replace(" und ", " and ").replace(" oder ", " or ")
        how = {"wie": "How often", "wo": "Where"}.get(german["how"].split()[0].lower())
        first = "first " if german["first"] else ""
        text = bare = f"{how or 'In which chapters'} is {words} {first}mentioned"
    if listing := pattern_of(_LISTING).fullmatch(bare):
        unit = _unit(listing["unit"] or listing["one"]) or ("chapter" if listing["german"] else "")
        return Aim("count", unit=unit, place="all")
    if files := pattern_of(_FILES).fullmatch(bare):
        aim = route(f"Where is {files['words']} mentioned?")
        return replace(aim, unit=FILE) if aim.words and not aim.scope else OTHER
    for cut in filter(None, (pattern_of(pattern).search(bare) for pattern in _CUTS)):
        aim, besides = route(bare[: cut.start()]), cut.groupdict()
        if aim.kind == "count" and "rest" in besides:
            return replace(aim, rest=besides["rest"])
        in_text = aim.words and not besides.get("most")
        if aim.kind == "count" and (in_text or aim.unit in HEADINGS):
            unit = _unit(besides.get("unit")) or aim.unit
            return replace(aim, unit=unit, place=_place(cut[0]) or aim.place or "all")
    return _several(bare) or _aim(text)


def _place(text: str) -> str:
    """Return ``first``, ``last``, ``ends`` if a text has both, or an empty string."""
    words = set(re.findall(r"\b(?:first|last)\b", text.lower()))
    return "ends" if len(words) > 1 else "".join(words)


def _several(text: str) -> Aim | None:
    """Return the count of several words, or None: their first one alone must be a count."""
    match = pattern_of(_SEVERAL).search(text)
    if match is None or pattern_of(_NOT_EACH).search(text):
        return None
    begin, end = match.span()
    names = ["".join(each) for each in QUOTE.findall(match[0])]
    names = [_BEFORE.sub("", name, count=1) for name in names or re.split(f"{_AND}|, ", match[0])]
    before = re.sub(r"\w+", lambda word: _SINGULAR.get(word[0], word[0]), text[:begin])
    aim = _aim(f"{before}{match['first']}{text[end:]}")
    if len(names) < 2 or aim.words != names[0] or any(map(_NO_WORDS.match, names)):
        return None
    if aim.unit and not aim.place:
        return None
    if aim.place and (before == text[:begin] or not pattern_of(_MENTIONS).search(text)):
        return None  # the place of a phrase, or of something that they do
    words = _BEFORE.sub("", re.sub('["“”„]', "", match[0]), count=1)
    return replace(aim, words=words, each=tuple(names))


def _unit(words: str | None) -> str:
    return next((unit for unit, p in UNITS.items() if pattern_of(p).fullmatch(words or "")), "")


def _aim(text: str) -> Aim:
    bare = text.rstrip("?!. ")
    if pattern_of(_SENDERS).fullmatch(bare):
        return Aim("count", unit="message", place="senders")
    if writes := pattern_of(_WRITES).fullmatch(bare):
        return Aim("scope", scope=f"messages from {writes['name']}")
    if level := pattern_of(_OF_LEVEL).fullmatch(bare):
        return Aim("count", unit=_unit(level["unit"]))
    if level := pattern_of(_LEVEL_PLACES).fullmatch(bare):
        place = next(each for each in ("first", "last", "all") if level[each])
        return Aim("count", unit=(level["one"] or level["all"]).lower(), place=place)
    wording = read(text)
    kind, marks = wording.kind, wording.marks
    plain = None if marks.get("words") else pattern_of(_PLAIN).fullmatch(bare)
    if plain is not None and not _NO_WORDS.match(plain["words"]):
        return Aim("count", plain["words"], scope=plain["part"] or "")
    if kind in ("estimate", "other"):
        times = pattern_of(_TIMES).search(text) is not None
        return Aim("other", estimates=kind == "estimate" or times)
    scope = _part(marks, text)
    if kind in ("scope", "hint"):
        return Aim("scope" if kind == "scope" and scope else "other", scope=scope)
    words, sender = marks.get("words", ""), marks.get("sender", "")
    if f'"{words}"' not in text:
        words = re.sub(r"^(?:the|an?) (?=.)|(?<=.) entries$", "", words, flags=re.IGNORECASE)
    unit = _unit(marks.get("unit"))
    unit = "" if unit == "word" and words else unit
    if _is_limited(text, kind, words, unit, scope, marks):
        return Aim("other", estimates=kind == "count")
    of = rf"{re.escape(marks.get('unit', ''))} (?:of|by|from) {re.escape(words)}"
    if words and unit == "message" and re.search(of, text):
        words, sender = "", words
    if sender:
        if kind != "count" or scope or (words and not unit) or unit not in ("", "message"):
            return OTHER
        return Aim("count", words, "message", f"messages from {sender}")
    if kind != "count":
        part = pattern_of(rf"\b(?:which|what) ({_PARTS})\b|(chapter)").search(text)
        elsewhere = pattern_of(_ELSEWHERE).match(text) if kind == "both" else None
        something = elsewhere or pattern_of(_THING).search(text)
        if not words or (something and not pattern_of(_MENTIONS).search(text)):
            return OTHER
        unit = _unit(part and (part[1] or part[2])) if not scope else ""
        place = "all" if kind == "both" else kind
        return Aim("count", words, unit, scope, "ends" if _place(text) == "ends" else place)
    counts = unit not in HEADINGS or pattern_of("how many|number|count|total|tally").search(text)
    place = "" if counts or not words else "all"
    return Aim("count", words, unit, scope, place) if words or unit else OTHER


def _is_limited(
    text: str, kind: str, words: str, unit: str, scope: str, marks: Mapping[str, str]
) -> bool:
    """Return whether a count has a limit beside its words, and a part and times that are read."""
    besides, name, mentions = text, re.escape(words), words * (not unit)
    part, sender = marks.get("part", ""), marks.get("sender", "")
    for each in (words, part, sender):
        besides = besides.replace(each, "")
    kept = rf"\bhow many (?!(?:{_NAMES})\b)[\w-]+ {re.escape(marks.get('unit', ''))}\b"
    quoted, names = f'"{words}"' in text, (words * bool(unit), sender, part)
    seen = CLASSES["mention"].replace(" ", "|")
    says = (
        rf"\b(?:do|does|did) {name} (?:mention|say|use|write)\b|\b(?:only|{_AWAY}) {name}\b"
        rf"|\b(?:do|does|did) \"{name}\" (?!(?:\w+ )?(?:{seen}|recur)\b)\w"
        rf"|\b(?:sen[dt]|writ\w+|wrote) to {name}\b"
    )
    sums = pattern_of(_SUMS).search(text) and not pattern_of(_COUNTS).search(text)
    return any((
        pattern_of(_LIMITS).search(besides),
        pattern_of(_BEHIND).search(besides),
        words + sender and kind in ("count", "both") and pattern_of(_NOT).search(besides),
        not scope and re.search(r"\d|^the ", part),
        part and pattern_of(rf"\b(?:{_AWAY}) {re.escape(part)}").search(text),
        kind in ("first", "last") and re.search(rf"\b(?:\dnd|{ORDINALS[6:-5]})\b", besides),
        any(each and f"{each} {link} " in text for each in names for link in ("and", "or", "but")),
        words and pattern_of(says).search(text),
        mentions and pattern_of(_OTHERS).search(besides),
        mentions and not quoted and sums,
        kind == "both" and not quoted and re.search(" (?:and|or) ", words),
        unit and words and pattern_of(kept).search(besides),  # the long messages
        not words + sender and pattern_of(_OF_SOME).search(text),
        " to " in sender or _NO_WORDS.match(sender) or (_NO_WORDS.match(words) and not quoted),
        # The dog Rex is called Rex elsewhere, and cities are kinds of things.
        re.match("[a-z]+ [A-Z]", words) and re.search(rf"\b(?:the|an?) {name}", text),
        re.fullmatch("[A-Z]{2,}s", words) and not pattern_of(_MENTIONS).search(besides),
        re.fullmatch("[a-z]+[^s\\W]s", words) and re.search(f"\\bha(?:ve|s) {name}\\W*$", text),
        re.fullmatch("[a-z]+[^s\\W]s", mentions)
        and pattern_of(
            rf"\b(?:how many|number of|nr of) (?:(?!(?:{_NAMES})\b)\w+ )?{name}\b"
        ).search(text),
    ))  # fmt: skip


def _part(marks: Mapping[str, str], text: str) -> str:
    """Return the part that a question names as ``--only`` takes it."""
    part = marks.get("part", "")
    if part and f"between {part}" in text:
        part = part.replace(" and ", " to ")
    for short, long in _SHORT:
        part = pattern_of(short).sub(long, part)
    if (nth := re.search(r"\b(\d\d?)(?:st|nd|rd|th)\b", part)) and 0 < int(nth[1]) <= 20:
        part = part.replace(nth[0], ORDINALS.split("|")[int(nth[1]) - 1])
    apart = re.search(r"(\d+) and (?:in )?(?:\w+ )?(\d+)$", part)
    if apart and int(apart[2]) != int(apart[1]) + 1:
        return ""
    if re.search(r"\d", part) and not PART.search(part) and not pattern_of(_ENTRY).match(part):
        return ""  # a date or a score, perhaps
    sender = marks.get("sender", "")
    if sender and _MESSAGE.search(part):
        part = pattern_of("^(?:(?:his|her|their|its) )?(?:very )?").sub("", part)
        return f"{part} from {sender}"
    bare = rf"(?:(?:the|this|that|each|every) )?{PART.pattern}s?"
    return "" if re.fullmatch(bare, part, re.IGNORECASE) else part  # the letter may be a thing


def _span(text: str) -> tuple[str, str, str] | None:
    """Return a question without its span of time, and the ends of that; None if it has not one."""
    spans = [*_TIMES_OF.finditer(text)] if re.search("\\d|day|noon|night", text) else []
    hours = [span for span in spans if not span["on"]] or spans
    if len(hours) != 1:
        return None
    rest, words = f"{text[: hours[0].start()]}{text[hours[0].end() :]}", hours[0][0].lower()
    ends = [" ".join(filter(None, hours[0].group(*names))) for names in _ENDS]
    ends = [pattern_of(" ?o['’]?clock").sub(":00", end) for end in ends]
    since, until = (_HOURS.get(end.lower(), end) for end in ends)
    if re.fullmatch(r"\d\d?(?::\d\d)*", since) and "m" in until[-2:].lower():
        later = int(since.split(":")[0]) % 12 > int(re.findall(r"\d+", until)[0]) % 12
        since += " pm" if ("p" in until.lower()) != later else " am"  # between 3 and 4 pm
    elif since.isdigit():
        since += ":00"
    whole = pattern_of(_DAY).fullmatch
    since += EXCLUSIVE * ("after" in words and whole(since) is not None)
    until += EXCLUSIVE * ("before" in words)
    days = [*_ON.finditer(rest)]
    if len(days) == 1 and not any(map(_HAS_DAY.search, ends)):
        rest = f"{rest[: days[0].start()]}{rest[days[0].end() :]}"
        since, until = (end and f"{days[0]['date']} {end}" for end in (since, until))
    elif len(spans) > 1:
        return None
    return rest.strip(" ,"), since, until


def iso_dates(text: str) -> str:
    """Return a text with its dates as ``2026-05-14``, and months of a year as ``2026-05``."""
    return pattern_of(rf"\b({MONTH}),? (\d{{4}})\b").sub(
        lambda match: f"{match[2]}-{1 + MONTHS.index(match[1][:3].lower()):02}", _with_dates(text)
    )


def _with_dates(text: str) -> str:
    return pattern_of(_DATE).sub(_iso, text) if any(map(str.isdigit, text)) else text


def _iso(match: re.Match[str]) -> str:
    """Return a date as ``2026-05-14`` or ``May 14``; as it is if day and month may be swapped."""
    day, month, year = (
        next(filter(None, match.group(name, f"{name}2", f"{name}3")), "")
        for name in ("day", "month", "year")
    )
    if month.isdigit():
        if int(month) > 12:
            day, month = month, day
        elif int(day) < 13 and "/" in match[0] and day != month:
            return match[0]
    elif not year:
        return f"{month[:3].capitalize()} {int(day)}"
    else:
        month = str(1 + MONTHS.index(month[:3].lower()))
    return f"{year}-{int(month):02}-{int(day):02}"


@cache
def pattern_of(pattern: str) -> re.Pattern[str]:
    """Compile a pattern when a question needs it: all of them take longer than a short count."""
    return re.compile(pattern, re.IGNORECASE)
