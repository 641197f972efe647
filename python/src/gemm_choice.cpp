// npu._npu.gemm_choice: what C++ and Python choose GEMM configurations by (ops/gemm/gemm_design.h
// and gemm_choice.h): predicted seconds, the policy, and its memory.
#include "ops/gemm/gemm_choice.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arch/timing.h"
#include "bindings.h"
#include "error.h"
#include "gemm_point.h"
#include "host/thread_pool.h"
#include "ops/gemm/gemm_design.h"
#include "ops/gemm/host_cost.h"
#include "ops/gemm/matmul.h"
#include "runtime/configuration_store.h"

namespace nb = nanobind;

namespace npu::python {

namespace {

using Size = std::array<int64_t, 3>;

perf::GemmPoint sized(const nb::object& design, const Size& size) {
  perf::GemmPoint point = gemm_point(design);
  set_size(point, size[0], size[1], size[2]);
  return point;
}

double seconds(const nb::object& design, const Size& size, bool packed,
               const std::map<std::string, double>& constants) {
  arch::TimingTable table;
  for (const auto& [name, value] : constants) table.set(name, value);
  const arch::Timing timing(generation_of(design), table);
  return ops::gemm_seconds(timing, sized(design, size), packed);
}

double host_seconds(const nb::object& design, const Size& size) {
  perf::GemmPoint point = gemm_point(design);
  point.M = size[0];  // of any size, also of those that no memory holds
  point.K = size[1];
  point.N = size[2];
  return ops::host_seconds(point, ThreadPool::shared_threads());
}

std::vector<std::pair<Size, int64_t>> blocks(const nb::object& design, const Size& size) {
  std::vector<std::pair<Size, int64_t>> out;
  for (const ops::GemmBlockCount& block : ops::count_blocks(sized(design, size))) {
    out.push_back({{block.m, block.k, block.n}, block.count});
  }
  return out;
}

ops::ElementType element_type(const std::string& name) {
  const std::optional<ops::ElementType> type = ops::element_named(name);
  if (!type) fail(ErrorKind::kDtype, "[offered] element type \"%s\" is unknown", name.c_str());
  return *type;
}

// What a folder of configurations offers for a product, as the library chooses from it.
nb::list offered(const std::string& folder, const nb::object& product,
                 const std::string& generation, const std::string& prefers,
                 const std::optional<std::string>& kernel, bool emulated) {
  const auto store = ConfigurationStore::open(folder);
  std::vector<ops::GemmDesign> designs;
  for (const ConfigurationUse& use : store->uses()) {
    if (use.operation != "gemm") continue;
    if (use.generation != arch::device_geometry(generation).generation) continue;
    designs.push_back(ops::GemmDesign::of(use));
  }
  const auto word = [&](const char* name) { return nb::cast<std::string>(product.attr(name)); };
  const std::string layout = word("layout");
  const ops::GemmKind kind{element_type(word("a_dtype")), element_type(word("c_dtype")),
                           layout == "row"      ? ops::GemmLayout::kRow
                           : layout == "col"    ? ops::GemmLayout::kColumn
                           : layout == "blocks" ? ops::GemmLayout::kBlocks
                                                : ops::GemmLayout::kPacked,
                           sums_named(word("accumulate")), word("bf16") == "bfp16"};
  ops::DesignPreference preference{prefers == "array", {}, emulated};
  if (kernel) preference.pipelined = *kernel == "pipelined";
  const Size size = nb::cast<Size>(product.attr("size"));
  nb::list out;
  for (const ops::GemmDesign* design : ops::candidates(designs, kind, preference)) {
    perf::GemmPoint point = design->point;
    set_size(point, size[0], size[1], size[2]);
    const arch::Timing timing(design->generation, arch::TimingTable{});
    const double expected = design->for_array
                                ? ops::gemm_seconds(timing, point, layout == "packed")
                                : ops::host_seconds(point, ThreadPool::shared_threads());
    out.append(nb::make_tuple(design->key, expected));
  }
  return out;
}

// {key: seconds}, in the dictionary's order.
using Candidates = std::vector<ops::Candidate>;
Candidates candidates_of(const nb::dict& seconds) {
  Candidates out;
  for (const auto& [key, value] : seconds) {
    out.push_back({nb::cast<std::string>(key), nb::cast<double>(value)});
  }
  return out;
}

struct Offer {
  explicit Offer(const nb::dict& seconds) : candidates(candidates_of(seconds)) {}
  Candidates candidates;
};

}  // namespace

void init_gemm_choice(nb::module_& m) {
  nb::module_ sub = m.def_submodule("gemm_choice", "Which GEMM configuration computes a product.");
  sub.attr("HYSTERESIS") = ops::kHysteresis;
  sub.attr("PACKED_ROWS") = ops::Matmul::kPackedRows;
  sub.attr("HOST_LOAD_SECONDS") = ops::kHostLoadSeconds;
  sub.def("blocks", &blocks, nb::arg("design"), nb::arg("size"),
          "Padded sizes of what single submissions compute of a product, and how often each "
          "occurs.");
  sub.def("seconds", &seconds, nb::arg("design"), nb::arg("size"), nb::arg("packed") = false,
          nb::arg("constants") = std::map<std::string, double>{},
          "Predicted time of all submissions of a product, dispatch included, no load.");
  sub.def("host_seconds", &host_seconds, nb::arg("design"), nb::arg("size"),
          "Expected time of a repeated product on the host of an emulated device, no load.");
  sub.def("offered", &offered, nb::arg("folder"), nb::arg("product"), nb::arg("generation"),
          nb::arg("prefers"), nb::arg("kernel") = nb::none(), nb::arg("emulated") = true,
          "(key, predicted seconds) of the designs in a folder of configurations that may compute "
          "a product.");
  nb::class_<ops::Ledger>(sub, "Ledger",
                          "What is loaded, and the seconds that each other candidate would have "
                          "saved since then.")
      .def(
          "__init__",
          [](ops::Ledger* self, std::string loaded, std::map<std::string, double> saved) {
            new (self) ops::Ledger{std::move(loaded), std::move(saved)};
          },
          nb::arg("loaded") = "", nb::arg("saved") = std::map<std::string, double>{})
      .def_ro("loaded", &ops::Ledger::loaded)
      .def_ro("saved", &ops::Ledger::saved);
  sub.def(
      "decide",
      [](const nb::dict& seconds, const ops::Ledger& ledger, double load_seconds) {
        const auto candidates = candidates_of(seconds);
        const ops::Decision decision = ops::decide(candidates, ledger, load_seconds);
        return nb::make_tuple(candidates[decision.candidate].key, decision.loads, decision.reason,
                              decision.ledger);
      },
      nb::arg("seconds"), nb::arg("ledger"), nb::arg("load_seconds"),
      "(candidate, whether it has to be loaded, reason, ledger after the call).");
  nb::class_<Offer>(sub, "Offer", "The candidates for a product, {key: predicted seconds}.")
      .def(nb::init<const nb::dict&>(), nb::arg("seconds"));
  nb::class_<ops::GemmChooser>(sub, "Chooser", "The choice of one device, with what it remembers.")
      .def(nb::init<double>(), nb::arg("load_seconds"))
      .def(
          "choose",
          [](ops::GemmChooser& self, const Offer& offer, uint64_t loads) {
            const auto choice = self.choose(offer.candidates, loads);
            return nb::make_tuple(choice.candidate, choice.reason, choice.predicted_seconds,
                                  choice.load_seconds);
          },
          nb::arg("offer"), nb::arg("loads"),
          "(number of the candidate, reason, predicted seconds with the load, seconds of the "
          "load).");
}

}  // namespace npu::python
