// Matrix products on the configurations of the package (matmul.h).
#include "ops/gemm/matmul.h"

#include <algorithm>
#include <cstdlib>

#include "error.h"

namespace npu::ops {

namespace {

arch::Generation generation_of(SharedDevice& device) {
  const std::lock_guard guard(device.mutex);
  return device.device->info().generation;
}

double load_seconds(arch::Generation generation) {
  const bool first = generation == arch::Generation::kNpu1;
  return arch::TimingTable{}[first ? arch::TimingId::kLoadNpu1 : arch::TimingId::kLoadNpu2] * 1e-3;
}

ElementType multiplied(ElementType operand) {
  return operand == ElementType::kF32 ? ElementType::kBf16 : operand;
}

}  // namespace

std::vector<const GemmDesign*> candidates(std::span<const GemmDesign> designs, const GemmKind& kind,
                                          const DesignPreference& preference) {
  std::vector<const GemmDesign*> all, preferred;
  for (const GemmDesign& design : designs) {
    if (design.kind != kind || design.for_array != preference.for_array) continue;
    all.push_back(&design);
    // There is one design for the host of each kind of kernel.
    const bool any = preference.for_array && !preference.pipelined;
    if (any || design.pipelined == preference.pipelined.value_or(false)) {
      preferred.push_back(&design);
    }
  }
  return preferred.empty() ? all : preferred;
}

bool by_columns(const MatrixView& b) {
  return std::min(b.rows, b.cols) > 1 && std::abs(b.row_stride) < std::abs(b.col_stride);
}

Matmul::Matmul(std::shared_ptr<SharedDevice> device,
               std::shared_ptr<const ConfigurationStore> store, const DesignPreference& preference)
    : device_(std::move(device)),
      store_(std::move(store)),
      preference_(preference),
      timing_(generation_of(*device_), arch::TimingTable{}),
      chooser_(load_seconds(timing_.generation)) {
  for (const ConfigurationUse& use : store_->uses()) {
    if (use.operation == "gemm" && use.generation == timing_.generation) {
      designs_.push_back(GemmDesign::of(use));
    }
  }
}

MatmulReport Matmul::run(const MatrixView& a, const MatrixView& b, std::byte* c, ElementType c_type,
                         const MatmulOptions& options) {
  GemmKind kind{multiplied(a.type), c_type, by_columns(b) ? GemmLayout::kColumn : GemmLayout::kRow,
                options.narrow && element_bytes(c_type) < 4, options.bfp16};
  if (multiplied(b.type) != kind.a) {
    fail(ErrorKind::kDtype,
         "[matmul] A is %s and B is %s; both must be int8, both int16, or both floating point",
         element_name(a.type), element_name(b.type));
  }
  const auto found = candidates(designs_, kind, preference_);
  if (found.empty()) {
    fail(ErrorKind::kDtype,
         "[matmul] no configuration in %s computes %s from %s on %s%s; there are float32 and "
         "bfloat16 from bfloat16, int32, int16 and int8 from int8, int32 from int16",
         store_->folder().c_str(), element_name(c_type), element_name(kind.a),
         arch::device_geometry(timing_.generation).name, kind.bfp16 ? " through bfp16" : "");
  }
  MatmulReport report;
  Gemm* gemm = nullptr;
  {
    const std::lock_guard guard(mutex_);
    report.choice = choose(found, a.rows, a.cols, b.cols);
    report.design = found[report.choice.candidate];
    gemm = &opened(*report.design);
  }
  report.run = gemm->run(a, b, c, options.shift);
  return report;
}

GemmChooser::Choice Matmul::choose(const std::vector<const GemmDesign*>& found, int64_t m,
                                   int64_t k, int64_t n) {
  std::vector<Candidate> timed;
  for (const GemmDesign* design : found) {
    perf::GemmPoint point = design->point;
    point.M = m;
    point.K = k;
    point.N = n;
    timed.push_back({design->key, found.size() == 1 ? 0 : gemm_seconds(timing_, point, false)});
  }
  uint64_t loads = 0;
  {
    const std::lock_guard guard(device_->mutex);
    loads = device_->device->counters().configuration_loads;
  }
  return chooser_.choose(timed, loads);
}

Gemm& Matmul::opened(const GemmDesign& design) {
  std::unique_ptr<Gemm>& gemm = opened_[design.key];
  if (!gemm) {
    const auto use = std::find_if(
        store_->uses().begin(), store_->uses().end(),
        [&](const ConfigurationUse& u) { return u.operation == "gemm" && u.key() == design.key; });
    gemm = std::make_unique<Gemm>(device_, store_->load(*use));
  }
  return *gemm;
}

}  // namespace npu::ops
