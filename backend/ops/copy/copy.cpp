// Copy (designs/copy.py): equal shares of the objects for all columns, one task each.
#include <utility>
#include <vector>

#include "ops/shim_commands.h"

namespace npu::ops {

namespace {

enum Argument : uint32_t { kX, kY };
enum BdId : int { kXBd, kYBd };

class CopyCommands : private ShimCommands {
 public:
  CopyCommands(stream::Builder& builder, const Configuration& configuration, const Request& request)
      : ShimCommands(builder, configuration),
        object_(4 * configuration.param("words", 1, 1 << 16)),
        bytes_(request.get("bytes", object_, int64_t{1} << 30, object_)) {}

  void append() {
    for (int c = 0; c < geometry_.columns; ++c) {
      const auto [first, end] = equal_share(bytes_ / object_, c, geometry_.columns);
      if (first == end) continue;
      lanes_.push_back({port("Y", c), {{first, end}}, TaskRing(1)});
      route_tokens(*port("Y", c));
    }
    run(lanes_, [&](const Lane<Objects>& lane, size_t i, int /*slot*/) {
      const auto [first, end] = lane.tasks[i];
      const int col = lane.results->col;
      const arch::Bd bd = linear_bd(static_cast<uint32_t>((end - first) * object_ / 4));
      push_bd(*port("Y", col), kYBd, bd, kY, first * object_, 1, true);
      push_bd(*port("X", col), kXBd, bd, kX, first * object_, 1, false);
    });
  }

  std::vector<ArgumentLayout> arguments() const {
    return {ArgumentLayout::input("x", bytes_), ArgumentLayout::output("y", bytes_)};
  }

 private:
  using Objects = std::pair<int64_t, int64_t>;  // [first, end)
  int64_t object_, bytes_;
  std::vector<Lane<Objects>> lanes_;
};

}  // namespace

extern const OperationType kCopyType;
const OperationType kCopyType = {"copy",
                                 "y = x, through the memtiles",
                                 {{"bytes", "of x, a multiple of 4096"}},
                                 {{"a page", {{"bytes", 4096}}}, {"16 MiB", {{"bytes", 1 << 24}}}},
                                 &one_submission<CopyCommands>};

}  // namespace npu::ops
