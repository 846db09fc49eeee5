"""Trace formats beyond Azure's and Vidur's: layouts, units, and what is wrong with a file."""

from __future__ import annotations

import json
import os
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmroute_env.scenario import Scenario, ScenarioError
from llmroute_env.scenario.workload import Trace
from llmroute_env.workload import Streams, generate, prepare, replay
from llmroute_env.workload.blocks import check_chains
from llmroute_env.workload.traces import FORMATS, TraceData, TraceError, load_trace

BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
SPLITWISE = (
    "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def run(text: str | bytes, name: str = "trace.jsonl") -> str:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return run


def load(path: str | Path, **options: Any) -> TraceData:
    return load_trace(Trace(path=str(path), **options), None)


def fault(path: str | Path, **options: Any) -> str:
    with pytest.raises(TraceError) as caught:
        load(path, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


def mooncake(*rows: dict[str, Any]) -> str:
    base = {"timestamp": 0, "input_length": 1_000, "output_length": 5, "hash_ids": [0, 1]}
    return "".join(json.dumps({**base, **row}) + "\n" for row in rows)


def qwen(*rows: dict[str, Any]) -> str:
    base = {
        "chat_id": 1,
        "parent_chat_id": -1,
        "timestamp": 0.0,
        "input_length": 40,
        "output_length": 5,
        "type": "text",
        "turn": 1,
        "hash_ids": [7, 8, 9],
    }
    return "".join(json.dumps({**base, **row}) + "\n" for row in rows)


def chains(trace: TraceData) -> list[list[int]]:
    assert trace.chains is not None
    return [trace.chains.ids[a:b].tolist() for a, b in pairwise(trace.chains.start)]


# --- the shared files ------------------------------------------------------------------------


def test_every_shared_trace_loads_whole(shared: Path) -> None:
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for path in sorted((shared / "traces").glob("*")):
            if path.suffix in (".csv", ".jsonl"):
                report = load(path).report
                assert report.requests == report.rows
                found[path.name] = (report.format, report.rows)
    assert found == {
        "azure_2023_code.csv": ("azure", 8_819),
        "azure_2023_conv.csv": ("azure", 19_366),
        "mooncake_conversation.jsonl": ("mooncake", 12_031),
        "vidur_splitwise_conv.csv": ("vidur", 19_366),
    }


def test_mooncakes_conversations(shared: Path) -> None:
    path = shared / "traces" / "mooncake_conversation.jsonl"
    trace = load(path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert trace.arrival_s[-1] == 3536.999  # 3,536,999 ms
    assert trace.prompt.tolist() == [row["input_length"] for row in rows]
    assert trace.decode.tolist() == [row["output_length"] for row in rows]
    assert trace.chains is not None
    assert trace.chains.block == 512
    # Mooncake's ids stand for prefixes already, and are in order: they stay as they are.
    assert trace.chains.ids.tolist() == [i for row in rows for i in row["hash_ids"]]


def test_a_cdf_is_no_trace(shared: Path) -> None:
    text = fault(shared / "traces" / "lmsys_total_tokens_cdf.json")
    assert "is not a JSON object of a known format" in text


def test_a_chunk_of_servegen_is_no_trace(shared: Path) -> None:
    text = fault(shared / "traces" / "servegen" / "chunk-2-trace.csv")
    assert "looks like a chunk of ServeGen" in text
    assert "workload.arrivals = {kind: servegen" in text


def hits(trace: TraceData, block: int) -> float:
    """Share of prompt tokens that a cache without limits has seen, in whole blocks."""
    found = replay.regroup(trace.chains, block, trace.prompt)  # type: ignore[arg-type]
    seen = np.zeros(len(found.ids), bool)
    total = 0
    for first, last in pairwise(found.start):
        ids = found.ids[first:last]
        total += int(np.argmin(np.append(seen[ids], False))) * block
        seen[ids] = True
    return total / int(trace.prompt.sum())


def test_blocks_of_another_size_keep_the_hits(shared: Path) -> None:
    path = shared / "traces" / "mooncake_conversation.jsonl"
    assert hits(load(path), 512) == pytest.approx(0.373, abs=0.001)
    trace = load(path, max_requests=2_000)
    at = {block: hits(trace, block) for block in (64, 512, 1_024)}
    assert at[512] > 0.2
    # Smaller blocks split the same knowledge; they add what lies in shared last blocks.
    assert at[512] <= at[64] < at[512] + 0.01
    assert at[512] - 0.05 < at[1_024] < at[512]


# --- Mooncake and Qwen-Bailian ---------------------------------------------------------------


def test_mooncake_counts_milliseconds_and_blocks_of_512(write: Any) -> None:
    trace = load(write(mooncake({"timestamp": 27482}, {"timestamp": 30535.5})))
    assert trace.report.format == "mooncake"
    assert trace.arrival_s.tolist() == [0.0, 3.0535]  # since the first request
    assert trace.chains is not None
    assert trace.chains.block == 512


def test_qwen_counts_seconds_and_blocks_of_16(write: Any) -> None:
    trace = load(write(qwen({"timestamp": 61.114}, {"timestamp": 62, "turn": 2})))
    assert trace.report.format == "qwen"
    assert trace.arrival_s.tolist() == [0.0, 62.0 - 61.114]
    assert trace.chains is not None
    assert trace.chains.block == 16
    assert chains(trace) == [[0, 1, 2], [0, 1, 2]]


def test_hashes_of_blocks_alone_become_prefixes(write: Any) -> None:
    rows = [{"hash_ids": [5, 6, 6]}, {"hash_ids": [6, 6, 5]}, {"hash_ids": [5, 6, 7]}]
    first, second, third = chains(load(write(qwen(*rows))))
    assert first[:2] == third[:2]
    assert len({*first, *second, *third}) == 7  # 6 after 5, after 6, and first are three blocks


def test_the_format_of_json_may_be_forced(write: Any) -> None:
    path = write(qwen({"timestamp": 1}, {"timestamp": 4}))
    assert load(path, format="qwen").arrival_s.tolist() == [0.0, 3.0]
    assert load(path, format="mooncake", block=16).arrival_s.tolist() == [0.0, 0.003]
    assert "row 1 (line 1): not JSON" in fault(write(BURSTGPT + "1,a,1,1,2,x\n"), format="mooncake")
    assert "column arrived_at is missing" in fault(path, format="vidur")


def test_json_keys_in_a_csv_header_are_no_json(write: Any) -> None:
    text = fault(write("timestamp,input_length,output_length,hash_ids\n0,1,1,[]\n", "x.csv"))
    assert "is of no known format" in text


def test_json_lines_as_they_come(write: Any) -> None:
    text = mooncake({"timestamp": 0}, {"timestamp": 1000})
    text = text.replace("\n", "\r\n\r\n")
    trace = load(write(b"\xef\xbb\xbf" + text.encode()))
    assert trace.arrival_s.tolist() == [0.0, 1.0]
    assert load(write(text.rstrip())).report.rows == 2
    broken = text + '{"timestamp": 2000,\r\n'
    assert "row 3 (line 5): not JSON" in fault(write(broken))
    assert "row 3 (line 5): must be a JSON object" in fault(write(text + "[1]\n"))
    assert "not UTF-8" in fault(write(text.encode() + b"\xff"))


def test_a_first_line_longer_than_most(write: Any) -> None:
    ids = list(range(40_000))
    path = write(qwen({"input_length": 640_000, "hash_ids": ids}))
    assert Path(path).stat().st_size > 200_000
    assert len(chains(load(path))[0]) == 40_000


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"timestamp": -1}, "timestamp = -1: must be a number of at least 0"),
        ({"timestamp": None}, "timestamp = null: must be a number"),
        ({"timestamp": "12"}, 'timestamp = "12": must be a number'),
        ({"timestamp": True}, "timestamp = true: must be a number"),
        ({"timestamp": float("nan")}, "timestamp = NaN: must be a number"),
        ({"timestamp": float("inf")}, "timestamp = Infinity: must be a number"),
        ({"input_length": 0}, "input_length = 0: must be a number of at least 1"),
        ({"input_length": 2.5}, "input_length = 2.5: must be a whole number of tokens"),
        ({"input_length": 3_000_000_000}, "input_length = 3000000000: must be a whole number"),
        ({"output_length": -2}, "output_length = -2: must be a number of at least 0"),
        ({"output_length": [1]}, "output_length = [1]: must be a number"),
        ({"hash_ids": 3}, "hash_ids = 3: must be a list of integers"),
        ({"hash_ids": [0, "a"]}, 'hash_ids holds "a": must be a list of integers'),
        ({"hash_ids": [0, 1.5]}, "hash_ids holds 1.5: must be a list of integers"),
        ({"hash_ids": [0, None]}, "hash_ids holds null: must be a list of integers"),
    ],
)
def test_bad_json_rows(write: Any, row: dict[str, Any], says: str) -> None:
    text = fault(write(mooncake({}, row)))
    assert says in text
    assert "trace.jsonl: row 2 (line 2): " in text


