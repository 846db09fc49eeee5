"""Training: the decision environment, imitation, runs that resume, datasets; and PPO learns."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

pytest.importorskip("torch")
pytest.importorskip("sb3_contrib")

import torch
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

from llmroute_env.evaluation import evaluate
from llmroute_env.scenario import Scenario
from llmroute_env.spaces import Queue
from llmroute_env.training.build import make_training_env
from llmroute_env.training.cli import collect_main, train_main
from llmroute_env.training.config import TrainingScenario, dump_config, load_config
from llmroute_env.training.dataset import OfflineDataset, collect
from llmroute_env.training.demonstrations import demonstrate, joined
from llmroute_env.training.layout import Layout, Privileged
from llmroute_env.training.scoring import Score, Scorer
from llmroute_env.training.vec_env import DecisionVecEnv
from llmroute_env.wrappers.sb3_vec_env import SB3VecEnv
from policies import make
from policies.learned.question import Request

ROOT = Path(__file__).parents[1]
TINY = {
    "horizon_periods": 150,
    "router.window": 32,
    "cluster.devices": 2,
    "cluster.batch_limit": 4,
    "workload.arrivals.rate": 0.5,
    "workload.lengths.decode": {"mean": 20, "sigma": 0.9, "min": 1, "max": 100},
}
CONFIGS = sorted(path.stem for path in (ROOT / "configs" / "training").glob("*.yaml"))


def tiny(**changes: Any) -> Scenario:
    return Scenario.load("paper-overload", TINY | changes)


def small_config(**changes: Any) -> Any:
    settings: dict[str, Any] = {
        "scenarios": [{"scenario": "paper-overload", "overrides": TINY}],
        "steps": 2048,
        "task.lanes": 8,
        "task.reward_scale": 20.0,
        "network.width": 16,
        "algorithm.n_steps": 64,
        "algorithm.batch_size": 256,
        "algorithm.critic_rollouts": 1,
        "imitation.decisions": 800,
        "imitation.epochs": 2,
        "evolution": {
            "scenarios": [{"scenario": "paper-overload", "overrides": TINY}],
            "layers": ["linear", "hold"],
            "generations": 2,
            "pairs": 2,
            "paths": 2,
            "sigma": 0.1,
            "learning_rate": 0.03,
            "threads": 2,
            "every": 2,
        },
        "evaluation.scenarios": [],
        "evaluation.every": 1024,
        "evaluation.seeds": 2,
    }
    return load_config("pairs", settings | changes)


def shortest_first(env: DecisionVecEnv, seen: Any, masks: Any) -> Any:
    """MC-SF's choice: the shortest candidate, on any of its devices."""
    k, g = env.layout.candidates, env.layout.devices
    legal = masks[:, 1:].reshape(-1, k, g)
    lengths = env.layout.blocks(seen)["requests"][:, :, Request.LENGTH]
    c = np.where(legal.any(2), lengths, np.inf).argmin(1)
    return 1 + c * g + legal[np.arange(len(c)), c].argmax(1)


# -- the decision environment ---------------------------------------------------------------


def test_playing_the_reference_policy_gains_nothing() -> None:
    env = DecisionVecEnv([tiny()], 4, candidates=32, oldest=0)
    env.seed(3)
    seen, total, ended = env.reset(), np.zeros(4), 0
    for _ in range(600):
        seen, reward, over, infos = env.step(shortest_first(env, seen, env.action_masks()))
        total += reward
        for lane in np.flatnonzero(over):
            assert total[lane] == pytest.approx(0.0, abs=1e-5)
            assert infos[lane]["metrics"]["reward"] == pytest.approx(
                infos[lane]["reference_reward"], rel=1e-12
            )
            total[lane], ended = 0.0, ended + 1
    assert ended >= 8


@pytest.mark.parametrize(
    "weights", [(0, 1, 1, 0, 0, 0), (1, 0, 0, 2, 0, 0), (0.5, 0.1, 0.2, 0, 3, 5)]
)
def test_the_return_is_the_objective_gained_over_the_reference(weights: Any) -> None:
    names = ("alpha", "beta", "gamma", "sigma", "zeta1", "zeta2")
    objective = {f"objective.{name}": w for name, w in zip(names, weights, strict=True)}
    env = DecisionVecEnv([tiny(**objective)], 4, candidates=8, oldest=2, reward_scale=10.0)
    env.seed(11)
    env.reset()
    rng, total, ended = np.random.default_rng(0), np.zeros(4), 0
    for _ in range(500):
        masks = env.action_masks()
        choices = np.where(masks, rng.random(masks.shape), -1.0).argmax(1)
        _, reward, over, infos = env.step(choices)
        total += reward
        for lane in np.flatnonzero(over):
            gained = infos[lane]["metrics"]["reward"] - infos[lane]["reference_reward"]
            assert total[lane] == pytest.approx(gained / 10.0, abs=2e-3)
            assert infos[lane]["TimeLimit.truncated"] is False
            total[lane], ended = 0.0, ended + 1
    assert ended >= 4


