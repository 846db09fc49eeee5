"""Names, parameters, users' own classes, and the second name of the package."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from observations import Gpu, Scene, Waiting

from policies import Policy, RouterSpec, available, make
from policies.spec import NO_LIMIT

SCENE = Scene([Gpu()] * 3, [Waiting()] * 2)


def error(policy: str, **params: object) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (callers look at the text)
        make(policy, SCENE.spec, **params)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_information_classes() -> None:
    names = available()
    assert {n for n, i in names.items() if i == "none"} >= {
        "random", "round_robin", "lor", "power_of_d", "vllm_dp", "central_fifo"
    }  # fmt: skip
    assert {n for n, i in names.items() if i == "predicted"} >= {
        "least_predicted_work", "sjf", "mc_sf", "olp"
    }  # fmt: skip
    twins = {n for n, i in names.items() if i == "oracle"}
    assert twins >= {"least_predicted_work_oracle", "sjf_oracle", "mc_sf_oracle", "olp_oracle"}
    assert "random_oracle" not in names


@pytest.mark.parametrize("name", [n for n in available() if not n.startswith(("olp", "learned"))])
def test_every_name_makes_a_policy_that_knows_its_name(name: str) -> None:
    router = make(name, SCENE.spec)
    assert isinstance(router, Policy)
    assert router.name == router.label == name
    assert router.information == available()[name]
    assert router.prediction == ("perfect" if name.endswith("_oracle") else None)
    assert isinstance(router.diagnostics(), dict)
    assert "nformation:" in (type(router).__doc__ or "")


def test_an_oracle_twin_is_the_same_code() -> None:
    twin, plain = make("sjf_oracle:aging=2", SCENE.spec, 1), make("sjf:aging=2", SCENE.spec, 1)
    assert type(twin) is type(plain)
    assert (twin.predict(SCENE.observe())[0] == plain.predict(SCENE.observe())[0]).all()
    assert plain.information == "predicted"


def test_parameters_from_text_and_keywords() -> None:
    router = make("sjf:aging=0.2:fit=balance", SCENE.spec)
    assert (router.parameters.aging, router.parameters.fit) == (0.2, "balance")
    assert router.label == "sjf:aging=0.2:fit=balance"
    router = make("mc_sf:skip=true", SCENE.spec, fit="balance")
    assert router.parameters.skip is True
    assert router.label == "mc_sf:skip=true:fit=balance"
    assert make("power_of_d", SCENE.spec, d=3).parameters.d == 3


def test_unknown_names_suggest_near_ones() -> None:
    assert "did you mean round_robin" in error("roundrobin")
    assert "sjf_oracle" in error("sjf_oracl")
    assert "available: random, round_robin" in error("zzz")
    assert "'random_oracle'" in error("random_oracle")
    assert "unknown policy ''" in error("")


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("sjf:agin=1", ["sjf", "'agin'", "did you mean aging?", "allowed: fit, aging"]),
        ("lor:d=2", ["lor", "'d'", "allowed: none"]),
        ("sjf:aging=-1", ["sjf", "aging=-1", "greater than or equal to 0"]),
        ("sjf:aging=nan", ["aging=nan", "finite"]),
        ("sjf:aging=old", ["aging=old", "valid number"]),
        ("power_of_d:d=0", ["d=0", "greater than or equal to 1"]),
        ("power_of_d:d=2.5", ["d=2.5", "integer"]),
        ("vllm_dp:variant=new", ["variant=new", "'queue' or 'kv'"]),
        ("mc_sf:skip=perhaps", ["skip=perhaps", "boolean"]),
        ("central_fifo:fit=worst", ["fit=worst", "'best' or 'balance'"]),
        ("sjf:aging=1:aging=2", ["aging is given twice"]),
    ],
)
def test_wrong_parameters_end_in_one_line(policy: str, words: list[str]) -> None:
    text = error(policy)
    for word in words:
        assert word in text


def test_a_parameter_in_both_places() -> None:
    assert "aging is given twice" in error("sjf:aging=1", aging=2)


def fake_env(**cluster: object) -> SimpleNamespace:
    scenario = SimpleNamespace(
        name="s",
        period_s=0.5,
        horizon_periods=10,
        objective="o",
        router=SimpleNamespace(window=8),
    )
    spec = {
        "batch_limit": [4, 2],
        "context_limit": [NO_LIMIT, 0],
        "kv_limit": [90, 80],
        "pool": ("a", "b"),
        "prefill": False,
        "emits_token": False,
        "prefix_block": 0,
        "chunk_tokens": 0,
    } | cluster
    return SimpleNamespace(scenario=scenario, spec_cluster=SimpleNamespace(**spec))


def test_spec_from_a_wrapped_or_a_vector_environment() -> None:
    expected = RouterSpec(
        8, 2, 4, 0.5, (NO_LIMIT, NO_LIMIT), "o", 10, "s", kv_limit=(90, 80), pool=("a", "b")
    )
    env = fake_env()
    assert RouterSpec.from_env(env) == expected
    assert RouterSpec.from_env(SimpleNamespace(unwrapped=env)) == expected
    many = SimpleNamespace(call=lambda name: (getattr(env, name),) * 3)
    assert RouterSpec.from_env(many) == expected
    many = SimpleNamespace(get_attr=lambda name: [getattr(env, name)] * 3)
    assert RouterSpec.from_env(many) == expected
    assert RouterSpec.from_env(fake_env(context_limit=[4096, 50])).context_limit == (4096, 50)
    with pytest.raises(ValueError, match="is not an LLMRoute environment"):
        make("lor", object())


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    code = """
        import numpy as np
        from policies.load_balancing import LeastOutstandingRequests

        class Bare:
            def predict(self, observation, state=None, episode_start=None, deterministic=False):
                return np.zeros(len(observation["queue_id"]), np.int64), None

        class Tuned(Bare):
            def __init__(self, env, seed, weight=1.0, names=None, flag=False):
                self.got = (env, seed, weight, names, flag)

        class Needy(Bare):
            def __init__(self, spec, path):
                self.spec, self.path = spec, path

        class Mine(LeastOutstandingRequests):
            name = "mine"

        ready = Bare()

        class Nothing:
            pass
        """
    name = f"user_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(code))
    monkeypatch.chdir(tmp_path)
    return name


def test_a_users_own_class(user_module: str) -> None:
    path = list(sys.path)
    bare = make(f"{user_module}:Bare", SCENE.spec)
    assert not bare.predict(SCENE.observe())[0].any()
    assert make(f"{user_module}:ready", SCENE.spec).predict(SCENE.observe())[1] is None
    tuned = make(f"{user_module}:Tuned:weight=2.5:names=a-b", SCENE.spec, 7, flag="true")
    assert tuned.got == (SCENE.spec, 7, 2.5, "a-b", True)
    needy = make(f"{user_module}:Needy:path=x:y/z", SCENE.spec)
    assert (needy.spec, needy.path) == (SCENE.spec, "x:y/z")
    mine = make(f"{user_module}:Mine", SCENE.spec)
    assert (mine.name, mine.label) == ("mine", f"{user_module}:Mine")
    assert sys.path == path


def test_a_users_own_class_with_a_mistake(user_module: str) -> None:
    assert "unknown parameter 'x'; allowed: none" in error(f"{user_module}:Bare:x=1")
    assert "allowed: weight, names, flag" in error(f"{user_module}:Tuned:wait=1")
    assert "parameter path is missing" in error(f"{user_module}:Needy")
    assert "Nothing has no predict method" in error(f"{user_module}:Nothing")
    assert "no attribute 'Absent'" in error(f"{user_module}:Absent")
    assert "No module named 'absent_module'" in error("absent_module:Absent")
    assert "takes no parameters" in error(f"{user_module}:ready:x=1")
    assert "allowed: none" in error(f"{user_module}:Mine:x=1")


def test_the_second_name_is_the_same_package() -> None:
    code = """
        import llmroute_env.policies as alias
        import llmroute_env.policies.olp
        from llmroute_env.policies.load_balancing import PowerOfD as a
        from policies.load_balancing import PowerOfD as b
        import llmroute_env, policies, policies.olp, policies.rng
        from llmroute_env import policies as third
        import llmroute_env.policies.rng as rng
        assert alias is policies is llmroute_env.policies is third
        assert a is b and rng is policies.rng and rng.__spec__.name == "policies.rng"
        assert llmroute_env.policies.olp is policies.olp
        assert policies.__spec__.name == "policies"
        try:
            import llmroute_env.policies.absent
        except ModuleNotFoundError as error:
            assert "absent" in str(error)
        else:
            raise AssertionError
        """
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_making_a_policy_from_keywords_of_numpy() -> None:
    assert make("power_of_d", SCENE.spec, d=np.int64(2)).parameters.d == 2
