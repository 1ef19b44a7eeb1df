"""Question pairs: duplicates ask the same in other words, the others ask something else in the same words.

Each family of questions returns two lists: forms of one question, and the same forms of another question, in which
places or steps have exchanged roles, "with" is "without", "how" is "when" or a couch is a lamp. A duplicate may change
as many words: the couch into a sofa.
"""

from tools.make_demo_corpus.words import Draw

DUPLICATES = 0.385  # of all pairs

CITIES = "Oslo, Lisbon, Vienna, Porto, Prague, Ghent, Bergen, Milan, Lyon, Leeds, Cork, Turin, Basel, Kyoto, Quito"
STEPS = (  # what one does, and doing it
    "paint the door/painting the door, salt the potatoes/salting the potatoes, boil the beans/boiling the beans, "
    "oil the chain/oiling the chain, clean the wheels/cleaning the wheels, cut the grass/cutting the grass, "
    "water the tomatoes/watering the tomatoes, charge the battery/charging the battery, "
    "fry the onions/frying the onions, wash the wool/washing the wool, dry the shoes/drying the shoes, "
    "sand the floor/sanding the floor, tune the strings/tuning the strings, copy the photos/copying the photos"
)
# Actions and their objects: alternatives separated by commas, synonyms of each by slashes.
PROJECTS = (
    (
        "repair/fix, clean/wash, buy/purchase, sell, paint, insure, hide/conceal | lift/pick up, rent/hire",
        "a bicycle/a bike, a sofa/a couch, a car/an automobile, a boat, a lamp, a rug/a carpet, a jumper/a sweater, "
        "a fridge/a refrigerator, a television/a TV set, a stove/a cooker | a motorbike/a motorcycle, a sack/a bag",
    ),
    (
        "plant/put in, prune/cut back, water, dig up, choose/pick | protect/guard",
        "roses, a bush/a shrub, an apple tree, flowers/blossoms, potatoes/spuds, herbs | a vine, beets/beetroot",
    ),
    (
        "cook/prepare, freeze, season/flavour, reheat/warm up, store/keep | chop/cut up",
        "soup/broth, aubergines/eggplants, prawns/shrimps, maize/corn, rice, noodles/pasta, chickpeas/garbanzo beans, "
        "mushrooms | courgettes/zucchini, sprouts, porridge/oatmeal",
    ),
    (
        "learn/study, teach, translate, forget, practise | explain/make clear",
        "maths/mathematics, chess, Greek, first aid, poetry/verse, grammar, Danish | Latin, penmanship/handwriting",
    ),
)
MEALS = "bread, pancakes, ice cream, mayonnaise, a curry, a stew, noodles, jam, a pie, dumplings, a risotto, soup"
INGREDIENTS = "eggs, milk, butter, yeast, sugar, salt, garlic, onions, flour, honey, pepper, cream"
ANIMALS = "cats, dogs, horses, goats, parrots, hens, bees, rabbits, crows, donkeys, sheep, otters"
THINGS = "boxes, rain, music, loud voices, snow, mirrors, tall grass, strong smells, bright light, cold water, crowds"
LIKE = "like, love, enjoy, seek | adore, prefer"
DISLIKE = "dislike, hate, avoid, fear | detest, shun"
QUESTIONS = (
    ("How do I {x}?", "What is a good way to {x}?", "Which steps does it take to {x}?", "How would a beginner {x}?"),
    (
        "When do I {x}?",
        "What is a good time to {x}?",
        "In which month is it best to {x}?",
        "At what time would a beginner {x}?",
    ),
    (
        "Why do I {x}?",
        "What is a good reason to {x}?",
        "What makes it worth my while to {x}?",
        "For what reason would a beginner {x}?",
    ),
    (
        "What do I pay to {x}?",
        "What is a good price to {x}?",
        "How much money does it take to {x}?",
        "How much would a beginner spend to {x}?",
    ),
)


def row(draw: Draw) -> tuple[str, str, float]:
    """Two questions and 1.0 if they ask the same, else 0.0."""
    same, other = draw.one(FAMILIES)(draw)
    first, second = draw.rng.sample(range(len(same)), 2)  # two frames
    duplicate = draw.chance(DUPLICATES)
    return same[first], (same if duplicate else other)[second], float(duplicate)


def travel(draw: Draw) -> tuple[list[str], list[str]]:
    """From A to B, or from B to A."""
    mode = draw.word("train, bus, boat, bicycle, car")

    def ask(start: str, goal: str) -> list[str]:
        return [
            f"How long does one travel from {start} to {goal} by {mode}?",
            f"What is the travel time from {start} to {goal} by {mode}?",
            f"If I leave {start} by {mode}, when do I get to {goal}?",
            f"When I set off from {start} by {mode}, at what time do I reach {goal}?",
        ]

    start, goal = draw.words(CITIES, 2)
    return ask(start, goal), ask(goal, start)


def order(draw: Draw) -> tuple[list[str], list[str]]:
    """Which of two steps comes first."""

    def ask(first: str, then: str) -> list[str]:
        (do_first, doing_first), (do_then, doing_then) = first.split("/"), then.split("/")
        return [
            f"Should I {do_first} before I {do_then}?",
            f"Is it right to {do_first} and only then {do_then}?",
            f"Do I {do_first} first and {do_then} later?",
            f"Does {doing_first} come before {doing_then}?",
        ]

    first, then = draw.words(STEPS, 2)
    return ask(first, then), ask(then, first)


def project(draw: Draw) -> tuple[list[str], list[str]]:
    """How, when, why or for how much: the other question differs in this or in the action; synonyms change in both."""

    def ask(question: int, verb: str, thing: str) -> list[str]:
        return [frame.format(x=f"{draw.synonym(verb)} {draw.synonym(thing)}") for frame in QUESTIONS[question]]

    verbs, things = draw.one(PROJECTS)

    def choices() -> list:
        return [draw.one(range(len(QUESTIONS))), draw.word(verbs), draw.word(things)]

    asked = choices()
    other = list(asked)
    for changed in draw.rng.sample(range(3), draw.one((1, 2))):
        while other[changed] == asked[changed]:
            other[changed] = choices()[changed]
    return ask(*asked), ask(*other)


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


FAMILIES = (travel, order, taste, recipe, recipe, project, project, project, project, project)
