"""A FileDataset as a stream: its listing, its shards, and what is left to do after the cut."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch_distinput.data.collate import collate_examples
from torch_distinput.data.file_dataset import FileDataset, read_chunks
from torch_distinput.data.file_ops import Key, split_final_maps
from torch_distinput.data.files import FileInfo
from torch_distinput.data.stream import Chunk, ChunkReader, Collate, RowReader, Shard
from torch_distinput.data.structure import Batch, Examples


@dataclass(frozen=True, slots=True)
class FileStream:
    """The records of listed files.

    Without a collate function what the reader gives is a batch already, unless a map made examples.
    """

    dataset: FileDataset
    listing: tuple[FileInfo, ...]
    collate: Collate | None

    def open(self, shard: Shard) -> RowReader:
        """Start reading the files of a shard, up to the final maps."""
        chunks = read_chunks(
            self.dataset, self._key(shard), num_shards=shard.num_shards, index=shard.index
        )
        return ChunkReader(chunks)

    def finish(self, chunk: Chunk, shard: Shard) -> Batch:
        """Run the final maps, for these rows only, and collate what they made."""
        data = self.mapped(chunk, shard).data
        if self.collate is not None:
            return self.collate(list(data))
        return collate_examples(data) if isinstance(data, Examples) else data

    def mapped(self, chunk: Chunk, shard: Shard) -> Chunk:
        """Run the final maps."""
        body, final_maps = split_final_maps(self.dataset.operations)
        for number, final_map in enumerate(final_maps, len(body)):
            chunk = final_map.mapped(chunk, replace(self._key(shard), operation=number))
        return chunk

    def _key(self, shard: Shard) -> Key:
        paths = tuple(info.path for info in self.listing)
        return Key(seed=shard.seed, epoch=shard.epoch, paths=paths)
