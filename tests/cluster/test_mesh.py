"""Which dimensions of a mesh hold data, and which ranks share it: no process group is needed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import torch_distinput as tdi
from torch_distinput.cluster.mesh import describe_dims, find_context_dim, find_data_dims, rows_of


@dataclass
class Mesh:
    """What is asked of a DeviceMesh."""

    mesh_dim_names: tuple[str, ...] | None
    shape: tuple[int, ...] = ()
    ranks: tuple[tuple[int, ...], ...] | None = None
    rank: int = 0

    def __post_init__(self):
        shape = self.shape or (2,) * len(self.mesh_dim_names)
        self.mesh = torch.arange(torch.Size(shape).numel()).view(shape)
        if self.ranks is not None:
            self.mesh = torch.tensor(self.ranks)

    @property
    def ndim(self):
        return self.mesh.ndim

    def get_coordinate(self):
        return [index.item() for index in (self.mesh == self.rank).nonzero()[0]]


@dataclass(frozen=True)
class Dims:
    """The attributes of torch's DataParallelMeshDims, which torch before 2.13 lacks."""

    shard: str | tuple[str, ...] | None = None
    replicate: str | tuple[str, ...] | None = None


HSDP = Mesh(("replicate", "shard", "tensor"))


@pytest.mark.parametrize(
    ("data_dims", "expected"),
    [
        (["shard"], (1,)),
        ("shard", (1,)),  # one name, and not its letters
        (("shard", "replicate"), (1, 0)),
        (Dims(shard="shard"), (1,)),
        (Dims(replicate="replicate"), (0,)),
        (Dims(shard="shard", replicate="replicate"), (0, 1)),
        (Dims(shard=("shard", "tensor"), replicate=("replicate",)), (0, 1, 2)),
        ((), ()),  # all ranks share everything
    ],
)
def test_names_and_fsdp2s_dimensions(data_dims, expected):
    assert expected == find_data_dims(HSDP, data_dims)


def test_the_class_of_torch_itself():
    """As far as this torch has it."""
    from torch.distributed import fsdp

    kind = getattr(fsdp, "DataParallelMeshDims", Dims)
    assert (0, 1) == find_data_dims(HSDP, kind(shard="shard", replicate="replicate"))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("dp_replicate", "dp_shard", "tp"), (0, 1)),
        (("pp", "dp_replicate", "dp_shard", "cp", "tp"), (1, 2)),  # torchtitan's
        (("pp", "batch", "cp", "tp"), (1,)),
        (("dp_replicate", "fsdp", "cp"), (0, 1)),
        (("data_parallel", "tensor_parallel"), (0,)),  # Lightning's
        (("tp", "dp"), (1,)),
        (("anything",), (0,)),  # the only dimension
        (("fsdp",), (0,)),
    ],
)
def test_dimensions_that_are_known_by_name(names, expected):
    assert expected == find_data_dims(Mesh(names), None)


def test_the_only_dimension_needs_no_name():
    assert (0,) == find_data_dims(Mesh(None, (4,)), None)


@pytest.mark.parametrize(
    ("mesh", "data_dims", "words"),
    [
        (HSDP, None, r"data_dims for a mesh of 3 dimensions \('replicate', .*in data_dims="),
        (Mesh(("dp", "mine")), None, "names of all dimensions must be known ones: dp, dp_replic"),
        (Mesh(("tp", "cp")), None, "Expected data_dims for a mesh of 2 dimensions"),
        (Mesh(("tp",)), None, "Expected data_dims for a mesh of 1 dimensions"),
        (Mesh(("fsdp", "tp")), None, "without 'cp', nobody can tell whether context parallel"),
        (Mesh(("dp_shard", "efsdp")), None, "Expected data_dims"),
        (HSDP, ("shard", "dp"), r"among the mesh's dimensions \('replicate', .*got \['dp'\]"),
        (HSDP, Dims(shard="dp"), r"among the mesh's dimensions .*got \['dp'\]"),
        (Mesh(None, (2, 2)), "dp", "has none: pass mesh_dim_names= to init_device_mesh"),
        (HSDP, ("shard", "shard"), r"each dimension of the mesh once, got .*\['shard'\] again"),
        (HSDP, 1, "must be names of the mesh's dimensions, or torch's DataParallelMeshDims, got 1"),
        (HSDP, (0, 1), "must be names of the mesh's dimensions"),
    ],
)
def test_dimensions_that_are_not_there(mesh, data_dims, words):
    """The cure is in the message."""
    with pytest.raises(tdi.ConfigurationError, match=words):
        find_data_dims(mesh, data_dims)


