"""Every kind of object that can be tracked, saved by one run and restored into another object."""

import random
from collections import OrderedDict, deque

import gymnasium as gym
import numpy as np
import pytest
import safetensors
import torch
from torch import nn

import perdure
from perdure.errors import IncompatibleError, InvalidInputError


def carry(tmp_path, source, target, **options):
    """Save ``source`` in one run and restore it into ``target``."""
    with perdure.open(tmp_path, run="t", quiet=True, **options) as run:
        run.track(x=source)
        run.save()
    with perdure.open(tmp_path, run="t", quiet=True, **options) as run:
        run.track(x=target)
        return run.restore()


TYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5, 7)], ids=str)
def test_tensors_of_every_type_and_shape(tmp_path, dtype, shape):
    """A tensor of any storable type and shape comes back bit for bit, in place."""
    source = (torch.randn(shape) * 100).to(dtype)
    target = torch.zeros(shape, dtype=dtype)
    carry(tmp_path, source, target)

    assert (
        source.contiguous().view(-1).view(torch.uint8).tolist() == target.view(-1).view(torch.uint8).tolist()
        if shape
        else source == target
    )


@pytest.mark.parametrize(
    "name", ["float64", "float32", "float16", "int64", "int8", "uint16", "uint64", "bool", "complex64", "complex128"]
)
def test_arrays_of_every_type(tmp_path, name):
    """A NumPy array of any storable type comes back bit for bit, in place."""
    source = np.random.default_rng(0).integers(0, 2**16, (4, 5)).astype(name)
    target = np.zeros((4, 5), name)
    carry(tmp_path, source, target)

    assert source.tobytes() == target.tobytes()


def test_views_and_strides(tmp_path):
    """Non-contiguous tensors and arrays are saved by value and filled through their strides."""
    source, target = torch.arange(24.0).view(4, 6).t(), torch.zeros(4, 6).t()
    carry(tmp_path / "a", source, target)
    source_array, target_array = np.arange(24.0)[::2], np.zeros(24)[::2]
    carry(tmp_path / "b", source_array, target_array)

    assert torch.equal(source, target)
    assert np.array_equal(source_array, target_array)


def test_tied_weights_stay_tied(tmp_path):
    """Two names of one parameter are restored into one parameter."""

    def tied():
        net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
        net[1].weight = net[0].weight
        return net

    source, target = tied(), tied()
    carry(tmp_path, source, target)

    assert torch.equal(source[0].weight, target[1].weight)
    assert target[0].weight is target[1].weight


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (torch.eye(3).to_sparse(), "sparse"),
        (torch.empty(3, device="meta"), "meta"),
        (np.array([object()]), "object"),
        (np.array(["text"]), "str"),
        (np.zeros(2, np.longdouble), "longdouble|float128"),
    ],
)
def test_what_has_no_bytes_of_its_own_is_refused_by_name(tmp_path, value, word):
    """Sparse and meta tensors and arrays of objects are refused by name when they are saved."""
    with perdure.open(tmp_path, run="t", quiet=True) as run:
        run.track(thing=value)
        with pytest.raises(InvalidInputError, match=word):
            run.save()


@pytest.mark.filterwarnings("ignore:.*(nested tensors|quantize|Sparse CSR).*:UserWarning")
@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "nested"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8), "quantised"),
        (lambda: torch.eye(3).to_sparse_csr(), "sparse"),
        (lambda: torch.zeros(3, dtype=torch.float8_e4m3fnuz), "float8_e4m3fnuz"),
    ],
    ids=["nested", "jagged", "quantised", "csr", "float8 of another kind"],
)
def test_what_has_no_plain_bytes_is_refused_among_others(tmp_path, make, word):
    """An unstorable tensor among loose values is refused with its place and what it is, and the run can go on."""
    with perdure.open(tmp_path, run="t", quiet=True, save=None) as run:
        loose = run.locals(fine=torch.ones(3), thing=torch.ones(3))
        run.save().wait()
        loose.thing = make()
        with pytest.raises(InvalidInputError, match=f"'thing'.*{word}"):
            run.save()
        loose.thing = torch.zeros(3)
        run.save().wait()

    assert 2 == run.statistics().saved


def test_a_module_on_two_devices_is_refused_by_the_tensor_that_has_no_values(tmp_path):
    """Of a module that lies in part on the host the other device's tensor is named, and after a move all is saved."""
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with perdure.open(tmp_path, run="t", quiet=True, save=None) as run:
        run.track(net=net)
        with pytest.raises(InvalidInputError, match=r"'1\.weight'.*meta"):
            run.save()
        net[1].to_empty(device="cpu")
        run.save().wait()

    assert 1 == run.statistics().saved


@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
def test_a_lazy_module_is_refused_until_it_has_shapes(tmp_path):
    """A lazy module that has not been called is refused by the parameter's name, and saved once it has been."""
    net = nn.LazyLinear(3)
    with perdure.open(tmp_path, run="t", quiet=True, save=None) as run:
        run.track(net=net)
        assert 0 == run.preflight().state_bytes
        with pytest.raises(InvalidInputError, match=r"'weight'.*lazy"):
            run.save()
        net(torch.ones(2, 4))
        run.save().wait()