def test_missing_keys_are_named(write: Any) -> None:
    rows = mooncake({}) + '{"timestamp": 1, "input_length": 5}\n'
    assert "row 2 (line 2): output_length is missing; the object has timestamp" in fault(
        write(rows)
    )
    text = fault(write('{"request_id": 0, "type": "text", "input_length": 61}\n'))
    assert "key timestamp is missing (format mooncake); the first row has request_id" in text


def test_zero_output_of_json_rows(write: Any) -> None:
    path = write(mooncake({}, {"output_length": 0}, {"timestamp": 5, "hash_ids": [0, 2]}))
    assert "row 2 (line 2): output_length = 0: a request must have at least 1" in fault(path)
    trace = load(path, zero_output="skip")
    assert trace.report.skipped_zero_output == 1
    assert chains(trace) == [[0, 1], [0, 2]]  # the chains of the rows that are left


def test_unsorted_json_rows_keep_their_chains(write: Any) -> None:
    path = write(mooncake({"timestamp": 9}, {"timestamp": 1, "hash_ids": [3, 4]}))
    with pytest.warns(UserWarning, match="2 rows changed"):
        trace = load(path)
    assert chains(trace) == [[2, 3], [0, 1]]
    assert chains(load(write(mooncake({}, {"hash_ids": [3, 4]})), max_requests=1)) == [[0, 1]]


