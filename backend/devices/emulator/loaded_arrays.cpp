// Arrays by their configurations (loaded_arrays.h).
#include "devices/emulator/loaded_arrays.h"

#include <algorithm>
#include <iterator>

namespace npu::emulator {

LoadedArrays::LoadedArrays(const arch::Geometry& geometry) : geometry_(geometry) { add(); }

void LoadedArrays::add() {
  all_.push_front({std::make_unique<Array>(geometry_)});
  current().require_waits(true);
}

bool LoadedArrays::reload(uint64_t configuration) {
  current().drop_copies();
  const auto found = std::ranges::find_if(all_, [&](const Entry& entry) {
    return entry.configuration == configuration && entry.epoch == entry.array->epoch();
  });
  if (found != all_.end()) {
    all_.splice(all_.begin(), all_, found);
    return current().reload();
  }
  // Nothing was loaded yet, or what it has is of no use any more.
  if (all_.front().epoch == 0 || current().faulted()) return false;
  if (all_.size() < kMost) {
    add();
  } else {
    all_.splice(all_.begin(), all_, std::prev(all_.end()));
  }
  return false;
}

void LoadedArrays::loaded(uint64_t configuration) {
  all_.front().configuration = configuration;
  all_.front().epoch = current().epoch();
}

}  // namespace npu::emulator