def test_lazily_conjugated_tensors_are_saved_by_value(tmp_path):
    """A tensor that is a conjugated or negated view of another is saved as what it reads as."""
    source, target = torch.view_as_complex(torch.randn(5, 2)).conj(), torch.zeros(5, dtype=torch.complex64)
    carry(tmp_path, source, target)

    assert torch.equal(source.resolve_conj(), target)


def test_any_reader_opens_a_module(tmp_path):
    """A module's file is a plain safetensors file that the ordinary library opens."""
    net = nn.Linear(3, 2)
    carry(tmp_path, net, nn.Linear(3, 2))
    path = next((tmp_path / "t" / "snapshots").iterdir()) / "model" / "x.safetensors"
    with safetensors.safe_open(path, "pt") as file:
        assert {"weight", "bias"} == set(file.keys())
        assert torch.equal(net.weight, file.get_tensor("weight"))


class WithExtra(nn.Module):
    """A module with state beside its tensors."""

    def __init__(self, note):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.note = note

    def get_extra_state(self):
        return {"note": self.note, "counts": (1, {2: 3.5})}

    def set_extra_state(self, state):
        self.note = state["note"]
        self.counts = state["counts"]


def test_extra_state_of_modules(tmp_path):
    """A module's extra state is saved as structure beside its tensors."""
    target = WithExtra("b")
    carry(tmp_path, WithExtra("a"), target)

    assert ("a", (1, {2: 3.5})) == (target.note, target.counts)


def optimizers(parameters):
    parameters = list(parameters)
    return {
        "adam": torch.optim.Adam(parameters, amsgrad=True),
        "adamw": torch.optim.AdamW(parameters, lr=torch.tensor(1e-3)),
        "sgd": torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
        "rmsprop": torch.optim.RMSprop(parameters, centered=True),
        "adagrad": torch.optim.Adagrad(parameters),
        "lbfgs": torch.optim.LBFGS(parameters),
        "radam": torch.optim.RAdam(parameters),
    }


def train(net, optimizer, steps):
    def closure():
        optimizer.zero_grad()
        loss = net(torch.ones(4, 3)).pow(2).mean()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


@pytest.mark.parametrize("name", list(optimizers(nn.Linear(1, 1).parameters())))
def test_optimizers_continue_exactly(tmp_path, name):
    """An optimizer of any kind continues as if it had never stopped."""
    torch.manual_seed(0)
    unhurt = nn.Linear(3, 2)
    optimizer = optimizers(unhurt.parameters())[name]
    train(unhurt, optimizer, 3)
    with perdure.open(tmp_path, run="t", quiet=True) as run:
        run.track(net=unhurt, optimizer=optimizer)
        run.save()
    train(unhurt, optimizer, 3)
    resumed = nn.Linear(3, 2)
    second = optimizers(resumed.parameters())[name]
    with perdure.open(tmp_path, run="t", quiet=True) as run:
        run.track(net=resumed, optimizer=second)
        run.restore()
    train(resumed, second, 3)

    assert torch.equal(unhurt.weight, resumed.weight)


SCHEDULERS = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 2),
    "linear": lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.0, 20),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda n: 1 / (n + 1)),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
    "warm restarts": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.5, total_steps=20),
    "plateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "sequential": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o, [torch.optim.lr_scheduler.ConstantLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.filterwarnings("ignore::UserWarning:torch")
def test_schedulers_continue_exactly(tmp_path, name):
    """A scheduler of any kind gives the learning rates that it would have given."""

    def build():
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.4)
        return optimizer, SCHEDULERS[name](optimizer)

    def rates(optimizer, scheduler, steps):
        seen = []
        for _ in range(steps):
            optimizer.step()
            scheduler.step(*([1.0] if name == "plateau" else []))
            seen.append(optimizer.param_groups[0]["lr"])
        return seen

    optimizer, scheduler = build()
    rates(optimizer, scheduler, 4)
    with perdure.open(tmp_path, run="t", quiet=True) as run:
        run.track(optimizer=optimizer, scheduler=scheduler)
        run.save()
    expected = rates(optimizer, scheduler, 6)
    optimizer, scheduler = build()
    with perdure.open(tmp_path, run="t", quiet=True) as run:
        run.track(optimizer=optimizer, scheduler=scheduler)
        run.restore()

    assert expected == rates(optimizer, scheduler, 6)


GENERATORS = {
    "random": (lambda s: random.Random(s), lambda g: [g.random(), g.gauss(0, 1), g.getrandbits(70)]),
    "pcg64": (lambda s: np.random.Generator(np.random.PCG64(s)), lambda g: g.normal(size=3).tolist()),
    "mt19937": (lambda s: np.random.Generator(np.random.MT19937(s)), lambda g: g.normal(size=3).tolist()),
    "philox": (lambda s: np.random.Generator(np.random.Philox(s)), lambda g: g.integers(0, 9, 5).tolist()),
    "sfc64": (lambda s: np.random.Generator(np.random.SFC64(s)), lambda g: g.random(3).tolist()),
    "randomstate": (lambda s: np.random.RandomState(s), lambda g: g.standard_normal(3).tolist()),
    "torch": (lambda s: torch.Generator().manual_seed(s), lambda g: torch.randn(3, generator=g).tolist()),
    "space": (lambda s: seeded_space(s), lambda g: [int(g["a"].sample()), g["b"].sample().tolist()]),
}


