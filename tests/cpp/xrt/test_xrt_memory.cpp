// Memory of the XRT device: host and device see each other's writes after a sync and not before,
// ranges address the right bytes, memory of the program is wrapped where it can be (aligned pages,
// inputs of any alignment, read-only file mappings) and copied elsewhere, and instruction buffers
// stay within the heap, evicted in turn and never while in use.
#include <fcntl.h>
#include <sys/mman.h>

#include <random>

#include "xrt/experimental/xrt_xclbin.h"
#include "xrt/xrt_kernel.h"
#include "xrt_fixture.h"

namespace {

using namespace npu;
using namespace npu::test;

constexpr size_t kPage = 4096;

struct Mapping {
  explicit Mapping(size_t size) : bytes(size) {
    memory = static_cast<std::byte*>(
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(memory != MAP_FAILED);
  }
  ~Mapping() { munmap(memory, bytes); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  void protect() { REQUIRE(mprotect(memory, bytes, PROT_READ) == 0); }
  std::byte* memory;
  size_t bytes;
};

// Copies `bytes` from one range to the other on the array.
void copy(Copying& copying, const BufferRef& from, const BufferRef& to) {
  const auto stream = copying.prepare(static_cast<uint32_t>(from.bytes / 4));
  const BufferRef refs[] = {from, to};
  finish(*copying.device->submit(stream, refs));
}

}  // namespace

TEST_CASE("xrt: writes are seen by the other side after a sync and not before") {
  XrtMachine machine;
  Copying copying(machine);
  const auto stream = copying.prepare(64);
  copying.fill(1);
  copying.run(stream);
  CHECK_FALSE(std::equal(copying.in->host(), copying.in->host() + 256, copying.out->host()));
  CHECK(copying.copied(256));
  copying.in->host()[0] = std::byte{77};
  copying.run(stream);
  CHECK_FALSE(copying.copied(256));
  copying.in->sync_to_device(0, 4);
  copying.run(stream);
  CHECK(copying.copied(256));
  CHECK(raised([&] { copying.in->sync_to_device(200, 57); }).kind == ErrorKind::kOutOfRange);
  CHECK(raised([&] { copying.in->sync_from_device(SIZE_MAX, 2); }).kind == ErrorKind::kOutOfRange);
}

TEST_CASE("xrt: ranges of buffers are what the stream sees") {
  XrtMachine machine;
  Copying copying(machine, 64 << 10);
  copying.fill(3);
  std::mt19937 random(5);
  // More different offsets than a buffer keeps parts for.
  for (int i = 0; i < 150; ++i) {
    const size_t from = random() % 1000 * 4, to = random() % 1000 * 4;
    std::fill(copying.out->host(), copying.out->host() + 8192, std::byte{0});
    copying.out->sync_to_device(0, 8192);
    copy(copying, {copying.in.get(), from, 256, Access::kRead},
         {copying.out.get(), to, 256, Access::kWrite});
    copying.out->sync_from_device(to, 256);
    CHECK(std::equal(copying.in->host() + from, copying.in->host() + from + 256,
                     copying.out->host() + to));
    CHECK(copying.out->host()[to + 256] == std::byte{0});
  }
}

TEST_CASE("xrt: whole pages of the program's memory are wrapped for reading and writing") {
  XrtMachine machine;
  Copying copying(machine, kPage);
  copying.fill(8);
  Mapping mapping(2 * kPage);
  const auto wrapped = copying.device->wrap(mapping.memory, 2 * kPage, Access::kReadWrite);
  REQUIRE(wrapped != nullptr);
  CHECK(wrapped->host() == mapping.memory);
  CHECK(wrapped->bytes() == 2 * kPage);
  wrapped->sync_to_device(0, 2 * kPage);
  copy(copying, {copying.in.get(), 0, kPage, Access::kRead},
       {wrapped.get(), kPage, kPage, Access::kWrite});
  CHECK(mapping.memory[kPage] == std::byte{0});
  wrapped->sync_from_device(kPage, kPage);
  CHECK(std::equal(copying.in->host(), copying.in->host() + kPage, mapping.memory + kPage));
  CHECK(mapping.memory[0] == std::byte{0});
}

TEST_CASE("xrt: what shares pages or cache lines with other memory is wrapped only to be read") {
  XrtMachine machine;
  Copying copying(machine, 256);
  Mapping mapping(64 * kPage);
  for (size_t i = 0; i < mapping.bytes; ++i) mapping.memory[i] = static_cast<std::byte>(i * 7);
  const size_t most = mapping.bytes - 2 * kPage;
  Device& device = *copying.device;
  for (const Access access : {Access::kWrite, Access::kReadWrite}) {
    CHECK(device.wrap(mapping.memory + 64, kPage, access) == nullptr);
    CHECK(device.wrap(mapping.memory, kPage - 64, access) == nullptr);
  }
  CHECK(device.wrap(mapping.memory, 0, Access::kRead) == nullptr);
  CHECK(device.wrap(mapping.memory + 4, 1000, Access::kRead) == nullptr);  // copied faster
  CHECK(device.wrap(mapping.memory + 2, most, Access::kRead) == nullptr);  // no whole words
  mapping.protect();
  const auto wrapped = device.wrap(mapping.memory + 36, most, Access::kRead);
  REQUIRE(wrapped != nullptr);
  CHECK(wrapped->host() == mapping.memory + 36);
  CHECK(wrapped->access() == Access::kRead);
  wrapped->sync_to_device(0, most);
  wrapped->sync_from_device(0, most);  // nothing was written there
  for (const size_t offset : {size_t{0}, size_t{4096}, most - 256}) {
    copy(copying, {wrapped.get(), offset, 256, Access::kRead},
         {copying.out.get(), 0, 256, Access::kWrite});
    copying.out->sync_from_device(0, 256);
    CHECK(std::equal(copying.out->host(), copying.out->host() + 256, mapping.memory + 36 + offset));
  }
  const BufferRef refs[] = {{copying.in.get(), 0, 256, Access::kRead},
                            {wrapped.get(), 0, 256, Access::kWrite}};
  CHECK(raised([&] { copying.device->submit(copying.prepare(64), refs); }).kind ==
        ErrorKind::kArgument);
}

TEST_CASE("xrt: a read-only mapping of a file is an argument without a copy") {
  XrtMachine machine;
  Copying copying(machine, kPage);
  const std::string path = (machine.folder() / "weights").string();
  std::string content(kPage, 'x');
  for (size_t i = 0; i < kPage; ++i) content[i] = static_cast<char>(i % 251);
  write_file(path, content);
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  REQUIRE(file >= 0);
  void* memory = mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  REQUIRE(memory != MAP_FAILED);
  {
    const auto wrapped =
        copying.device->wrap(static_cast<std::byte*>(memory), kPage, Access::kRead);
    REQUIRE(wrapped != nullptr);
    wrapped->sync_to_device(0, kPage);
    copy(copying, {wrapped.get(), 0, kPage, Access::kRead},
         {copying.out.get(), 0, kPage, Access::kWrite});
    copying.out->sync_from_device(0, kPage);
    CHECK(std::memcmp(copying.out->host(), content.data(), kPage) == 0);
  }
  munmap(memory, kPage);
}

TEST_CASE("xrt: drivers without user memory get copies") {
  XrtMachine machine({.user_memory = false});
  const auto device = open_device("xrt", "fast");
  Mapping mapping(kPage);
  CHECK(device->wrap(mapping.memory, kPage, Access::kRead) == nullptr);
}

TEST_CASE("xrt: a buffer of no bytes, and buffers and streams that outlive their device") {
  XrtMachine machine;
  std::unique_ptr<Buffer> left;
  std::shared_ptr<const PreparedStream> stream;
  {
    Copying copying(machine);
    CHECK(copying.device->allocate(0)->bytes() == 0);
    stream = copying.prepare(64);
    copying.run(stream);
    left = std::move(copying.out);
  }
  CHECK(xrt_double::counters().contexts == 0);
  left->host()[0] = std::byte{1};
  CHECK_NOTHROW(left->sync_to_device(0, 256));
}

TEST_CASE("xrt: all contexts end with their device, whatever outlives it") {
  XrtMachine machine;
  std::unique_ptr<Buffer> left;
  {
    Copying copying(machine);
    for (const char* name : {"b", "c"}) copying.device->load(machine.loopback(name));
    CHECK(xrt_double::counters().contexts == 3);
    left = copying.device->allocate(64);
  }
  CHECK(xrt_double::counters().contexts == 0);
  CHECK_NOTHROW(left->sync_to_device(0, 64));
}

TEST_CASE("xrt: the memory-lock limit is an error that says so, and nothing is lost") {
  XrtMachine machine({.locked_bytes = 1 << 20});
  Copying copying(machine);
  const Raised full = raised([&] { copying.device->allocate(2 << 20); });
  CHECK(full.kind == ErrorKind::kMemoryLock);
  CHECK(full.says("[allocate] 2097152 bytes"));
  CHECK(full.says("ulimit -l unlimited"));
  Mapping mapping(2 << 20);
  const Raised pinned =
      raised([&] { copying.device->wrap(mapping.memory, mapping.bytes, Access::kRead); });
  CHECK(pinned.kind == ErrorKind::kMemoryLock);
  CHECK(pinned.says("[wrap]"));
  const Raised endless = raised([&] { copying.device->allocate(SIZE_MAX); });
  CHECK(endless.kind == ErrorKind::kArgument);
  CHECK_FALSE(endless.says("ulimit"));
  // The host's memory is another matter.
  xrt_double::refuse_buffers(1, xrt_double::kNoHostMemory);
  const Raised host = raised([&] { copying.device->allocate(64); });
  xrt_double::refuse_instructions(1, xrt_double::kNoHostMemory);
  const Raised of_stream = raised([&] { copying.run(copying.prepare(64)); });
  for (const Raised& out : {host, of_stream}) {
    CHECK(out.kind == ErrorKind::kDevice);
    CHECK(out.says("this process has no memory left"));
    CHECK_FALSE(out.says("ulimit"));
  }
  copying.fill(4);
  copying.run(copying.prepare(64));
  CHECK(copying.copied(256));
}

TEST_CASE("xrt: streams beyond the heap are evicted in turn and written again") {
  // Room for six granules; the driver refuses the seventh.
  XrtMachine machine({.heap_bytes = 6 * 32 << 10});
  Copying copying(machine);
  std::vector<std::shared_ptr<const PreparedStream>> streams;
  for (uint32_t words = 1; words <= 20; ++words) streams.push_back(copying.prepare(words));
  std::mt19937 random(3);
  for (int i = 0; i < 100; ++i) {
    const uint32_t which = random() % 20;
    copying.fill(static_cast<uint8_t>(i));
    std::fill(copying.out->host(), copying.out->host() + 256, std::byte{0xEE});
    copying.out->sync_to_device(0, 256);
    copying.run(streams[which]);
    CHECK(copying.copied((which + 1) * 4));
    CHECK(copying.out->host()[(which + 1) * 4] == std::byte{0xEE});
    CHECK(xrt_double::counters().heap_bytes <= 6 * 32 << 10);
  }
  CHECK(xrt_double::counters().most_heap_bytes == 6 * 32 << 10);
  // Streams that are gone give their space back.
  streams.clear();
  CHECK(xrt_double::counters().heap_bytes == 0);
}

TEST_CASE("xrt: a heap that cannot grow makes room first, of all contexts") {
  XrtMachine machine;
  Copying copying(machine);
  const auto other = machine.loopback("other");
  const std::pair<int, ErrorKind> kCodes[] = {{EOPNOTSUPP, ErrorKind::kHeap},
                                              {ENOSPC, ErrorKind::kHeap},
                                              {EAGAIN, ErrorKind::kMemoryLock},
                                              {ENOMEM, ErrorKind::kMemoryLock}};
  for (const auto& [code, kind] : kCodes) {
    CAPTURE(code);
    copying.device->load(copying.configuration);
    const auto there = copying.prepare(8);
    copying.run(there);
    copying.device->load(other);
    const auto in_other = copying.prepare(8);
    copying.run(in_other);
    // Two streams leave, one of each context; then there is room.
    xrt_double::refuse_instructions(2, code);
    const auto next = copying.prepare(16);
    copying.fill(2);
    CHECK_NOTHROW(copying.run(next));
    CHECK(copying.copied(64));
    CHECK(xrt_double::counters().heap_bytes == 32 << 10);
    CHECK(xrt_double::counters().contexts == 2);
    // None is left to leave.
    xrt_double::refuse_instructions(9, code);
    CHECK(raised([&] { copying.run(copying.prepare(4)); }).kind == kind);
    xrt_double::refuse_instructions(0, 0);
  }
}

TEST_CASE("xrt: a stream that a run reads is not synchronised, which the stand-in would see") {
  XrtMachine machine;
  const xrt::device device(0);
  xrt::bo stream(device, 64, xrt::bo::flags::cacheable, 0);
  const std::vector<uint32_t> words = copy_stream(arch::Generation::kNpu2, 64);
  const auto configuration = machine.loopback();
  const xrt::xclbin xclbin(machine.xclbin(*configuration).string());
  xrt::device npu(0);
  npu.register_xclbin(xclbin);
  const xrt::hw_context context(npu, xclbin.get_uuid());
  const xrt::kernel kernel(context, "MLIR_AIE");
  xrt::run run(kernel);
  const xrt::bo data(npu, 4096, xrt::bo::flags::host_only, 0);
  run.set_arg(0, uint64_t{3});
  run.set_arg(1, stream);
  run.set_arg(2, uint32_t{16});
  for (int i = 3; i < 19; ++i) run.set_arg(i, data);
  run.start();  // what it reads is no stream
  stream.sync(XCL_BO_SYNC_BO_TO_DEVICE, 4, 0);
  CHECK(xrt_double::take_violations() ==
        std::vector<std::string>{"a stream was synchronised while a run reads it"});
  run.wait(std::chrono::milliseconds(1));
  stream.sync(XCL_BO_SYNC_BO_TO_DEVICE, 4, 0);
  CHECK(xrt_double::take_violations().empty());
}

TEST_CASE("xrt: the heap is shared by the contexts, and a stream that never fits is an error") {
  XrtMachine machine({.heap_bytes = 2 * 32 << 10});
  Copying copying(machine);
  const auto other = machine.loopback("other");
  std::vector<std::shared_ptr<const PreparedStream>> streams;
  for (int round = 0; round < 3; ++round) {
    for (const auto& configuration : {copying.configuration, other}) {
      copying.device->load(configuration);
      for (const uint32_t words : {8, 16}) {
        copying.fill(static_cast<uint8_t>(round));
        streams.push_back(copying.prepare(words));
        copying.run(streams.back());
        CHECK(copying.copied(words * 4));
      }
    }
  }
  // About 100 KiB of operations.
  const auto large = copying.device->prepare(copy_stream(arch::Generation::kNpu2, 64, 0, 1500));
  const Raised full = raised([&] { copying.run(large); });
  CHECK(full.kind == ErrorKind::kHeap);
  CHECK(full.says("instruction heap"));
  CHECK_NOTHROW(copying.run(copying.prepare(8)));
}

TEST_CASE("xrt: a patch synchronises what it changes, and no stream of a run under way") {
  XrtMachine machine;
  Copying copying(machine);
  // Both BDs' lengths.
  std::vector<uint32_t> words = copy_stream(arch::Generation::kNpu2, 64, 0, 900);
  std::vector<StreamPatch> patches;
  for (size_t i = 4; i < words.size() && patches.size() < 2; ++i) {
    if (words[i] == 64) patches.push_back({i, 32});
  }
  const auto stream = copying.device->prepare(words);
  copying.run(stream);
  const uint64_t before = xrt_double::counters().stream_bytes;
  std::swap(patches[0], patches[1]);
  CHECK(copying.device->patch(stream, patches));
  const uint64_t synced = xrt_double::counters().stream_bytes - before;
  CHECK(synced == (patches[0].word - patches[1].word + 1) * 4);
  CHECK(copying.device->patch(stream, {}));
  const auto run = copying.device->submit(stream, copying.refs());
  CHECK_FALSE(copying.device->patch(stream, patches));
  finish(*run);
  CHECK(copying.device->patch(stream, patches));
}
