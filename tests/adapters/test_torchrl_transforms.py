"""TorchRL's transforms: each one that is called exact is taken through a life, and restored in the middle of it."""

import copy
import sys

import pytest

pytest.importorskip("tensordict", reason="the extra torchrl is not installed")

import torch


@pytest.fixture(scope="module", autouse=True)
def imported():
    """TorchRL warns while it is imported, and of versions of other packages."""
    import torchrl.envs  # noqa: F401 - see above


def pendulum():
    """An environment of Gymnasium inside one of TorchRL."""
    from torchrl.envs import GymEnv

    return GymEnv("Pendulum-v1")


def makers():
    """How to make each transform, by its name."""
    from torchrl.envs import transforms as t

    seen = {"in_keys": ["observation"]}
    return {
        "BinarizeReward": t.BinarizeReward,
        "CatFrames": lambda: t.CatFrames(N=3, dim=-1, **seen),
        "CatTensors": lambda: t.CatTensors(in_keys=["observation"], out_key="all"),
        "ClipTransform": lambda: t.ClipTransform(in_keys=["observation"], low=-0.5, high=0.5),
        "Compose": lambda: t.Compose(t.StepCounter(), t.RewardSum()),
        "DTypeCastTransform": lambda: t.DTypeCastTransform(torch.float32, torch.float64, **seen),
        "DoubleToFloat": t.DoubleToFloat,
        "ExcludeTransform": lambda: t.Compose(t.RewardSum(), t.ExcludeTransform("episode_reward")),
        "FlattenObservation": lambda: t.Compose(
            t.UnsqueezeTransform(dim=-1, **seen), t.FlattenObservation(-2, -1, **seen)
        ),
        "FrameSkipTransform": lambda: t.FrameSkipTransform(2),
        "InitTracker": t.InitTracker,
        "ObservationNorm": lambda: t.ObservationNorm(loc=0.5, scale=2.0, **seen),
        "RenameTransform": lambda: t.RenameTransform(in_keys=["observation"], out_keys=["seen"]),
        "RewardClipping": lambda: t.RewardClipping(-1.0, 1.0),
        "RewardScaling": lambda: t.RewardScaling(loc=0.1, scale=3.0),
        "RewardSum": t.RewardSum,
        "SignTransform": lambda: t.SignTransform(in_keys=["reward"]),
        "SqueezeTransform": lambda: t.Compose(t.UnsqueezeTransform(dim=-1, **seen), t.SqueezeTransform(dim=-1, **seen)),
        "StepCounter": lambda: t.StepCounter(max_steps=9),
        "TargetReturn": lambda: t.TargetReturn(10.0),
        "TensorDictPrimer": lambda: t.TensorDictPrimer(carried=_unbounded()),
        "TimeMaxPool": lambda: t.TimeMaxPool(in_keys=["observation"], T=3),
        "UnsqueezeTransform": lambda: t.UnsqueezeTransform(dim=-1, **seen),
        "VecNorm": lambda: t.VecNorm(**seen, decay=0.9),
        "VecNormV2": lambda: t.VecNormV2(**seen, decay=0.9),
    }


def _unbounded():
    from torchrl.data import Unbounded

    return Unbounded(3)


def live(env, now, actions):
    """Step on with given actions; everything that was seen."""
    seen = []
    for action in actions:
        now["action"] = action
        both, now = env.step_and_maybe_reset(now)
        seen.append({str(key): value.clone() for key, value in both.items(True, True)})
    return seen, now


def equal(ours, theirs):
    """Whether two lives are the same, bit for bit."""
    return len(ours) == len(theirs) and all(
        one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
        for one, other in zip(ours, theirs, strict=True)
    )


PROVEN = sorted(makers()) if "torchrl" in sys.modules or pytest.importorskip("torchrl") else []


@pytest.mark.parametrize("name", PROVEN)
@pytest.mark.filterwarnings("ignore")
def test_a_proven_transform_goes_on(name):
    """After a restore into an environment with another history every step is the one that would have come."""
    from torchrl.envs import TransformedEnv

    from perdure.adapters._torchrl_collector import Environments

    first, second = (TransformedEnv(pendulum(), makers()[name]()) for _ in range(2))
    actions = torch.rand(60, 1, generator=torch.Generator().manual_seed(3)) * 4 - 2
    lives = []
    for env, seed in ((first, 1), (second, 2)):
        env.set_seed(seed)
        lives.append(live(env, env.reset(), actions[: 17 * seed])[1])
    ours, theirs = Environments(first), Environments(second)
    tree = copy.deepcopy(ours.capture())  # what is captured is borrowed
    carried = lives[0].clone()
    expected, _ = live(first, lives[0], actions[20:])
    theirs.check(tree)
    theirs.restore(tree)

    assert equal(expected, live(second, carried, actions[20:])[0])
    assert (ours.reasons, ours.unproven) == ([], [])
