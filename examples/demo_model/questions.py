"""The questions and answers that the demo model learns, and which of them it never sees.

Everything is generated: sums and differences of numbers from 0 to 99, unit conversions with an
integer factor, a few sentences about the model itself, and one polite refusal for everything else.
The training script draws from ``draw``; accuracy is measured on ``held_out_questions``, whose
number pairs (or, for refusals, whose wording) ``draw`` never produces.
"""

from __future__ import annotations

import hashlib
import random
import string
from collections.abc import Callable
from dataclasses import dataclass

LARGEST = 99

REFUSAL = "I only know adding, subtracting and a few unit conversions."
TOO_LARGE = f"I only know numbers from 0 to {LARGEST}."
IDENTITY = "I am a demo model of npu-xdna. I add, subtract and convert units."
GREETING = "Hello! Ask me a sum, such as 17 + 25."


@dataclass(frozen=True)
class Question:
    """One user turn and the answer that counts as correct."""

    skill: str
    text: str
    answer: str


@dataclass(frozen=True)
class Conversion:
    """From a larger to a smaller unit; each unit as (singular, plural, abbreviation or "")."""

    large: tuple[str, str, str]
    small: tuple[str, str, str]
    factor: int

    @property
    def decimal(self) -> bool:
        """A power of ten, where the rule is learnable and not only the table."""
        return self.factor in (10, 100, 1000)


CONVERSIONS = (
    Conversion(("centimetre", "centimetres", "cm"), ("millimetre", "millimetres", "mm"), 10),
    Conversion(("metre", "metres", "m"), ("centimetre", "centimetres", "cm"), 100),
    Conversion(("metre", "metres", "m"), ("millimetre", "millimetres", "mm"), 1000),
    Conversion(("kilometre", "kilometres", "km"), ("metre", "metres", "m"), 1000),
    Conversion(("kilogram", "kilograms", "kg"), ("gram", "grams", "g"), 1000),
    Conversion(("litre", "litres", "l"), ("millilitre", "millilitres", "ml"), 1000),
    Conversion(("century", "centuries", ""), ("year", "years", ""), 100),
    Conversion(("minute", "minutes", "min"), ("second", "seconds", "s"), 60),
    Conversion(("hour", "hours", "h"), ("minute", "minutes", "min"), 60),
    Conversion(("day", "days", ""), ("hour", "hours", "h"), 24),
    Conversion(("week", "weeks", ""), ("day", "days", ""), 7),
    Conversion(("year", "years", ""), ("month", "months", ""), 12),
    Conversion(("foot", "feet", ""), ("inch", "inches", ""), 12),
)

# Weights of the skills in a training batch: arithmetic needs most of the examples.
WEIGHTS = {
    "addition": 0.32,
    "subtraction": 0.36,
    "decimal units": 0.09,
    "other units": 0.10,
    "about itself": 0.03,
    "refusal": 0.10,
}
SKILLS = tuple(WEIGHTS)


def is_held_out(skill: str, a: int, b: int) -> bool:
    """True for the fifth of the pairs kept from training; both orders of a pair go together.

    A hash instead of the seed, so that a finished file can be checked on its own.
    """
    low, high = min(a, b), max(a, b)
    digest = hashlib.sha256(f"held out: {skill} {low} {high}".encode()).digest()
    return int.from_bytes(digest[:4], "little") % 5 == 0


# --- sums and differences -------------------------------------------------------------------------

_SUMS = (
    "What is {a} + {b}?",
    "What is {a} plus {b}?",
    "{a} + {b} =",
    "{a} + {b}",
    "{a}+{b}",
    "{a}+{b}=",
    "{a} plus {b}",
    "Please add {a} and {b}.",
    "Can you add {a} and {b}?",
    "Add {a} and {b}.",
    "What's {a} + {b}?",
    "How much is {a} plus {b}?",
    "How much is {a} + {b}?",
    "Calculate {a} + {b}.",
    "What is the sum of {a} and {b}?",
    "What is {a}+{b}?",
)
_DIFFERENCES = (
    "What is {a} - {b}?",
    "What is {a} minus {b}?",
    "{a} - {b} =",
    "{a} - {b}",
    "{a}-{b}",
    "{a}-{b}=",
    "{a} minus {b}",
    "Please subtract {b} from {a}.",
    "Can you subtract {b} from {a}?",
    "Subtract {b} from {a}.",
    "What's {a} - {b}?",
    "How much is {a} minus {b}?",
    "How much is {a} - {b}?",
    "Calculate {a} - {b}.",
    "Take {b} away from {a}.",
    "What is {a}-{b}?",
)


def _arithmetic(skill: str, a: int, b: int, rng: random.Random) -> Question:
    if skill == "addition":
        return Question(skill, _vary(rng.choice(_SUMS), rng, a=a, b=b), f"{a} + {b} = {a + b}.")
    text = _vary(rng.choice(_DIFFERENCES), rng, a=a, b=b)
    return Question(skill, text, f"{a} - {b} = {a - b}.")


