"""JAX arrays and pytrees: saved by the paths of their leaves, restored into the live structure."""

import gc
import importlib
import threading
import weakref
from typing import NamedTuple

import numpy as np
import pytest
import safetensors

import perdure
from perdure.capture.arena import Arena, Image
from perdure.capture.gate import Gate
from perdure.capture.pytrees import JaxTree
from perdure.capture.snapshot import take_capture
from perdure.errors import IncompatibleError, InvalidInputError

jax = pytest.importorskip("jax", reason="the jax extra is not installed")
jnp = jax.numpy
Pytree = importlib.import_module("perdure.jax").Pytree


class Moments(NamedTuple):
    """A state as optimizers of the field have it."""

    count: object
    mu: object
    nu: object


def make(seed=0):
    key = jax.random.key(seed)
    params = {"dense": {"kernel": jax.random.normal(key, (4, 3)), "bias": jnp.zeros(3, jnp.bfloat16)}}
    zeros = jax.tree_util.tree_map(jnp.zeros_like, params)
    return {"params": params, "opt": (Moments(jnp.int32(0), zeros, zeros), ()), "key": key, "step": 0, "note": None}


@jax.jit
def update(params, opt, key):
    key, sub = jax.random.split(key)
    noise = jax.tree_util.tree_map(lambda p: jax.random.normal(sub, p.shape, p.dtype), params)
    moments = Moments(opt[0].count + 1, jax.tree_util.tree_map(lambda m, g: m * 0.9 + g, opt[0].mu, noise), opt[0].nu)
    return jax.tree_util.tree_map(lambda p, m: p - 0.1 * m, params, moments.mu), (moments, ()), key


def advance(tree):
    params, opt, key = update(tree["params"], tree["opt"], tree["key"])
    return {**tree, "params": params, "opt": opt, "key": key, "step": tree["step"] + 1}


def bits(tree):
    leaves = jax.tree_util.tree_leaves(tree)
    return [
        np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf).tobytes()
        if isinstance(leaf, jax.Array)
        else leaf
        for leaf in leaves
    ]


def opened(tmp_path, holder, **options):
    run = perdure.open(tmp_path, run="t", quiet=True, save=None, **options)
    run.track(train=holder)
    return run


def test_training_continues_bit_for_bit(tmp_path):
    """A tree of parameters, moments, a random key and a count goes on exactly as if it had never stopped."""
    holder = Pytree(make())
    with opened(tmp_path, holder) as run:
        run.restore()
        for _ in range(3):
            holder.value = advance(holder.value)
        run.save().wait()
        for _ in range(3):
            holder.value = advance(holder.value)
    other = Pytree(make(seed=9))
    with opened(tmp_path, other) as run:
        run.restore()
        assert 3 == other.value["step"]
        assert isinstance(other.value["opt"][0], Moments)
        for _ in range(3):
            other.value = advance(other.value)

    assert bits(holder.value) == bits(other.value)


def test_what_is_replaced_after_a_save_is_not_in_it(tmp_path):
    """A capture is of the tree that the holder had, whatever is computed or donated afterwards."""
    holder = Pytree({"w": jnp.arange(5.0)})
    double = jax.jit(lambda w: w * 2, donate_argnums=0)
    with opened(tmp_path, holder) as run:
        handle = run.save()
        holder.value = {"w": double(holder.value["w"])}
        handle.wait()
    other = Pytree({"w": jnp.zeros(5)})
    with opened(tmp_path, other) as run:
        run.restore()

    assert np.array_equal(np.arange(5.0), other.value["w"])


@pytest.fixture
def unfilled(monkeypatch):
    """Arenas are filled by the writer only when they are let go."""
    go_on = threading.Event()
    real = Image.fill

    def fill(self, arrays):
        assert go_on.wait(30)
        real(self, arrays)

    monkeypatch.setattr(Image, "fill", fill)
    yield go_on
    go_on.set()


@pytest.mark.parametrize("take", [jax.jit(lambda w: w * 2, donate_argnums=0), lambda w: w.delete()])
def test_training_does_not_wait_for_the_copy_of_what_never_changes(tmp_path, unfilled, take):
    """A save returns before arrays of the host are copied; if donated or deleted then, they are saved as they were."""
    holder = Pytree({"w": jnp.arange(500_000.0), "key": jax.random.key(3), "n": 7})
    with opened(tmp_path, holder) as run:
        handle = run.save()
        assert handle.captured.is_set()
        for _ in range(3):
            take(holder.value["w"])
            holder.value = {"w": jnp.zeros(500_000), "key": jax.random.key(9), "n": 8}
        unfilled.set()
        handle.wait()
    other = Pytree({"w": jnp.zeros(500_000), "key": jax.random.key(0), "n": 0})
    with opened(tmp_path, other) as run:
        run.restore()

    assert bits({"w": jnp.arange(500_000.0), "key": jax.random.key(3), "n": 7}) == bits(other.value)


