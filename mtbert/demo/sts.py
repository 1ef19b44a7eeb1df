"""Scene pairs with a similarity of 0 to 5: five, less what was changed between the two sentences.

A synonym costs little though the word is another, a sibling (a trumpet for a violin) costs much though only one
word changed, and an unrelated scene leaves nothing. LOSSES is the whole rule.
"""

from dataclasses import dataclass, replace

from mtbert.demo.words import Draw, sentence

# What each change takes off the similarity.
LOSSES = {
    "synonym": 0.2,
    "no adjective": 0.4,
    "number": 0.4,
    "place": 0.6,
    "adjective": 0.8,
    "object": 1.2,
    "subject": 1.4,
    "action": 1.8,
    "denied": 2.4,
    "roles": 2.0,
}
