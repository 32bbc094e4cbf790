"""Preprocessing layers whose state is found by all ranks together, for training and serving.

Layers after Keras's, with its names and keywords. A layer is a ``torch.nn.Module``: in the pipeline
it takes host values, strings among them; in a model it is tensor code that ``torch.export``
follows. Both give the same. :func:`analyze` is TensorFlow Transform's full pass over files.

    features = pp.Features(age=pp.Normalization(), city=pp.StringLookup(max_tokens=1000))
    features.adapt(dataset, strategy=strategy)     # one pass; each rank reads its own part
    pp.save(features, "out"); pp.load("out")

The state of a layer is a function of the multiset of examples: batches, order and the number of
ranks do not change one bit of it.
"""

from torch_distinput.preprocessing.analysis.analyze import analyze
from torch_distinput.preprocessing.artifact.artifact import load, save
from torch_distinput.preprocessing.layers.discretization import Discretization
from torch_distinput.preprocessing.layers.encoding import CategoryEncoding
from torch_distinput.preprocessing.layers.features import Features
from torch_distinput.preprocessing.layers.hashing import HashedCrossing, Hashing
from torch_distinput.preprocessing.layers.integer_lookup import IntegerLookup
from torch_distinput.preprocessing.layers.scaling import Normalization, Rescaling
from torch_distinput.preprocessing.layers.string_lookup import StringLookup
from torch_distinput.preprocessing.layers.text_vectorization import TextVectorization
from torch_distinput.preprocessing.strings.packed import PaddedStrings, pack_strings, unpack_strings

__all__ = [
    "CategoryEncoding",
    "Discretization",
    "Features",
    "HashedCrossing",
    "Hashing",
    "IntegerLookup",
    "Normalization",
    "PaddedStrings",
    "Rescaling",
    "StringLookup",
    "TextVectorization",
    "analyze",
    "load",
    "pack_strings",
    "save",
    "unpack_strings",
]
