// Which of several configurations computes a product: the policy.
//
// A configuration that is not loaded costs a load (milliseconds, `load_npu*` of docs/timing.md). So
//   - when none of the candidates is loaded, a load is due anyway: the fastest for this problem
//     wins;
//   - otherwise the loaded one stays until another would have saved more than kHysteresis loads
//     over the calls since the last load. Calls that the loaded one computes faster count against
//     the other; nobody's savings fall below zero.
// The hysteresis is 2 because a load brings the other configuration and another may bring this one
// back. So sizes that alternate never make configurations alternate at a loss: a change is paid
// twice, by time that is lost already or by what the call that causes it saves. With two candidates
// the policy loses at most three times what keeping the better one from the start would (and a few
// loads), the bound of such decisions without foresight (tests/python/ops/test_gemm_choice.py).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace npu::ops {

inline constexpr double kHysteresis = 2;  // loads that a change must have saved

// A candidate, by the key of its configuration, and its predicted time of the product at hand.
struct Candidate {
  std::string key;
  double seconds = 0;
};

// What is loaded (empty: nothing that is known), and the seconds that each other candidate would
// have saved since then.
struct Ledger {
  std::string loaded;
  std::map<std::string, double> saved;
};

struct Decision {
  size_t candidate = 0;
  bool loads = false;
  const char* reason = "";
  Ledger ledger;  // after this call
};

// The candidate for one call; of equals the first. load_seconds: of changing the configuration.
// Throws Error(kArgument) if there are none.
Decision decide(const std::vector<Candidate>& candidates, const Ledger& ledger,
                double load_seconds);

// The choice of one device, with what it remembers between calls.
class GemmChooser {
 public:
  explicit GemmChooser(double load_seconds) : load_seconds_(load_seconds) {}
  struct Choice {
    size_t candidate = 0;
    const char* reason = "";
    double predicted_seconds = 0;  // load included; 0 where there was no choice
    double load_seconds = 0;       // of it
  };
  // For one call, which counts it. loads: the device's count of configuration loads, which shows
  // whether another operation has loaded its own since.
  Choice choose(const std::vector<Candidate>& candidates, uint64_t loads);

 private:
  double load_seconds_;
  Ledger ledger_;
  uint64_t loads_ = UINT64_MAX;  // the device's count once the last choice is loaded
};

}  // namespace npu::ops
