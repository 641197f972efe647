// The policy of gemm_choice.h.
#include "ops/gemm/gemm_choice.h"

#include <algorithm>

#include "error.h"

namespace npu::ops {

namespace {

size_t fastest_of(const std::vector<Candidate>& candidates) {
  const auto less = [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; };
  return static_cast<size_t>(std::min_element(candidates.begin(), candidates.end(), less) -
                             candidates.begin());
}

}  // namespace

Decision decide(const std::vector<Candidate>& candidates, const Ledger& ledger,
                double load_seconds) {
  if (candidates.empty()) fail(ErrorKind::kArgument, "[gemm] no configuration to choose from");
  const size_t fastest = fastest_of(candidates);
  const auto found = std::find_if(candidates.begin(), candidates.end(),
                                  [&](const Candidate& c) { return c.key == ledger.loaded; });
  if (ledger.loaded.empty() || found == candidates.end()) {
    return {fastest, true, "the fastest; none was loaded", {candidates[fastest].key, {}}};
  }
  const size_t now = static_cast<size_t>(found - candidates.begin());
  Ledger next = ledger;
  size_t best = now;
  double largest = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (i == now) continue;
    double& saved = next.saved[candidates[i].key];
    saved = std::max(0.0, saved + found->seconds - candidates[i].seconds);
    if (best == now || saved > largest) {
      best = i;
      largest = saved;
    }
  }
  if (best != now && largest > kHysteresis * load_seconds) {
    return {best, true, "saves more than its load", {candidates[best].key, {}}};
  }
  const char* reason =
      fastest == now ? "loaded and the fastest" : "loaded; a change does not pay yet";
  return {now, false, reason, std::move(next)};
}

GemmChooser::Choice GemmChooser::choose(const std::vector<Candidate>& candidates, uint64_t loads) {
  if (candidates.size() == 1) {
    ledger_ = {};
    loads_ = UINT64_MAX;
    return {0, "the only one", 0, 0};
  }
  Decision decision = decide(candidates, loads == loads_ ? ledger_ : Ledger{}, load_seconds_);
  ledger_ = std::move(decision.ledger);
  loads_ = loads + (decision.loads ? 1 : 0);
  const double load = decision.loads ? load_seconds_ : 0;
  return {decision.candidate, decision.reason, candidates[decision.candidate].seconds + load, load};
}

}  // namespace npu::ops