def test_a_column_shares_its_data():
    """Workers come in the order of their ranks, whatever the order of the dimensions."""
    assert [[0, 2], [1, 3]] == rows_of(Mesh(("dp", "tp")), (0,)).tolist()
    cube = Mesh(("a", "b", "c"))
    assert [[0, 1, 4, 5], [2, 3, 6, 7]] == rows_of(cube, (0, 2)).tolist()
    assert [[0, 1, 4, 5], [2, 3, 6, 7]] == rows_of(cube, (2, 0)).tolist()
    assert [[rank] for rank in range(8)] == rows_of(cube, ()).tolist()
    backwards = Mesh(("tp", "dp"), ranks=((3, 2), (1, 0)))
    assert [[2, 3], [0, 1]] == rows_of(backwards, (1,)).tolist()


def test_columns_whose_ranks_torch_would_number_differently():
    """In the group of 0 and 3 rank 0 is worker 0, in that of 2 and 1 rank 2 is worker 1."""
    with pytest.raises(tdi.ConfigurationError, match=r"\[\[0, 3\], \[2, 1\]\].*different data"):
        rows_of(Mesh(("tp", "dp"), ranks=((0, 3), (2, 1))), (1,))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"replicate_input": "broadcast"}, "which a device_mesh defines.*Pass device_mesh="),
        ({"data_dims": ["dp"]}, "no device_mesh was passed"),
    ],
)
def test_what_needs_a_mesh(arguments, words):
    with pytest.raises(tdi.ConfigurationError, match=words):
        tdi.MultiWorkerMirroredStrategy(["cpu"], **arguments)


def test_another_way_to_replicate():
    with pytest.raises(ValueError, match='must be "read" or "broadcast", got \'send\''):
        tdi.MultiWorkerMirroredStrategy(["cpu"], replicate_input="send")


@pytest.mark.parametrize(("rank", "index"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 0), (7, 1)])
def test_the_place_of_a_rank_along_the_dimension_of_sequences(rank, index):
    """Ranks that differ in other dimensions only have the same place."""
    mesh = Mesh(("dp", "cp", "tp"), rank=rank)
    found = find_context_dim(describe_dims(mesh, (0,)), "cp")
    assert (2, index) == (found.size, found.index)


@pytest.mark.parametrize(
    ("mesh", "name", "words"),
    [
        (Mesh(("dp", "cp", "tp")), "ep", r"got 'ep'; those beside the data are \('cp', 'tp'\)"),
        (Mesh(("dp", "cp", "tp")), "dp", "'dp', over which data is parallel.*out of data_dims"),
        (Mesh(None, (2, 2)), "cp", "no names: pass mesh_dim_names= to init_device_mesh"),
    ],
)
def test_dimensions_over_which_no_sequence_is_cut(mesh, name, words):
    with pytest.raises(tdi.ConfigurationError, match=words):
        find_context_dim(describe_dims(mesh, (0,)), name)


def test_sequences_are_cut_over_a_mesh_only():
    """As soon as the dataset is made."""
    options = tdi.InputOptions(cp_dim="cp")
    with pytest.raises(tdi.ConfigurationError, match="a strategy without one. Pass device_mesh="):
        tdi.OneDeviceStrategy("cpu").distribute_dataset(
            torch.ones(4, 4), global_batch_size=2, options=options
        )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cp_dim": 1}, "must be the name of a dimension of the mesh, got 1"),
        ({"cp_columns": ["x"]}, "without cp_dim. Pass both"),
        ({"cp_dim": "cp", "cp_columns": "input_ids"}, "keys of a batch.*got 'input_ids'"),
        ({"cp_dim": "cp", "cp_columns": ()}, "keys of a batch"),
        ({"cp_dim": "cp", "cp_columns": {"x": 0}}, "dimension of 'x' in cp_columns.*at least 1"),
    ],
)
def test_options_that_say_nothing_about_sequences(settings, words):
    with pytest.raises((TypeError, ValueError), match=words):
        tdi.InputOptions(**settings)