def _vary(template: str, rng: random.Random, **slots: object) -> str:
    """Fill the template, now and then in lower case or without the final mark."""
    text = template.format(**slots)
    if rng.random() < 0.15:
        text = text[0].lower() + text[1:]
    if rng.random() < 0.15:
        text = text.rstrip("?.")
    return text


# --- units ----------------------------------------------------------------------------------------

_UNITS = (
    "How many {small} are in {n} {large}?",
    "How many {small} are there in {n} {large}?",
    "Convert {n} {large} to {small}.",
    "What is {n} {large} in {small}?",
    "{n} {large} in {small}",
    "{n} {large} to {small}",
    "Please convert {n} {large} to {small}.",
)


def _conversion(c: Conversion, n: int, rng: random.Random) -> Question:
    large = c.large[0] if n == 1 else c.large[1]
    small = c.small[1]
    answer = f"{n} {large} {'is' if n == 1 else 'are'} {n * c.factor} {small}."
    asked_large, asked_small = large, small
    if c.large[2] and c.small[2] and rng.random() < 0.1:
        asked_large, asked_small = c.large[2], c.small[2]
    elif rng.random() < 0.1:  # the American spelling is understood, and answered in the British one
        asked_large, asked_small = (
            word.replace("metre", "meter").replace("litre", "liter") for word in (large, small)
        )
    text = _vary(rng.choice(_UNITS), rng, n=n, large=asked_large, small=asked_small)
    return Question("decimal units" if c.decimal else "other units", text, answer)


def _unit_pair_held_out(c: Conversion, n: int) -> bool:
    """Only powers of ten are held out: the other factors are tables to remember."""
    return c.decimal and is_held_out(f"{c.large[1]} to {c.small[1]}", n, n)


# --- the model itself, and everything it does not know --------------------------------------------

_ABOUT = {
    IDENTITY: (
        "Who are you?",
        "What are you?",
        "What is your name?",
        "What can you do?",
        "Tell me about yourself.",
        "Introduce yourself.",
        "What do you know?",
        "Help",
    ),
    GREETING: ("Hello", "Hello!", "Hi", "Hi!", "Hi there!", "Hey", "Hello there!", "Good morning"),
    "You are welcome.": ("Thank you", "Thank you!", "Thanks", "Thanks!"),
    "Goodbye!": ("Bye", "Bye!", "Goodbye", "Goodbye!", "See you!"),
}


def _list(text: str) -> list[str]:
    return text.split(";")


_THINGS = _list(
    "the moon;the sun;a cat;dogs;music;football;history;physics;the sea;love;a tree;water;time;"
    "bread;coffee;a car;trains;winter;summer;the weather;chess;a book;computers;an NPU;birds;fish;"
    "gold;mountains;a river;the sky;money;art;school;a doctor;flowers;space;stars;the brain;sleep;"
    "rain"
)
_NAMES = _list(
    "France;Germany;Italy;Spain;Japan;China;India;Brazil;Canada;Egypt;London;Berlin;Rome;Tokyo;"
    "Shakespeare;Newton;Mozart;Napoleon;Hamlet;Faust;Anna;Peter;Europe;Africa"
)
_OTHER = (
    "What is the capital of {name}?",
    "Where is {name}?",
    "Who is {name}?",
    "Who wrote {name}?",
    "How old is {name}?",
    "How many people live in {name}?",
    "How far is it to {name}?",
    "What is {thing}?",
    "What are {thing}?",
    "What do you think about {thing}?",
    "Tell me about {thing}.",
    "Tell me a story about {thing}.",
    "Tell me a joke.",
    "Write a poem about {thing}.",
    "Explain {thing}.",
    "Why is {thing} so {adjective}?",
    "How does {thing} work?",
    "How many {word} are in {thing}?",
    "Do you like {thing}?",
    "Can you write a song about {name}?",
    "Translate {thing} to French.",
    "When was {name} born?",
    "{thing}",
    "{name}",
    "{word}",
    "{word} {word2} {word}",
    "What is {word}?",
    "{word} {word2}?",
    "I like {thing}.",
    "My name is {name}.",
    "Is {thing} {adjective}?",
    "Give me a recipe for {thing}.",
    "What time is it?",
    "What day is it today?",
)
_OPERATIONS = (
    "What is {a} times {b}?",
    "What is {a} * {b}?",
    "{a} * {b}",
    "{a} x {b} =",
    "Multiply {a} and {b}.",
    "What is {a} divided by {b}?",
    "{a} / {b}",
    "Divide {a} by {b}.",
    "What is the square root of {a}?",
    "Is {a} a prime number?",
    "What is {a}?",
    "{a}",
)
_ADJECTIVES = _list("big;small;hot;cold;blue;green;old;new;fast;slow;good;bad;far;nice;hard")