def test_masks_and_observations_agree() -> None:
    env = DecisionVecEnv([tiny(), tiny(**{"cluster.devices": 3})], 6, candidates=8, oldest=2)
    env.seed(0)
    seen = env.reset()
    rng = np.random.default_rng(1)
    for _ in range(300):
        masks = env.action_masks()
        assert masks[:, 0].all()
        assert masks[:, 1:].any(1).all()  # nothing is asked where there is no choice
        blocks = env.layout.blocks(seen)
        legal = masks[:, 1:].reshape(6, 8, 3)
        assert not legal[:3, :, 2].any()  # the smaller fleet has no third device
        assert (blocks["up"][:3] == [1, 1, 0]).all()
        assert (legal.any(2) <= (blocks["present"] > 0)).all()
        assert np.isfinite(seen).all()
        assert_array_equal(np.stack(env.env_method("action_masks")), masks)
        seen, *_ = env.step(np.where(masks, rng.random(masks.shape), -1.0).argmax(1))


def test_the_same_seed_gives_the_same_lanes_and_staggering_spreads_them() -> None:
    runs = []
    for _ in range(2):
        env = DecisionVecEnv([tiny()], 4, stagger=True)
        env.seed(5)
        seen = [env.reset()]
        seen += [env.step(np.zeros(4, np.int64))[0] for _ in range(50)]
        runs.append(np.stack(seen))
    assert_array_equal(runs[0], runs[1])
    left = env.layout.blocks(runs[0][0])["critic"][:, Privileged.LEFT]
    assert (np.diff(left) < 0).all()


def test_what_is_wrong_with_the_arguments_is_said() -> None:
    with pytest.raises(ValueError, match="oldest 4"):
        DecisionVecEnv([tiny()], 2, candidates=4, oldest=4)
    with pytest.raises(ValueError, match="lanes 1"):
        DecisionVecEnv([tiny(), tiny()], 1)
    with pytest.raises(AttributeError, match="action_masks only"):
        DecisionVecEnv([tiny()], 1).env_method("request_log")


# -- the native vector environment under SB3's wrappers --------------------------------------


def test_monitor_and_normalization_go_round(tmp_path: Path) -> None:
    def make_env() -> Any:
        return VecMonitor(SB3VecEnv.make(2, tiny(), flat=True, include_active=False))

    env = VecNormalize(make_env(), norm_obs=True, norm_reward=True)
    env.seed(0)
    env.reset()
    for _ in range(160):
        seen = env.step(np.ones((2, 32), np.int64))[0]
    assert np.isfinite(seen).all()
    env.save(tmp_path / "normalize.pkl")
    again = VecNormalize.load(tmp_path / "normalize.pkl", make_env())
    assert_allclose(again.obs_rms.mean, env.obs_rms.mean)
    assert_allclose(again.normalize_obs(env.get_original_obs()), seen, atol=1e-6)
    assert len(env.env_method("action_masks")) == 2


# -- demonstrations and imitation ------------------------------------------------------------


@pytest.mark.parametrize("teacher", ["mc_sf", "olp", "central_fifo"])
def test_demonstrations_are_legal_and_the_teachers(teacher: str) -> None:
    layout = Layout(32, 2)
    shown = demonstrate(tiny(), teacher, layout, oldest=2, decisions=400, seed=1, lanes=2)
    assert 400 <= len(shown.choices) < 500
    assert shown.masks[np.arange(len(shown.choices)), shown.choices].all()
    assert shown.dropped <= 0.02 * len(shown.choices)
    if teacher != "mc_sf":
        return
    blocks = layout.blocks(shown.observations)
    lengths = np.where(blocks["present"] > 0, blocks["requests"][:, :, Request.LENGTH], np.inf)
    c = (shown.choices - 1) // layout.devices
    sent = shown.choices > 0
    assert_allclose(lengths[sent, c[sent]], lengths[sent].min(1))