def test_what_has_been_copied_is_held_no_longer():
    """The memory of a saved tree is the program's again once the writer has copied it, and not only after the write."""
    holder = Pytree({"w": jnp.arange(500_000.0)})
    arena = Arena()
    capture = take_capture({"train": JaxTree("train", holder)}, arena, Gate())
    held = weakref.ref(holder.value["w"])
    holder.value = {}
    assert held() is not None
    capture.store()
    gc.collect()

    assert held() is None


def test_what_can_change_in_a_tree_is_copied_before(tmp_path, unfilled):
    """A tree with an array of NumPy's in it is of the moment of the save, whatever is written to that array."""
    holder = Pytree({"w": jnp.arange(5.0), "statistics": np.ones(3)})
    with opened(tmp_path, holder) as run:
        handle = run.save()
        holder.value["statistics"][:] = 9
        unfilled.set()
        handle.wait()
    other = Pytree({"w": jnp.zeros(5), "statistics": np.zeros(3)})
    with opened(tmp_path, other) as run:
        run.restore()

    assert np.array_equal(np.ones(3), other.value["statistics"])


def test_any_reader_opens_the_leaves(tmp_path):
    """The file of a tree is a plain one, with the paths of the leaves as names."""
    holder = Pytree(make())
    with opened(tmp_path, holder) as run:
        run.save().wait()
    path = next((tmp_path / "t" / "snapshots").iterdir()) / "model" / "train.safetensors"
    with safetensors.safe_open(path, "numpy") as file:
        names = set(file.keys())

    assert "leaves.['params']['dense']['kernel']" in names


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "bool", "complex64"])
def test_arrays_of_every_type_among_loose_values(tmp_path, dtype):
    """JAX arrays are loose values too, and come back as JAX arrays of the same type, bit for bit."""
    value = jnp.arange(6).astype(dtype).reshape(2, 3)
    with perdure.open(tmp_path, run="t", quiet=True, save=None) as run:
        run.locals(value=value, empty=jnp.zeros((0, 2)))
        run.save().wait()
    with perdure.open(tmp_path, run="t", quiet=True, save=None) as run:
        loose = run.locals(value=None, empty=None)
        run.restore()

    assert isinstance(loose.value, jax.Array)
    assert value.dtype == loose.value.dtype
    assert np.asarray(value).tobytes() == np.asarray(loose.value).tobytes()
    assert (0, 2) == loose.empty.shape


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: {**tree, "more": jnp.zeros(1)},
        lambda tree: {name: value for name, value in tree.items() if name != "params"},
        lambda tree: {**tree, "params": jnp.zeros((4, 4))},
        lambda tree: {**tree, "key": jax.random.key(0, impl="rbg")},
        lambda tree: {**tree, "key": jnp.zeros(2, jnp.uint32)},
    ],
    ids=["a leaf more", "leaves less", "other leaves", "another generator", "no key"],
)
def test_a_tree_of_another_form_is_refused(tmp_path, change):
    """A tree with other leaves, shapes or random keys is refused, and the live one stays as it is."""
    with opened(tmp_path, Pytree(make())) as run:
        run.save().wait()
    holder = Pytree(change(make(seed=5)))
    before = bits(holder.value)
    with opened(tmp_path, holder) as run, pytest.raises(IncompatibleError, match="train"):
        run.restore()

    assert before == bits(holder.value)


def test_donated_leaves_are_refused_by_path(tmp_path):
    """A leaf that a computation has taken is named, before anything is written."""
    holder = Pytree({"w": jnp.arange(5.0)})
    holder.value["w"].delete()
    with opened(tmp_path, holder) as run, pytest.raises(InvalidInputError, match=r"\['w'\].*donated"):
        run.save()


def test_optax_and_flax_states(tmp_path):
    """A train state of flax with an optimizer of optax comes back as what it is."""
    optax = pytest.importorskip("optax", reason="optax is not installed")
    train_state = pytest.importorskip("flax.training.train_state", reason="flax is not installed")

    def state(seed):
        params = {"w": jax.random.normal(jax.random.key(seed), (8,))}
        return train_state.TrainState.create(apply_fn=None, params=params, tx=optax.adam(1e-2))

    holder = Pytree(state(0))
    for _ in range(3):
        holder.value = holder.value.apply_gradients(grads=holder.value.params)
    with opened(tmp_path, holder) as run:
        run.save().wait()
    other = Pytree(state(1))
    with opened(tmp_path, other) as run:
        run.restore()
    again = other.value.apply_gradients(grads=other.value.params)
    whole = holder.value.apply_gradients(grads=holder.value.params)

    assert type(holder.value) is type(other.value)
    assert bits(whole) == bits(again)
