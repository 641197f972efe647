"""The AIE_PARTITION section of an xclbin: columns, PDIs and which kernels they serve.

Layout: a header of 184 bytes, arrays and strings by their offset from the start of the section.
Facts from XRT (struct aie_partition, aie_pdi, cdo_group of xrt/detail/xclbin.h).
"""

from __future__ import annotations

import dataclasses
import struct
import uuid
from collections.abc import Iterator

from npu.formats.xclbin.fields import Fields

HEADER = struct.Struct("<B3xII4xQQ H6xII72x II I52x")
PDI = struct.Struct("<16sIIII64x")
GROUP = struct.Struct("<IB3xQIIII64x")
CDO_TYPES = ("unknown", "primary", "lite", "pre/post")


@dataclasses.dataclass(frozen=True)
class CdoGroup:
    """``kernel_ids`` are the DPU kernels (IP_LAYOUT's ids) that need the PDI ``pdi_id``."""

    name: str
    kind: str
    pdi_id: int
    kernel_ids: tuple[int, ...]
    pre_groups: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class PartitionPdi:
    uuid: uuid.UUID
    image: memoryview
    groups: tuple[CdoGroup, ...]


@dataclasses.dataclass(frozen=True)
class AiePartition:
    """``column_width`` columns from any of ``start_columns``."""

    name: str
    schema_version: int
    operations_per_cycle: int
    inference_fingerprint: int
    pre_post_fingerprint: int
    column_width: int
    start_columns: tuple[int, ...]
    kernel_commit: str
    pdis: tuple[PartitionPdi, ...]


def read_partition(data: bytes | memoryview, label: str = "AIE_PARTITION") -> AiePartition:
    fields = Fields(data, label)
    header = fields.unpack(HEADER, 0, "the partition header")
    schema, name, per_cycle, inference, pre_post, width, columns, columns_at = header[:8]
    pdis, pdis_at, commit = header[8:]
    budget = _Budget(fields)
    return AiePartition(
        fields.string(name, "the partition's name") if name else "",
        schema,
        per_cycle,
        inference,
        pre_post,
        width,
        budget.array("H", columns, columns_at, "the start columns"),
        fields.string(commit, "the kernel commit") if commit else "",
        tuple(_pdis(budget, pdis, pdis_at)),
    )


class _Budget:
    """No two arrays share bytes, so that a small file cannot stand for a huge one."""

    def __init__(self, fields: Fields) -> None:
        self.fields, self.left = fields, len(fields)

    def take(self, size: int, what: str) -> None:
        self.left -= size
        if self.left < 0:
            raise self.fields.fail(f"{what} and what precedes exceed the section: they overlap")

    def slice(self, offset: int, size: int, what: str) -> memoryview:
        self.take(size, what)
        return self.fields.slice(offset, size, what)

    def array(self, code: str, count: int, offset: int, what: str) -> tuple[int, ...]:
        layout = struct.Struct(f"<{code}")
        data = self.slice(offset, count * layout.size, what)
        return tuple(value for (value,) in layout.iter_unpack(data)) if count else ()


def _pdis(budget: _Budget, count: int, offset: int) -> Iterator[PartitionPdi]:
    for index, entry in enumerate(PDI.iter_unpack(_entries(budget, PDI, count, offset, "PDIs"))):
        own, size, image_at, groups, groups_at = entry
        image = budget.slice(image_at, size, f"the image of PDI {index}")
        found = _entries(budget, GROUP, groups, groups_at, f"CDO groups of PDI {index}")
        yield PartitionPdi(
            uuid.UUID(bytes=own),
            image,
            tuple(_group(budget, one) for one in GROUP.iter_unpack(found)),
        )


def _entries(
    budget: _Budget, layout: struct.Struct, count: int, offset: int, what: str
) -> memoryview:
    return budget.slice(offset, count * layout.size, f"an array of {count} {what}")


def _group(budget: _Budget, entry: tuple[int, ...]) -> CdoGroup:
    name, kind, pdi_id, kernels, kernels_at, before, before_at = entry
    return CdoGroup(
        budget.fields.string(name, "the name of a CDO group") if name else "",
        CDO_TYPES[kind] if kind < len(CDO_TYPES) else str(kind),
        pdi_id,
        budget.array("Q", kernels, kernels_at, "the kernel ids of a CDO group"),
        budget.array("I", before, before_at, "the groups before a CDO group"),
    )
