// Fills a C tile with zeros. `count` elements, a multiple of 16.
#include <stdint.h>

#include <aie_api/aie.hpp>

namespace {

template <typename T>
inline void zero(T* __restrict c, int32_t count) {
  constexpr int32_t kLanes = 16;
  const auto nothing = aie::zeros<T, kLanes>();
  for (int32_t i = 0; i < count; i += kLanes) aie::store_v(c + i, nothing);
}

}  // namespace

extern "C" {

void zero_f32(float* c, int32_t count) { zero(c, count); }
void zero_i32(int32_t* c, int32_t count) { zero(c, count); }
void zero_i16(int16_t* c, int32_t count) { zero(c, count); }
void zero_i8(int8_t* c, int32_t count) { zero(c, count); }
void zero_bf16(bfloat16* c, int32_t count) { zero(c, count); }

}  // extern "C"
