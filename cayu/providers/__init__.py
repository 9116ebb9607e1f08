"""Model providers: the interface, and the two that need no key."""

from cayu.providers.base import ModelProvider, ModelRequest, ModelStreamEvent, ToolDescription
from cayu.providers.extractive import ExtractiveModelProvider
from cayu.providers.scripted import ScriptedModelProvider

__all__ = [
    "ExtractiveModelProvider",
    "ModelProvider",
    "ModelRequest",
    "ModelStreamEvent",
    "ScriptedModelProvider",
    "ToolDescription",
]
