"""Question pairs: duplicates ask the same in other words, the others ask something else in the same words.

Each family of questions returns two lists: ways to ask one thing, and the same frames asking another thing, where
places, people or steps have traded roles, "with" became "without" or "how" became "when". Most of these twists
leave the words of a pair as they were.
"""

from mtbert.demo.words import Draw

DUPLICATES = 0.385  # of all pairs
OPENERS = "Just asking:, A beginner's question:, Please help me: | Quick question:, I wonder:"

CITIES = "Oslo, Lisbon, Vienna, Porto, Prague, Ghent, Bergen, Milan, Lyon, Leeds, Cork, Turin, Basel, Kyoto, Quito"
LANGUAGES = "Spanish, Polish, Greek, Danish, Turkish, Czech, Dutch, Welsh, Hindi, Finnish, Korean"
TEXTS = "letter, poem, contract, recipe, song, menu, diary, manual"
PEOPLE = (
    "landlord, tenant, teacher, pupil, doctor, patient, buyer, seller, driver, passenger, writer, publisher, "
    "singer, drummer, waiter, guest, nurse, plumber, coach, player"
)
DEEDS = (  # what somebody may do to somebody: active, passive
    "sue/sued, film/filmed, report/reported, insure/insured, replace/replaced, invite/invited, train/trained, "
    "interview/interviewed, photograph/photographed, dismiss/dismissed"
)
STEPS = (  # what one does, and doing it
    "paint the door/painting the door, salt the potatoes/salting the potatoes, boil the beans/boiling the beans, "
    "oil the chain/oiling the chain, clean the wheels/cleaning the wheels, cut the grass/cutting the grass, "
    "water the tomatoes/watering the tomatoes, charge the battery/charging the battery, "
    "fry the onions/frying the onions, wash the wool/washing the wool, dry the shoes/drying the shoes, "
    "sand the floor/sanding the floor, tune the strings/tuning the strings, copy the photos/copying the photos, "
    "pay the deposit/paying the deposit, sign the contract/signing the contract"
)
MORE_LESS = "heavier/lighter, bigger/smaller, cheaper/more expensive, louder/quieter, longer/shorter, taller/lower"
COMPARED = (
    "a bus, a tram, a horse, a tractor, a sailing boat, a bicycle, a camel, an ox, a van, a donkey, a lorry, "
    "a piano, a tuba, a church bell, a fire engine"
)
PROJECTS = (
    "prune roses, keep bees, repair a bicycle, bake rye bread, learn the violin, paint a fence, grow mushrooms, "
    "build a bookcase, clean a chimney, train a puppy, photograph birds, knit a jumper, plant garlic, "
    "restore an old radio, mend a zip, move house, teach a child to swim, write a will, rent a boat"
)
MEALS = "bread, pancakes, ice cream, mayonnaise, a curry, a stew, noodles, jam, a pie, dumplings, a risotto, soup"
INGREDIENTS = "eggs, milk, butter, yeast, sugar, salt, garlic, onions, flour, honey, pepper, cream"
ANIMALS = "cats, dogs, horses, goats, parrots, hens, bees, rabbits, crows, donkeys, sheep, otters"
THINGS = "boxes, rain, music, loud voices, snow, mirrors, tall grass, strong smells, bright light, cold water, crowds"
LIKE = "like, love, enjoy, seek | adore, prefer"
DISLIKE = "dislike, hate, avoid, fear | detest, shun"


def row(draw: Draw) -> tuple[str, str, float]:
    """Two questions and 1.0 where they ask the same, else 0.0."""
    same, other = draw.one(FAMILIES)(draw)
    first, second = draw.rng.sample(range(len(same)), 2)  # two frames
    duplicate = draw.chance(DUPLICATES)
    return _open(draw, same[first]), _open(draw, (same if duplicate else other)[second]), float(duplicate)


def _open(draw: Draw, question: str) -> str:
    """Sometimes with a few words before it that change nothing."""
    return f"{draw.word(OPENERS)} {question}" if draw.chance(0.15) else question


def travel(draw: Draw) -> tuple[list[str], list[str]]:
    """From A to B, or from B to A."""
    mode = draw.word("train, bus, boat, bicycle, car")

    def ask(start: str, goal: str) -> list[str]:
        return [
            f"How long does it take to go from {start} to {goal} by {mode}?",
            f"How long is the journey to {goal} from {start} by {mode}?",
            f"If I leave {start} by {mode}, when do I get to {goal}?",
            f"When do I reach {goal} if I set off from {start} by {mode}?",
        ]

    start, goal = draw.words(CITIES, 2)
    return ask(start, goal), ask(goal, start)


