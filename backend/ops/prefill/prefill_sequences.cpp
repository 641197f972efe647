// The next tokens of several sequences on a device (prefill.h).
#include <algorithm>
#include <cstring>
#include <numeric>

#include "error.h"
#include "ops/prefill/prefill.h"
#include "ops/prefill/prefill_head.h"

namespace npu::ops {

namespace {

constexpr int64_t kHigh = prefill::kRows;

}  // namespace

void Prefill::check(const PrefillSequences& batch) const {
  const int64_t count = std::ssize(batch.sequences);
  if (count < 1 || count > PrefillBatch::kMaxSequences) {
    fail(ErrorKind::kOutOfRange, "[prefill] %lld sequences; a batch has 1 to %lld",
         static_cast<long long>(count), static_cast<long long>(PrefillBatch::kMaxSequences));
  }
  int64_t tokens = 0;
  for (const auto& sequence : batch.sequences) {
    if (sequence.count < 1 || sequence.count > PrefillBatch::kMaxTokens || sequence.position < 0) {
      fail(ErrorKind::kOutOfRange,
           "[prefill] %lld tokens at position %lld; a sequence of a batch has 1 to %lld",
           static_cast<long long>(sequence.count), static_cast<long long>(sequence.position),
           static_cast<long long>(PrefillBatch::kMaxTokens));
    }
    check_pages(sequence.pages, sequence.position, sequence.count, batch.pool.size());
    tokens += sequence.count;
  }
  check_sizes({batch.rows, batch.rotations, {}}, tokens);
  if (batch.logits.size() == static_cast<size_t>(count * model_.shape.vocabulary)) return;
  fail(ErrorKind::kShape, "[prefill] %zu logits for %lld sequences of %lld", batch.logits.size(),
       static_cast<long long>(count), static_cast<long long>(model_.shape.vocabulary));
}

RunReport Prefill::run(const PrefillSequences& batch) {
  check(batch);
  const auto guard = operation_.lock();
  Place& at = place(batch_place_, PrefillBatch::kMaxSequences * kHigh, true);
  // Jobs of attention take as long as the longest of their sequences: neighbours are alike.
  std::vector<size_t> order(batch.sequences.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) {
    return batch.sequences[i].position + batch.sequences[i].count;
  });
  std::vector<int64_t> first;  // tokens of the sequences before
  for (int64_t tokens = 0; const auto& sequence : batch.sequences) {
    first.push_back(tokens);
    tokens += sequence.count;
  }
  PrefillBatch planned;
  Rows rows{batch.rows, batch.rotations, {}};
  for (const size_t i : order) {
    const auto& sequence = batch.sequences[i];
    planned.sequences.push_back({sequence.position, sequence.count, sequence.pages});
    for (int64_t row = sequence.count - kHigh; row < sequence.count; ++row) {
      rows.tokens.push_back(row < 0 ? -1 : first[i] + row);
    }
  }
  write(rows, at);
  PrefillPlan plan(array_, model_, *at.layout, planned);
  const RunReport report = submit(plan, at, batch.pool, std::ssize(rows.tokens));
  const HeadResults results(array_, model_);
  const std::span<const std::byte> memory(at.buffer->host(),
                                          static_cast<size_t>(at.layout->bytes()));
  const auto vocabulary = static_cast<size_t>(model_.shape.vocabulary);
  for (size_t row = 0; row < order.size(); ++row) {
    results.read(*at.layout, memory, static_cast<int64_t>(row),
                 batch.logits.subspan(order[row] * vocabulary, vocabulary));
  }
  return report;
}

}  // namespace npu::ops
