"""An application's timing: what is collected, kept for a while in this process, and delivered to sinks."""

from __future__ import annotations

from collections.abc import Iterable

from cayu.clock import Clock
from cayu.observability.delivery import TimingDelivery
from cayu.observability.sinks import EventSink, TimingSink
from cayu.timing.marks import Attempt
from cayu.timing.recent import RecentTimings
from cayu.timing.records import RuntimeTimingConfig, RuntimeTimingStatus
from cayu.timing.session import SessionTiming


class RuntimeTiming:
    """Collects for every session of one application."""

    def __init__(
        self,
        config: RuntimeTimingConfig,
        event_sinks: Iterable[EventSink] = (),
        timing_sinks: Iterable[TimingSink] = (),
    ) -> None:
        """Deliver to the event sinks that want timing, and to `timing_sinks`."""
        wanting = [sink for sink in event_sinks if getattr(sink, "takes_timing", False)]
        self._config = config
        self.recent = RecentTimings(config.recent_capacity)
        self.delivery = TimingDelivery(config, (*wanting, *timing_sinks))

    def session(self, clock: Clock) -> SessionTiming:
        """Return the timing of one claim."""
        return SessionTiming(clock, self._config.max_calls_per_round, self._keep if self._config.enabled else None)

    def status(self) -> RuntimeTimingStatus:
        """Return how collection and delivery stand."""
        delivery = self.delivery
        return RuntimeTimingStatus(
            recent_records=len(self.recent),
            queued_records=delivery.queued,
            dropped_records=delivery.dropped,
            failed_deliveries=delivery.failed,
        )

    def _keep(self, attempt: Attempt) -> None:
        self.recent.add(attempt)
        if self.delivery.has_sinks:
            self.delivery.add(attempt)
