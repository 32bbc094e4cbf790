"""Lines of JSON by orjson and by Python's parser: the same values, and the same errors."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import LONG
from tests.data.formats.test_jsonl import decode, lines, packed, record
from torch_distinput.data.batch.tree import flatten
from torch_distinput.data.formats import json_rows
from torch_distinput.data.formats.jsonl import JSONL

SCALARS = {
    "int": st.integers(-(2**70), 2**70) | st.integers(-5, 5),
    "float": st.floats() | st.integers(-3, 3),
    "bool": st.booleans(),
    "text": st.text(max_size=5)
    | st.sampled_from(["2020-01-01", "2020-01-01T10:00:00Z", "10:00", "1", ""]),
    "time": st.sampled_from(["2020-01-01", "2020-01-01 10:00:00", "1999-12-31"]),
    "null": st.none(),
}
ANY = st.one_of(*SCALARS.values())


def nested(children):
    return st.lists(children, max_size=3) | st.dictionaries(
        st.sampled_from("ab"), children, max_size=2
    )


@st.composite
def tables(draw):
    """Rows whose columns mostly have a type of their own, as files do."""
    kinds = draw(
        st.lists(
            st.sampled_from([*SCALARS.values(), ANY])
            | st.sampled_from([*SCALARS.values()]).map(lambda s: st.lists(s, max_size=3))
            | st.sampled_from([*SCALARS.values()]).map(
                lambda s: st.fixed_dictionaries({"p": s}, optional={"q": s})
            )
            | st.just(st.recursive(ANY, nested, max_leaves=4)),
            min_size=1,
            max_size=3,
        )
    )
    fields = {name: kind for name, kind in zip(["x", "ä", ""], kinds)}  # noqa: B905, C416
    optional = draw(st.booleans())
    row = st.fixed_dictionaries({}, optional=fields) if optional else st.fixed_dictionaries(fields)
    return draw(st.lists(row, min_size=1, max_size=5))


def outcome(parse):
    try:
        leaves, structure = flatten(parse())
    except ValueError as error:
        return str(error)
    return structure, [seen(leaf) for leaf in leaves]


def seen(leaf):
    if isinstance(leaf, torch.Tensor):
        rows = [row.numpy().tobytes() for row in leaf.unbind()]
        return leaf.dtype, leaf.is_nested, None if leaf.is_nested else leaf.shape, rows
    return type(leaf), repr(leaf.tolist() if isinstance(leaf, np.ndarray) else leaf)


@pytest.mark.slow
@settings(max_examples=300 if LONG else 100)
@given(tables(), st.booleans())
def test_both_parsers_see_the_same(table, ascii_only):
    records = [
        json.dumps(row, ensure_ascii=ascii_only).encode(errors="surrogatepass") for row in table
    ]
    reader = JSONL()
    lines = packed(records)
    assert outcome(lambda: reader.decode(lines)) == outcome(lambda: reader._exactly(lines))
    types = JSONL({"x": torch.float32})
    assert outcome(lambda: types.decode(lines)) == outcome(lambda: types._exactly(lines))


def test_the_fast_parser_is_taken():
    """Not only the same: orjson must really parse what is plain, the largest integers included."""
    ends = {"least": -(2**63), "most": 2**63 - 1, "float": 2.0**62}
    plain = packed(lines(*({**record(i), **ends, "also": [[2.5], {"a": 2**63}]} for i in range(7))))
    assert JSONL()._quickly(plain) is not None
    assert JSONL({"x": torch.float32, "text": str})._quickly(plain) is not None


def test_without_orjson_python_parses(monkeypatch):
    json_rows._orjson_loads.cache_clear()
    monkeypatch.setitem(sys.modules, "orjson", None)
    assert JSONL()._quickly(packed(lines({"a": 1}))) is None
    assert decode({"a": 1})["a"].tolist() == [1]
    json_rows._orjson_loads.cache_clear()


LARGE = ["9223372036854775808", "-9223372036854775809", "18446744073709551616", "1" + "0" * 30]


@pytest.mark.parametrize("number", LARGE)
@pytest.mark.parametrize(
    "value", ["{}", "[{}, null]", '[1, "x", {{"b": [[{}]]}}]', '{{"b": [{{"c": {}}}, []]}}']
)
def test_integers_beyond_64_bits_stay_integers(number, value):
    """Wherever they are; orjson makes floats of them."""
    rows = packed([b'{"a": ' + value.format(n).encode() + b"}" for n in (number, '"text"')])
    assert outcome(lambda: JSONL().decode(rows)) == outcome(lambda: JSONL()._exactly(rows))
    assert number in str(outcome(lambda: JSONL().decode(rows)))


TOKENS = [
    *("0", "-0", "-0.0", "01", "1.", ".5", "+1", "-", "1e5", "1E+5", "1e-400", "1e400", "-1e999"),
    *("NaN", "Infinity", "-Infinity", "nan", "null", "true", "false", "tru", "0x1", "9" * 5000),
    *("9223372036854775807", "-9223372036854775808", *LARGE, "1" + "0" * 309, "1e18", "1e19"),
    *("2.2250738585072011e-308", "5e-324", "1.7976931348623157e308", "1.7976931348623159e308"),
    *("9007199254740993.0", "0.1" + "0" * 800 + "1", "12345678901234567890e-10", "0e99999999999"),
    *('"x"', '""', '"\\ud800"', '"\\udc00\\ud800"', '"\\ud83d\\ude00"', '"\\u0000"', '"\t"'),
    *('"\0"', '"\x7f"', '"\\/"', '"\\x"', '"\ud800"', '"\udcff"', '"\U0001f600"', '"\ufeff"'),
    *("'x'", "[]", "{}", "[1,]", "[,]", '{"b": 1,}', '{"b": 1, "b": 2}'),
    *('{"\\u0062": 1, "b": [2]}', "[" * 150 + "]" * 150),
    '{"b": ' + "[" * 99 + "1e30" + "]" * 99 + "}",
]  # fmt: skip
KEYS = ['"a"', '"b"', '"a"', '"\\u0061"', '""', '"\\ud800"', "a"]
SPACES = ["", " ", "\t", "\r", "\x0b", "\u00a0", "\ufeff", "\0", "\x0c"]
often_empty = st.just("") | st.just(" ") | st.sampled_from(SPACES)
number_texts = st.from_regex(r"-?[0-9]{1,25}(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
def braced(pairs):
    return "{" + ", ".join(f"{key}:{value}" for key, value in pairs) + "}"


VALUES = st.recursive(
    st.sampled_from(TOKENS) | number_texts,
    lambda inner: st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
    | st.lists(st.tuples(st.sampled_from(KEYS), inner), max_size=3).map(braced),
    max_leaves=5,
)


@st.composite
def texts(draw):
    """Lines most of which are objects, some with something odd, and some of them torn."""
    inner = draw(st.lists(st.tuples(st.sampled_from(KEYS[:3]), VALUES), max_size=3).map(braced))
    line = draw(st.just(inner) | VALUES | st.just(inner * 2) | st.just('{"a": 1}'))
    line = draw(often_empty) + line + draw(often_empty)
    place = draw(st.none() | st.integers(0, len(line)))
    if place is not None:
        line = line[:place] + draw(st.sampled_from('{}[],:" 0e-')) + line[place + 1 :]
    return line.encode("utf-8", "surrogatepass").replace(b"\n", b"")


@pytest.mark.slow
@settings(max_examples=600 if LONG else 150)
@given(
    st.lists(texts(), min_size=1, max_size=3),
    st.sampled_from([None, ["a"], {"a": torch.float32}, {"a": (torch.int64, ...)}, {"a": str}]),
)
def test_both_parsers_see_the_same_in_any_text(lines, columns):
    """What is wrong, what only one of them takes, and what is another value to the other."""
    reader, records = JSONL(columns), packed(lines)
    found = outcome(lambda: reader.decode(records))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_rows, "_orjson_loads", lambda: None)
        assert found == outcome(lambda: reader.decode(records))
