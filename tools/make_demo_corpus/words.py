"""Drawing words, and the vocabulary of judgement that the reviews of two tasks share."""

import random
from collections.abc import Sequence
from functools import cache

DAYS = "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday"


class Draw:
    """Choices from one random stream.

    A word list is one string, "fine, pleasant | agreeable". The words after the bar are drawn with probability
    `held_out`, which is zero for train: a pretrained encoder knows them, counts of words do not.
    """

    def __init__(self, rng: random.Random, held_out: float):
        self.rng, self.held_out = rng, held_out

    def word(self, words: str) -> str:
        """One of the words of a list."""
        known, unseen = _parse(words)
        return self.rng.choice(unseen if unseen and self.chance(self.held_out) else known)

    def words(self, words: str, count: int) -> list[str]:
        """Different words of a list without a bar."""
        return self.rng.sample(_parse(words)[0], count)

    def synonym(self, words: str) -> str:
        """One of the words between slashes."""
        return self.rng.choice(words.split("/"))

    def one(self, choices: Sequence):
        """One of the choices."""
        return self.rng.choice(choices)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.rng.random() < probability


@cache
def _parse(words: str) -> tuple[list[str], list[str]]:
    known, _, unseen = words.partition("|")
    return tuple([word.strip() for word in part.split(",") if part] for part in (known, unseen))


def sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    return text[0].upper() + text[1:] + ("" if text[-1] in ".?!" else ".")


def with_article(words: str) -> str:
    """'a film', 'an odd film'."""
    return ("an " if words[0] in "aeiou" else "a ") + words


# Adjectives from the worst (0) to the best (4), for a film as well as for a soup.
ADJECTIVES = (
    "dreadful, awful, terrible, appalling, horrible, atrocious | abysmal, horrendous, ghastly",
    "dull, weak, bland, disappointing, tedious, clumsy, stale, unpleasant | dreary, lacklustre, poor, tiresome",
    "ordinary, average, unremarkable, middling, standard | so-so, run-of-the-mill, passable",
    "good, pleasant, likeable, enjoyable, charming, solid, lively, satisfying | agreeable, delightful, nice",
    "superb, wonderful, brilliant, outstanding, magnificent, splendid | sublime, marvellous, phenomenal",
)
# Verbs of liking, on the same scale.
VERBS = (
    "hated, loathed, detested | despised, abhorred",
    "disliked, regretted, resented | tired of, frowned at",
    "expected, noticed, remembered | registered",
    "enjoyed, liked, appreciated | welcomed, relished",
    "adored, loved, treasured | cherished, worshipped",
)
INTENSE = "very, truly, thoroughly, deeply, remarkably | exceedingly, extraordinarily, hugely"
MODERATE = "fairly, reasonably, rather, mostly | tolerably, moderately"
NEGATED = "not, hardly, far from, anything but, not at all, by no means | scarcely, nowhere near"
# Things that people review, each with the aspects that they judge.
THINGS = {
    "film": "acting, plot, script, soundtrack, camera work, ending",
    "cafe": "coffee, cake, service, breakfast, music, terrace",
    "book": "story, prose, dialogue, opening chapter, translation, cover",
    "train": "seating, ticket office, dining car, timetable, heating, view",
    "phone": "battery, screen, camera, keyboard, speaker, packaging",
    "hotel": "bed, shower, lobby, garden, room service, pool",
    "concert": "singing, lighting, drumming, sound, encore, hall",
    "museum": "guided tour, main gallery, lighting, shop, audio guide, map",
    "game": "puzzle design, artwork, tutorial, music, rule book, final level",
    "restaurant": "soup, wine list, dessert, service, kitchen, menu",
}
