"""The HTTP status of every refusal and failure: the one place where it is decided."""

from __future__ import annotations

from artesian.errors import (
    BadClient,
    BadFormat,
    BadMixture,
    Busy,
    Conflict,
    MachineError,
    NotFinite,
    NothingToDraw,
    NotRetained,
    Refused,
    StorageError,
    StudyFailed,
    TaskClosed,
    TooFar,
    TooLarge,
    TooSlow,
    Unauthorized,
    UnknownClient,
    UnknownEncoding,
    UnknownFormat,
    UnknownRoute,
    UnknownTask,
    WorkerLost,
    WrongModels,
    WrongShape,
)

STATUSES: dict[type[Refused], int] = {
    BadFormat: 400,
    UnknownFormat: 400,
    UnknownEncoding: 415,
    UnknownRoute: 404,
    BadClient: 422,
    Unauthorized: 401,
    TooLarge: 413,
    TooSlow: 408,
    Busy: 429,
    UnknownClient: 404,
    UnknownTask: 404,
    NothingToDraw: 404,
    TaskClosed: 409,
    Conflict: 409,
    NotRetained: 410,
    WrongModels: 422,
    WrongShape: 422,
    TooFar: 422,
    NotFinite: 422,
    BadMixture: 422,
}

FAILURES: dict[type[MachineError], int] = {StorageError: 507, WorkerLost: 503, StudyFailed: 503}
"""That of a failure of the server's machine which may pass: nothing has changed either."""