def test_imitation_needs_the_layouts_fleet() -> None:
    with pytest.raises(ValueError, match="has 2 devices, the layout 1"):
        demonstrate(tiny(), "mc_sf", Layout(8, 1), oldest=2, decisions=10, seed=0)


def test_imitation_spreads_over_devices_and_keeps_the_order() -> None:
    from llmroute_env.training.build import make_model
    from llmroute_env.training.imitation import clone

    torch.set_num_threads(1)
    config = small_config()
    model = make_model(config, make_training_env(config))
    layout = Layout(8, 2)
    parts = [
        demonstrate(tiny(**{"cluster.devices": g}), "mc_sf", layout, oldest=2, decisions=n, seed=g)
        for g, n in ((2, 3000), (1, 300))
    ]
    shown = joined(parts)
    assert len(shown.choices) == sum(len(part.choices) for part in parts)
    up = layout.blocks(shown.observations)["up"].sum(1)
    assert set(up[: len(parts[0].choices)]) == {2.0}
    assert set(up[len(parts[0].choices) :]) == {1.0}
    clone(
        model.policy,
        shown,
        epochs=15,
        batch_size=128,
        learning_rate=3e-3,
        smoothing=0.0,
        hold_above=3.0,
        spread=1.0,  # the teacher's device tells nothing
        seed=0,
    )
    flat, masks = shown.observations[:500], shown.masks[:500]
    with torch.no_grad():
        distribution = model.policy.get_distribution(torch.as_tensor(flat), masks).distribution
    pairs = distribution.probs[:, 1:].reshape(-1, 8, 2).numpy()
    both = masks[:, 1:].reshape(-1, 8, 2)
    c = (shown.choices[:500] - 1) // 2
    rows = np.flatnonzero((shown.choices[:500] > 0) & both[np.arange(500), c].all(1))
    assert len(rows) > 50
    chosen = pairs[rows, c[rows]]
    assert chosen.sum(1).mean() > 0.8  # of the teacher's request
    assert np.abs(chosen[:, 0] - chosen[:, 1]).mean() < 0.2  # on either device


def test_a_loss_anywhere_outweighs_gains() -> None:
    def score(*gains: float) -> Score:
        return Score({}, {str(i): np.full(3, gain) for i, gain in enumerate(gains)})

    assert score(0.2, 0.0).value > score(0.1, 0.05).value > score(0.0, 0.0).value
    assert score(0.3, -0.1).value < score(0.0, 0.0).value  # though its mean is 0.1
    assert score(0.3, -0.1).worst == pytest.approx(-0.1)
    assert score(0.3, 0.1).half_width == pytest.approx(0.0, abs=1e-9)


def test_learners_environments_warn_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        VecMonitor(DecisionVecEnv([tiny()], 2))
        VecMonitor(SB3VecEnv.make(2, tiny(), flat=True))
        VecMonitor(SB3VecEnv.make(2, tiny()))


