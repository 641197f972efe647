// Matrix products with the choice of a configuration behind them: what the package's configurations
// offer for a product, which of them runs it, and one ops::Gemm per configuration that was used.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "formats/pack.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/gemm_choice.h"
#include "ops/gemm/gemm_design.h"
#include "runtime/configuration_store.h"
#include "runtime/shared_device.h"

namespace npu::ops {

// Which of the designs there are a device may take.
struct DesignPreference {
  bool for_array = false;         // see GemmDesign::for_array
  std::optional<bool> pipelined;  // only designs with such kernels, where there are any
  bool emulated = true;  // false: none for the host on a part of the array, as that computes
};

// The designs that may run a product, the first wins where several are equally fast. None if
// nothing computes it. packed_for: only those that read a B packed for it.
std::vector<const GemmDesign*> candidates(std::span<const GemmDesign> designs, const GemmKind& kind,
                                          const DesignPreference& preference,
                                          const GemmTile* packed_for = nullptr);

// What a product ran as.
struct MatmulReport {
  const GemmDesign* design = nullptr;  // the Matmul's
  GemmChooser::Choice choice;
  RunReport run;
};

struct MatmulOptions {
  bool narrow = false, bfp16 = false;
  int shift = 0;
};

// A right-hand operand in device memory in the layout of a design.
struct PackedMatrix {
  std::shared_ptr<const PackedB> b;
  GemmTile tile = {};                     // of the design
  ElementType type = ElementType::kBf16;  // that the array multiplies
  bool bfp16 = false;                     // how products with it are computed by default
};

class Matmul {
 public:
  // table: what predictions, by which configurations are chosen, rest on.
  Matmul(std::shared_ptr<SharedDevice> device, std::shared_ptr<const ConfigurationStore> store,
         const DesignPreference& preference, const arch::TimingTable& table = {});

  // The designs that compute a product of such types; of those, if packed_for is given, the ones
  // that read a B packed for it. Throws Error(kDtype) if none computes it.
  std::vector<const GemmDesign*> designs_for(ElementType a, ElementType b, ElementType c,
                                             GemmLayout layout, const MatmulOptions& options,
                                             const GemmTile* packed_for = nullptr) const;
  // c: row-major (M, N) of type c_type. Sizes >= 1. Thread-safe. Throws Error(kDtype) for types
  // that no configuration has, what Gemm::run() and ConfigurationStore::load() throw.
  MatmulReport run(const MatrixView& a, const MatrixView& b, std::byte* c, ElementType c_type,
                   const MatmulOptions& options);
  // The same with a B that was packed before, by this device. Throws Error(kArgument) if nothing
  // that computes the product reads its layout.
  MatmulReport run(const MatrixView& a, const PackedMatrix& b, std::byte* c, ElementType c_type,
                   const MatmulOptions& options);
  // In the layout of the design that is the fastest for kPackedRows rows of A and results of 32
  // bits, for the host in that of the default design; the choice for a product is among those that
  // share it.
  PackedMatrix pack(const MatrixView& b, bool bfp16);
  static constexpr int64_t kPackedRows = 512;  // a prompt
  const std::shared_ptr<SharedDevice>& device() const { return device_; }
  const ConfigurationStore& store() const { return *store_; }

 private:
  struct Size {
    int64_t m, k, n;
    bool packed;
  };
  double seconds(const GemmDesign& design, const Size& size) const;
  // Fills the report but for the run.
  Gemm& choose(const std::vector<const GemmDesign*>& found, const Size& size, MatmulReport& report);
  Gemm& opened(const GemmDesign& design);

  std::shared_ptr<SharedDevice> device_;
  std::shared_ptr<const ConfigurationStore> store_;
  DesignPreference preference_;
  arch::Timing timing_;
  std::vector<GemmDesign> designs_;  // of the device's generation
  std::mutex mutex_;                 // of what follows
  GemmChooser chooser_;
  std::map<std::string, std::unique_ptr<Gemm>> opened_;
};

// Whether neighbours in a column of B are nearer in memory than neighbours in a row.
bool by_columns(const MatrixView& b);

}  // namespace npu::ops
