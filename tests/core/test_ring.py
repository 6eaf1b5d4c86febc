"""What the ring's arithmetic promises."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.core.ring import (
    Column,
    Group,
    RingState,
    SavedGroup,
    check_column,
    overlap,
    plan_groups,
    plan_segment,
    rows_of,
    segments_to_plan,
    spans,
    written_since,
)
from perdure.core.trimming import All, MaxAge, Nothing, Recent, plan_repacking, plan_trim
from perdure.errors import InvalidInputError


def after(state, count):
    """The state of a ring after ``count`` more rows."""
    return RingState(
        state.capacity,
        (state.head_position + count) % state.capacity,
        min(state.capacity, state.size + count),
        state.total_count + count,
    )


def slots(ranges):
    """The slots in some spans."""
    return [slot for start, stop in ranges for slot in range(start, stop)]


def plan_all(group, now, saved):
    """Plan every segment."""
    return {n: plan_segment(group, n, now, saved) for n in range(group.segment_count(now.capacity))}


def pieces_of(planned):
    """What a plan becomes when it is committed."""
    return {n: tuple(p.piece for p in plans) for n, plans in planned.items() if plans}


@pytest.mark.parametrize(
    ("start", "count", "expected"),
    [(3, 0, ()), (0, 10, ((0, 10),)), (7, 3, ((7, 10),)), (7, 5, ((7, 10), (0, 2))), (4, 99, ((4, 10), (0, 4)))],
)
def test_spans_cut_at_the_seam(start, count, expected):
    """Slots are cut into spans where the ring begins again, and go round it once at most."""
    assert spans(start, count, 10) == expected


def test_state_names_the_tail_and_the_rows_held():
    """The tail lies as many slots before the head as there are rows."""
    state = RingState(10, 3, 5, 43)
    assert state.tail_position == 8
    assert state.spans == ((8, 10), (0, 3))
    assert state.keeping(2).spans == ((1, 3),)


@pytest.mark.parametrize(
    ("row", "rows"),
    [((4, 84, 84), 512), ((111,), 34 * 1024), ((64, 64, 3), 1280)],
)
def test_wide_columns_are_whole_pages_in_every_segment(row, rows):
    """Rows of a segment are chosen so that each wide column fills whole pages and a segment is about 15 MiB."""
    dtype = "uint8" if len(row) == 3 else "float32"
    (wide, *_) = plan_groups([Column("obs", dtype, row), Column("reward", "float32", ())], 10**6)
    assert wide.is_mappable
    assert [column.name for column in wide.columns] == ["obs"]
    assert wide.rows_per_segment == rows
    assert wide.rows_per_segment * wide.row_bytes <= 15 * 2**20


def test_rows_too_awkward_to_map_still_get_segments_of_the_right_size():
    """A row of an odd size that would need segments beyond 64 MiB is stored in plain ones, and not mapped."""
    (group,) = plan_groups([Column("obs", "uint8", (151, 151))], 10**5)
    assert not group.is_mappable
    assert 14 * 2**20 < group.rows_per_segment * group.row_bytes <= 15 * 2**20


def test_huge_rings_get_larger_segments_instead_of_more():
    """The number of segments stays within what one process may map and one manifest should list."""
    for group in plan_groups([Column("obs", "uint8", (4, 84, 84)), Column("r", "float32", ())], 20_000_000):
        assert group.segment_count(20_000_000) <= 4096


def test_small_rows_are_all_narrow():
    """Columns of a few bytes are kept in segments of their own, which are read and not mapped."""
    groups = plan_groups([Column("obs", "float32", (4,)), Column("reward", "float32", ())], 10**6)
    assert [group.prefix for group in groups] == ["narrow"]
    assert not groups[0].is_mappable


@pytest.mark.parametrize("dtype", ["object", "complex128", "str128", "datetime64[s]", "longdouble"])
def test_types_that_cannot_be_stored_are_named(dtype):
    """A column of an unsupported type is refused by its name and type."""
    with pytest.raises(InvalidInputError, match=r"'obs'.*" + dtype.split("[")[0]) as caught:
        check_column(Column("obs", dtype, ()))
    assert caught.value.kind == "replay.unsupported-dtype"


def test_written_slots_follow_from_two_states():
    """What was written between two states is the difference of their counts, from the older head on."""
    state = RingState(10, 8, 10, 28)
    assert written_since(state, after(state, 5)) == ((8, 10), (0, 3))
    assert written_since(state, state) == ()
    assert written_since(state, RingState(10, 0, 0, 28)) is None, "it was cleared"
    assert written_since(state, RingState(20, 8, 8, 28)) is None, "it was resized"
    assert written_since(after(state, 1), state) is None, "it went back"


GROUP = Group("narrow", (Column("x", "int64", ()),), 8)


@settings(max_examples=150, deadline=None)
@given(
    capacity=st.integers(1, 60),
    steps=st.lists(st.tuples(st.integers(0, 90), st.sampled_from([None, 0, 7, 30])), min_size=1, max_size=8),
)
def test_a_plan_holds_every_row_once_and_writes_only_what_changed(capacity, steps):
    """A save's files hold each row once, taken from where it was saved, and at most one segment beyond the changes."""
    state, saved, content = RingState(capacity, 0, 0, 0), None, {}
    live = {}
    for count, keep in steps:
        for number in range(state.total_count, state.total_count + count):
            live[number % capacity] = number
        previous = saved.state if saved else None
        state = after(state, count)
        now = state.keeping(capacity if keep is None else keep)
        planned = plan_all(GROUP, now, saved)
        files, taken, written = {}, [], 0
        for n, plans in planned.items():
            assert len({plan.piece.file for plan in plans}) == len(plans)
            for plan in plans:
                held = range(*plan.piece.held)
                if plan.source is None:
                    files[plan.piece.file] = {slot: live.get(slot) for slot in held}
                    written += len(held)
                else:
                    assert plan.source.startswith(f"narrow-{n:06d}")
                    files[plan.piece.file] = content[plan.source]
                for slot in range(*plan.piece.used):
                    if any(overlap((slot, slot + 1), span) for span in now.spans):
                        assert files[plan.piece.file][slot] == live[slot]
                        taken.append(slot)
        assert sorted(taken) == sorted(slots(now.spans))
        if previous is not None and now.total_count - now.size >= previous.total_count - previous.size:
            assert written <= min(count, capacity) + GROUP.rows_per_segment
        changed = segments_to_plan(GROUP, now, saved)
        kept = {n: p for n, p in (saved.pieces if saved else {}).items() if n not in changed}
        assert pieces_of(planned) == kept | pieces_of({n: planned[n] for n in changed})
        saved, content = SavedGroup(now, pieces_of(planned)), files


