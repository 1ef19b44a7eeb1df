"""Sentiment in five classes: the class of a word depends on its context.

Negation reverses a judgement ("far from dull" is good, "far from superb" is weak), an intensifier moves it to the
end of the scale, and of two clauses one decides: the main clause, or the one after "but".
"""

from tools.make_demo_corpus.words import ADJECTIVES, DAYS, INTENSE, MODERATE, NEGATED, THINGS, VERBS, Draw, sentence

# {own} decides the class, {other} is only conceded; each occurs in either place.
CONTRASTS = (
    "although {other}, {own}",
    "{own}, although {other}",
    "{other}, but {own}",
    "{other}, yet {own}",
    "while {other}, {own}",
    "{own}, even though {other}",
    "never mind that {other}: {own}",
    "{own}, and it hardly matters that {other}",
)
# The same with another person's judgement, or an earlier one.
REPORTS = (
    "{others} called the {aspect} {other}, but I found it {own}",
    "I found the {aspect} {own}, whatever {others} said about it being {other}",
    "I expected the {aspect} to be {other}, and it was {own}",
    "the {aspect} was {own} on the day, after {others} had promised me it would be {other}",
    "to {others} the {aspect} was {other}; to me it was {own}",
)
OTHERS = "the critics, my friends, the guide books, my parents, most people, the papers | my neighbours, the locals"
FACTS = (
    "a friend mentioned the {aspect} of the {thing} on {day}",
    "I asked somebody about the {aspect} on {day}",
    "my notes on the {thing} and its {aspect} are from {day}",
    "this {thing} was new to me, and {day} was my first look at the {aspect}",
    "{others} had told me about the {aspect} of the {thing}",
)


def row(draw: Draw) -> tuple[str, int]:
    """A sentence and its class, 0 (very negative) to 4 (very positive)."""
    level = draw.one(range(5))
    thing = draw.one(sorted(THINGS))
    aspect, other_aspect = draw.words(THINGS[thing], 2)
    if level == 2 and draw.chance(0.3):
        slots = {"aspect": aspect, "thing": thing, "day": draw.word(DAYS), "others": draw.word(OTHERS)}
        return sentence(draw.one(FACTS).format(**slots)), level
    if draw.chance(0.25):
        return sentence(opinion(draw, aspect, level, thing)), level
    negative, positive = [0, 1, 1], [3, 3, 4]
    conceded = draw.one({0: positive, 1: positive, 2: negative + positive}.get(level, negative))
    if draw.chance(0.6):
        own, other = opinion(draw, aspect, level, thing), opinion(draw, other_aspect, conceded, thing)
        return sentence(draw.one(CONTRASTS).format(own=own, other=other)), level
    own, other = judgement(draw, level), judgement(draw, conceded)
    report = draw.one(REPORTS).format(own=own, other=other, aspect=aspect, others=draw.word(OTHERS))
    return sentence(report), level


def opinion(draw: Draw, aspect: str, level: int, thing: str) -> str:
    """A clause that judges one aspect of a thing."""
    what = f"the {aspect} of this {thing}" if draw.chance(0.25) else f"the {aspect}"
    if draw.chance(0.7):
        return f"{what} {draw.word('was, was, seemed, felt')} {judgement(draw, level)}"
    if level in (1, 3) and draw.chance(0.5):
        return f"I {draw.word('never, hardly')} {draw.word(VERBS[_opposite(draw, level)])} {what}"
    return f"I {draw.word(VERBS[level])} {what}"


def judgement(draw: Draw, level: int) -> str:
    """An adjective phrase of the given class; the adjective in it may be of another."""
    good, bad = draw.word(ADJECTIVES[3]), draw.word(ADJECTIVES[1])
    if level == 2 and draw.chance(0.5):
        return draw.one((f"neither {good} nor {bad}", f"{good} at times and {bad} at others"))
    if level in (0, 4) and draw.chance(0.5):
        return f"{draw.word(INTENSE)} {good if level == 4 else bad}"
    if level in (0, 4) and draw.chance(0.2):
        return f"nothing short of {draw.word(ADJECTIVES[level])}"
    if level in (1, 3) and draw.chance(0.5):
        return f"{draw.word(NEGATED)} {draw.word(ADJECTIVES[_opposite(draw, level)])}"
    if level in (1, 3) and draw.chance(0.3):
        return f"{draw.word(MODERATE)} {good if level == 3 else bad}"
    return draw.word(ADJECTIVES[level])


def _opposite(draw: Draw, level: int) -> int:
    """A word whose negation is a mild judgement of this class."""
    return draw.one((3, 4) if level == 1 else (0, 1))
