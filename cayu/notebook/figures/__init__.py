"""Figures of where the time of tool rounds went, and of what interventions did to the score."""

from cayu.notebook.figures.drawing import Picture
from cayu.notebook.figures.example import worked_example
from cayu.notebook.figures.forest import effects
from cayu.notebook.figures.rounds import phase_stack, store_cost
from cayu.notebook.figures.spread import compare, phase_ecdf
from cayu.notebook.figures.timeline import timeline

__all__ = ["Picture", "compare", "effects", "phase_ecdf", "phase_stack", "store_cost", "timeline", "worked_example"]
