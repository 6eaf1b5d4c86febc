"""The rows of TorchRL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from torchrl.envs import (
    Compose,
    DoubleToFloat,
    ExplorationType,
    GymEnv,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    VecNormV2,
)
from torchrl.modules import (
    EGreedyModule,
    NormalParamExtractor,
    OrnsteinUhlenbeckProcessModule,
    ProbabilisticActor,
    QValueActor,
    TanhModule,
    TanhNormal,
    ValueOperator,
)
from torchrl.objectives import ClipPPOLoss, DDPGLoss, DQNLoss, HardUpdate, SACLoss, SoftUpdate
from torchrl.objectives.value import GAE

import perdure.torchrl
from matrix.life import Life
from matrix.row import Framework, Own, Row, State
from matrix.rows._global import seed_streams, streams
from matrix.steps import Steps

DISCOUNT = 0.99
PER_BATCH = 20


class Parts:
    """
    What a training consists of.

    Args:
        env: To be counted in.
        policy: That acts.
        loss: That is descended.
        replay: That is extended and sampled.
        total: Frames of the whole run.
        random: Frames to begin with that are drawn from the space.
    """

    def __init__(self, env: Any, policy: Any, loss: Any, replay: Any, total: int, random: int = 0) -> None:
        self.env, self.loss, self.replay = env, loss, replay
        self.optimizer = torch.optim.Adam(loss.parameters(), 1e-3)
        more = {"init_random_frames": random} if random else {}
        self.collector = Collector(
            env, policy, frames_per_batch=PER_BATCH, total_frames=total,
            auto_register_policy_transforms=True, **more,
        )  # fmt: skip
        self.others: dict[str, Any] = {}
        self.learn: Callable[[Any], None] = self.replay.extend

    def named(self) -> dict[str, Any]:
        """By the names to track them under."""
        return {
            "collector": self.collector, "replay": self.replay, "loss": self.loss, "optimizer": self.optimizer,
            **self.others,
        }  # fmt: skip

    def descend(self) -> None:
        """One update."""
        losses = self.loss(self.replay.sample())
        total = sum(value for name, value in losses.items() if name.startswith("loss"))
        self.optimizer.zero_grad()
        total.backward()
        self.optimizer.step()

    def state(self) -> State:
        """All of it."""
        replay = self.replay[:]
        return {
            "parameters": self.loss.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "replay": {str(name): value for name, value in replay.items(include_nested=True, leaves_only=True)},
            "environment": {
                name: value for name, value in self.env.state_dict().items() if isinstance(value, torch.Tensor)
            },
            "counters": {"frames": self.collector._frames, **self._counts()},  # noqa: SLF001 - it has no public name
            "rng": {**streams(), "replay": None if self.replay._rng is None else self.replay._rng.get_state()},  # noqa: SLF001
        }

    def _counts(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.others.items()}


def layers(inputs: int, outputs: int) -> nn.Sequential:
    """A small net."""
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs))


def cart_pole() -> TransformedEnv:
    """A cart pole that counts steps and sums rewards in what it hands over."""
    return TransformedEnv(GymEnv("CartPole-v1"), Compose(DoubleToFloat(), StepCounter(), RewardSum()))


def pendulum() -> TransformedEnv:
    """A pendulum."""
    return TransformedEnv(GymEnv("Pendulum-v1"), Compose(DoubleToFloat(), StepCounter()))


def ppo(life: Life) -> Parts:
    """PPO on two normalised environments; its sampler goes through the batch without replacement."""
    env = TransformedEnv(SerialEnv(life.environments or 2, cart_pole), VecNormV2(in_keys=["observation"], decay=0.99))
    env.set_seed(life.seed)
    net = TensorDictModule(layers(4, 2), in_keys=["observation"], out_keys=["logits"])
    actor = ProbabilisticActor(
        net, in_keys=["logits"], distribution_class=torch.distributions.OneHotCategorical, return_log_prob=True,
        default_interaction_type=ExplorationType.RANDOM,
    )  # fmt: skip
    critic = ValueOperator(layers(4, 1), in_keys=["observation"])
    replay = TensorDictReplayBuffer(
        storage=LazyTensorStorage(PER_BATCH), sampler=SamplerWithoutReplacement(), batch_size=8
    )
    parts = Parts(env, actor, ClipPPOLoss(actor, critic), replay, life.steps)
    advantage = GAE(gamma=DISCOUNT, lmbda=0.95, value_network=critic)
    parts.others["scheduler"] = torch.optim.lr_scheduler.LinearLR(parts.optimizer, 1.0, 0.1, life.steps // PER_BATCH)

    def learn(batch: Any) -> None:
        advantage(batch)
        replay.extend(batch.reshape(-1))
        # Three samples of eight from twenty: an iteration ends in the midst of what the sampler has drawn.
        for _ in range(3):
            parts.descend()
        parts.others["scheduler"].step()

    parts.learn = learn
    return parts


def dqn(storage: Callable[[int], Any]) -> Callable[[Life], Parts]:
    """DQN with an annealed epsilon, a target net and a generator for its replay buffer."""

    def make(life: Life) -> Parts:
        env = cart_pole()
        env.set_seed(life.seed)
        values = QValueActor(layers(4, 2), in_keys=["observation"], spec=env.action_spec)
        greedy = EGreedyModule(env.action_spec, eps_init=1.0, eps_end=0.1, annealing_num_steps=life.steps // 2)
        loss = DQNLoss(values, action_space=env.action_spec, delay_value=True)
        loss.make_value_estimator(gamma=DISCOUNT)
        replay = TensorDictReplayBuffer(storage=storage(700), batch_size=16)
        replay.set_rng(torch.Generator().manual_seed(life.seed))
        parts = Parts(env, TensorDictSequential(values, greedy), loss, replay, life.steps, 100)
        updater = parts.others["updater"] = HardUpdate(loss, value_network_update_interval=7)

        def learn(batch: Any) -> None:
            replay.extend(batch)
            greedy.step(batch.numel())
            for _ in range(2):
                parts.descend()
                updater.step()

        parts.learn = learn
        return parts

    return make


def sac(life: Life) -> Parts:
    """SAC with a learned temperature."""
    env = pendulum()
    env.set_seed(life.seed)
    net = nn.Sequential(layers(3, 2), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"]), in_keys=["loc", "scale"],
        spec=env.action_spec, distribution_class=TanhNormal, distribution_kwargs={"low": -2.0, "high": 2.0},
        default_interaction_type=ExplorationType.RANDOM,
    )  # fmt: skip
    critic = ValueOperator(Joined(layers(4, 1)), in_keys=["observation", "action"])
    loss = SACLoss(actor, critic, num_qvalue_nets=2, target_entropy=-1.0)
    loss.make_value_estimator(gamma=DISCOUNT)
    replay = TensorDictReplayBuffer(storage=LazyTensorStorage(700), batch_size=16)
    parts = Parts(env, actor, loss, replay, life.steps, 100)
    return _off_policy(parts, SoftUpdate(loss, eps=0.99))


def ddpg(life: Life) -> Parts:
    """DDPG; the state of its noise is carried from step to step."""
    env = pendulum()
    env.set_seed(life.seed)
    spec = env.action_spec
    net = TensorDictModule(layers(3, 1), in_keys=["observation"], out_keys=["param"])
    actor = TensorDictSequential(net, TanhModule(in_keys=["param"], out_keys=["action"], spec=spec))
    noise = OrnsteinUhlenbeckProcessModule(spec=spec, annealing_num_steps=life.steps)
    critic = ValueOperator(Joined(layers(4, 1)), in_keys=["observation", "action"])
    loss = DDPGLoss(actor, critic, delay_actor=True, delay_value=True)
    loss.make_value_estimator(gamma=DISCOUNT)
    replay = TensorDictReplayBuffer(storage=LazyTensorStorage(700), batch_size=16)
    parts = Parts(env, TensorDictSequential(*actor, noise), loss, replay, life.steps, 100)
    return _off_policy(parts, SoftUpdate(loss, eps=0.99), noise)


class Joined(nn.Module):
    """A net that takes an observation and an action."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """The value of the action."""
        value: torch.Tensor = self.net(torch.cat([observation, action], -1))
        return value


def _off_policy(parts: Parts, updater: Any, noise: Any = None) -> Parts:
    parts.others["updater"] = updater

    def learn(batch: Any) -> None:
        parts.replay.extend(batch)
        if noise is not None:
            noise.step(batch.numel())
        for _ in range(2):
            parts.descend()
            updater.step()

    parts.learn = learn
    return parts


def training(make: Callable[[Life], Parts]) -> Callable[[Life], State]:
    """What a row does: build, collect and learn, tell."""

    def train(life: Life) -> State:
        seed_streams(life.seed)
        parts = make(life)
        _count(parts, life)
        with life.open() as run:
            if run is not None:
                perdure.torchrl.track(run, **parts.named())
            for batch in parts.collector if run is None else perdure.torchrl.collect(run, parts.collector):
                parts.learn(batch)
        return parts.state()

    return train


def _count(parts: Parts, life: Life) -> None:
    steps = Steps(life, lambda: parts.collector._frames)  # noqa: SLF001 - it has no public name
    step = parts.env._step  # noqa: SLF001 - where every step of the environment goes through

    def counted(carried: Any) -> Any:
        following = step(carried)
        steps.made(max(1, parts.env.batch_size.numel()))
        return following

    parts.env._step = counted  # noqa: SLF001


def own(make: Callable[[Life], Parts]) -> Own:
    """TorchRL's documented way: state dictionaries of loss, optimizer and collector, and ``dumps`` of the buffer."""

    def states(parts: Parts) -> dict[str, Any]:
        return {name: part for name, part in parts.named().items() if name != "replay"}

    def save(life: Life, folder: Path) -> None:
        seed_streams(life.seed)
        parts = make(life)
        for batch in parts.collector:
            parts.learn(batch)
            if parts.collector._frames >= life.steps // 2:  # noqa: SLF001
                break
        torch.save({name: part.state_dict() for name, part in states(parts).items()}, folder / "states.pt")
        parts.replay.dumps(folder / "replay")

    def load(life: Life, folder: Path) -> State:
        seed_streams(life.seed)
        parts = make(life)
        _count(parts, life)
        saved = torch.load(folder / "states.pt", weights_only=False)
        for name, part in states(parts).items():
            part.load_state_dict(saved[name])
        parts.replay.loads(folder / "replay")
        for batch in parts.collector:
            parts.learn(batch)
        return parts.state()

    return Own(save, load)


def _row(algorithm: str, environment: str, make: Callable[[Life], Parts], *, in_suite: bool = False) -> Row:
    return Row(
        algorithm, environment, training(make), own(make), save_steps=100, in_suite=in_suite,
        other_number="refused" if algorithm == "PPO" else "",
    )  # fmt: skip


FRAMEWORK = Framework(
    "TorchRL",
    ("torchrl", "tensordict", "gymnasium", "torch", "numpy"),
    (
        _row("PPO", "CartPole-v1 x 2, SerialEnv, VecNormV2", ppo, in_suite=True),
        _row("DQN", "CartPole-v1", dqn(LazyTensorStorage), in_suite=True),
        _row("DQN, LazyMemmapStorage", "CartPole-v1", dqn(LazyMemmapStorage)),
        _row("SAC", "Pendulum-v1", sac),
        _row("DDPG, Ornstein-Uhlenbeck noise", "Pendulum-v1", ddpg),
    ),
)