def test_edited_segments_are_written_again():
    """A segment in which a row changed in place is not linked."""
    state = RingState(32, 20, 20, 20)
    saved = SavedGroup(state, pieces_of(plan_all(GROUP, state, None)), {1})
    planned = plan_all(GROUP, state, saved)
    assert [[plan.source is None for plan in planned[n]] for n in range(3)] == [[False], [True], [False]]
    assert 1 in segments_to_plan(GROUP, state, saved)


@pytest.mark.parametrize(
    ("trim", "stamps", "kept"),
    [
        (All(), None, 100),
        (Nothing(), None, 0),
        (Recent(50), None, 25),
        (Recent(10**9), None, 100),
        (MaxAge(31), None, 15),
        (MaxAge(30, "step"), list(range(0, 1000, 10)), 3),
        (MaxAge(5, "step"), [], 0),
    ],
)
def test_trimming_counts_whole_rows(trim, stamps, kept):
    """Each way to trim keeps the newest rows that it names, in rows of two environments."""
    assert plan_trim(trim, RingState(100, 7, 100, 1007), 2, stamps) == kept


@settings(max_examples=150, deadline=None)
@given(
    capacity=st.integers(1, 30),
    total=st.integers(0, 70),
    other=st.integers(1, 40),
    gone=st.lists(st.integers(0, 29), max_size=6, unique=True),
)
def test_repacking_keeps_order_and_marks_gaps(capacity, total, other, gone):
    """Rows in another ring come in the same order, the newest that fit, with a break wherever some are missing."""
    state = after(RingState(capacity, 0, 0, 0), total)
    lost = [(slot, slot + 1) for slot in sorted(gone) if slot < capacity]
    rows = {number % capacity: number for number in range(total)}
    wanted = [n for n in range(max(0, total - capacity), total) if n % capacity not in gone][-other:]
    plan = plan_repacking(state, other, lost)
    target = {move.target + i: rows[move.source + i] for move in plan.moves for i in range(move.count)}
    assert [target[slot] for slot in range(len(target))] == wanted
    assert plan.state.size == len(wanted)
    assert plan.state.head_position == len(wanted) % other
    assert plan.state.is_possible()
    followed = [*wanted[1:], total] if wanted else []
    assert set(plan.breaks) == {slot for slot, n in enumerate(wanted) if followed[slot] != n + 1}


def test_rows_are_named_by_their_number_since_the_beginning():
    """A span of slots is named by the rows it holds, counted from the first row ever added."""
    state = RingState(10, 3, 10, 43)
    assert rows_of((3, 5), state) == (33, 35)
    assert rows_of((0, 3), state) == (40, 43)
    assert rows_of((4, 6), RingState(10, 3, 3, 3)) is None
