"""What an operator's Prometheus reads: counters, gauges and latencies of one server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from artesian.core import ClusterId
from artesian.engine.coordinator import Coordinator
from artesian.errors import MissingExtra
from artesian.server.crowding import Crowd
from artesian.server.limits import Limits
from artesian.server.service import Service

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
except ModuleNotFoundError:
    raise MissingExtra("prometheus-client", "server") from None

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)  # seconds
Row = tuple[str, str, float]  # name, meaning, value


class Latencies:
    """How long requests took, and how they were answered, by route."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._seconds = Histogram(
            "artesian_request_seconds", "duration of requests", ["route"], buckets=BUCKETS, registry=self.registry
        )
        self._responses = Counter(
            "artesian_responses", "responses since the start", ["route", "status"], registry=self.registry
        )

    def observe(self, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        self._seconds.labels(route).observe(seconds)
        self._responses.labels(route, str(status)).inc()


def metrics_text(service: Service, limits: Limits, latencies: Latencies, crowd: Crowd | None = None) -> str:
    """All metrics in Prometheus's text format."""
    registry = CollectorRegistry()
    for name, text, value in (*_state(service, limits), *_connections(crowd), *_studies(service)):
        Gauge(f"artesian_{name}", text, registry=registry).set(value)
    for name, text, label, values in (
        ("replies", "how often each reply won since the start", "reply", service.counts.replies),
        ("refusals_by_reason", "requests refused since the start, by error", "reason", service.counts.reasons),
        ("cluster_loss", "loss of a cluster on proxy samples", "cluster", cluster_losses(service.coordinator)),
    ):
        _labelled(registry, f"artesian_{name}", text, label, values)
    return (generate_latest(registry) + generate_latest(latencies.registry)).decode()


def _labelled(registry: CollectorRegistry, name: str, text: str, label: str, values: Mapping[str, float]) -> None:
    """One gauge with a value for every label; nothing where there is none."""
    if values:
        gauge = Gauge(name, text, [label], registry=registry)
        for key, value in sorted(values.items()):
            gauge.labels(key).set(value)


def _state(service: Service, limits: Limits) -> Iterator[Row]:
    state, desk = service.coordinator.state, service.coordinator.desk
    yield "version", "folds so far", state.version
    yield "members", "clients present", state.present
    yield "clusters", "models in the repository", len(state.clusters)
    yield "open_tasks", "tasks given and not answered", desk.open
    yield "pending_uploads", "uploads received and not folded", len(desk.pending)
    yield "uploads", "uploads accepted since the start", service.counts.uploads
    yield "refusals", "requests refused since the start", service.counts.refused
    yield "clipped", "uploads clipped since the start", service.counts.clipped
    yield "set_aside", "uploads answered and not folded since the start", service.counts.set_aside
    yield (
        "suspects",
        "members of whom a fifth of their uploads, and several, were set aside",
        len(service.suspects()),
    )
    yield "snapshots", "snapshots written since the start", service.counts.snapshots
    yield "snapshots_failed", "snapshots that could not be written since the start", service.counts.snapshots_failed
    yield "draws", "models sent between uploads since the start", service.counts.draws
    yield "bytes_in_flight", "bytes of bodies being received and sent", limits.in_flight
    if (age := service.newest_age()) is not None:
        yield "newest_upload_age_seconds", "seconds since the newest upload was accepted", age


def cluster_losses(coordinator: Coordinator) -> dict[ClusterId, float]:
    """What is known of how well the clusters do: on held-back samples where uploads are judged, or as appraised."""
    state = coordinator.state
    appraised = {k: cluster.loss for k, cluster in state.clusters.items() if cluster.loss is not None}
    return {**appraised, **coordinator.judge.losses(state)}


def _connections(crowd: Crowd | None) -> Iterator[Row]:
    if crowd is not None:
        yield "connections", "connections open now", len(crowd)
        yield "connections_evicted", "idle connections closed to make room since the start", crowd.evicted
        yield "bad_requests", "connections ended since the start because their bytes were not HTTP", crowd.bad


def _studies(service: Service) -> Iterator[Row]:
    """What the work beside the uploads costs, and what the newest calibration is worth."""
    studies, known = service.studies, service.calibration
    yield "studies", "studies made since the start", studies.made
    yield "studies_failed", "studies that failed since the start", studies.failed
    yield "study_seconds", "seconds spent in studies since the start", studies.seconds
    if known is not None:
        yield "calibration_version", "version of the clusters that the calibration in force began with", known.version
        yield "calibration_divergence", "mean divergence of its estimates from the true shares", known.divergence
        yield "clusters_alike", "pairs of clusters that it cannot tell apart", len(known.alike)
