// What a submission costs on the host besides XRT and the driver: `npu_xrt_submission_cost`.
//
// A stream with eight arguments is submitted to the device xrt over and over, on a stand-in for XRT
// whose runs end at once. Its own calls are in the figures, which are CPU time of the fastest
// round, so that other programs count little.
#include <stdlib.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../../cpp/loopback.h"
#include "control.h"
#include "runtime/device.h"
#include "runtime/interrupt.h"

namespace {

using namespace npu;

constexpr size_t kArguments = 8, kBytes = 4096;
constexpr int kRounds = 50, kRepeats = 2000;

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Microseconds of a call.
double best(const std::function<void()>& call) {
  double fastest = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const double begin = cpu_seconds();
    for (int i = 0; i < kRepeats; ++i) call();
    fastest = std::min(fastest, (cpu_seconds() - begin) / kRepeats);
  }
  return fastest * 1e6;
}

// An NPU with the loopback built.
class Machine {
 public:
  Machine() {
    std::string name = (std::filesystem::temp_directory_path() / "npu-xclbins-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    folder_ = name;
    setenv("NPU_XCLBINS", name.c_str(), 1);
    setenv("NPU_XRT_MODULE", NPU_XRT_MODULE_ON_DOUBLE, 1);
    xrt_double::reset({.ends_at_once = true});
    const auto place = folder_ / "npu2" / configuration->artefact() / "design.xclbin";
    std::filesystem::create_directories(place.parent_path());
    const std::string file = test::loopback_file(arch::Generation::kNpu2);
    xrt_double::write_xclbin(place.string(), std::as_bytes(std::span(file.data(), file.size())));
  }
  ~Machine() { std::filesystem::remove_all(folder_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  const std::shared_ptr<const Configuration> configuration =
      test::loopback(arch::Generation::kNpu2);

 private:
  std::filesystem::path folder_;
};

void measure(const Machine& machine) {
  const auto device = open_device("xrt", "fast");
  device->load(machine.configuration);
  const std::vector<uint32_t> words = test::copy_stream(arch::Generation::kNpu2, 64);
  const auto stream = device->prepare(words);
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::vector<BufferRef> refs, others;
  for (size_t i = 0; i < 2 * kArguments; ++i) {
    buffers.push_back(device->allocate(kBytes));
    (i < kArguments ? refs : others).push_back({buffers.back().get(), 0, kBytes, Access::kRead});
  }
  const double same = best([&] { finish(*device->submit(stream, refs)); });
  const double changing = best([&] {
    std::swap(refs, others);
    finish(*device->submit(stream, refs));
  });
  const size_t length =
      static_cast<size_t>(std::find(words.begin(), words.end(), 64u) - words.begin());
  const double patched = best([&] {
    const StreamPatch patch[] = {{length, 64}};
    device->patch(stream, patch);
    finish(*device->submit(stream, refs));
  });
  std::printf(
      "a submission with the calls of the stand-in: %.2f us; with eight other arguments than the\n"
      "one before: %.2f us; with a patch of its stream: %.2f us (limit of ours: 30 us)\n",
      same, changing, patched);
}

}  // namespace

int main() {
  try {
    const Machine machine;
    measure(machine);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
