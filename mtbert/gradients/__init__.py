"""What is done about conflicts between the gradients of tasks: PCGrad, CAGrad, GEM, A-GEM."""

from mtbert.gradients.cagrad import cagrad
from mtbert.gradients.episodic_memory import EpisodicMemory
from mtbert.gradients.gem import broken_constraints, gem_project
from mtbert.gradients.gram import FlatGradients, GradientError, check_finite, combine, gram_matrix, in_double
from mtbert.gradients.methods import PROJECTIONS, WEIGHTS, check_options
from mtbert.gradients.pcgrad import pcgrad

__all__ = [
    "PROJECTIONS",
    "WEIGHTS",
    "EpisodicMemory",
    "FlatGradients",
    "GradientError",
    "broken_constraints",
    "cagrad",
    "check_finite",
    "check_options",
    "combine",
    "gem_project",
    "gram_matrix",
    "in_double",
    "pcgrad",
]
