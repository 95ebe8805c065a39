"""How likely is a refusal now? Rules that look at the queue, the time left and the machine."""

from loadgate.shedding.depth import DepthRule, survival

__all__ = ["DepthRule", "survival"]
