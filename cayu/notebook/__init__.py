"""The notebook side: a synchronous face, DataFrames, figures and static HTML over the runtime."""

from cayu.notebook.bridge import Bridge
from cayu.notebook.experimenting import ExperimentHandle
from cayu.notebook.figures import Picture, compare, effects, phase_ecdf, phase_stack, store_cost, timeline
from cayu.notebook.handles import ApprovalHandle, Pending, SessionHandle
from cayu.notebook.lab import Lab
from cayu.notebook.nested import allow_nested_loops
from cayu.notebook.schemas import schema

__all__ = [
    "ApprovalHandle",
    "Bridge",
    "ExperimentHandle",
    "Lab",
    "Pending",
    "Picture",
    "SessionHandle",
    "allow_nested_loops",
    "compare",
    "effects",
    "phase_ecdf",
    "phase_stack",
    "schema",
    "store_cost",
    "timeline",
]