# -- configurations --------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_every_configuration_is_whole(name: str, tmp_path: Path) -> None:
    config = load_config(name)
    assert config.name == name
    (tmp_path / "again.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "again.yaml") == config
    for entry in config.scenarios:
        entry.load()


def test_faults_of_a_configuration_end_in_one_line() -> None:
    for overrides, message in (
        ({"algorithm.learning_rat": 1}, "learning_rat"),
        ({"algorithm.gamma": 1.5}, "gamma"),
        ({"algorithm.kind": "ppo"}, "needs masks"),
        ({"network": {"kind": "mlp", "layers": [8]}}, r"network\.kind mlp"),
        ({"nothing.there": 1}, "nothing is no section"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            load_config("pairs", overrides)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="no such file, and no name among"):
        load_config("pairs-underload")


# -- runs ------------------------------------------------------------------------------------


def test_a_run_leaves_everything_resumes_and_is_never_overwritten(
    tmp_path: Path, capsys: Any
) -> None:
    from llmroute_env.training.trainer import train

    out = tmp_path / "run"
    train(small_config(), out, quiet=True)
    state = json.loads((out / "state.json").read_text())
    assert state["steps"] == 2048
    assert state["generations"] == 2
    for file in ("last.zip", "last.npz", "best.npz", "run.json", "scenarios.yaml", "config.yaml"):
        assert (out / file).is_file(), file
    facts = json.loads((out / "run.json").read_text())
    assert facts["git"]
    assert facts["torch"]
    header = (out / "tb" / "progress.csv").read_text()
    for curve in (
        "imitation/loss",
        "evolution/gain",
        "held_out/gain",
        "train/value_loss",
        "episode/eel_mean_s",
        "reward/beta",
        "rollout/ep_rew_mean",
    ):
        assert curve in header, curve
    assert list((out / "tb").glob("events.*"))

    assert train_main(["--config", "pairs", "--out", str(out)]) == 2
    assert "not empty" in capsys.readouterr().err

    # As if it had been killed after 1,024 of 4,096 steps: it goes on from the last checkpoint.
    config = (out / "config.yaml").read_text().replace("steps: 2048", "steps: 3072")
    (out / "config.yaml").write_text(config)
    assert train_main(["--resume", "--out", str(out), "--quiet", "--no-progress"]) == 0
    again = json.loads((out / "state.json").read_text())
    assert again["steps"] == 3072
    assert again["seconds"] > state["seconds"]

    env = gym.make("LLMRoute-v0", scenario=tiny())
    policy = make(f"learned:path={out}", env)
    assert evaluate(env, policy, seed=1).summary["completed"] > 0


def test_ppo_learns(tmp_path: Path) -> None:
    """From scratch, without a teacher, on a tiny overloaded cluster."""
    from llmroute_env.training.trainer import train

    config = small_config(
        imitation=None,
        evolution=None,
        steps=24_576,
        **{
            "algorithm.critic_rollouts": 0,
            "algorithm.learning_rate": 2e-3,
            "algorithm.target_kl": None,
            "evaluation.every": 24_576,
            "evaluation.seeds": 20,
        },
    )
    out = tmp_path / "run"
    train(config, out, quiet=True)
    scores = _held_out_gains(out)
    (stage,) = Scorer(config).stages.values()
    random = stage.play(make("random", stage.env))["reward"]
    lost = 100.0 * (1.0 - random / stage.reference)  # what random leaves to MC-SF
    assert scores[-1] > -0.1 * lost.mean()  # it closes nearly all of that
    assert scores[-1] > scores[0] + 0.2 * lost.mean()  # and most of it by learning, not by masks


def test_a_scenario_with_a_comma_in_its_label_shifts_no_column(tmp_path: Path) -> None:
    import csv

    from stable_baselines3.common.logger import Logger, make_output_format

    from llmroute_env.training.callbacks import record

    label = TrainingScenario(scenario="paper-overload", overrides=TINY).label
    assert "," in label
    logger = Logger(str(tmp_path), [make_output_format("csv", str(tmp_path))])
    for step in range(2):
        record(logger, Score({"reward": 7.0}, {label: np.array([1.0, 3.0])}, shift=0.5))
        logger.dump(step)
    logger.close()
    with (tmp_path / "progress.csv").open() as file:
        rows = list(csv.reader(file))
    head, *values = rows
    for row in values:
        found = dict(zip(head, map(float, row), strict=True))
        assert found["held_out/gain"] == 2.0
        assert found["held_out/reward"] == 7.0
        assert found["held_out/hold_shift"] == 0.5


def _held_out_gains(out: Path) -> list[float]:
    import csv

    with (out / "tb" / "progress.csv").open() as file:
        rows = [row["held_out/gain"] for row in csv.DictReader(file)]
    return [float(value) for value in rows if value]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("dqn-one-request", {"algorithm.learning_starts": 100}),
        ("qrdqn-one-request", {"algorithm.learning_starts": 100}),
        ("maskable-ppo-one-request", {"algorithm.n_steps": 64, "algorithm.batch_size": 64}),
        ("recurrent-ppo-one-request", {"algorithm.n_steps": 32, "algorithm.batch_size": 64}),
        ("maskable-ppo-window", {"algorithm.n_steps": 32, "algorithm.batch_size": 64}),
    ],
)
def test_every_other_configuration_trains_and_enters_comparisons(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    from llmroute_env.training.trainer import train

    window = 8 if name.endswith("window") else 32
    scenario = {"scenario": "paper-overload", "overrides": TINY | {"router.window": window}}
    config = load_config(
        name,
        {
            "scenarios": [scenario],
            "steps": 512,
            "task.lanes": 2,
            "evaluation.every": 512,
            "evaluation.seeds": 1,
        }
        | changes,
    )
    train(config, tmp_path / "run", quiet=True)
    env = gym.make("LLMRoute-v0", scenario=tiny(**{"router.window": window}))
    policy = make(f"learned:path={tmp_path / 'run'}", env)
    found = evaluate(env, policy, seed=0)
    assert found.summary["completed"] >= 0
    assert found.stats.invalid_actions == 0
    wider = gym.make("LLMRoute-v0", scenario=tiny(**{"cluster.devices": 3}))
    with pytest.raises(ValueError, match="devices=2 does not fit"):
        make(f"learned:path={tmp_path / 'run'}", wider)


def test_the_report_compares_paired_and_reuses_rivals(tmp_path: Path, monkeypatch: Any) -> None:
    from llmroute_env.training import report

    entry = TrainingScenario(scenario="paper-overload", overrides=TINY)
    monkeypatch.setattr(report, "CASES", (entry,))
    monkeypatch.setattr(report, "RIVALS", ("random", "mc_sf"))
    said: list[str] = []
    out = tmp_path / "episodes.csv"
    settings = {"seeds": 4, "first_seed": 300, "out": out, "say": said.append}
    cases = report.report(None, bounds=1, **settings)
    env = gym.make("LLMRoute-v0", scenario=entry.load())
    for name in ("learned", "random", "mc_sf"):
        rewards = [evaluate(env, name, seed=seed).summary["reward"] for seed in range(300, 304)]
        if name != "random":  # draws go on from one episode to the next
            assert_allclose(cases[0].rewards[name], rewards)
    gain = cases[0].gain("random")
    mean = {name: values.mean() for name, values in cases[0].rewards.items()}
    assert gain.estimate == pytest.approx(100 * (mean["learned"] / mean["random"] - 1))
    assert gain.low > 0.0
    assert 90.0 < cases[0].share["mc_sf"].estimate <= 100.0
    assert cases[0].share["random"].estimate < cases[0].share["mc_sf"].estimate
    assert any("| random | none | +" in text for text in said)

    monkeypatch.setattr(report, "make", _only_learned)
    again = report.report(None, bounds=0, **settings)
    assert_array_equal(again[0].rewards["random"], cases[0].rewards["random"])


def _only_learned(policy: str, env: Any) -> Any:
    router = make(policy, env)
    if policy != "learned":
        router.run_episode = None  # playing it would fail
    return router


def test_training_environments_are_seeded() -> None:
    config = small_config()
    seen = [make_training_env(config).reset() for _ in range(2)]
    assert_array_equal(seen[0], seen[1])


# -- offline data and examples ---------------------------------------------------------------


def test_a_dataset_replays_its_episodes(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "data"
    data = collect(tiny(), "sjf", out, episodes=2, first_seed=40)
    assert len(data) == 2
    assert data.scenario == tiny()
    episode = OfflineDataset(out)[1]
    assert episode.seed == 41
    assert len(episode) == 150
    assert episode.observations["queue"].shape == (151, 32, len(Queue))
    assert episode.truncations[-1]
    env = gym.make("LLMRoute-v0", scenario=tiny())
    seen, _ = env.reset(seed=41)
    for t in range(len(episode)):
        for key, rows in episode.observations.items():
            assert_array_equal(rows[t], seen[key])
        seen, reward, *_ = env.step(episode.actions[t])
        assert reward == episode.rewards[t]
    assert collect_main(["--out", str(out)]) == 2
    assert "not empty" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"metadata\.json is absent"):
        OfflineDataset(tmp_path)


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    yield
    for name in ("ppo_single_file", "offline_behaviour_cloning"):
        sys.modules.pop(name, None)


def test_the_single_file_example_learns(examples: None) -> None:
    import ppo_single_file

    before, after = ppo_single_file.main(
        ["--scenario", "paper-stable", "--steps", "120000", "--periods", "150", "--rollout", "75"]
    )
    assert after > 1.02 * before


def test_the_offline_example_clones_its_data(examples: None, tmp_path: Path) -> None:
    import offline_behaviour_cloning

    collect(tiny(horizon_periods=400), "mc_sf", tmp_path / "data", episodes=4, first_seed=70)
    found = offline_behaviour_cloning.main([str(tmp_path / "data")])
    # It closes most of what a load balancer, which has no lengths, leaves to its teacher.
    assert found["clone"] - found["lor"] > 0.7 * (found["mc_sf"] - found["lor"]) > 0.0
