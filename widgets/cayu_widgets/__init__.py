"""Live ipywidgets over a lab: what waits for a decision, one session and its timing, all of them, and an experiment.

Each widget is a view of what the lab's public verbs return. Nothing here displays itself, decides by itself or blocks a
cell; what has ended is plain HTML in `cayu.notebook`.
"""

from cayu_widgets.board import ExperimentBoard
from cayu_widgets.browser import SessionBrowser
from cayu_widgets.prompt import ApprovalPrompt
from cayu_widgets.queue import ApprovalQueue
from cayu_widgets.session import SessionView
from cayu_widgets.standing import PromptState
from cayu_widgets.timeline import PhaseTimeline

__all__ = [
    "ApprovalPrompt",
    "ApprovalQueue",
    "ExperimentBoard",
    "PhaseTimeline",
    "PromptState",
    "SessionBrowser",
    "SessionView",
]