def translate(draw: Draw) -> tuple[list[str], list[str]]:
    """Out of one language into another, or back."""
    text = draw.word(TEXTS)

    def ask(source: str, target: str) -> list[str]:
        return [
            f"Who can translate a {text} from {source} into {target}?",
            f"Where do I get a {target} version of a {text} in {source}?",
            f"My {text} is in {source}: who can put it into {target}?",
            f"I need a {text} in {target}, but I have it in {source}: who translates it?",
        ]

    source, target = draw.words(LANGUAGES, 2)
    return ask(source, target), ask(target, source)


def permission(draw: Draw) -> tuple[list[str], list[str]]:
    """Who may do something to whom, active and passive."""
    active, passive = draw.word(DEEDS).split("/")

    def ask(doer: str, other: str) -> list[str]:
        return [
            f"Can a {doer} {active} a {other}?",
            f"Can a {other} be {passive} by a {doer}?",
            f"Is a {doer} allowed to {active} a {other}?",
            f"Is it legal for a {other} to be {passive} by a {doer}?",
        ]

    doer, other = draw.words(PEOPLE, 2)
    return ask(doer, other), ask(other, doer)


def order(draw: Draw) -> tuple[list[str], list[str]]:
    """Which of two steps comes first."""

    def ask(first: str, then: str) -> list[str]:
        (do_first, doing_first), (do_then, doing_then) = first.split("/"), then.split("/")
        return [
            f"Should I {do_first} before I {do_then}?",
            f"Is it right to {do_then} only after {doing_first}?",
            f"Do I {do_first} first and {do_then} later?",
            f"Does {doing_first} come before {doing_then}?",
        ]

    first, then = draw.words(STEPS, 2)
    return ask(first, then), ask(then, first)


def compare(draw: Draw) -> tuple[list[str], list[str]]:
    """Which of two things is more so; with the opposite word, the other is less so."""
    more, less = draw.word(MORE_LESS).split("/")

    def ask(one: str, other: str) -> list[str]:
        return [
            f"Is {one} {more} than {other}?",
            f"Is {other} {less} than {one}?",
            f"Is it true that {one} is {more} than {other}?",
            f"Would you say that {other} is {less} than {one}?",
        ]

    one, other = draw.words(COMPARED, 2)
    return ask(one, other), ask(other, one)


def project(draw: Draw) -> tuple[list[str], list[str]]:
    """How, when, why or for how much: the same undertaking, another question."""
    what = draw.word(PROJECTS)
    asked = [
        [
            f"How do I {what}?",
            f"What is a good way to {what}?",
            f"Which steps does it take to {what}?",
            f"How would a beginner {what}?",
        ],
        [
            f"When do I {what}?",
            f"What is a good time to {what}?",
            f"In which month is it best to {what}?",
            f"At what time would a beginner {what}?",
        ],
        [
            f"Why do I {what}?",
            f"What is a good reason to {what}?",
            f"What makes it worth my while to {what}?",
            f"For what reason would a beginner {what}?",
        ],
        [
            f"What do I pay to {what}?",
            f"What is a good price to {what}?",
            f"How much money does it take to {what}?",
            f"How much would a beginner spend to {what}?",
        ],
    ]
    return tuple(draw.rng.sample(asked, 2))


def recipe(draw: Draw) -> tuple[list[str], list[str]]:
    """With an ingredient, or without it."""
    meal, ingredient = draw.word(MEALS), draw.word(INGREDIENTS)

    def ask(included: bool) -> list[str]:
        return [
            f"How do I make {meal} {'with' if included else 'without'} {ingredient}?",
            f"What is a recipe for {meal} that {'uses' if included else 'leaves out'} {ingredient}?",
            f"How do people cook {meal} {'if they have' if included else 'if they have no'} {ingredient}?",
            f"Can {meal} be made {'with' if included else 'without'} {ingredient}?",
        ]

    included = draw.chance(0.5)
    return ask(included), ask(not included)


def taste(draw: Draw) -> tuple[list[str], list[str]]:
    """Why an animal likes something, or does not."""
    animals, things = draw.word(ANIMALS), draw.word(THINGS)

    def ask(verbs: str, denied: str) -> list[str]:
        return [
            f"Why do {animals} {draw.word(verbs)} {things}?",
            f"What makes {animals} {draw.word(verbs)} {things}?",
            f"Why is it that {animals} do not {denied} {things}?",
            f"For what reason do {animals} {draw.word(verbs)} {things}?",
        ]

    liking, disliking = ask(LIKE, "mind"), ask(DISLIKE, "like")
    return (liking, disliking) if draw.chance(0.5) else (disliking, liking)


FAMILIES = (travel, translate, permission, order, compare, project, recipe, taste)
