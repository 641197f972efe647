// The arrays of a device (devices/emulator/loaded_arrays.h): asserts that a configuration that was
// loaded before finds its array as if it were loaded afresh, unless that has failed or was
// configured otherwise; that the one used least recently leaves.
#include "devices/emulator/loaded_arrays.h"
#include "emulator_fixture.h"

using namespace npu;
using namespace npu::test;

namespace {

using emulator::Array;
using emulator::LoadedArrays;

constexpr At kMemtile{0, 1};

void configure(Array& array, uint32_t value) {
  Machine m;
  m.config.write(kMemtile, 16, value);
  const Words words = m.config.words();
  array.configure(std::as_bytes(std::span(words)));
}
void load(LoadedArrays& arrays, uint64_t id) {
  if (arrays.reload(id)) return;
  configure(arrays.current(), static_cast<uint32_t>(id));
  arrays.loaded(id);
  CHECK(arrays.current().return_to_rest());  // as before its first run
}
uint32_t word(LoadedArrays& arrays) { return arrays.current().read_register(kMemtile.address(16)); }

}  // namespace

TEST_CASE("loaded arrays: a configuration finds its array as it was loaded") {
  LoadedArrays arrays(arch::device_geometry(Generation::kNpu2));
  load(arrays, 1);
  Array* const first = &arrays.current();
  load(arrays, 2);
  CHECK(&arrays.current() != first);
  arrays.current().write_register(kMemtile.address(16), 99);
  arrays.current().write_register(kMemtile.address(0x40000), 99);
  const uint64_t epoch = first->epoch();
  load(arrays, 1);
  CHECK(&arrays.current() == first);
  CHECK(first->epoch() == epoch);
  CHECK(word(arrays) == 1);
  load(arrays, 2);
  CHECK(word(arrays) == 2);
  CHECK(arrays.current().read_register(kMemtile.address(0x40000)) == 0);
  CHECK(arrays.size() == 2);
}

TEST_CASE("loaded arrays: one that was configured otherwise is not found") {
  LoadedArrays arrays(arch::device_geometry(Generation::kNpu2));
  load(arrays, 1);
  configure(arrays.current(), 7);  // as in a timed run
  CHECK(!arrays.reload(1));
  configure(arrays.current(), 1);
  arrays.loaded(1);
  CHECK(arrays.current().return_to_rest());
  arrays.current().abort();
  CHECK(!arrays.reload(1));
  load(arrays, 1);
  CHECK(word(arrays) == 1);
}

TEST_CASE("loaded arrays: the one used least recently leaves") {
  LoadedArrays arrays(arch::device_geometry(Generation::kNpu2));
  for (uint64_t id = 1; id <= LoadedArrays::kMost; ++id) load(arrays, id);
  CHECK(arrays.reload(1));
  load(arrays, 77);  // in the place of 2
  CHECK(arrays.size() == LoadedArrays::kMost);
  CHECK(arrays.reload(1));
  CHECK(arrays.reload(3));
  CHECK(!arrays.reload(2));
}
