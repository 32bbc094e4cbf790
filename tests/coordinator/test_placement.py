"""Which server holds which rows: all small modules on one to four servers."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from torch_distinput.coordinator.parameters.placement import ParameterSpec, place_parameters
from torch_distinput.errors import ConfigurationError

SHAPES = ((), (3,), (1, 4), (2, 20), (5, 2), (8, 3))


def spec(name, shape, *, is_embedding=False):
    return ParameterSpec(
        name=name, shape=shape, dtype=torch.float32, is_embedding=is_embedding, requires_grad=True
    )


def modules():
    """All modules of three parameters of six shapes; those of two dimensions are embeddings."""
    for shapes in product(SHAPES, repeat=3):
        yield [
            spec(f"p{number}", shape, is_embedding=len(shape) == 2)
            for number, shape in enumerate(shapes)
        ]


def num_bytes(shard, specs):
    row_bytes = {one.name: one.row_bytes for one in specs}
    return (shard.stop - shard.start) * row_bytes[shard.name]


CASES = [(specs, num_servers) for specs in modules() for num_servers in (1, 2, 3, 4)]


def test_each_row_of_each_parameter_lies_on_one_server():
    for specs, num_servers in CASES:
        shards = place_parameters(specs, num_servers)
        expected = [(one.name, row) for one in specs for row in range(one.num_rows)]
        rows = [(one.name, row) for one in shards for row in range(one.start, one.stop)]
        assert expected == rows
        assert {one.server for one in shards} <= set(range(num_servers))


def test_no_server_has_more_than_another_by_more_than_one_piece():
    for specs, num_servers in CASES:
        shards = place_parameters(specs, num_servers)
        loads = [0] * num_servers
        for shard in shards:
            loads[shard.server] += num_bytes(shard, specs)
        assert max(loads) - min(loads) <= max(num_bytes(one, specs) for one in shards)


def test_an_embedding_has_rows_on_each_server_and_others_stay_whole():
    for specs, num_servers in CASES:
        shards = place_parameters(specs, num_servers)
        for one in specs:
            mine = [shard for shard in shards if shard.name == one.name]
            count = min(num_servers, one.num_rows) if one.is_embedding else 1
            assert count == len({shard.server for shard in mine}) == len(mine)
            assert {count == 1} == {shard.is_whole for shard in mine}
            sizes = {shard.stop - shard.start for shard in mine}
            assert max(sizes) - min(sizes) <= 1


def test_the_largest_comes_first():
    specs = [spec("small", (2,)), spec("large", (9,)), spec("middle", (5,))]
    shards = place_parameters(specs, 2)
    assert [("small", 1), ("large", 0), ("middle", 1)] == [(one.name, one.server) for one in shards]


def test_a_partitioner_says_into_how_many_rows():
    asked = []

    def partitioner(*args):
        asked.append(args)
        return 4 if args[0] == "a" else 1

    shards = place_parameters([spec("a", (6, 2)), spec("b", (2,))], 3, partitioner)
    assert [("a", (6, 2), torch.float32, 3), ("b", (2,), torch.float32, 3)] == asked
    assert [("a", 0, 1), ("a", 1, 3), ("a", 3, 4), ("a", 4, 6), ("b", 0, 2)] == [
        (one.name, one.start, one.stop) for one in shards
    ]


@pytest.mark.parametrize("count", [0, 7, 2.0, None, True])
def test_an_impossible_number_of_shards_is_refused(count):
    with pytest.raises(ConfigurationError, match=r"from 1 to 6, got .*Return 1"):
        place_parameters([spec("a", (6, 2))], 2, lambda *_: count)