def test_rows_without_hashes_share_nothing(write: Any) -> None:
    bare = json.dumps({"timestamp": 2, "input_length": 600, "output_length": 1}) + "\n"
    trace = load(write(mooncake({}, {"hash_ids": []}, {"hash_ids": None}) + bare))
    assert chains(trace) == [[0, 1], [], [], []]
    assert load(write(bare)).chains is None


def test_a_few_odd_lists_are_believed_as_far_as_they_go(write: Any) -> None:
    rows = [{}, {"hash_ids": [0, 1, 2, 3]}, {"hash_ids": []}, {}, {"input_length": 1_600}]
    trace = load(write(mooncake(*rows)))
    assert trace.report.odd_chains == 2
    assert "2 with more or fewer prefix blocks than their prompt" in trace.report.describe()
    # The second has ids beyond its prompt, the last has 2 where its prompt has 3 whole blocks.
    assert chains(trace) == [[0, 1], [0, 1], [], [0, 1], [0, 1]]


def test_blocks_of_another_size_are_noticed(write: Any) -> None:
    rows = mooncake({"hash_ids": list(range(16))}, {"hash_ids": list(range(16))})
    text = fault(write(rows))
    assert "row 1 (line 1): hash_ids has 16 blocks for input_length = 1000" in text
    assert "must be 1 or 2 with blocks of 512 tokens; workload.trace.block names" in text
    trace = load(write(rows), block=64)
    assert trace.chains is not None
    assert trace.chains.block == 64
    assert "must be 62 or 63 with blocks of 16 tokens" in fault(write(rows), block=16)


def test_hashes_of_64_bits_without_a_sign(write: Any) -> None:
    big = 2**64 - 1
    trace = load(write(mooncake({"hash_ids": [big, 3]}, {"hash_ids": [big, big - 1]})))
    first, second = chains(trace)
    assert first[0] == second[0]
    assert len({*first, *second}) == 3
    huge = load(write(mooncake({"hash_ids": [-1, 2**70]}, {"hash_ids": [-1, 2**70]})))
    assert chains(huge) == [[0, 1], [0, 1]]


