// Residency test modes (residency.h).
#include "devices/emulator/residency.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "error.h"

namespace npu::emulator {

namespace {

constexpr size_t kMaxStreams = 4;
constexpr size_t kMaxCopy = size_t{64} << 20;  // bytes of one stream's arguments

template <typename Visit>
void each_lock(const Array& array, const Visit& visit) {
  for (int col = 0; col < array.device().columns; ++col) {
    for (int row = 1; row < arch::kRows; ++row) {
      const Tile& tile = *array.find_tile(col, row);
      for (size_t i = 0; i < tile.locks.size(); ++i) visit(tile, i);
    }
  }
}

}  // namespace

Residency Residency::parse(std::string_view text) {
  Residency out;
  constexpr std::string_view kRandom = "reload-random-";
  if (text == "reload") {
    out.reload = Reload::kEvery;
  } else if (text == "reload-second") {
    out.reload = Reload::kSecond;
  } else if (text == "intruder") {
    out.intruder = true;
  } else if (text == "replay") {
    out.replay = true;
  } else if (text.starts_with(kRandom)) {
    const std::string_view seed = text.substr(kRandom.size());
    const auto [end, error] = std::from_chars(seed.data(), seed.data() + seed.size(), out.seed);
    if (error == std::errc{} && end == seed.data() + seed.size()) out.reload = Reload::kRandom;
  }
  if (!out.on()) {
    fail(ErrorKind::kDevice,
         "[device] residency mode \"+%.*s\" is unknown; use +reload, +reload-second, "
         "+reload-random-SEED, +intruder or +replay",
         static_cast<int>(text.size()), text.data());
  }
  return out;
}

bool ReloadSchedule::next() {
  switch (reload_) {
    case Residency::Reload::kNever:
      return false;
    case Residency::Reload::kEvery:
      return true;
    case Residency::Reload::kSecond:
      return ++submissions_ % 2 == 0;
    case Residency::Reload::kRandom:
      break;
  }
  return (random_() & 1) != 0;
}

void Intruders::remember(std::shared_ptr<const Configuration> configuration,
                         std::shared_ptr<const PreparedStream> prepared,
                         std::span<const BufferRef> refs) {
  const auto same = [&](const Stream& old) { return old.prepared == prepared; };
  if (std::any_of(streams_.begin(), streams_.end(), same)) return;
  size_t bytes = 0;
  for (const BufferRef& ref : refs) bytes += ref.bytes;
  if (bytes > kMaxCopy) return;
  const uint64_t patches = prepared->patches();
  Stream stream{std::move(configuration), std::move(prepared), {}, {}, patches};
  for (const BufferRef& ref : refs) {
    stream.writable.push_back(writes(ref.access));
    stream.arguments.emplace_back(ref.bytes);
    if (ref.bytes > 0) std::memcpy(stream.arguments.back().data(), ref.host(), ref.bytes);
  }
  if (streams_.size() == kMaxStreams) streams_.erase(streams_.begin());
  streams_.push_back(std::move(stream));
}

const Intruders::Stream* Intruders::other_than(const PreparedStream* stream) {
  for (size_t tried = 0; tried < streams_.size(); ++tried) {
    const Stream& candidate = streams_[next_++ % streams_.size()];
    if (candidate.prepared.get() == stream) continue;
    if (candidate.prepared->patches() == candidate.patches) return &candidate;
  }
  return nullptr;
}

std::vector<int> lock_values(const Array& array) {
  std::vector<int> values;
  each_lock(array,
            [&](const Tile& tile, size_t lock) { values.push_back(tile.locks[lock].value); });
  return values;
}

void check_locks(const Array& array, const std::vector<int>& expected) {
  size_t at = 0;
  each_lock(array, [&](const Tile& tile, size_t lock) {
    const int value = tile.locks[lock].value, wanted = expected[at++];
    if (value == wanted) return;
    fail(ErrorKind::kLock,
         "[submit] the stream leaves lock %zu of %s at %d, at rest it is %d; a stream "
         "must leave locks as it found them",
         lock, tile.name().c_str(), value, wanted);
  });
}

}  // namespace npu::emulator
