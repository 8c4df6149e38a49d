"""What an operator's Prometheus reads: counters and gauges of one server."""

from __future__ import annotations

from artesian.server.limits import Limits
from artesian.server.service import Service


def metrics_text(service: Service, limits: Limits) -> str:
    """All metrics in Prometheus's text format."""
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    state, desk = service.coordinator.state, service.coordinator.desk
    registry = CollectorRegistry()
    for name, text, value in (
        ("version", "folds so far", state.version),
        ("members", "clients present", state.present),
        ("open_tasks", "tasks given and not answered", desk.open),
        ("pending_uploads", "uploads received and not folded", len(desk.pending)),
        ("uploads", "uploads accepted since the start", service.counts.uploads),
        ("refusals", "requests refused since the start", service.counts.refused),
        ("clipped", "uploads clipped since the start", service.counts.clipped),
        ("snapshots", "snapshots written since the start", service.counts.snapshots),
        ("bytes_in_flight", "bytes of bodies being received and sent", limits.in_flight),
    ):
        Gauge(f"artesian_{name}", text, registry=registry).set(value)
    return generate_latest(registry).decode()