def seeded_space(seed):
    space = gym.spaces.Dict(a=gym.spaces.Discrete(100), b=gym.spaces.Box(0, 1, (3,)))
    space.seed(seed)
    return space


@pytest.mark.parametrize("name", GENERATORS)
def test_generators_continue_their_streams(tmp_path, name):
    """A generator of any kind goes on with the very next draw, half-used values included."""
    make, draw = GENERATORS[name]
    source, target = make(1), make(2)
    draw(source)
    with perdure.open(tmp_path, run="t", quiet=True) as run:
        run.track(x=source)
        run.save()
    expected = [draw(source) for _ in range(3)]
    with perdure.open(tmp_path, run="t", quiet=True) as run:
        run.track(x=target)
        run.restore()

    assert expected == [draw(target) for _ in range(3)]


def test_another_kind_of_generator_is_refused(tmp_path):
    """The stream of one bit generator is not poured into another one."""
    with pytest.raises(IncompatibleError, match=r"rng.PCG64 in the checkpoint and a rng.Philox here"):
        carry(tmp_path, np.random.default_rng(0), np.random.Generator(np.random.Philox(0)))


def test_global_generators_are_tracked_without_asking(tmp_path):
    """The streams of random, NumPy and torch go on where they were, whatever was drawn meanwhile."""

    def draws():
        return [random.random(), random.gauss(0, 1), np.random.standard_normal(), torch.randn(2).tolist()]

    draws()
    with perdure.open(tmp_path, run="t", quiet=True) as run:
        run.save()
        expected = draws()
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    with perdure.open(tmp_path, run="t", quiet=True) as run:
        run.restore()

    assert expected == draws()


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ([1, "a", (2, None), {"x": [True]}], [9]),
        ({"a": 1, 2: "b", "c": {3: (4,)}}, {"old": 0}),
        (deque([1, 2, 3], maxlen=3), deque([7], maxlen=3)),
        ([float("nan"), float("inf"), -0.0, 2**80, b"\x00\xff", 1e-320], []),
        ([np.float32(1.5), np.arange(3), torch.ones(2)], []),
        (OrderedDict(b=1, a=2), OrderedDict()),
    ],
)
def test_containers_are_refilled(tmp_path, source, target):
    """Plain containers come back with the same values and types, in the same object."""
    before = target
    carry(tmp_path, source, target)

    assert before is target
    assert repr(source) == repr(target)


class Custom:
    """An object with the two customary methods."""

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value, "array": np.full(3, self.value)}

    def load_state_dict(self, state):
        self.value = state["value"]
        self.array = state["array"]


def test_anything_with_a_state_dict(tmp_path):
    """An object of any class with state_dict and load_state_dict is saved by them."""
    target = Custom(0)
    carry(tmp_path, Custom(4), target)

    assert (4, [4, 4, 4]) == (target.value, target.array.tolist())


def test_grad_scaler(tmp_path):
    """A gradient scaler goes on with its scale and growth."""
    source = torch.amp.GradScaler("cpu", init_scale=8.0)
    target = torch.amp.GradScaler("cpu", init_scale=2.0)
    source.scale(torch.ones(1))
    carry(tmp_path, source, target)

    assert 8.0 == target.get_scale()


def test_vector_environments_with_a_pending_autoreset(tmp_path):
    """A vector environment continues exactly even when an episode has just ended in it."""

    def build(seed):
        envs = gym.wrappers.vector.RecordEpisodeStatistics(gym.make_vec("CartPole-v1", 3, "sync"))
        envs.reset(seed=seed)
        return envs

    def walk(envs, count, stop_when_done=False):
        seen = []
        for i in range(count):
            observation, reward, ended, cut, _ = envs.step(np.array([i % 2, 1, 0]))
            seen.append((observation.tolist(), reward.tolist(), ended.tolist(), cut.tolist()))
            if stop_when_done and ended.any():
                break
        return seen

    source, target = build(1), build(2)
    walk(source, 100, stop_when_done=True)
    walk(target, 5)
    with perdure.open(tmp_path, run="t", quiet=True) as run:
        run.track(envs=source)
        run.save()
    expected = walk(source, 60)
    with perdure.open(tmp_path, run="t", quiet=True) as run:
        run.track(envs=target)
        assert perdure.Grade.EXACT == run.restore().grade

    assert expected == walk(target, 60)


class Unknown(gym.Env):
    """An environment of whose state nothing is known."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self):
        self.hidden = object()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


def test_an_unknown_environment_lowers_the_grade(tmp_path):
    """An environment that cannot be captured is reset, and the report and manifest say so."""
    source, target = Unknown(), Unknown()
    source.reset(seed=1)
    report = carry(tmp_path, source, target)

    assert perdure.Grade.STATISTICAL == report.grade
    assert next(component.note for component in report.components if component.name == "x")
