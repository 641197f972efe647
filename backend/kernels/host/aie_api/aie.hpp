// Host implementation of the part of <aie_api/aie.hpp> that the kernels use: same names, same
// semantics, plain C++ for x86. What is missing here does not compile, rather than do less.
#pragma once

#include "accum.hpp"
#include "bfloat16.hpp"
#include "bfp16.hpp"
#include "compare.hpp"
#include "config.hpp"
#include "elementwise.hpp"
#include "exp2.hpp"
#include "int4.hpp"
#include "lanewise.hpp"
#include "mmul.hpp"
#include "rounding.hpp"
#include "tanh.hpp"
#include "vector.hpp"

#if !AIE_HOST_SILICON
#include "../fast/attention.hpp"
#include "../fast/bfp16.hpp"
#include "../fast/dequant.hpp"
#include "../fast/dequant_blocks.hpp"
#include "../fast/fp32.hpp"
#include "../fast/gelu.hpp"
#include "../fast/gemv.hpp"
#include "../fast/matmul.hpp"
#include "../fast/prefill_attention.hpp"
#include "../fast/prefill_operand.hpp"
#include "../fast/prefill_product.hpp"
#include "../fast/rows.hpp"
#endif