# --- BurstGPT and splitwise-sim --------------------------------------------------------------


def test_burstgpt_counts_from_the_first_request(write: Any) -> None:
    rows = "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,230,1317,API log\n"
    trace = load(write(BURSTGPT + rows, "b.csv"))
    assert trace.report.format == "burstgpt"
    assert trace.arrival_s.tolist() == [0.0, 40.0]
    assert (trace.prompt.tolist(), trace.decode.tolist()) == ([472, 1_087], [18, 230])


def test_burstgpts_later_columns(write: Any) -> None:
    header = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
        "Log Type\n"
    )
    trace = load(write(header + "10.5,,1.2,GPT-4,3,4,7,API log\n", "b.csv"))
    assert (trace.report.format, trace.prompt.tolist()) == ("burstgpt", [3])


def test_burstgpts_failures(write: Any) -> None:
    rows = "0,a,10,0,10,x\n1,a,0,0,0,x\n2,a,10,5,15,x\n"
    path = write(BURSTGPT + rows, "b.csv")
    assert "row 1 (line 2): Response tokens = 0: a request must have at least 1" in fault(path)
    trace = load(path, zero_output="skip")
    assert trace.report.skipped_zero_output == 2
    assert trace.arrival_s.tolist() == [2.0]  # since the first row, failed as it is
    text = fault(write(BURSTGPT + "0,a,0,7,7,x\n", "b.csv"))
    assert "row 1 (line 2): Request tokens = '0': a call with a response" in text


def test_splitwise_sims_generated_traces(write: Any) -> None:
    rows = "0,2,0,0.25,1,1131,9\n1,2,0,0.75,1,20,300\n"
    trace = load(write(SPLITWISE + rows, "s.csv"))
    assert trace.report.format == "splitwise"
    assert trace.arrival_s.tolist() == [0.25, 0.75]
    assert (trace.prompt.tolist(), trace.decode.tolist()) == ([1_131, 20], [9, 300])
    batched = fault(write(SPLITWISE + "0,2,0,0,1,5,5\n1,2,0,1,4,5,5\n", "s.csv"))
    assert "row 2 (line 3): batch_size = '4': must be 1" in batched
    other = fault(write(SPLITWISE + "0,1,0,0,1,5,5\n", "s.csv"))
    assert "row 1 (line 2): request_type = '1': must be 2" in other
    # Request ids are not used: the same one twice is no fault.
    assert load(write(SPLITWISE + "7,2,0,0,1,5,5\n7,2,0,1,1,5,5\n", "s.csv")).report.rows == 2


