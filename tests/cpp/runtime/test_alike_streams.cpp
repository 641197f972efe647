// Prepared streams that are used again for others (runtime/alike_streams.h). Asserts that one whose
// words differ in offsets of address patches alone becomes the other one; that any other difference
// makes a stream of its own; that those used least recently leave beyond the budget.
#include <doctest/doctest.h>

#include "loopback.h"
#include "runtime/alike_streams.h"

using namespace npu;
using namespace npu::test;

namespace {

constexpr auto kGeneration = arch::Generation::kNpu2;

// Copies of `words` words, from `offset` bytes into argument 0 on.
std::vector<uint32_t> copy(uint32_t words, uint32_t offset = 0) {
  std::vector<uint32_t> stream = copy_stream(kGeneration, words);
  const stream::Stream parsed = stream::Stream::parse(std::as_bytes(std::span(stream)));
  for (const stream::Operation& operation : parsed.operations()) {
    if (operation.opcode != stream::Opcode::kAddressPatch || operation.argument != 0) continue;
    stream[parsed.patchable(operation).first] = offset;
  }
  return stream;
}

}  // namespace

TEST_CASE("alike streams: other addresses patch a stream, other lengths are another one") {
  const auto device = open_device("emu:npu2", "fast");
  device->load(loopback(kGeneration));
  AlikeStreams streams(size_t{1} << 20);
  CHECK(streams.find(*device, copy(16)) == nullptr);
  const auto first = device->prepare(copy(16));
  streams.add(first);
  CHECK(streams.find(*device, copy(16)) == first);
  CHECK(first->patches() == 0);
  CHECK(streams.find(*device, copy(16, 32)) == first);
  CHECK(first->patches() == 1);
  CHECK(std::ranges::equal(first->words(), copy(16, 32)));
  CHECK(streams.find(*device, copy(12, 32)) == nullptr);
  CHECK(streams.find(*device, copy_stream(kGeneration, 16, 0, 2)) == nullptr);
  std::vector<uint32_t> waits_otherwise = copy(16);
  waits_otherwise.back() ^= 1;
  CHECK(streams.find(*device, waits_otherwise) == nullptr);
  // It runs with the new offset.
  const auto in = device->allocate(128), out = device->allocate(64);
  for (size_t i = 0; i < 128; ++i) in->host()[i] = static_cast<std::byte>(i);
  const BufferRef refs[] = {{in.get(), 0, 128, Access::kRead}, {out.get(), 0, 64, Access::kWrite}};
  CHECK(device->submit(first, refs)->wait(Run::kForever));
  CHECK(std::equal(out->host(), out->host() + 64, in->host() + 32));
}

TEST_CASE("alike streams: those used least recently leave") {
  const auto device = open_device("emu:npu2", "fast");
  device->load(loopback(kGeneration));
  const auto one = device->prepare(copy(16)), other = device->prepare(copy(8));
  AlikeStreams streams(2 * one->bytes() + one->bytes() / 2);
  streams.add(one);
  streams.add(other);
  CHECK(streams.find(*device, copy(16, 4)) == one);
  streams.add(device->prepare(copy(4)));
  CHECK(streams.find(*device, copy(8)) == nullptr);
  CHECK(streams.find(*device, copy(16)) == one);
}
