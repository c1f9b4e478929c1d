"""What a plan may say of a server."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from joulewise.engines.endpoint_spec import EndpointSpec
from joulewise.plan import Plan


def spec(**told: Any) -> EndpointSpec:
    return EndpointSpec.model_validate(told)


def test_a_server_s_model_is_the_engine_s() -> None:
    assert spec(server={"kind": "vllm", "model": "owner/m"}).model == "owner/m"
    assert spec(server={"kind": "llamacpp"}).model == "default"
    assert spec(server={"kind": "vllm", "model": "owner/m"}, model="alias").model == "alias"


@pytest.mark.parametrize(
    ("told", "label"),
    [
        ({"server": {"kind": "vllm", "model": "owner/m"}}, "m@vllm"),
        ({"url": "http://gpu-node:8000/v1", "model": "owner/m"}, "m@gpu-node-8000"),
        ({"url": "http://a/v1", "model": "m", "name": "mine"}, "mine"),
    ],
)
def test_labels(told: dict[str, Any], label: str) -> None:
    assert spec(**told).label == label


def test_one_address_is_vanilla_s() -> None:
    assert spec(url="http://a/v1", model="m").addresses == {"vanilla": "http://a/v1"}
    two = {"vanilla": "http://a/v1", "coga-5": "http://b/v1"}
    assert spec(url=two, model="m").addresses == two
    assert spec(server={"kind": "vllm"}).addresses == {}


@pytest.mark.parametrize(
    ("server", "apart"),
    [
        ({"kind": "llamacpp"}, False),
        ({"kind": "vllm"}, True),
        ({"kind": "sglang"}, True),
        ({"kind": "llamacpp", "side_by_side": False}, True),
        ({"kind": "vllm", "side_by_side": True}, False),
    ],
)
def test_servers_that_take_a_gpu_s_memory_run_one_at_a_time(server: dict[str, Any], apart: bool) -> None:
    assert spec(server=server).one_at_a_time is apart
    assert not spec(url="http://a/v1", model="m").one_at_a_time


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        ({}, "needs either 'url'"),
        ({"url": "http://a/v1", "model": "m", "server": {"kind": "vllm"}}, "needs either 'url'"),
        ({"url": "http://a/v1"}, "needs 'model'"),
        ({"url": "localhost:8000", "model": "m"}, "is no address"),
        ({"url": "http://me:secret@a/v1", "model": "m"}, "leave names, passwords and queries out"),
        ({"url": {"vanilla": "a"}, "model": "m"}, "'a' is no address"),
        ({"url": {}, "model": "m"}, "names no address"),
        ({"server": {"kind": "vllm", "args": {"--seed": 1}}}, "without dashes"),
        ({"server": {"kind": "vllm", "args": {"api-key": "x"}}}, "keys belong in the environment"),
        ({"server": {"kind": "vllm", "env": {"HF_TOKEN": "x"}}}, "keys belong in the environment"),
        ({"server": {"kind": "vllm", "port": 0}}, "greater than or equal to 1"),
        ({"server": {"kind": "tgi"}}, "'llamacpp', 'vllm' or 'sglang'"),
        ({"url": "http://a/v1", "model": "m", "key_env": "not a name"}, "key_env"),
    ],
)
def test_faults(told: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        spec(**told)


def test_a_plan_that_was_kept_reads_as_it_did() -> None:
    plan = Plan.model_validate(
        {
            "name": "p",
            "engines": [{"kind": "endpoint", "server": {"kind": "vllm", "model": "m", "args": {"a": [1, 2]}}}],
            "decodings": ["vanilla"],
            "tasks": ["starter-maths"],
        }
    )
    again = Plan.model_validate(plan.model_dump(mode="json"))
    assert again == plan
    assert again.content_hash == plan.content_hash
