// The arrays of an emulated device: one for each of the configurations that were loaded last, so
// that loading one of them again costs little and finds the runs that were recorded with it. To
// streams they are one array, which each load resets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>

#include "arch/geometry.h"
#include "devices/emulator/array.h"

namespace npu::emulator {

class LoadedArrays {
 public:
  // Those of a model, its decoder and its prompts, and of products beside them: small and large
  // ones of several types. Each takes 6 MB, the current one up to eight times as much where runs go
  // on beside each other.
  static constexpr size_t kMost = 8;

  explicit LoadedArrays(const arch::Geometry& geometry);

  Array& current() { return *all_.front().array; }
  const Array& current() const { return *all_.front().array; }
  // Makes the array that has run this configuration the current one, as if it were loaded afresh.
  // False if there is none: then the current one is to be configured, and loaded() to be called.
  bool reload(uint64_t configuration);
  void loaded(uint64_t configuration);
  size_t size() const { return all_.size(); }

 private:
  struct Entry {
    std::unique_ptr<Array> array;
    uint64_t configuration = 0;
    uint64_t epoch = 0;  // Array::epoch() with it
  };
  void add();

  const arch::Geometry& geometry_;
  std::list<Entry> all_;  // the current one, then by their last use
};

}  // namespace npu::emulator
