// Matrix products on the configurations of the package (matmul.h).
#include "ops/gemm/matmul.h"

#include <algorithm>
#include <cstdlib>

#include "arch/geometry.h"
#include "error.h"
#include "host/thread_pool.h"
#include "ops/gemm/host_cost.h"

namespace npu::ops {

namespace {

arch::Generation generation_of(SharedDevice& device) {
  const std::lock_guard guard(device.mutex);
  return device.device->info().generation;
}

double load_seconds(arch::Generation generation, const arch::TimingTable& table) {
  const bool first = generation == arch::Generation::kNpu1;
  return table[first ? arch::TimingId::kLoadNpu1 : arch::TimingId::kLoadNpu2] * 1e-3;
}

ElementType multiplied(ElementType operand) {
  return operand == ElementType::kF32 ? ElementType::kBf16 : operand;
}

// That a file is what the index says, above all the size of what it writes.
void check_same(const GemmDesign& design, const Gemm& gemm) {
  const GemmTile tile = GemmTile::of(gemm.configuration()), said = tile_of(design.point);
  const bool same_tile = tile.m == said.m && tile.k == said.k && tile.n == said.n &&
                         tile.k_mt == said.k_mt && tile.b_columns == said.b_columns &&
                         tile.b_pairs == said.b_pairs && tile.rows == said.rows &&
                         tile.columns == said.columns;
  if (gemm.configuration().generation != design.generation || !same_tile ||
      gemm.input_type() != design.kind.a || gemm.b_type() != design.kind.b() ||
      gemm.output_type() != design.kind.c) {
    fail(ErrorKind::kFormat,
         "[configurations] %s does not compute what the index says of it; write the folder again "
         "with `npu compile --all FOLDER`",
         design.key.c_str());
  }
}

// Whether all cores compute.
bool whole(const GemmDesign& design) {
  return design.point.rows == arch::kCoreRows &&
         design.point.columns == arch::device_geometry(design.generation).columns;
}

}  // namespace

std::vector<const GemmDesign*> candidates(std::span<const GemmDesign> designs, const GemmKind& kind,
                                          const DesignPreference& preference,
                                          const GemmTile* packed_for) {
  std::vector<const GemmDesign*> all, preferred;
  for (const GemmDesign& design : designs) {
    if (design.kind != kind || design.for_array != preference.for_array) continue;
    if (!design.for_array && !preference.emulated && !whole(design)) continue;
    if (packed_for != nullptr && !tile_of(design.point).packs_b_like(*packed_for)) continue;
    all.push_back(&design);
    // Those for the host are of one kind of kernel, published ones unless others are asked for.
    const bool any = preference.for_array && !preference.pipelined;
    if (any || design.point.pipelined == preference.pipelined.value_or(false)) {
      preferred.push_back(&design);
    }
  }
  return preferred.empty() ? all : preferred;
}

bool by_columns(const MatrixView& b) {
  return std::min(b.rows, b.cols) > 1 && std::abs(b.row_stride) < std::abs(b.col_stride);
}

Matmul::Matmul(std::shared_ptr<SharedDevice> device,
               std::shared_ptr<const ConfigurationStore> store, const DesignPreference& preference,
               const arch::TimingTable& table)
    : device_(std::move(device)),
      store_(std::move(store)),
      preference_(preference),
      timing_(generation_of(*device_), table),
      chooser_(preference.for_array ? load_seconds(timing_.generation, table) : kHostLoadSeconds) {
  for (const ConfigurationUse& use : store_->uses()) {
    if (use.operation == "gemm" && use.generation == timing_.generation) {
      designs_.push_back(GemmDesign::of(use));
    }
  }
}

std::vector<const GemmDesign*> Matmul::designs_for(ElementType a, ElementType b, ElementType c,
                                                   GemmLayout layout, const MatmulOptions& options,
                                                   const GemmTile* packed_for) const {
  const bool narrow = options.narrow && element_bytes(c) < 4;
  const GemmKind kind{multiplied(a), c, layout, narrow ? GemmSums::kNarrow : GemmSums::kWide,
                      options.bfp16};
  if (multiplied(b) != kind.a) {
    fail(ErrorKind::kDtype,
         "[matmul] A is %s and B is %s; both must be int8, both int16, or both floating point",
         element_name(a), element_name(b));
  }
  const auto found = candidates(designs_, kind, preference_);
  if (found.empty()) {
    fail(ErrorKind::kDtype,
         "[matmul] no configuration in %s computes %s from %s on %s%s; there are float32 and "
         "bfloat16 from bfloat16, int32, int16 and int8 from int8, int32 from int16",
         store_->folder().c_str(), element_name(c), element_name(kind.a),
         arch::device_geometry(timing_.generation).name, kind.bfp16 ? " through bfp16" : "");
  }
  if (packed_for != nullptr) return candidates(designs_, kind, preference_, packed_for);
  return found;
}

MatmulReport Matmul::run(const MatrixView& a, const MatrixView& b, std::byte* c, ElementType c_type,
                         const MatmulOptions& options) {
  const GemmLayout layout = by_columns(b) ? GemmLayout::kColumn : GemmLayout::kRow;
  const auto found = designs_for(a.type, b.type, c_type, layout, options);
  MatmulReport report;
  Gemm& gemm = choose(found, {a.rows, a.cols, b.cols, false}, report);
  report.run = gemm.run(a, b, c, options.shift);
  return report;
}

MatmulReport Matmul::run(const MatrixView& a, const PackedMatrix& b, std::byte* c,
                         ElementType c_type, const MatmulOptions& options) {
  const auto found = designs_for(a.type, b.type, c_type, GemmLayout::kPacked, options, &b.tile);
  if (found.empty()) {
    fail(ErrorKind::kArgument,
         "[matmul] no configuration in %s reads B as it was packed and computes this product; pack "
         "it again for it",
         store_->folder().c_str());
  }
  MatmulReport report;
  Gemm& gemm = choose(found, {a.rows, a.cols, b.b->n, true}, report);
  report.run = gemm.run(a, *b.b, c, options.shift);
  return report;
}

PackedMatrix Matmul::pack(const MatrixView& b, bool bfp16) {
  const bool floats = multiplied(b.type) == ElementType::kBf16;
  const auto found = designs_for(b.type, b.type, floats ? ElementType::kF32 : ElementType::kI32,
                                 GemmLayout::kPacked, {false, bfp16, 0});
  const Size size{kPackedRows, b.rows, b.cols, true};
  // For the host the default design, whose copies the other one reads, too.
  const auto least = [&](auto* x, auto* y) { return seconds(*x, size) < seconds(*y, size); };
  const auto* best =
      preference_.for_array ? *std::ranges::min_element(found, least) : found.front();
  Gemm* gemm = nullptr;
  {
    const std::lock_guard guard(mutex_);
    gemm = &opened(*best);
  }
  return {gemm->pack(b), tile_of(best->point), multiplied(b.type), bfp16};
}

double Matmul::seconds(const GemmDesign& design, const Size& size) const {
  perf::GemmPoint point = design.point;
  point.M = size.m;
  point.K = size.k;
  point.N = size.n;
  return design.for_array ? gemm_seconds(timing_, point, size.packed)
                          : host_seconds(point, ThreadPool::shared_threads());
}

Gemm& Matmul::choose(const std::vector<const GemmDesign*>& found, const Size& size,
                     MatmulReport& report) {
  std::vector<Candidate> timed;
  for (const GemmDesign* design : found) {
    timed.push_back({design->key, found.size() == 1 ? 0 : seconds(*design, size)});
  }
  uint64_t loads = 0;
  {
    const std::lock_guard guard(device_->mutex);
    loads = device_->device->counters().configuration_loads;
  }
  const std::lock_guard guard(mutex_);
  report.choice = chooser_.choose(timed, loads);
  report.design = found[report.choice.candidate];
  return opened(*report.design);
}

Gemm& Matmul::opened(const GemmDesign& design) {
  std::unique_ptr<Gemm>& gemm = opened_[design.key];
  if (!gemm) {
    const auto use = std::find_if(
        store_->uses().begin(), store_->uses().end(),
        [&](const ConfigurationUse& u) { return u.operation == "gemm" && u.key() == design.key; });
    auto made = std::make_unique<Gemm>(device_, store_->load(*use));
    check_same(design, *made);
    gemm = std::move(made);
  }
  return *gemm;
}

}  // namespace npu::ops
