"""The notebook side: a synchronous face, DataFrames and static HTML over the runtime."""

from cayu.notebook.bridge import Bridge
from cayu.notebook.handles import ApprovalHandle, Pending, SessionHandle
from cayu.notebook.lab import Lab
from cayu.notebook.nested import allow_nested_loops
from cayu.notebook.schemas import schema

__all__ = ["ApprovalHandle", "Bridge", "Lab", "Pending", "SessionHandle", "allow_nested_loops", "schema"]
