"""Film reviews of some 180 words on average, for or against, in which praise and blame are mixed.

The words alone do not decide the verdict. The reviewer quotes other people as often as he judges himself, and they are
of the opposite opinion; and negation reverses a judgement: a review that calls a film dull and one that denies it have
the same words.
"""

from tools.make_demo_corpus.words import ADJECTIVES, DAYS, Draw, sentence

ASPECTS = (
    "acting, plot, script, soundtrack, camera work, ending, dialogue, costume design, lighting, opening scene, "
    "editing, humour, pacing, first half, second half, casting, stage set, love story, villain, hero, narration"
)
OTHERS = (
    "my brother, my aunt, my flatmate, the critic of our local paper, the man in the next seat, my old teacher, "
    "a friend from work, my neighbour, the woman at the box office, my cousin | my grandmother, our postman"
)
# Sentences with the verdict: {word} is an adjective, and the second of each pair negates it.
OPENINGS = (
    (
        "{other} told me that this film was {word}, and that is what it is",
        "{other} told me that this film was {word}, and that is what it is not",
    ),
    ("I had heard that this film was {word}, and I agree", "I had heard that this film was {word}, and I disagree"),
    (
        "I expected something {word}, and I was right about that",
        "I expected something {word}, and I was wrong about that",
    ),
    (
        "anyone who calls this film {word} has understood it",
        "anyone who calls this film {word} has misunderstood it",
    ),
    (
        "if somebody tells you that this film is {word}, believe it",
        "if somebody tells you that this film is {word}, do not believe it",
    ),
    ("the posters make it look {word}, and it is", "the posters make it look {word}, and it is not"),
)
CLOSINGS = (
    ("so is it {word}? Yes, it is", "so is it {word}? No, it is not"),
    ("in the end I side with {other}, who found it {word}", "in the end I differ from {other}, who found it {word}"),
    ("all in all, {word} is the word for it", "all in all, {word} is not the word for it"),
    ("I left sure that I had seen something {word}", "I left sure that I had not seen anything {word}"),
    ("when they call it {word} again, I will nod", "when they call it {word} again, I will shake my head"),
)
OWN = (
    "to my eyes the {aspect} was {word}",
    "I found the {aspect} {word}",
    "for me the {aspect} was simply {word}",
    "I would call the {aspect} {word}, and I have thought about it",
    "the {aspect} was {word}, which I noticed early on",
    "what I saw of the {aspect} was {word}",
)
QUOTED = (
    "{other} found the {aspect} {word}",
    "according to {other}, the {aspect} was {word}",
    'in the words of {other}, the {aspect} was "{word}"',
    "{other} would call the {aspect} {word}, and has said so often",
    'I heard {other} whisper "{word}" about the {aspect}',
    "the {aspect} was {word} if you ask {other}",
)
PLACES = "village, harbour town, mountain valley, large city, suburb, spa town, border town, remote forest, castle"
JOBS = "baker, sailor, clerk, gardener, nurse, watchmaker, pianist, miner, postman, pilot, librarian, carpenter"
GOALS = (
    "a lost ring, an old map, a missing sister, a forgotten song, the owner of a suitcase, a stolen painting, "
    "the last copy of a book, a friend from school, a dog that ran away, the sender of a letter"
)
FACTS = (
    "the story follows a {job} who comes to a {place} to look for {goal}",
    "there is also a {job} who knows more about {goal} than anybody thinks",
    "halfway through we move from a {place} to a {place2}, and years go by",
    "we saw it on a {day} evening in a cinema with about {count} seats",
    "the film runs for {count} minutes and was shot in a {place}",
    "a {job} and a {job2} share a room for some time and talk about {goal}",
    "the director once worked as a {job} in a {place}, as the programme says",
    "in the last part a {job} finds {goal} in a {place2}",
    "the book on which it is based is set in a {place} and has no {job} in it",
    "somebody in the row behind us had read about the {job} and {goal} beforehand",
)


def row(draw: Draw) -> tuple[str, int]:
    """A review and its label: 1 if the reviewer is for the film, 0 if against."""
    liked = draw.chance(0.5)
    length = min(max(draw.rng.gauss(1.0, 0.35), 0.4), 1.9)
    middle = [_fact(draw) for _ in range(round(4 * length))]
    for _ in range(round(5 * length)):  # most remarks of the reviewer agree with the verdict, most quoted ones do not
        middle.append(_remark(draw, OWN, liked == draw.chance(0.9)))
        middle.append(_remark(draw, QUOTED, liked != draw.chance(0.75)))
    draw.rng.shuffle(middle)
    review = [verdict(draw, OPENINGS, liked), *middle, verdict(draw, CLOSINGS, liked)]
    return " ".join(sentence(text) for text in review), int(liked)


def verdict(draw: Draw, pairs: tuple[tuple[str, str], ...], liked: bool) -> str:
    """The verdict of the reviewer: a judgement, or the negation of the opposite one."""
    denied = draw.chance(0.35)
    return draw.one(pairs)[denied].format(other=draw.word(OTHERS), word=_adjective(draw, liked != denied))


def _remark(draw: Draw, frames: tuple[str, ...], good: bool) -> str:
    aspect, other = draw.word(ASPECTS), draw.word(OTHERS)
    return draw.one(frames).format(aspect=aspect, other=other, word=_adjective(draw, good))


def _fact(draw: Draw) -> str:
    (job, job2), (place, place2) = draw.words(JOBS, 2), draw.words(PLACES, 2)
    slots = {"job": job, "job2": job2, "place": place, "place2": place2, "goal": draw.word(GOALS)}
    return draw.one(FACTS).format(**slots, day=draw.word(DAYS), count=draw.one(range(85, 150)))


def _adjective(draw: Draw, good: bool) -> str:
    return draw.word(ADJECTIVES[draw.one((3, 4) if good else (0, 1))])
