"""An endless dull novel from a small grammar, in which facts are planted.

It has no digits, no invented names and none of the things of planted facts. So it can neither
answer a question nor contradict an answer.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator


def _split(words: str) -> list[str]:
    return words.split("|")


_WORD_LISTS = {
    "road": (
        "road|lane|path|street|track|highway|towpath|alley|bridge|hill road|coast road|"
        "forest path|market street|river road|back street"
    ),
    "spot": (
        "inn|mill|church|harbour|market|station|forest|bakery|library|orchard|post office|farm|"
        "quarry|ferry|school|barn|bridge|garden|stable|chapel|square|kitchen|shop|meadow|shore"
    ),
    "town": (
        "Ashcombe|Barton|Carrow|Denby|Easton|Fairley|Greenhill|Holt|Kingsley|Longford|Marlow|"
        "Netherby|Oakley|Preston|Redbridge|Stanton|Thornbury|Upton|Wells|Whitby"
    ),
    "trade": (
        "baker|carpenter|miller|shepherd|teacher|fisherman|clerk|gardener|tailor|postman|printer|"
        "weaver|blacksmith|ferryman|cook|farmer|schoolmaster|coachman|saddler|porter|potter"
    ),
    "adj": (
        "quiet|narrow|long|cold|warm|pale|simple|plain|broad|dusty|steep|low|distant|familiar|"
        "gentle|bright|faded|small|tall|tired|slow|thin|rough|soft|dark|lonely|clean|bare|dry"
    ),
    "mood": (
        "tired|content|uneasy|hungry|cheerful|silent|patient|restless|thoughtful|pleased|worried|"
        "calm|curious|weary|hopeful|doubtful|sleepy|grateful|lonely|puzzled"
    ),
    "how": (
        "slowly|quietly|carefully|without haste|with some effort|as usual|in silence|steadily|"
        "with a sigh|politely|absently|at last|once more|almost gladly|rather stiffly|in no hurry"
    ),
    "when": (
        "In the morning|Towards evening|After supper|Before dawn|At noon|Late that night|"
        "The next day|On the way home|A little later|When the rain stopped|That winter|"
        "In those weeks|After a while|One afternoon|On market day|When the lamps were lit"
    ),
    "weather": (
        "rain|fog|wind|frost|snow|mist|drizzle|sunlight|thunder|hail|heat|dew|sleet|dusk"
    ),
    "did": (
        "hung over|crept across|settled on|drifted over|lay upon|moved across|passed over|"
        "gathered over|spread over|faded from|came down on|lingered over"
    ),
    "land": (
        "fields|roofs|hills|river|valley|rooftops|gardens|marshes|harbour|orchards|woods|"
        "chimneys|hedges|meadows|pastures|cliffs|moor|vineyards|ponds|fences"
    ),
    "ware": (
        "bread|candles|flour|rope|cloth|apples|firewood|soap|paper|tools|wool|milk|salt|lamp oil|"
        "boots|nails|baskets|potatoes|honey|coal|cheese|blankets|plates|brushes|herrings"
    ),
    "kin": (
        "brother|sister|cousin|mother|father|aunt|uncle|neighbour|old friend|niece|nephew|"
        "landlady|partner|grandmother|grandfather|godmother"
    ),
    "topic": (
        "the harvest|the price of wool|the new road|the state of the roof|the health of the cows|"
        "the church choir|the long winter|the rent|the last storm|the coming election|the ferry|"
        "the old days|the neighbours|the garden wall|the quality of the flour|the railway"
    ),
    "thought": (
        "nothing would change before spring|the days were growing shorter|it was too late to turn "
        "back|the work would never be finished|a letter might come any day|there was no need to "
        "hurry|the house had grown too large|people forget quickly|rest was better than money|"
        "the river had never been so low|the road seemed longer than before|silence was the best "
        "answer|the roof would not last another winter|everything had been said already"
    ),
    "task": (
        "mended the fence|swept the yard|counted the sacks|cleaned the lamps|stacked the firewood|"
        "washed the windows|oiled the hinges|sorted the letters|fed the hens|chopped the onions|"
        "folded the linen|repaired the nets|sharpened the knives|watered the beans|"
        "patched the sails|painted the shutters|carried the buckets|peeled the potatoes|"
        "brushed the horse"
    ),
    "saw": (
        "a cart with a broken wheel|two boys with a kite|some women at the pump|some geese|"
        "smoke above the trees|the lights of the village|a dog asleep in the dust|"
        "some washing|three wagons full of hay|the empty school yard|a stranger|small boats|"
        "crows on the furrows|the shutters of the closed shop|men repairing the wall"
    ),
    "meal": (
        "soup|bread and cheese|boiled potatoes|rice|cold meat|porridge|fried fish|baked apples|"
        "bean stew|mushrooms|dumplings|buttered toast|cabbage|pancakes|omelettes"
    ),
    "seat": (
        "by the window|near the stove|at the long table|on the bench outside|under the lamp|"
        "beside the door|on the stairs|in the corner|by the fire|at the counter|on the low wall"
    ),
    "time": (
        "an hour|a week|half the day|some time|a whole season|a few minutes|half the night|"
        "many days|the whole afternoon|a moment|several weeks"
    ),
    "mode": (
        "on foot|by coach|in a borrowed cart|by the slow train|with the carrier|on horseback|"
        "by boat|in company|alone|in the rain|without luggage|with a heavy bag"
    ),
    "good": (
        "all was well|the children had recovered|the harvest was in|the house was sold at last|"
        "the money had come|the baby was healthy|the roof was dry again|the cow had calved|"
        "there would be work in spring|the road was open|nobody had been hurt|the debt was paid"
    ),
    "opening": (
        "It was said that|Everybody knew that|Nobody doubted that|There was a rumour that|"
        "The older people remembered that|It could not be denied that|One had to admit that"
    ),
    "saying": (
        "the summers had been warmer once|strangers seldom stayed|the inn served good soup|"
        "the mill had seen better days|the ferry was never on time|the church needed a new roof|"
        "good shoes were worth their price|bad news travels fast|the bakers rose before the birds|"
        "the sea gives and takes|the best apples grew behind the chapel"
    ),
    "drink": "tea|coffee|cider|milk|hot water|barley beer",
}  # fmt: skip

_MEN = _split(
    "Martin|Albert|Edward|George|Henry|James|Joseph|Oliver|Peter|Robert|Samuel|Thomas|Walter|"
    "William|Arthur|Daniel|Frank|Hugh|Philip|Simon"
)
_WOMEN = _split(
    "Alice|Anna|Charlotte|Clara|Edith|Eleanor|Emily|Florence|Grace|Harriet|Helen|Jane|Laura|Lucy|"
    "Margaret|Mary|Rose|Ruth|Sarah|Sophia"
)
_FAMILIES = _split(
    "Hale|Marsh|Carter|Field|Brook|Stone|Reed|Lane|Wood|Ford|Hill|Price|Webb|Shaw|Cole|Dean|Flint|"
    "Gray|Hart|Knight|Moss|Nash|Page|Rowe|Sharp|Turner|Vale|Ward|Young|Frost"
)

# Slots in braces are word lists above; {name} {he} {his} {him} and {other} belong to the paragraph.
_SENTENCES: dict[str, tuple[str, ...]] = {
    "weather": (
        "The {weather} {did} the {land}.",
        "{when} the {weather} {did} the {land}, and the {road} was {adj}.",
        "There was {weather} over the {land} for {time}.",
        "A {adj} {weather} {did} the {land} beyond the {spot}.",
        "The {land} were {adj} under the {weather}, and the {road} to {town} lay empty.",
        "After {time} of {weather} the {road} had turned {adj} and {adj}.",
    ),
    "journey": (
        "{name} went to {town} {mode}.",
        "{when} {he} took the {adj} {road} towards {town}.",
        "From the {road} {he} saw {saw}.",
        "It took {time} to reach the {spot}, for the {road} was {adj}.",
        "{he} walked {how} past the {spot} and the {spot}.",
        "In {town} {he} rested {seat} of a {adj} inn and ate {meal}.",
        "Nobody else was on the {road}, except a {adj} {trade} on the way to {town}.",
        "{when} {name} came back {mode}, {mood} and {mood}.",
    ),
    "work": (
        "{name} {task} and then {task}.",
        "{when} {he} {task}, {how}.",
        "The {trade} paid {him} in {ware}, as was the custom.",
        "{he} often carried {ware} from the {spot} to the {spot}.",
        "{his} {kin} {task} while {he} {task}.",
        "For {time} {he} helped the {trade} at the {spot}.",
        "{he} bought {ware} and some {ware}, and sold a little {ware}.",
        "By then the {adj} {trade} had {task}.",
    ),
    "letter": (
        "{when} a letter came from {his} {kin} in {town}.",
        "It was a {adj} letter about {topic}.",
        "{his} {kin} wrote that {good}.",
        "{name} read it {how}, {seat}.",
        "{he} folded the {adj} pages and thought that {thought}.",
        "{he} answered {how}, and wrote that {good}.",
        "The postman had carried it {mode} through the {weather}.",
    ),
    "talk": (
        "{other} talked about {topic} for {time}.",
        '"One should not worry about {topic}," said {other} {how}.',
        '"It seems that {good}," {he} said.',
        "They sat {seat} and spoke of {topic}.",
        "{name} asked {other} about {topic}, but the answer was {adj}.",
        "{other} was {mood}, and {name} was {mood} too.",
        "Then they drank {drink} and said nothing for {time}.",
        "{opening} {saying}.",
    ),
    "home": (
        "{name} sat {seat} and ate {meal}.",
        "{he} felt {mood}, and thought that {thought}.",
        "The house was {adj}, and the {spot} beside it was {adj}.",
        "{when} {his} {kin} brought {ware} and {ware} from the {spot}.",
        "{opening} {saying}.",
        "{he} slept for {time} and woke {mood}.",
        "Through the {adj} curtain {he} could see {saw}.",
        "{when} {he} {task} {how}, because it had to be done.",
    ),
}

# A paragraph begins with one of these, which introduces its person.
_FIRST_SENTENCES = (
    "{name} was {mood} that day.",
    "{when} {name} felt {mood}.",
    "{name} had been {mood} for {time}.",
    "{name} and {other} met at the {spot}.",
    "{name} had no news from {town} for {time}.",
    "{when} {name} left the {spot}, {mood} as ever.",
    "{other} had gone to the {spot}, and {name} was {mood}.",
    "{name} looked out over the {land}, where there was {weather}.",
    "For {time} {name} had worked with the {trade}.",
)

_SLOT = re.compile(r"\{(\w+)\}")
_WORDS = {name: _split(words) for name, words in _WORD_LISTS.items()}


def _compiled(template: str) -> tuple[str, tuple[str, ...]]:
    """Compile a template to a %-format and the names of its slots, for several times the speed."""
    return _SLOT.sub("%s", template), tuple(_SLOT.findall(template))


_OPENINGS = tuple(map(_compiled, _FIRST_SENTENCES))
_SCENES = [tuple(map(_compiled, sentences)) for sentences in _SENTENCES.values()]


def novel(seed: int = 0) -> Iterator[str]:
    """Yield paragraphs and chapter headings of a dull novel without end; no digits."""
    rng = random.Random(f"novel {seed}")
    draw, choice = rng.random, rng.choice
    words: dict[str, list[str]] = dict(_WORDS)
    for chapter in itertools.count():
        book, part = divmod(chapter, 40)
        number = f"Book {_numeral(book + 1)}, chapter {_numeral(part + 1)}"
        yield f"{number}: {choice(words['topic'])}\n\n"
        # Few people per chapter, so that it reads like one story.
        people = [
            (f"{first} {choice(_FAMILIES)}", *pronouns)
            for names, pronouns in ((_MEN, ("he", "his", "him")), (_WOMEN, ("she", "her", "her")))
            for first in rng.sample(names, 3)
        ]
        for _ in range(rng.randrange(12, 30)):
            (name, he, his, him), (other, *_) = rng.sample(people, 2)
            words.update(name=[name], he=[he], his=[his], him=[him], other=[other])
            scene = choice(_SCENES)
            sentences = []
            body = rng.sample(scene, rng.randrange(3, len(scene) + 1))
            for form, slots in [choice(_OPENINGS), *body]:
                filled = []
                for slot in slots:
                    options = words[slot]
                    filled.append(options[int(draw() * len(options))])
                text = form % tuple(filled)
                sentences.append(text[0].upper() + text[1:])
            yield " ".join(sentences) + "\n\n"


def _numeral(number: int) -> str:
    """Return a Roman numeral, because the filler has no digits."""
    text = ""
    for value, sign in zip(
        (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1),
        ("M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I"),
        strict=True,
    ):
        count, number = divmod(number, value)
        text += sign * count
    return text
