"""Readers of what NPU compilers write: xclbin containers, PDI images and CDO command lists.

An xclbin (axlf.py) holds a partition (partition.py) with one or more PDIs (pdi.py); a PDI holds
partitions of which the NPU's is a CDO (cdo.py), possibly rearranged by ``xclbinutil
--transform-pdi`` (transformed.py); the CDO's commands write the array's registers (writes.py turns
them into a TXN stream). ``read`` (image.py) takes any of the three.

Every reader raises FormatError for bytes that are truncated, inconsistent or of another format.
None of the formats says whether it is for npu1 or npu2.
"""

from npu.formats.xclbin.image import Configuration, Image, is_image, read

__all__ = ["Configuration", "Image", "is_image", "read"]
