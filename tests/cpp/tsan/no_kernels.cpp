// Host builds without a kernel, for the ThreadSanitizer tests: they bring functions of their own,
// and the kernels take most of a build.
#include "kernels/host_build.h"

namespace npu::kernels {

extern const HostBuild npu1_fast_v2 = {}, npu1_fast_v3 = {}, npu1_fast_v4 = {},
                       npu1_fast_v4bf16 = {};
extern const HostBuild npu2_fast_v2 = {}, npu2_fast_v3 = {}, npu2_fast_v4 = {},
                       npu2_fast_v4bf16 = {};
extern const HostBuild npu1_silicon = {}, npu2_silicon = {};

}  // namespace npu::kernels
