// One host build of all kernels. Compiled several times (aie_kernels/host_kernels.cmake) with
// AIE_HOST_VARIANT naming the build; the sources are all of aie_kernels/*.cc.
#include "kernel_sources.inc"

namespace {

using npu::kernels::HostFunction;

template <typename Numbers>
struct Kernels;
template <int... kNumber>
struct Kernels<std::integer_sequence<int, kNumber...>> {
  struct Table {
    HostFunction functions[(int(Declared<kNumber>::kExists) + ... + 0)];
  };
  template <typename Kernel>
  static consteval npu::kernels::JointCalls joint() {
    if constexpr (Kernel::kDeclaration.has_joint) return &Checked<Kernel>::run_joint;
    return nullptr;
  }
  template <typename Kernel>
  static consteval void add(Table& table, int& count) {
    if constexpr (Kernel::kExists) {
      table.functions[count++] = {Kernel::kDeclaration.name, &Checked<Kernel>::run,
                                  AIE_HOST_SILICON ? &Kernel::kDeclaration : nullptr,
                                  joint<Kernel>()};
    }
  }
  static consteval Table collected() {
    Table table{};
    int count = 0;
    (add<Declared<kNumber>>(table, count), ...);
    return table;
  }
  static constexpr Table kTable = collected();
};

using All = Kernels<std::make_integer_sequence<int, __COUNTER__>>;

}  // namespace

namespace npu::kernels {

extern constinit const HostBuild AIE_HOST_VARIANT = {All::kTable.functions};

}  // namespace npu::kernels
