// What every device checks and counts (device.h).
#include "runtime/device.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <iterator>

#include "error.h"
#include "runtime/overlay.h"

namespace npu {

namespace {

uint64_t next_device() {
  static std::atomic<uint64_t> devices = 0;
  return ++devices;
}

stream::Permissions permissions_of(const Configuration& configuration) {
  stream::Permissions permissions;
  for (const Configuration::Rtp& rtp : configuration.rtps) {
    permissions.rtp_words.push_back({rtp.col, rtp.row, rtp.address, 4});
  }
  for (const Configuration::RtpLock& lock : configuration.rtp_locks) {
    permissions.rtp_locks.push_back({lock.col, lock.row, lock.lock});
  }
  return permissions;
}

void check_ref(const BufferRef& ref, size_t index) {
  if (ref.buffer == nullptr) return;
  const size_t size = ref.buffer->bytes();
  if (ref.offset > size || ref.bytes > size - ref.offset) {
    fail(ErrorKind::kOutOfRange,
         "[submit] argument %zu is bytes %zu to %zu of a buffer of %zu bytes; pass a range inside "
         "the buffer",
         index, ref.offset, ref.offset + ref.bytes, size);
  }
  if (writes(ref.access) && !writes(ref.buffer->access())) {
    fail(ErrorKind::kArgument,
         "[submit] the stream writes argument %zu, whose buffer wraps read-only memory; pass a "
         "writable buffer",
         index);
  }
}

}  // namespace

Device::Device() : number_(next_device()) {}

std::vector<uint32_t> Device::overlay_image(const Configuration& configuration, size_t overlay) {
  if (overlay >= configuration.overlays.size()) return stand_in(configuration, overlay);  // throws
  const Configuration::Overlay& about = configuration.overlays[overlay];
  std::vector<uint32_t> image = do_overlay_image(configuration, overlay);
  if (image.size() != about.bytes / 4) {
    fail(ErrorKind::kDevice,
         "[overlay_image] device \"%s\" gave %zu bytes as the program memory of overlay \"%s\" of "
         "configuration \"%s\", whose streams load %u; build the configuration again",
         info().name.c_str(), 4 * image.size(), about.name.c_str(), configuration.name.c_str(),
         about.bytes);
  }
  return image;
}

std::vector<uint32_t> Device::do_overlay_image(const Configuration& configuration, size_t overlay) {
  return stand_in(configuration, overlay);
}

void Device::load(std::shared_ptr<const Configuration> configuration) {
  assert(configuration != nullptr);
  if (configuration_ != nullptr && configuration_->id == configuration->id) return;
  const DeviceInfo about = info();
  if (configuration->generation != about.generation) {
    fail(ErrorKind::kDevice,
         "[load] configuration \"%s\" is for %s, device \"%s\" is %s; build the configuration for "
         "%s",
         configuration->name.c_str(), arch::device_geometry(configuration->generation).name,
         about.name.c_str(), arch::device_geometry(about.generation).name,
         arch::device_geometry(about.generation).name);
  }
  forget_configuration();
  do_load(*configuration);
  permissions_ = permissions_of(*configuration);
  max_arguments_ = about.max_arguments;
  configuration_ = std::move(configuration);
  ++counters_.configuration_loads;
}

std::shared_ptr<const PreparedStream> Device::prepare(std::vector<uint32_t> words) {
  if (configuration_ == nullptr) {
    fail(ErrorKind::kArgument, "[prepare] no configuration is loaded; load one first");
  }
  stream::Stream parsed = stream::Stream::parse(std::as_bytes(std::span(words)));
  if (parsed.header().generation != static_cast<uint8_t>(configuration_->generation)) {
    fail(ErrorKind::kFormat,
         "[prepare] the stream's header has generation %d, device \"%s\" is %s (%d); build the "
         "stream for it",
         parsed.header().generation, info().name.c_str(),
         arch::device_geometry(configuration_->generation).name,
         static_cast<int>(configuration_->generation));
  }
  stream::check_runtime_stream(parsed, permissions_);
  std::shared_ptr<PreparedStream> prepared = do_prepare(std::move(words), std::move(parsed));
  prepared->device_ = number_;
  prepared->configuration_id_ = configuration_->id;
  return prepared;
}

void Device::check_patches(PreparedStream& stream, std::span<const StreamPatch> patches) const {
  if (stream.device_ != number_) {
    fail(ErrorKind::kArgument,
         "[patch] the stream was prepared by another device than \"%s\"; patch it there",
         info().name.c_str());
  }
  std::vector<stream::Stream::Range>& ranges = stream.patchable_;
  if (ranges.empty()) {
    ranges = stream::Stream::parse(std::as_bytes(stream.words())).patchable();
  }
  for (const StreamPatch& patch : patches) {
    const auto next = std::ranges::upper_bound(ranges, patch.word, {},
                                               [](const auto& range) { return range.first; });
    if (next == ranges.begin() || patch.word - std::prev(next)->first >= std::prev(next)->count) {
      stream::Stream::refuse_patch(patch.word, stream.words().size());
    }
  }
}

bool Device::patch(const std::shared_ptr<const PreparedStream>& stream,
                   std::span<const StreamPatch> patches) {
  auto& changed = const_cast<PreparedStream&>(*stream);  // made by a device, not const
  check_patches(changed, patches);
  if (!do_patch(changed, patches)) return false;
  for (const StreamPatch& patch : patches) changed.words_[patch.word] = patch.value;
  ++changed.patches_;
  return true;
}

void Device::check_submission(const PreparedStream& stream, std::span<const BufferRef> refs) const {
  if (configuration_ == nullptr) {
    fail(ErrorKind::kArgument, "[submit] no configuration is loaded; load one first");
  }
  if (stream.configuration_id() != configuration_->id) {
    fail(ErrorKind::kArgument,
         "[submit] the stream was prepared for another configuration than \"%s\", which is loaded; "
         "load its configuration, or prepare it again",
         configuration_->name.c_str());
  }
  if (stream.device_ != number_) {
    fail(ErrorKind::kArgument,
         "[submit] the stream was prepared by another device than \"%s\"; prepare it here, too",
         info().name.c_str());
  }
  if (refs.size() > max_arguments_) {
    fail(ErrorKind::kArgument,
         "[submit] %zu arguments, device \"%s\" takes up to %zu; pass several ranges of one buffer "
         "as one argument",
         refs.size(), info().name.c_str(), max_arguments_);
  }
  for (size_t i = 0; i < refs.size(); ++i) check_ref(refs[i], i);
}

std::unique_ptr<Run> Device::submit(std::shared_ptr<const PreparedStream> stream,
                                    std::span<const BufferRef> refs) {
  check_submission(*stream, refs);
  std::unique_ptr<Run> run = do_submit(std::move(stream), refs);
  ++counters_.submissions;
  return run;
}

std::unique_ptr<Run> Device::submit_beside(std::shared_ptr<const PreparedStream> stream,
                                           std::span<const BufferRef> refs) {
  check_submission(*stream, refs);
  std::unique_ptr<Run> run = do_submit_beside(std::move(stream), refs);
  if (run != nullptr) ++counters_.submissions;
  return run;
}

}  // namespace npu
