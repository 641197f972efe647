"""One way into all three formats: ``read`` finds the configurations that a file holds."""

from __future__ import annotations

import dataclasses

from npu.errors import FormatError
from npu.formats.xclbin.axlf import Axlf, is_axlf, read_axlf
from npu.formats.xclbin.cdo import Cdo, is_cdo, read_cdo
from npu.formats.xclbin.partition import AiePartition, PartitionPdi, read_partition
from npu.formats.xclbin.pdi import Partition, Pdi, is_pdi, read_pdi


@dataclasses.dataclass(frozen=True)
class Configuration:
    """What configures the array once: a CDO, on its own or in a PDI.

    ``missing`` bytes at the end of the image are not there and read as zero (transformed.py).
    """

    name: str
    cdo: Cdo
    pdi: Pdi | None = None
    missing: int = 0


@dataclasses.dataclass(frozen=True)
class Image:
    """A file: ``kind`` is "xclbin", "PDI" or "CDO". ``configurations`` reads them on demand."""

    kind: str
    label: str
    data: memoryview
    axlf: Axlf | None = None
    partition: AiePartition | None = None

    def pdis(self) -> tuple[PartitionPdi, ...]:
        return self.partition.pdis if self.partition else ()

    @property
    def count(self) -> int:
        """How many PDIs (or CDOs) there are."""
        return len(self.pdis()) if self.kind == "xclbin" else 1

    def configurations(self, index: int) -> tuple[Configuration, ...]:
        """The configurations of PDI ``index``: one per CDO partition, in order."""
        if self.kind == "CDO":
            return (Configuration(self.label, read_cdo(self.data, self.label)),)
        label = self.label if self.kind == "PDI" else f"{self.label}, PDI {index}"
        image = self.data if self.kind == "PDI" else self.pdis()[index].image
        pdi = read_pdi(image, label)
        return tuple(_configuration(pdi, one) for one in pdi.partitions if one.is_cdo)


def _configuration(pdi: Pdi, partition: Partition) -> Configuration:
    cdo, missing = pdi.cdo(partition)
    return Configuration(pdi.label, cdo, pdi, missing)


def is_image(data: bytes | memoryview) -> bool:
    """Whether the bytes begin as an xclbin, a PDI or a CDO."""
    return is_axlf(data) or is_cdo(data) or is_pdi(data)


def read(data: bytes | memoryview, label: str) -> Image:
    """Reads the containers; ``label`` names the file in errors. Raises FormatError."""
    view = memoryview(data).cast("B") if len(data) else memoryview(b"")
    if is_axlf(view):
        axlf = read_axlf(view, label)
        section = axlf.section("AIE_PARTITION")
        partition = read_partition(section.data, f"{label}, AIE_PARTITION") if section else None
        return Image("xclbin", label, view, axlf, partition)
    if is_cdo(view):
        return Image("CDO", label, view)
    if is_pdi(view):
        return Image("PDI", label, view)
    raise FormatError(
        f"[{label}] no xclbin, PDI or CDO: it begins with {bytes(view[:8]).hex(' ') or 'nothing'}"
    )