# Never drawn for training; most of the words are not drawn either.
_HELD_OUT_REFUSALS = (
    "What is the capital of Portugal?",
    "Who painted the Mona Lisa?",
    "Tell me a story about a dragon.",
    "Write a poem about autumn.",
    "How do I bake a cake?",
    "Why is the grass green?",
    "What is the meaning of life?",
    "Who won the match yesterday?",
    "Explain gravity to a child.",
    "Translate good night into Spanish.",
    "Where can I buy shoes?",
    "Do you like pizza?",
    "What is 6 times 13?",
    "Divide 84 by 12.",
    "How many legs has a spider?",
    "Is Saturn bigger than Mars?",
    "Give me a recipe for soup.",
    "Sing a song for me.",
    "What is your favourite colour?",
    "Who was Cleopatra?",
)


def _nonsense(rng: random.Random) -> str:
    """A random word, so that unknown words in general lead to the refusal."""
    word = "".join(rng.choice(string.ascii_lowercase) for _ in range(rng.randint(2, 8)))
    return word.capitalize() if rng.random() < 0.3 else word


def _refusal(rng: random.Random) -> Question:
    kind = rng.random()
    if kind < 0.62:
        text = _vary(
            rng.choice(_OTHER),
            rng,
            thing=rng.choice(_THINGS) if rng.random() < 0.6 else _nonsense(rng),
            name=rng.choice(_NAMES) if rng.random() < 0.6 else _nonsense(rng).capitalize(),
            adjective=rng.choice(_ADJECTIVES),
            word=_nonsense(rng),
            word2=_nonsense(rng),
        )
    elif kind < 0.8:
        text = _vary(rng.choice(_OPERATIONS), rng, a=rng.randint(0, 99), b=rng.randint(0, 99))
    elif kind < 0.88:
        return _impossible_conversion(rng)
    else:
        return _too_large(rng)
    if text in _HELD_OUT_REFUSALS:
        return _refusal(rng)
    return Question("refusal", text, REFUSAL)


def _impossible_conversion(rng: random.Random) -> Question:
    known = {(c.large, c.small) for c in CONVERSIONS}
    units = sorted({unit for pair in known for unit in pair})
    while True:
        large, small = rng.sample(units, 2)
        if (large, small) not in known:
            break
    n = rng.randint(2, LARGEST)
    text = _vary(rng.choice(_UNITS), rng, n=n, large=large[1], small=small[1])
    return Question("refusal", text, REFUSAL)


def _too_large(rng: random.Random) -> Question:
    """Three or more digits in one of the operands."""
    a, b = rng.randint(0, LARGEST), rng.randint(LARGEST + 1, 10 ** rng.randint(3, 5))
    if rng.random() < 0.5:
        a, b = b, a
    kind = rng.random()
    if kind < 0.7:
        skill = rng.choice(("addition", "subtraction"))
        return Question("refusal", _arithmetic(skill, a, b, rng).text, TOO_LARGE)
    conversion = _conversion(rng.choice(CONVERSIONS), max(a, b), rng)
    return Question("refusal", conversion.text, TOO_LARGE)


def _about(rng: random.Random) -> Question:
    answer = rng.choice((IDENTITY, *_ABOUT))
    return Question("about itself", _vary(rng.choice(_ABOUT[answer]), rng), answer)


# --- what training and checking use ---------------------------------------------------------------


def _draw_number(rng: random.Random) -> int:
    return rng.randint(0, 9) if rng.random() < 0.12 else rng.randint(0, LARGEST)


def draw(rng: random.Random) -> Question:
    """One training question."""
    skill = rng.choices(SKILLS, tuple(WEIGHTS.values()))[0]
    if skill in ("addition", "subtraction"):
        while True:
            a, b = _draw_number(rng), _draw_number(rng)
            if not is_held_out(skill, a, b):
                return _arithmetic(skill, a, b, rng)
    if skill in ("decimal units", "other units"):
        choices = [c for c in CONVERSIONS if c.decimal == (skill == "decimal units")]
        while True:
            c, n = rng.choice(choices), rng.randint(1, LARGEST)
            if not _unit_pair_held_out(c, n):
                return _conversion(c, n, rng)
    makers: dict[str, Callable[[random.Random], Question]] = {
        "about itself": _about,
        "refusal": _refusal,
    }
    return makers[skill](rng)


def held_out_questions(seed: int = 0) -> dict[str, list[Question]]:
    """Per skill the questions that measure it, each in one phrasing chosen by ``seed``.

    Held out are all of "addition", "subtraction", "decimal units" and "refusal"; "other units" and
    "about itself" are tables and fixed sentences that training has seen.
    """
    rng = random.Random(seed)
    numbers = range(LARGEST + 1)
    questions: dict[str, list[Question]] = {skill: [] for skill in SKILLS}
    for skill in ("addition", "subtraction"):
        questions[skill] = [
            _arithmetic(skill, a, b, rng)
            for a in numbers
            for b in numbers
            if is_held_out(skill, a, b)
        ]
    for c in CONVERSIONS:
        for n in numbers[1:]:
            if not c.decimal or _unit_pair_held_out(c, n):
                question = _conversion(c, n, rng)
                questions[question.skill].append(question)
    questions["about itself"] = [
        Question("about itself", text, answer) for answer, texts in _ABOUT.items() for text in texts
    ]
    questions["refusal"] = [Question("refusal", text, REFUSAL) for text in _HELD_OUT_REFUSALS]
    return questions
