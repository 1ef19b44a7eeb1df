"""The gradients of a model as one vector, and back."""

import torch
from torch import Tensor, nn


class FlatGradients:
    """The gradients of named parameters as one vector (P,), and back. `spans`: name -> its place in the vector."""

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        self.parameters = dict(parameters)
        self.spans: dict[str, slice] = {}
        self.size = 0  # P
        for name, parameter in self.parameters.items():
            start = self.size
            self.size += parameter.numel()
            self.spans[name] = slice(start, self.size)

    def empty(self, rows: int) -> Tensor:
        """Room for the gradients of several tasks, float32 (rows, P), on the parameters' device."""
        device = next((parameter.device for parameter in self.parameters.values()), None)
        return torch.empty(rows, self.size, dtype=torch.float32, device=device)

    def values(self) -> Tensor:
        """The parameters themselves as one new vector (P,), float32."""
        flat = self.empty(1)[0]
        for name, parameter in self.parameters.items():
            place = flat[self.spans[name]]
            place.view_as(parameter).copy_(parameter.detach())
        return flat

    def take(self, flat: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Move every `.grad` into a float32 vector (P,), zeros where there is none; every `.grad` is None after.

        flat: where to, by default a new vector. Returns it and `used`, bool, on the CPU: which parameters had one.
        """
        if flat is None:
            flat = self.empty(1)[0]
        used = torch.zeros(len(self.parameters), dtype=torch.bool)
        for i, (name, parameter) in enumerate(self.parameters.items()):
            place = flat[self.spans[name]]
            if parameter.grad is None:
                place.zero_()
            else:
                place.view_as(parameter).copy_(parameter.grad)
                parameter.grad = None
                used[i] = True
        return flat, used

    def put(self, flat: Tensor, used: Tensor) -> None:
        """Make `.grad` of the used parameters a view of flat (P,), and None elsewhere.

        An optimizer leaves a parameter without a gradient alone, its decay and moments included; with a gradient of
        zeros it would not.
        """
        for (name, parameter), is_used in zip(self.parameters.items(), used.tolist(), strict=True):
            parameter.grad = None
            if is_used:
                place = flat[self.spans[name]]
                parameter.grad = place.view_as(parameter).to(parameter.dtype)
