"""How tasks share an encoder: plans, adapters, soft sharing."""

from mtbert.sharing.adapters import ADAPTERS, PAL, PLACES, Adapter, AdapterSizes, adapter_parameters
from mtbert.sharing.plan import Level, PlanError, SharingPlan
from mtbert.sharing.shared_encoder import SharedEncoder
from mtbert.sharing.soft_sharing import add_pull

__all__ = [
    "ADAPTERS",
    "PAL",
    "PLACES",
    "Adapter",
    "AdapterSizes",
    "Level",
    "PlanError",
    "SharedEncoder",
    "SharingPlan",
    "adapter_parameters",
    "add_pull",
]
