"""Scene pairs with a similarity of 0 to 5: five, minus the changes between the two sentences.

A synonym subtracts little although the word is different, an alternative (a trumpet for a violin) much although only
one word is different, exchanged roles more although all words are the same, and a passive nothing. The constants below
are the whole rule.
"""

from dataclasses import dataclass

from tools.make_demo_corpus.words import Draw, sentence, with_article

# What each change subtracts from five. A part is changed in one way only; the result is at least zero.
SYNONYM = 0.2  # of any part
SIBLING = {"adjective": 0.6, "place": 0.8, "thing": 1.4, "person": 1.6, "action": 1.8}
DENIED = 2.4
ROLES = 2.2
OTHER_TOPIC = {True: 4.4, False: 5.0}  # by whether it is the same person

# Alternatives are separated by commas, synonyms by slashes; an action's participle follows its colon.
PEOPLE = (
    "man/guy, woman/lady, boy/lad, child/kid, worker/labourer, doctor/physician, thief/robber, tourist/traveller "
    "| policeman/cop, singer/vocalist, scholar/academic"
)
ADJECTIVES = "big/large, small/little, lovely/beautiful, strange/odd, dirty/filthy | fragile/delicate, heavy/weighty"


@dataclass(frozen=True)
class Topic:
    """An action, its objects and its places."""

    actions: str
    things: str
    places: str


TOPICS = (
    Topic(
        "slicing:sliced/cutting:cut, washing:washed/rinsing:rinsed, buying:bought/purchasing:purchased, "
        "cooking:cooked/boiling:boiled | tossing:tossed/throwing:thrown",
        "potato/spud, courgette/zucchini, aubergine/eggplant, prawn/shrimp, pumpkin | lettuce, beet/beetroot",
        "in the kitchen, at the market/at the bazaar, behind the shop/behind the store",
    ),
    Topic(
        "playing:played, tuning:tuned, carrying:carried/lugging:lugged, mending:mended/repairing:repaired",
        "violin/fiddle, guitar, trumpet, accordion/squeezebox, harmonica/mouth organ | cello, flute",
        "on the stage/on the podium, in the park, in the church/in the chapel",
    ),
    Topic(
        "riding:ridden, pushing:pushed/shoving:shoved, cleaning:cleaned/scrubbing:scrubbed, "
        "stealing:stolen/swiping:swiped | painting:painted, inspecting:inspected/examining:examined",
        "bicycle/bike, scooter, motorcycle/motorbike, cart/wagon | tractor, moped",
        "on the street/on the road, on the hill, near the bridge, near the forest/near the woods",
    ),
    Topic(
        "reading:read, tearing up:torn up/ripping up:ripped up, hiding:hidden/concealing:concealed | copying:copied",
        "letter/note, newspaper/gazette, novel, map/chart, magazine/journal | diary/logbook, poem",
        "on the bench, on the train, in the library, on the sofa/on the couch",
    ),
    Topic(
        "planting:planted, watering:watered/sprinkling:sprinkled, sketching:sketched/drawing:drawn, "
        "digging up:dug up | trimming:trimmed/pruning:pruned",
        "rose, bush/shrub, tree, flower/blossom, mushroom/toadstool | cactus, vine/creeper",
        "in the garden/in the yard, in the field/in the meadow, by the wall, by the gate",
    ),
    Topic(
        "rowing:rowed/paddling:paddled, anchoring:anchored/mooring:moored, building:built/constructing:constructed "
        "| sinking:sunk/scuttling:scuttled",
        "boat/vessel, raft, canoe, ferry/ferryboat | sailing boat/yacht",
        "on the lake, on the river/on the stream, on the sea/on the ocean, in the harbour/in the port",
    ),
)
ANIMALS = "dog/hound, cat, horse/steed, goat, rabbit/bunny, pig/hog, donkey, duck, fox | cow, hen/chicken"
CHASES = Topic(
    "chasing:chased/pursuing:pursued, licking:licked, watching:watched/observing:observed, "
    "biting:bitten/nipping:nipped | following:followed/trailing:trailed",
    ANIMALS,
    "in the barn/in the stable, in the snow, on the beach/on the shore, near the pond/near the pool",
)


def row(draw: Draw) -> tuple[str, str, float]:
    """Two sentences and their similarity, 0.0 to 5.0 in steps of 0.2."""
    topic = draw.one((*TOPICS, CHASES, CHASES))
    concepts = _concepts(draw, topic)
    scene = {part: draw.synonym(concept) for part, concept in concepts.items()}
    if draw.chance(0.1):
        other, loss = _other_topic(draw, topic, scene)
        return _text(draw, scene), _text(draw, other), round(5 - loss, 1)
    changed, loss = dict(scene), 0.0
    synonyms = draw.one((0.1, 0.5, 1.0))  # share of synonyms: few changed words can mean much, and many little
    count = draw.one((0, 2, 3, 4, 5)) if synonyms == 1 else draw.one((1, 1, 2, 3))
    for part in draw.rng.sample(list(concepts), count):
        other_words = [word for word in concepts[part].split("/") if word != scene[part]]
        if other_words and draw.chance(synonyms):
            changed[part] = other_words[0]
            loss += SYNONYM
        else:
            while changed[part] in "/".join(concepts.values()).split("/"):
                changed[part] = draw.synonym(draw.word(_siblings(part, topic)))
            loss += SIBLING[part]
    denied = draw.chance(0.08)
    roles = topic is CHASES and not denied and draw.chance(0.4)
    loss += DENIED * denied + ROLES * roles
    return _text(draw, scene), _text(draw, changed, denied, roles), round(max(0.0, 5 - loss), 1)


def _siblings(part: str, topic: Topic) -> str:
    """The alternatives for a part of a scene."""
    people = ANIMALS if topic is CHASES else PEOPLE
    lists = {"person": people, "action": topic.actions, "adjective": ADJECTIVES}
    return (lists | {"thing": topic.things, "place": topic.places})[part]


def _concepts(draw: Draw, topic: Topic) -> dict[str, str]:
    """The parts of a scene, each with its synonyms."""
    scene = {part: draw.word(_siblings(part, topic)) for part in SIBLING}
    while scene["thing"] == scene["person"]:  # of two animals
        scene["thing"] = draw.word(topic.things)
    return scene


def _other_topic(draw: Draw, topic: Topic, scene: dict[str, str]) -> tuple[dict[str, str], float]:
    """A scene with nothing in common with the given one except, sometimes, the person; and what it subtracts."""
    other = draw.one([other for other in (*TOPICS, CHASES) if other is not topic])
    words = {part: draw.synonym(concept) for part, concept in _concepts(draw, other).items()}
    if topic is not CHASES and other is not CHASES and draw.chance(0.5):
        words["person"] = scene["person"]
    return words, OTHER_TOPIC[words["person"] == scene["person"]]


def _text(draw: Draw, scene: dict[str, str], denied: bool = False, roles: bool = False) -> str:
    """One sentence, active or passive, the place last or first; with `roles`, the thing acts on the person."""
    doing, done = scene["action"].split(":")
    agent, patient = with_article(scene["person"]), with_article(f"{scene['adjective']} {scene['thing']}")
    if roles:
        agent, patient = patient, agent
    verb = "is not" if denied else "is"
    clause = f"{agent} {verb} {doing} {patient}"
    if draw.chance(0.4):
        clause = f"{patient} {verb} being {done} by {agent}"
    return sentence(f"{scene['place']}, {clause}" if draw.chance(0.25) else f"{clause} {scene['place']}")
