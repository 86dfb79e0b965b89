"""What a user may give the vLLM plugin, and what is said of the rest."""

from __future__ import annotations

import pytest

from anydraft.errors import UsageError
from anydraft.plugins.options import Options, read_options


def test_nothing_given_is_lookup_under_auto() -> None:
    assert read_options({}, {}) == Options()
    assert read_options(None, {}) == Options()
    assert Options().method == "auto"


def test_options_come_from_the_config_or_the_environment() -> None:
    environment = {
        "ANYDRAFT_DRAFT": "small",
        "ANYDRAFT_WINDOW": "512",
        "ANYDRAFT_METHOD": "tli",
        "ANYDRAFT_DTYPE": "",
    }
    assert read_options({}, environment) == Options(draft="small", window=512, method="tli")
    config = {"anydraft": {"method": "slem", "kv_cache_gib": 2}, "other": 1}
    assert read_options(config, environment) == Options(
        draft="small", window=512, method="slem", kv_cache_gib=2.0
    )


def test_a_null_is_the_default() -> None:
    assert read_options({"anydraft": {"draft": None, "window": None}}, {}) == Options()


def test_int8_and_int4_are_anydrafts_own() -> None:
    assert read_options({"anydraft": {"draft": "d", "quantization": "int8"}}, {}).own_runtime
    assert not read_options({"anydraft": {"draft": "d", "quantization": "fp8"}}, {}).own_runtime


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"metod": "slem"}, r"has no option metod; there are draft, method, dtype, "),
        ({"method": "magic"}, r"method='magic' is unknown; choose one of auto, slem, tli, standard, lookup"),
        ({"method": "slrs"}, r"needs the draft's probabilities.*; use slem or auto"),
        ({"method": "slem"}, r"method='slem' needs a draft model: give draft, or use method='lookup'"),
        ({"draft": "d", "dtype": "int3"}, r"dtype='int3' is unknown; choose one of auto, bfloat16"),
        ({"window": 5}, r"window=5 must be at least 32 tokens"),
        ({"window": "many"}, r'\["window"\]=\'many\' must be a whole number'),
        ({"window": True}, r"must be a whole number"),
        ({"draft": 7}, r"must be text"),
        ({"window": 99.5}, r'\["window"\]=99.5 must be a whole number'),
        (
            {"draft": "d", "dtype": "float32", "quantization": "int8"},
            r"dtype='float32' does not go with quantization='int8', which is made from bfloat16; leave one out",
        ),
        ({"kv_cache_gib": 0}, r"kv_cache_gib=0.0 must be a number more than 0"),
        ({"kv_cache_gib": float("inf")}, r"kv_cache_gib=inf must be a number more than 0"),
        ({"log_interval": -1}, r"log_interval=-1.0 must be 0 or more"),
    ],
)
def test_bad_options_are_refused_in_one_line(given: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        read_options({"anydraft": given}, {})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("KV_CACHE_GIB", "much", "ANYDRAFT_KV_CACHE_GIB='much' must be a number"),
        ("WINDOW", "5", "ANYDRAFT_WINDOW=5 must be at least 32 tokens"),
        ("METHOD", "magic", "ANYDRAFT_METHOD='magic' is unknown; choose one of auto"),
    ],
)
def test_a_bad_variable_is_named(name: str, value: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"^{said}"):
        read_options({}, {f"ANYDRAFT_{name}": value})


def test_the_options_are_a_mapping() -> None:
    with pytest.raises(UsageError, match="must be a mapping"):
        read_options({"anydraft": "slem"}, {})
