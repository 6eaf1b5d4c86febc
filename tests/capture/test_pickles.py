"""Pickles: only what is wrapped is pickled, and only what is named is unpickled."""

import os

import pytest

import perdure
from perdure.errors import IncompatibleError, InvalidInputError


class Odd:
    """Something that nothing but pickle can store."""

    def __init__(self, value):
        self.value = value


class Bait:
    """Unpickling this leaves a mark."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def save(where, value):
    with perdure.open(where, run="r", quiet=True) as run:
        run.track(odd=perdure.Pickled(value))
        for _ in run.loop(0, 1):
            pass


def restore(where, **options):
    with perdure.open(where, run="r", save=None, quiet=True, **options) as run:
        holder = run.track(odd=perdure.Pickled(None))
        return run.restore(), holder


def test_a_named_pickle_comes_back(tmp_path):
    """Wrapped at save and named at load, an object is what it was; the run is not called exact."""
    save(tmp_path, Odd(7))
    with perdure.open(tmp_path, run="r", save=None, quiet=True, unpickle=["odd"]) as run:
        holder = perdure.Pickled(None)
        run.track(odd=holder)
        report = run.restore()
    assert 7 == holder.value.value
    assert "statistical" == report.grade.value
    (path,) = (tmp_path / "r" / "snapshots").glob("*/legacy/odd.pickle")
    assert path.stat().st_size


def test_an_unnamed_pickle_never_runs(tmp_path):
    """Without its name the restore is refused before anything is read from it, and says what to write."""
    save(tmp_path, Bait(tmp_path / "ran"))
    with pytest.raises(IncompatibleError) as raised:
        restore(tmp_path)
    assert ("pickle.not-named", True) == (raised.value.kind, "unpickle=['odd']" in raised.value.hint)
    with pytest.raises(IncompatibleError):
        restore(tmp_path, unpickle=["other"])
    with pytest.raises(IncompatibleError):
        restore(tmp_path, accept=["*"])
    assert not (tmp_path / "ran").exists()


def test_what_cannot_be_pickled_is_refused_at_the_save(tmp_path):
    """The error names the component; nothing is saved."""
    with pytest.raises(InvalidInputError, match="odd"), perdure.open(tmp_path, run="r", quiet=True) as run:
        run.track(odd=perdure.Pickled(lambda: 0))
        run.save()
    assert [] == list((tmp_path / "r" / "snapshots").iterdir())


def test_an_object_that_is_not_wrapped_is_not_pickled(tmp_path):
    """Nothing is pickled because nothing else would do."""
    with pytest.raises(InvalidInputError), perdure.open(tmp_path, run="r", quiet=True) as run:
        run.track(odd=Odd(1))
