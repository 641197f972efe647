"""The described cores, by generation."""

from npu.vliw.aie2 import AIE2
from npu.vliw.aie2p import AIE2P

MACHINES = {machine.generation: machine for machine in (AIE2, AIE2P)}
