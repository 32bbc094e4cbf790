"""The slices of sequences that one of several context parallel ranks gets of each batch.

    batch        shape        of rank 0 of 2, chunks 0 and 3     of rank 1, chunks 1 and 2
    input_ids    (rows, 8)    [:, [0, 1, 6, 7]]                  [:, [2, 3, 4, 5]]
    labels       (rows, 8)    [:, [0, 1, 6, 7]]                  [:, [2, 3, 4, 5]]
    weight       (rows,)      all of it                          all of it
    position_ids is made:     [0, 1, 6, 7] in each row           [2, 3, 4, 5] in each row

What is cut depends on shapes alone, so ranks that have the same batch cut it, or refuse it, alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple, final

import torch

from torch_distinput.data.batch.jagged import JAGGED
from torch_distinput.data.batch.leaf_kind import LeafKind
from torch_distinput.data.batch.leaf_kinds import DENSE, kind_of, kind_of_spec
from torch_distinput.data.batch.structure import Structure
from torch_distinput.data.batch.tree import flatten, leaf_names, unflatten
from torch_distinput.data.steps.local_step import ReplicaBatch
from torch_distinput.errors import SourceError
from torch_distinput.plan.assignment.context_parallel import cut_head_and_tail, smallest_length
from torch_distinput.values import TensorSpec

SequenceColumns = tuple[tuple[Any, int], ...]
"""Keys of a batch, each with the dimension of its sequences."""
_POSITIONS = "position_ids"
_FIRST_OF_SEQUENCES = 1


class _Look(NamedTuple):
    """What of a leaf decides whether it is cut.

    ``sizes``: of a dense tensor those but for its rows, None if they vary; of others nothing.
    """

    kind: LeafKind
    sizes: tuple[int | None, ...]


class _Cut(NamedTuple):
    dim: int
    length: int | None


class _Plan(NamedTuple):
    """What becomes of a batch.

    Attributes:
        cuts: for each leaf how it is cut; None where all of it is kept.
        structure: of the batch that comes out.
        positions: the length of the sequences whose places are added; None if none are.
    """

    cuts: tuple[_Cut | None, ...]
    structure: Structure
    positions: _Cut | None


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceSlices:
    """What a rank gets of each batch: its slices of the sequences, and all of the rest.

    Attributes:
        index: which of the slices.
        num_slices: into how many a sequence is cut.
        columns: what holds sequences; None for all that have a dimension 1.
    """

    index: int
    num_slices: int
    columns: SequenceColumns | None = None

    def cut(self, part: ReplicaBatch) -> ReplicaBatch:
        """Take the slices of a batch; what is cut is copied.

        Raises:
            SourceError: for sequences that cannot be cut.
        """
        looks = tuple(_look_at(kind_of(leaf), leaf) for leaf in part.leaves)
        cuts, structure, positions = _plan(self, part.structure, looks)
        pairs = zip(part.leaves, cuts, strict=True)
        leaves = [leaf if cut is None else self._take(leaf, cut) for leaf, cut in pairs]
        if positions is not None:
            leaves.append(self._make_positions(positions, len(part.ids)))
        return ReplicaBatch(leaves, structure, part.ids)

    def cut_spec(self, spec: Any) -> Any:
        """What becomes of the spec of a batch with its ids; of None, which is not known, None."""
        if spec is None:
            return None
        leaves, structure = flatten(spec[0])
        looks = tuple(_look_at(kind_of_spec(leaf), leaf) for leaf in leaves)
        plan = _plan(self, structure, looks)
        pairs = zip(leaves, plan.cuts, strict=True)
        found = [leaf if cut is None else self._shrink(leaf, cut) for leaf, cut in pairs]
        if plan.positions is not None:
            whole = TensorSpec((None, plan.positions.length), torch.int64)
            found.append(self._shrink(whole, plan.positions))
        return unflatten(plan.structure, found), *spec[1:]

    def _chunks(self, cut: _Cut) -> tuple[tuple[int, int], ...]:
        assert cut.length is not None, "only that of a spec is open"
        return cut_head_and_tail(cut.length, index=self.index, num_slices=self.num_slices)

    def _take(self, leaf: torch.Tensor, cut: _Cut) -> torch.Tensor:
        if self.num_slices == 1:
            return leaf
        chunks = self._chunks(cut)
        # Copied, also where the two lie side by side: attention wants them dense in memory.
        return torch.cat([leaf.narrow(cut.dim, at, end - at) for at, end in chunks], cut.dim)

    def _make_positions(self, cut: _Cut, num_rows: int) -> torch.Tensor:
        places = torch.cat([torch.arange(*chunk, device="cpu") for chunk in self._chunks(cut)])
        return places.repeat(num_rows, 1)  # a row each: users may write into theirs

    def _shrink(self, leaf: TensorSpec, cut: _Cut) -> TensorSpec:
        shape = list(leaf.shape)
        shape[cut.dim] = None if cut.length is None else cut.length // self.num_slices
        return replace(leaf, shape=tuple(shape))


def _look_at(kind: LeafKind, leaf: Any) -> _Look:
    return _Look(kind, tuple(leaf.shape[1:]) if kind is DENSE else ())


@lru_cache(maxsize=64)  # it is the same for almost all steps
def _plan(slices: SequenceSlices, structure: Structure, looks: tuple[_Look, ...]) -> _Plan:
    names = leaf_names(structure, "batch")
    if slices.columns is None:
        cuts = tuple(_find_cuts(names, looks))
    else:
        cuts = tuple(_find_named(slices.columns, structure, names, looks))
    found = {name: cut for name, cut in zip(names, cuts, strict=True) if cut is not None}
    if not found:
        raise _make_no_sequences_error(names)
    for name, cut in found.items():
        if (cut.length or 0) % smallest_length(slices.num_slices):
            raise _make_not_divisible_error(name, cut, slices.num_slices)
    lengths = {cut.length for cut in found.values()}
    if not _is_mapping(structure) or _POSITIONS in structure.keys or len(lengths) > 1:
        return _Plan(cuts, structure, None)
    keys, children = (*structure.keys, _POSITIONS), (*structure.children, Structure(None))
    with_positions = Structure(structure.kind, keys, children)
    return _Plan(cuts, with_positions, _Cut(_FIRST_OF_SEQUENCES, *lengths))


def _find_cuts(names: Sequence[str], looks: Sequence[_Look]) -> Iterator[_Cut | None]:
    """Cut all tensors with two dimensions or more along the second, which must be of one size."""
    lengths: dict[str, int | None] = {}
    for name, look in zip(names, looks, strict=True):
        if look.kind is JAGGED:
            raise _make_jagged_error(name)
        if look.sizes:
            lengths[name] = look.sizes[0]
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{size} at {name}" for name, size in lengths.items())
        msg = (
            "Expected sequences of one length to cut (cp_dim), got tensors with different sizes "
            f"of dimension 1: {found}. Name those that hold sequences: for example "
            'InputOptions(cp_columns=("input_ids", "labels")).'
        )
        raise SourceError(msg)
    yield from (_Cut(_FIRST_OF_SEQUENCES, look.sizes[0]) if look.sizes else None for look in looks)


def _find_named(
    columns: SequenceColumns, structure: Structure, names: Sequence[str], looks: Sequence[_Look]
) -> Iterator[_Cut | None]:
    """Cut what is named, all leaves of it, along the dimensions that are named with it."""
    missing = [key for key, _ in columns if key not in structure.keys]
    if missing:
        has = f"the keys {list(structure.keys)}" if structure.keys else "a bare leaf"
        msg = (
            f"Expected the columns of cp_columns in the batch, got {has} without {missing}. Name "
            "keys of the batch, numbers for a tuple, or leave cp_columns out."
        )
        raise SourceError(msg)
    dims = dict(columns)
    widths = [child.num_leaves for child in structure.children]
    ends = dict(zip(structure.keys, accumulate(widths), strict=True))
    asked = {
        place: dims[key]
        for key, width in zip(structure.keys, widths, strict=True)
        if key in dims
        for place in range(ends[key] - width, ends[key])
    }
    for place, (name, look) in enumerate(zip(names, looks, strict=True)):
        dim = asked.get(place)
        if dim is None:
            yield None
            continue
        if look.kind is JAGGED:
            raise _make_jagged_error(name)
        if len(look.sizes) < dim:
            is_dense = look.kind is DENSE
            got = f"one of {1 + len(look.sizes)} dimensions" if is_dense else "no dense tensor"
            msg = (
                f"Expected a tensor with a dimension {dim} at {name}, where cp_columns has "
                f"sequences, got {got}. Name another column or dimension."
            )
            raise SourceError(msg)
        yield _Cut(dim, look.sizes[dim - 1])


def _is_mapping(structure: Structure) -> bool:
    return structure.kind is not None and issubclass(structure.kind, Mapping)


def _make_no_sequences_error(names: Sequence[str]) -> SourceError:
    return SourceError(
        "Expected a batch with sequences to cut (cp_dim), tensors of shape (rows, length, ...), "
        f"got none among {', '.join(names) or 'no leaves'}. Leave cp_dim out for this dataset, or "
        "collate the tokens to one tensor."
    )


def _make_not_divisible_error(name: str, cut: _Cut, num_slices: int) -> SourceError:
    size = smallest_length(num_slices)
    assert cut.length is not None, "an open length is no number to divide"
    return SourceError(
        f"Expected sequences whose length is a multiple of {size}, two chunks for each of the "
        f"{num_slices} ranks of cp_dim, got {cut.length} in dimension {cut.dim} of {name}. Pad to "
        f"{-(-cut.length // size) * size} in the collate_fn, or pack rows of such a length."
    )


def _make_jagged_error(name: str) -> SourceError:
    return SourceError(
        f"Expected sequences of one length to cut (cp_dim), got a jagged tensor at {name}. Pad its "
        "rows to one length in the collate_fn; or name the columns to cut in cp_columns, and it "
        "stays whole."
    )