@pytest.mark.parametrize("name", ["auto", "qwen", "burstgpt"])
def test_a_pointer_is_not_the_data(write: Any, name: str) -> None:
    # Qwen-Bailian and BurstGPT keep their files in Git LFS: a plain clone has pointers.
    pointer = write("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    assert "is a Git LFS pointer, not the data" in fault(pointer, format=name)


def test_a_folder_is_no_trace(tmp_path: Path) -> None:
    assert "is a folder, must be a file" in fault(tmp_path)


def test_formats_are_told_apart_by_their_first_line(write: Any) -> None:
    starts = {
        "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00,1,1\n",
        "vidur": "arrived_at,num_prefill_tokens,num_decode_tokens\n0,1,1\n",
        "burstgpt": BURSTGPT + "0,a,1,1,2,x\n",
        "splitwise": SPLITWISE + "0,2,0,0,1,1,1\n",
        "csv": "arrival_s,prompt,decode\n0,1,1\n",
        "qwen": qwen({}),
        "mooncake": mooncake({}),
    }
    assert set(starts) == set(FORMATS)
    assert {name: load(write(text)).report.format for name, text in starts.items()} == {
        name: name for name in starts
    }


def test_the_block_option_belongs_to_json() -> None:
    with pytest.raises(ValueError, match="block = 16: only with format = 'mooncake', 'qwen'"):
        Trace(path="x", format="azure", block=16)


# --- through a scenario ----------------------------------------------------------------------


def scenario(path: str, **overrides: Any) -> Scenario:
    return Scenario.load(
        "trace",
        {
            "workload.trace.path": path,
            "period_s": 1.0,
            "cluster.timing": {"kind": "constant", "iteration_s": 1.0},
            "cluster.memory": None,
            "cluster.batch_limit": 8,
            "cluster.kv_limit": 200_000,
            "cluster.kv_block": 1,
            **{key.replace("__", "."): value for key, value in overrides.items()},
        },
    )


def test_a_shorter_horizon_cuts_the_chains(write: Any) -> None:
    path = write(
        mooncake(
            {"hash_ids": [4, 5]},
            {"timestamp": 900, "hash_ids": [6, 9]},
            {"timestamp": 5_000, "hash_ids": [0, 1]},
        )
    )
    chosen = scenario(path, horizon_periods=2)
    with pytest.warns(UserWarning, match="1 of 3 requests"):
        count = replay.arrivals_within(chosen)
    found = replay.chains_within(chosen, 512, count)
    assert found is not None
    check_chains(found.ids, found.start)
    assert found.start.tolist() == [0, 1, 2]  # whole blocks only: 1,000 tokens have one
    assert found.ids.tolist() == [0, 1]  # compact, though the row left out had the lowest


def test_a_clipped_prompt_has_fewer_blocks(write: Any) -> None:
    path = write(mooncake({"input_length": 2_000, "hash_ids": [0, 1, 2, 3]}))
    chosen = scenario(path, cluster__context_limit=1_200, workload__trace__over_limit="clip")
    found = replay.chains_within(chosen, 512, 1)
    assert found is not None
    assert found.start.tolist() == [0, 2]


def test_chains_are_an_episodes_own_and_read_again(write: Any) -> None:
    path = write(mooncake({}))
    chosen = scenario(path)
    first = replay.chains_within(chosen, 512, 1)
    assert first is not None
    first.ids[:] = 77
    second = replay.chains_within(chosen, 512, 1)
    assert second is not None
    assert second.ids.tolist() == [0]
    write(mooncake({"input_length": 1_024}))
    os.utime(path, ns=(1, 1))
    third = replay.chains_within(chosen, 512, 1)
    assert third is not None
    assert len(third.ids) == 2


def test_block_sizes_that_do_not_fit_are_refused_in_one_line(write: Any) -> None:
    chosen = scenario(write(mooncake({})))
    with pytest.raises(
        ScenarioError, match=r"prefix_cache\.block = 48: must divide the 512 tokens"
    ):
        replay.chains_within(chosen, 48, 1)
    csv = scenario(write("arrival_s,prompt,decode\n0,5,5\n", "plain.csv"))
    assert replay.chains_within(csv, 48, 1) is None


def test_without_caches_no_chains_are_made(write: Any) -> None:
    chosen = scenario(write(mooncake({}, {"timestamp": 3})))
    prepare(chosen)
    table = generate(chosen, Streams.spawn(np.random.default_rng(0))).validate()
    assert table.block_ids is None
    assert table.prompt.tolist() == [1_000, 1_000]


def test_caches_get_the_traces_chains(write: Any) -> None:
    path = write(mooncake({}, {"timestamp": 900}, {"timestamp": 1_900, "hash_ids": [0, 7]}))
    chosen = scenario(path, cluster__prefill={}, cluster__prefix_cache={"block": 256})
    table = generate(chosen, Streams.spawn(np.random.default_rng(0))).validate(block=256)
    assert table.block_ids is not None
    first, second, third = np.split(table.block_ids, 3)
    assert first.tolist() == second.tolist()  # the same last block of the prompt too
    assert third[:2].tolist() == first[:2].tolist()
    assert third[2] != first[2]
    odd = scenario(path, cluster__prefill={}, cluster__prefix_cache={"block": 48})
    with pytest.raises(ScenarioError, match=r"prefix_cache\.block = 48: must divide"):
        prepare(odd)
    # Rows drawn at random would repeat prompts that the trace has once: they share nothing.
    random = chosen.with_overrides(
        {"workload.arrivals": {"kind": "poisson", "rate": 5.0}, "horizon_periods": 50}
    )
    assert generate(random, Streams.spawn(np.random.default_rng(0))).block_ids is None
