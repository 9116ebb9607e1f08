"""Where the runtime's time goes: phases, costs in stores, and the records that tell of them."""

from cayu.timing.records import (
    ModelStepPreparationTiming,
    RuntimePhaseTiming,
    RuntimeTimingConfig,
    RuntimeTimingStatus,
    TimingRecord,
    ToolCallTiming,
    ToolRoundTiming,
)

__all__ = [
    "ModelStepPreparationTiming",
    "RuntimePhaseTiming",
    "RuntimeTimingConfig",
    "RuntimeTimingStatus",
    "TimingRecord",
    "ToolCallTiming",
    "ToolRoundTiming",
]
