"""The messages of `wire.proto` as classes; `wire.pyi` has their types. After a change there, in the repository's root:

python -m grpc_tools.protoc -I. --descriptor_set_out=tistream/tikv/core/wire.binpb --pyi_out=. tistream/tikv/core/wire.proto
mv tistream/tikv/core/wire_pb2.pyi tistream/tikv/core/wire.pyi
"""  # noqa: E501

from __future__ import annotations

from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessages

_DESCRIPTORS = FileDescriptorSet.FromString(Path(__file__).with_suffix(".binpb").read_bytes())
globals().update(
    {name.rpartition(".")[2]: kind for name, kind in GetMessages(_DESCRIPTORS.file, DescriptorPool()).items()}
)
