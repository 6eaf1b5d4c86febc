"""``perdure show``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from perdure.cli.choosing import choose
from perdure.cli.exits import Exit, judge
from perdure.cli.text import Cell, Word, ago_text, count_text, number_text, size_text
from perdure.cli.verb import Context, Verb, argument
from perdure.core.manifest import short_id
from perdure.core.tree import unflatten
from perdure.inspection import CheckpointDetail
from perdure.inspection.verification import in_brief


def _execute(arguments: Namespace, context: Context) -> int:
    view, selector = choose(context, arguments.words)
    detail = view.show(selector or "latest")
    output = context.output
    output.document(detail.to_json())
    if output.manner.quiet:
        output.line(detail.checkpoint.id)
    else:
        _print(detail, context, with_files=arguments.files)
    return judge(is_whole=detail.checkpoint.restores, restores=False)


def _print(detail: CheckpointDetail, context: Context, *, with_files: bool) -> None:
    output = context.output
    output.line(f"checkpoint {detail.checkpoint.id} of run {detail.run}")
    for name, cell in _facts(detail):
        output.line(f"  {name:<11}", cell)
    output.line("")
    output.table(
        ("COMPONENT", "KIND", "GRADE", ">FILES", ">SIZE"),
        [
            (each.name, each.kind, each.grade.value, f"{len(each.files):,}", size_text(each.size_bytes))
            for each in detail.components
        ],
    )
    if with_files:
        output.line("")
        rows = [(each.path, f"{each.bytes:,}", each.digest) for each in detail.files]
        output.table(("FILE", ">BYTES", "DIGEST"), rows)
    size = size_text(detail.checkpoint.size_bytes)
    output.line(f"{count_text(len(detail.components), 'component')}, {count_text(len(detail.files), 'file')}, {size}")


def _facts(detail: CheckpointDetail) -> Iterator[tuple[str, Cell]]:
    checkpoint = detail.checkpoint
    if not checkpoint.restores:
        yield "damaged", Word(in_brief(checkpoint.problems[0], checkpoint.directory), "red")
    yield "step", f"{checkpoint.global_step:,}"
    yield "saved", f"{ago_text(checkpoint.age_seconds)} ({checkpoint.created_at}), because: {checkpoint.reason}"
    yield "grade", checkpoint.grade.value
    yield "generation", f"{checkpoint.generation}, commit {checkpoint.sequence} of it"
    yield "parent", short_id(checkpoint.parent) if checkpoint.parent else "none"
    if detail.origin is not None:
        yield "forked from", f"{short_id(detail.origin.checkpoint)} of run {detail.origin.run}"
    yield "kept by", checkpoint.kept_by or "nothing: gc would remove it"
    yield "new", f"{size_text(checkpoint.new_bytes)}, and {size_text(checkpoint.shared_bytes)} shared with older ones"
    if detail.algorithm:
        yield "algorithm", detail.algorithm
    for name, values in (
        ("metrics", checkpoint.metrics),
        ("counters", unflatten(_section(detail.meta, "counters"), {}, lambda stored, _: stored)),
        ("config", _section(detail.meta, "config")),
        ("versions", detail.versions),
        ("host", detail.host),
    ):
        if values:
            yield name, ", ".join(f"{key} {_brief(value)}" for key, value in sorted(values.items()))
    yield "directory", str(checkpoint.directory)


def _section(meta: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    values = (meta or {}).get(name)
    return values if isinstance(values, dict) else {}


def _brief(value: object) -> str:
    if isinstance(value, Mapping) or (isinstance(value, Sequence) and not isinstance(value, str)):
        return f"({count_text(len(value), 'value')})"
    return number_text(value)


VERB = Verb(
    description=(
        "Show one checkpoint: what it consists of, why it was saved and is kept, and the versions, counters "
        "and settings that it was saved with."
    ),
    arguments=(
        argument(
            "words",
            nargs="*",
            metavar="[RUN] [CKPT]",
            help="the run, and which of its checkpoints; without CKPT the newest, without RUN as in `perdure ls`",
        ),
        argument("--files", action="store_true", help="list every file with its bytes and digest"),
    ),
    exits=(Exit.DAMAGED, Exit.NOT_FOUND),
    execute=_execute,
    examples=("perdure show", "perdure show ppo-ant latest~1", "perdure show ppo-ant @1000000 --files"),
)
