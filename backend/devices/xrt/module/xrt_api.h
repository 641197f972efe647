// XRT's public headers as the module uses them: those of 2.17 (2024-05) and newer have all of it.
#pragma once

#include <xrt/xrt_bo.h>
#include <xrt/xrt_device.h>
#include <xrt/xrt_hw_context.h>
#include <xrt/xrt_kernel.h>
#if __has_include(<xrt/experimental/xrt_xclbin.h>)
#include <xrt/experimental/xrt_system.h>
#include <xrt/experimental/xrt_xclbin.h>
#else
#include <experimental/xrt_system.h>
#include <experimental/xrt_xclbin.h>
#endif
