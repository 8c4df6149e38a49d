"""What an operator's Prometheus reads: counters and gauges of one server."""

from __future__ import annotations

from collections.abc import Iterator

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
        ("clusters", "models in the repository", len(state.clusters)),
        ("open_tasks", "tasks given and not answered", desk.open),
        ("pending_uploads", "uploads received and not folded", len(desk.pending)),
        ("uploads", "uploads accepted since the start", service.counts.uploads),
        ("refusals", "requests refused since the start", service.counts.refused),
        ("clipped", "uploads clipped since the start", service.counts.clipped),
        ("set_aside", "uploads answered and not folded since the start", service.counts.set_aside),
        ("suspects", "members of whom several uploads were set aside", len(service.suspects())),
        ("snapshots", "snapshots written since the start", service.counts.snapshots),
        ("bytes_in_flight", "bytes of bodies being received and sent", limits.in_flight),
        *_studies(service),
    ):
        Gauge(f"artesian_{name}", text, registry=registry).set(value)
    if service.counts.replies:
        won = Gauge("artesian_replies", "how often each reply won since the start", ["reply"], registry=registry)
        for name, times in sorted(service.counts.replies.items()):
            won.labels(name).set(times)
    if losses := service.coordinator.judge.losses(state):
        gauge = Gauge("artesian_cluster_loss", "loss on held-back proxy samples", ["cluster"], registry=registry)
        for name, loss in sorted(losses.items()):
            gauge.labels(name).set(loss)
    return generate_latest(registry).decode()


def _studies(service: Service) -> Iterator[tuple[str, str, float]]:
    """What the work beside the uploads costs, and what the newest calibration is worth."""
    studies, known = service.studies, service.calibration
    yield "studies", "studies made since the start", studies.made
    yield "studies_failed", "studies that failed since the start", studies.failed
    yield "study_seconds", "seconds spent in studies since the start", studies.seconds
    if known is not None:
        yield "calibration_version", "version of the clusters that the calibration in force began with", known.version
        yield "calibration_divergence", "mean divergence of its estimates from the true shares", known.divergence
        yield "clusters_alike", "pairs of clusters that it cannot tell apart", len(known.alike)
