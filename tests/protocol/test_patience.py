"""What clients say about their patience bounds how long they are held, in whatever unit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laar.protocol.headers import attributes_read, header_of, read_head
from laar.protocol.patience import PATIENCE_HEADERS, patience_of

GRPC_S = {"H": 3600, "M": 60, "S": 1, "m": 1e-3, "u": 1e-6, "n": 1e-9}


@given(st.integers(1, 10**7), st.sampled_from(sorted(GRPC_S)))
def test_every_header_is_read_in_its_unit(number, unit):
    assert patience_of({"grpc-timeout": f"{number}{unit}"}) == pytest.approx(number * GRPC_S[unit])
    for name in ("x-stainless-timeout", "x-stainless-read-timeout"):
        assert patience_of({name: f"{number / 4}"}) == number / 4
    assert patience_of({"x-envoy-upstream-rq-timeout-ms": str(number)}) == pytest.approx(
        number / 1000
    )


@given(st.dictionaries(st.sampled_from(sorted(PATIENCE_HEADERS)), st.text(max_size=20)))
def test_any_value_is_read_or_ignored(headers):
    found = patience_of(headers)
    assert found is None or 0.0 < found < float("inf")


@pytest.mark.parametrize("value", ["", "0", "-1", "nan", "inf", "None", "1e999", "S", "9" * 17])
def test_a_client_without_a_limit_is_not_bounded_and_the_least_of_several_counts(value):
    headers = {name: value for name in PATIENCE_HEADERS if name != "x-stainless-timeout"}
    assert patience_of(headers) is None
    assert read_head({**headers, "x-stainless-timeout": "600"}).patience_s == 600.0
    assert set(map(header_of, attributes_read())) >= PATIENCE_HEADERS
