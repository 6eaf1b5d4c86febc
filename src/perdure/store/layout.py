"""Names in a run directory. See docs/format/ for what each one holds."""

from __future__ import annotations

SNAPSHOTS = "snapshots"
STAGING = "staging"
QUARANTINE = "quarantine"
PINS = "pins"
LATEST = "latest"
RUN_FILE = "run.json"
EVENTS_FILE = "events.jsonl"
METRICS_FILE = "metrics.jsonl"
PROGRESS_FILE = "progress.json"
CONTROL_FILE = "control.db"

TEMPORARY_PREFIX = ".new-"
"""Begins the name of what is about to take the place of something else beside it; no reader looks at it."""

MANIFEST_FILE = "manifest.json"
META_FILE = "meta.json"

MAXIMUM_SMALL_FILE_BYTES = 1024 * 1024
"""Markers, pins and the like are far smaller than this."""
