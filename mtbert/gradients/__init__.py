"""What is done about conflicts between the gradients of tasks: PCGrad, GEM, A-GEM."""

from mtbert.gradients.episodic_memory import EpisodicMemory
from mtbert.gradients.flat import FlatGradients
from mtbert.gradients.gem import agem, broken_constraints, gem, gem_project
from mtbert.gradients.gram import CHUNK, DEVICE_CHUNK, layer_cosines
from mtbert.gradients.pcgrad import pcgrad

__all__ = [
    "CHUNK",
    "DEVICE_CHUNK",
    "EpisodicMemory",
    "FlatGradients",
    "agem",
    "broken_constraints",
    "gem",
    "gem_project",
    "layer_cosines",
    "pcgrad",
]
