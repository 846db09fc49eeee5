"""Sessions: turns, prefixes and times, against a plain walk and closed forms."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy import stats

from llmroute_env.scenario import Scenario, ScenarioError
from llmroute_env.scenario.lengths import Lognormal
from llmroute_env.scenario.sessions import (
    Agent,
    Applications,
    Chat,
    ExplicitTurns,
    GeometricTurns,
    Pause,
)
from llmroute_env.scenario.workload import Gamma, OnOff, Poisson, RateShift
from llmroute_env.workload import Streams, generate, prepare, sessions
from llmroute_env.workload.blocks import check_chains
from llmroute_env.workload.demand import demand

SIGMAS = 4.5


def chat(**changes: Any) -> Chat:
    base: dict[str, Any] = {
        "applications": Applications(
            count=20, zipf=1.0, prompt=Lognormal(mean=300, sigma=0.7, min=10, max=2_000)
        ),
        "turns": GeometricTurns(mean=4.0),
        "max_context": 8_192,
        "message": Lognormal(mean=60, sigma=1.0, max=2_000),
        "answer": Lognormal(mean=200, sigma=0.8, max=2_000),
        "think": Pause(mean_s=10.0, sigma=0.5),
    }
    return Chat(**{**base, **changes})


def agent(**changes: Any) -> Agent:
    base: dict[str, Any] = {
        "applications": Applications(count=3, zipf=0.5, prompt=Lognormal(mean=2_000, sigma=0.3)),
        "turns": GeometricTurns(mean=8.0, max=40),
        "max_context": 32_768,
        "task": Lognormal(mean=400, sigma=1.0),
        "tool_output": Lognormal(mean=500, sigma=1.2),
        "answer": Lognormal(mean=120, sigma=0.7),
        "tool": Pause(mean_s=1.0, sigma=1.0),
    }
    return Agent(**{**base, **changes})


def drawn(
    spec: Chat | Agent, rate: float = 20.0, horizon_s: float = 200.0, seed: int = 0
) -> sessions.Rows:
    streams = np.random.default_rng(seed).spawn(2)
    return sessions.draw(spec, Poisson(rate=rate), *streams, horizon_s)


def turns_of(rows: sessions.Rows) -> list[list[int]]:
    """Row numbers of each session, in order of arrival."""
    found: list[list[int]] = [[] for _ in range(int(rows.session.max()) + 1)]
    for row, session in enumerate(rows.session):
        found[session].append(row)
    return found


@pytest.fixture(scope="module", params=["chat", "agent"])
def spec(request: Any) -> Chat | Agent:
    return {"chat": chat, "agent": agent}[request.param]()


# --- contents --------------------------------------------------------------------------------


def test_rows_are_by_arrival_within_the_horizon(spec: Chat | Agent) -> None:
    rows = drawn(spec)
    assert (np.diff(rows.arrival_s) >= 0).all()
    assert rows.arrival_s[0] >= 0.0
    assert rows.arrival_s[-1] < 200.0
    assert (rows.prompt + rows.decode).max() <= spec.max_context
    assert sorted(set(rows.session.tolist())) == list(range(int(rows.session.max()) + 1))


def test_each_turn_goes_on_from_the_whole_conversation(spec: Chat | Agent) -> None:
    rows = drawn(spec)
    system = sessions.system_prompts(spec.applications)
    longer = 0
    for turns in turns_of(rows):
        assert len({rows.application[row] for row in turns}) == 1
        assert rows.prompt[turns[0]] > system[rows.application[turns[0]]]
        for before, after in pairwise(turns):
            assert rows.prompt[after] > rows.prompt[before] + rows.decode[before]
            nominal_s = spec.service_base_s + spec.service_s_per_token * rows.decode[before]
            assert rows.arrival_s[after] - rows.arrival_s[before] > nominal_s
            longer += 1
    assert longer > 500


def test_chains_are_those_of_the_words_said(spec: Chat | Agent) -> None:
    """The oracle writes the conversations out, token by token, and hashes their prefixes."""
    rows = drawn(spec, horizon_s=40.0)
    block = 16
    found = sessions.chains(spec, rows, block)
    check_chains(found.ids, found.start)
    assert found.ids.max() + 1 == len(np.unique(found.ids))  # compact
    system = sessions.system_prompts(spec.applications)
    names: dict[tuple[Any, ...], int] = {}
    back: dict[int, tuple[Any, ...]] = {}
    for turns in turns_of(rows):
        application = int(rows.application[turns[0]])
        said: list[Any] = [("system", application, i) for i in range(system[application])]
        for row in turns:
            said += [("new", row, i) for i in range(int(rows.prompt[row]) - len(said))]
            assert len(said) == rows.prompt[row]
            said += [("answer", row, i) for i in range(int(rows.decode[row]))]
            chain = found.ids[found.start[row] : found.start[row + 1]].tolist()
            assert len(chain) == len(said) // block
            for place, name in enumerate(chain):
                # The last token tells two prefixes of one length apart, here.
                key = (place, said[(place + 1) * block - 1])
                assert names.setdefault(key, name) == name
                assert back.setdefault(name, key) == key


def test_sessions_of_an_application_share_its_system_prompt_alone() -> None:
    spec = chat()
    rows = drawn(spec)
    found = sessions.chains(spec, rows, 8)
    shared = sessions.system_prompts(spec.applications) // 8
    owners: dict[int, set[int]] = {}
    for row, (first, last) in enumerate(pairwise(found.start)):
        for place, name in enumerate(found.ids[first:last].tolist()):
            owners.setdefault(name, set()).add(int(rows.session[row]))
            if place >= shared[rows.application[row]]:
                assert owners[name] == {int(rows.session[row])}
    assert max(map(len, owners.values())) > 100  # the most popular application's first block


def test_a_context_cap_ends_sessions() -> None:
    free, capped = chat(max_context=10**9), chat(max_context=1_500)
    long, short = sessions.profile_of(free), sessions.profile_of(capped)
    assert short.turns < 0.8 * long.turns
    # What is left of a capped session is what the free one begins with.
    generator = np.random.default_rng
    whole = sessions._contents(free, generator(3), 50)
    part = sessions._contents(capped, generator(3), 50)
    for session in range(50):
        all_of = np.flatnonzero(whole.session == session)
        over = (whole.prompt + whole.decode)[all_of] > 1_500
        kept = all_of[: int(np.argmax(over))] if over.any() else all_of
        mine = np.flatnonzero(part.session == session)
        assert part.prompt[mine].tolist() == whole.prompt[kept].tolist()
        assert part.offset_s[mine].tolist() == pytest.approx(whole.offset_s[kept].tolist())


def test_a_context_that_no_session_fits_is_refused() -> None:
    tight = chat(max_context=12)
    with pytest.raises(ScenarioError, match="max_context = 12: no first turn of a session fits"):
        sessions.profile_of(tight)


def test_turns_are_geometric() -> None:
    contents = sessions._contents(chat(max_context=10**9), np.random.default_rng(1), 20_000)
    counts = np.bincount(np.bincount(contents.session))[1:]
    share = 0.25 * 0.75 ** np.arange(20)
    expected = 20_000 * np.append(share, 1.0 - share.sum())
    seen = np.append(counts[:20], counts[20:].sum())
    assert stats.chisquare(seen, expected).pvalue > 1e-3


def test_turns_may_be_given_outright() -> None:
    turns = ExplicitTurns(shares=(0.5, 0.0, 0.5))
    spec = chat(turns=turns, max_context=10**9)
    counts = np.bincount(
        np.bincount(sessions._contents(spec, np.random.default_rng(1), 4_000).session)
    )
    assert counts[2] == 0
    assert abs(counts[1] - 2_000) < SIGMAS * math.sqrt(1_000)
    assert sessions.profile_of(spec).turns == pytest.approx(2.0, abs=0.03)
    one = chat(turns=GeometricTurns(mean=1.0))
    assert sessions.profile_of(one).turns == 1.0


def test_applications_are_as_popular_as_zipf_says() -> None:
    contents = sessions._contents(chat(), np.random.default_rng(2), 50_000)
    first = np.flatnonzero(np.diff(contents.session, prepend=-1))
    seen = np.bincount(contents.application[first], minlength=20)
    weight = 1.0 / np.arange(1, 21)
    expected = len(first) * weight / weight.sum()
    # Sessions whose first message alone is over the context are few, but not of all alike.
    assert (np.abs(seen - expected) < SIGMAS * np.sqrt(expected) + 0.01 * expected).all()
    flat = sessions._contents(
        chat(applications=Applications(count=4, zipf=0.0, prompt=Lognormal(mean=9, sigma=0.1))),
        np.random.default_rng(2),
        40_000,
    )
    first = np.flatnonzero(np.diff(flat.session, prepend=-1))
    assert np.bincount(flat.application[first]) / len(first) == pytest.approx(0.25, abs=0.01)


def test_system_prompts_are_quantiles_of_their_lengths() -> None:
    spec = Applications(count=1_000, prompt=Lognormal(mean=500, sigma=0.8))
    found = sessions.system_prompts(spec)
    mu = math.log(500) - 0.5 * 0.8**2
    assert stats.kstest(found, stats.lognorm(0.8, scale=math.exp(mu)).cdf).statistic < 0.01
    # The first few are spread as well: no popular application has only the longest prompts.
    assert stats.kstest(found[:8], stats.lognorm(0.8, scale=math.exp(mu)).cdf).statistic < 0.25
    assert sessions.system_prompts(spec).tolist() == found.tolist()


def test_an_agent_starts_with_a_task_and_goes_on_with_tool_output() -> None:
    spec = agent(
        task=Lognormal(mean=1_000, sigma=0.0), tool_output=Lognormal(mean=50, sigma=0.0),
        answer=Lognormal(mean=10, sigma=0.0), tool=Pause(mean_s=2.0),
        service_base_s=1.0, service_s_per_token=0.1,
    )  # fmt: skip
    contents = sessions._contents(spec, np.random.default_rng(0), 300)
    system = sessions.system_prompts(spec.applications)[contents.application]
    turn = np.arange(len(contents.session)) - np.searchsorted(contents.session, contents.session)
    assert (contents.prompt == system + 1_000 + 60 * turn).all()
    assert contents.offset_s == pytest.approx(4.0 * turn)  # 1 + 10 x 0.1 + 2 seconds
    assert turn.max() > 10


def test_no_pause_is_no_pause() -> None:
    rows = sessions._contents(
        chat(think=Pause(mean_s=0.0), answer=Lognormal(mean=10, sigma=0.0), service_base_s=0.0,
             service_s_per_token=0.5), np.random.default_rng(0), 50,
    )  # fmt: skip
    turn = np.arange(len(rows.session)) - np.searchsorted(rows.session, rows.session)
    assert rows.offset_s == pytest.approx(5.0 * turn)


# --- times -----------------------------------------------------------------------------------


def test_the_rate_is_that_of_requests_from_the_first_second(spec: Chat | Agent) -> None:
    horizon_s, rate = 300.0, 20.0
    counts, early = [], []
    for seed in range(30):
        rows = drawn(spec, rate, horizon_s, seed)
        counts.append(len(rows.arrival_s))
        early.append(np.count_nonzero(rows.arrival_s < 30.0))
    expected = sessions.expected_requests(spec, Poisson(rate=rate), horizon_s)
    assert expected == pytest.approx(rate * horizon_s, rel=2e-3)
    deviation = np.std(counts, ddof=1) / math.sqrt(len(counts))
    assert abs(np.mean(counts) - expected) < SIGMAS * deviation + 0.01 * expected
    deviation = np.std(early, ddof=1) / math.sqrt(len(early))
    assert abs(np.mean(early) - rate * 30.0) < SIGMAS * deviation + 0.01 * rate * 30.0


def test_without_sessions_under_way_the_rate_grows() -> None:
    spec = chat(stationary=False, think=Pause(mean_s=60.0, sigma=0.3))
    counts = []
    early = late = 0
    for seed in range(30):
        rows = drawn(spec, 20.0, 300.0, seed)
        counts.append(len(rows.arrival_s))
        early += np.count_nonzero(rows.arrival_s < 20.0)
        late += np.count_nonzero(rows.arrival_s >= 280.0)
        first = [turns[0] for turns in turns_of(rows)]
        system = sessions.system_prompts(spec.applications)[rows.application[first]]
        assert (rows.prompt[first] <= system + 2_000).all()  # every session from its beginning
    expected = sessions.expected_requests(spec, Poisson(rate=20.0), 300.0)
    assert expected < 0.8 * 6_000
    deviation = np.std(counts, ddof=1) / math.sqrt(len(counts))
    assert abs(np.mean(counts) - expected) < SIGMAS * deviation + 0.01 * expected
    assert early < 0.4 * late


def test_a_session_is_the_same_at_any_rate_and_horizon() -> None:
    spec = chat(stationary=False)
    slow, fast = drawn(spec, 5.0, 400.0), drawn(spec, 20.0, 100.0)

    def contents(rows: sessions.Rows) -> list[list[tuple[int, int]]]:
        return [[(rows.prompt[row], rows.decode[row]) for row in turns] for turns in turns_of(rows)]

    def begun(rows: sessions.Rows) -> list[int]:
        """Sessions by their beginning: they are numbered so."""
        return [turns[0] for turns in turns_of(rows)]

    assert begun(slow) == sorted(begun(slow))
    pairs = list(zip(contents(slow)[:80], contents(fast)[:80], strict=True))
    for first, second in pairs:  # cut where the episode ends
        shared = min(len(first), len(second))
        assert first[:shared] == second[:shared]
    assert sum(len(first) != len(second) for first, second in pairs) > 0


@pytest.mark.parametrize(
    ("process", "seconds", "factor"),
    [
        (Gamma(rate=20.0, cv=2.0), (0.0, 300.0), 1.0),
        (RateShift(rate=10.0, rate_after=30.0, shift_at=0.5), (0.0, 150.0), 0.5),
        (RateShift(rate=10.0, rate_after=30.0, shift_at=0.5), (250.0, 300.0), 1.5),
    ],
)
def test_other_processes_start_sessions_too(
    process: Any, seconds: tuple[float, float], factor: float
) -> None:
    # Turns of one session lie close together, so that the requests follow the process.
    spec = chat(think=Pause(mean_s=1.0), service_s_per_token=0.0)
    counts = []
    for seed in range(40):
        rows = sessions.draw(spec, process, *np.random.default_rng(seed).spawn(2), 300.0)
        counts.append(
            np.count_nonzero((rows.arrival_s >= seconds[0]) & (rows.arrival_s < seconds[1]))
        )
    expected = 20.0 * factor * (seconds[1] - seconds[0])
    deviation = np.std(counts, ddof=1) / math.sqrt(len(counts))
    assert abs(np.mean(counts) - expected) < SIGMAS * deviation + 0.02 * expected


def test_on_and_off_begin_with_on() -> None:
    two = {"turns": ExplicitTurns(shares=(0.0, 1.0)), "think": Pause(mean_s=7.0)}
    spec = chat(service_base_s=0.0, service_s_per_token=0.0, max_context=10**9, **two)
    process = OnOff(rate_on=50.0, rate_off=0.0, on_s=10.0, off_s=10.0)
    rows = sessions.draw(spec, process, *np.random.default_rng(0).spawn(2), 100.0)
    phase = rows.arrival_s % 20.0  # first turns in [0, 10), second ones in [7, 17)
    assert (phase < 17.0).all()
    counts = np.histogram(phase, [0, 7, 10, 17])[0]
    assert counts == pytest.approx([875, 750, 875], rel=0.15)
    assert np.count_nonzero(rows.arrival_s < 7.0) == pytest.approx(175, rel=0.25)


# --- through a scenario ----------------------------------------------------------------------


CHAT = chat().model_dump(mode="json")


def scenario(**overrides: Any) -> Scenario:
    return Scenario.load(
        "paper-stable",
        {
            "workload.lengths": {"kind": "sessions"},
            "workload.sessions": CHAT,
            "workload.arrivals.rate": 0.5,
            **{key.replace("__", "."): value for key, value in overrides.items()},
        },
    )


def streams(seed: int = 0) -> Streams:
    return Streams.spawn(np.random.default_rng(seed))


def test_a_scenario_draws_sessions() -> None:
    chosen = scenario()
    prepare(chosen)
    table = generate(chosen, streams()).validate()
    assert table.block_ids is None  # no cache, no chains
    assert len(table) == pytest.approx(0.5 * chosen.horizon_s, rel=0.2)
    again, other = generate(chosen, streams()), generate(chosen, streams(1))
    assert np.array_equal(table.prompt, again.prompt)
    assert np.array_equal(table.arrival_s, again.arrival_s)
    assert len(other) != len(table) or not np.array_equal(other.prompt, table.prompt)


def test_predictors_learn_from_sessions() -> None:
    mean = generate(scenario().with_prediction("mean"), streams()).predicted
    assert len(set(mean.tolist())) == 1
    assert mean[0] == pytest.approx(demand(scenario()).decode.mean(), rel=1e-6)
    truth = generate(scenario(), streams())
    assert mean[0] == pytest.approx(truth.decode.mean(), rel=0.1)


def test_demand_is_that_of_the_episodes() -> None:
    chosen = scenario(horizon_periods=40_000)
    table, expected = generate(chosen, streams()), demand(chosen)
    assert len(table) == pytest.approx(expected.requests, rel=0.05)
    assert table.prompt.mean() == pytest.approx(expected.prompt.mean(), rel=0.05)
    assert table.decode.mean() == pytest.approx(expected.decode.mean(), rel=0.05)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"workload.sessions": None}, "workload.sessions = null: lengths.kind = 'sessions' needs"),
        ({"workload.lengths": {"kind": "quantiles", "table": "azure-2023-conv"}},
         "workload.sessions: only with lengths.kind = 'sessions', not 'quantiles'"),
        ({"workload.arrivals": {"kind": "servegen", "path": "x"}},
         "workload.arrivals.kind = 'servegen': must be a drawn process"),
        ({"workload.sessions.turns": {"kind": "explicit", "shares": [0.5, 0.4]}},
         "workload.sessions.turns.shares = [0.5, 0.4]: must sum to 1, they sum to 0.9"),
        ({"workload.sessions.turns.mean": 0.5}, "workload.sessions.turns.mean = 0.5: must be at"),
        ({"workload.sessions.think.mean_s": -1}, "workload.sessions.think.mean_s = -1: must be"),
        ({"workload.sessions.thinking": 1}, "workload.sessions.thinking: unknown key"),
        ({"workload.sessions.applications.count": 0}, "workload.sessions.applications.count = 0"),
        ({"workload.sessions.kind": "chats"}, "workload.sessions.kind = 'chats': must be one of"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_scenario_is_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario().with_overrides(changes)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_speed() -> None:
    """5,000 requests of about 100 blocks in well under 0.1 s of processor time."""
    import time

    spec = chat(max_context=16_384, applications=Applications(
        count=50, prompt=Lognormal(mean=900, sigma=0.5)))  # fmt: skip
    drawn(spec, 50.0, 100.0)  # the profile is made once
    best = math.inf
    for seed in range(5):
        begin = time.process_time()
        rows = drawn(spec, 50.0, 100.0, seed)
        found = sessions.chains(spec, rows, 16)
        best = min(best, time.process_time() - begin)
    assert len(rows.arrival_s) > 4_000
    assert len(found.ids) / len(rows.arrival_s) > 90
    assert best < 0.1


def test_caches_ask_for_chains_and_change_nothing_else() -> None:
    cached = scenario(cluster__prefill={}, cluster__prefix_cache={"block": 16})
    plain, table = generate(scenario(), streams()), generate(cached, streams()).validate(block=16)
    assert table.block_ids is not None
    assert np.array_equal(plain.prompt, table.prompt)
    assert np.array_equal(plain.predicted, table.predicted)
    other = scenario(cluster__prefill={}, cluster__prefix_cache={"block": 64})
    wide = generate(other, streams()).validate(block=64)
    assert wide.block_ids is not None
    assert len(wide.block_ids) < 0.3 * len(table.block_ids)


def test_a_session_is_of_one_category() -> None:
    told = scenario(workload__text={"mix": {"prose": 0.5, "code": 0.5}})
    table = generate(told, streams()).validate()
    rows = sessions.draw(chat(), Poisson(rate=0.5), streams().arrivals, streams().lengths, 4_000.0)
    assert np.array_equal(rows.prompt, table.prompt)
    assert table.category is not None
    for turns in turns_of(rows):
        assert len(set(table.category[turns].tolist())) == 1


def test_prefill_elsewhere_orders_by_its_end() -> None:
    handoff = {"prefill_base_s": 0.5, "prefill_s_per_token": 0.01}
    plain = generate(scenario(), streams())
    late = generate(scenario(cluster__handoff=handoff), streams()).validate()
    assert late.ready_s is not None
    assert late.ready_s == pytest.approx(late.arrival_s + 0.5 + 0.01 * late.prompt)
    order = np.argsort(plain.arrival_s + 0.5 + 0.01 * plain.prompt, kind="stable")
    assert not np.array_equal(order, np.arange(len(order)))
    for name in ("arrival_s", "prompt", "decode", "predicted"):
        assert np.array_equal(getattr(late, name), getattr(plain, name)[order])


def test_offered_load_counts_the_turns() -> None:
    chosen = scenario()
    load, asked = chosen.offered_load(), demand(chosen)
    assert load.requests == pytest.approx(0.5 * chosen.horizon_s, rel=2e-3)
    slots = 4 * 24  # devices and their batch limit, at one iteration per second
    assert load.batch == pytest.approx(0.5 * asked.decode.mean() / slots, rel=0.01)


def test_the_listing_shows_what_is_generated() -> None:
    from llmroute_env.experiments.cli import _facts

    told = _facts(scenario(workload__text={"mix": {"prose": 1.0}}))["lengths"]
    assert told.startswith("sessions; chat applications(count=20 zipf=1 prompt(mean=300 ")
    assert "text mix(prose=1 code=0 cjk=0)" in told


def cached(table: Any, devices: list[int], tokens: int) -> float:
    """Share of prompt tokens that least-recently-used caches of blocks of 64 have."""
    caches: dict[int, dict[int, None]] = {device: {} for device in devices}
    hits = 0
    for row, device in enumerate(devices):
        cache = caches[device]
        chain = table.block_ids[table.block_start[row] : table.block_start[row + 1]].tolist()
        whole = int(table.prompt[row]) // 64
        found = next((i for i, name in enumerate(chain[:whole]) if name not in cache), whole)
        hits += 64 * min(found, (int(table.prompt[row]) - 1) // 64)
        for name in reversed(chain):  # the end of a chain goes first
            cache.pop(name, None)
            cache[name] = None
        while 64 * len(cache) > tokens:
            del cache[next(iter(cache))]
    return hits / int(table.prompt.sum())


@pytest.mark.parametrize(("name", "at_home", "anywhere"), [
    ("chat-prefix", 0.80, 0.49), ("agent-prefix", 0.92, 0.70)])  # fmt: skip
def test_where_a_session_goes_decides_what_is_cached(
    name: str, at_home: float, anywhere: float
) -> None:
    """What the scenarios' comments say, for caches of 400,000 tokens on each of 4 devices."""
    spec = Scenario.load(name, {"cluster.prefix_cache.block": 64})
    table = generate(spec, streams()).validate(block=64)
    assert spec.workload.sessions is not None
    drawn_again = streams()
    rows = sessions.draw(
        spec.workload.sessions,
        spec.workload.arrivals,
        drawn_again.arrivals,
        drawn_again.lengths,
        spec.horizon_s,
    )
    home = (rows.session % 4).tolist()
    random = np.random.default_rng(0).integers(0, 4, len(table)).tolist()
    assert cached(table, home, 400_000) == pytest.approx(at_home, abs=0.02)
    assert cached(table, random, 400_000) == pytest.approx(anywhere, abs=0.02)
