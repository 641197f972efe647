// Waiting for runs (interrupt.h).
#include "runtime/interrupt.h"

#include <chrono>
#include <utility>

namespace npu {

namespace {

constexpr std::chrono::milliseconds kBetweenChecks{20};

std::function<void()>& interrupt_check() {
  static std::function<void()> check;
  return check;
}

}  // namespace

void set_interrupt_check(std::function<void()> check) { interrupt_check() = std::move(check); }

const RunReport& finish(Run& run) {
  const std::function<void()>& check = interrupt_check();
  while (!run.wait(check ? std::chrono::nanoseconds(kBetweenChecks) : Run::kForever)) check();
  return run.report();
}

}  // namespace npu
