// npu._npu.host: host operations on float32 arrays; python/npu/ops/host.py checks and documents.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "error.h"
#include "host/attention.h"
#include "host/host_math.h"
#include "host/memory_read.h"
#include "host/thread_pool.h"

namespace nb = nanobind;

namespace npu::python {

namespace {

using Array = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Heads = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Cached = nb::ndarray<const float, nb::ndim<3>, nb::device::cpu>;
using HeadsOutput = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Output = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

using Pool = nb::ndarray<uint16_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

ops::KvPages pages_of(const Pool& pool, const Table& table, int64_t kv_heads, int64_t head_dim) {
  if (kv_heads <= 0 || head_dim <= 0) fail(ErrorKind::kShape, "[kv_cache] no heads or elements");
  return {{pool.data(), pool.size()}, {table.data(), table.size()}, kv_heads, head_dim};
}

// Environment variables, whose number of changes tells whether what was made of them still holds:
// os.environ takes some 0.5 us for each.
class Environment {
 public:
  explicit Environment(std::vector<std::string> names)
      : names_(std::move(names)), values_(names_.size()) {}
  // With the interpreter's lock, under which Python changes them.
  uint64_t version() {
    for (size_t i = 0; i < names_.size(); ++i) {
      const char* value = std::getenv(names_[i].c_str());
      const bool same = value != nullptr ? values_[i] == value : !values_[i].has_value();
      if (same) continue;
      values_[i] = value != nullptr ? std::optional<std::string>(value) : std::nullopt;
      ++version_;
    }
    return version_;
  }

 private:
  std::vector<std::string> names_;
  std::vector<std::optional<std::string>> values_;
  uint64_t version_ = 0;
};

void check(bool good, const char* function) {
  if (!good) fail(ErrorKind::kShape, "[%s] the shapes of the arrays do not match", function);
}

}  // namespace

void init_host(nb::module_& m) {
  nb::module_ sub = m.def_submodule("host", "Float32 operations on the host.");
  sub.def("rms_norm", [](const Array& x, const Vector& weight, float eps, const Output& out) {
    check(x.shape(1) == weight.shape(0) && out.shape(0) == x.shape(0) && out.shape(1) == x.shape(1),
          "rms_norm");
    const nb::gil_scoped_release release;
    ops::rms_norm(x.data(), weight.data(), eps, static_cast<int64_t>(x.shape(0)),
                  static_cast<int64_t>(x.shape(1)), out.data());
  });
  sub.def(
      "rope", [](const Heads& x, const Array& cosines, const Array& sines, const HeadsOutput& out) {
        bool good = x.shape(2) % 2 == 0;
        for (size_t i = 0; i < 3; ++i) good = good && out.shape(i) == x.shape(i);
        for (const Array* table : {&cosines, &sines}) {
          good = good && table->shape(0) == x.shape(0) && table->shape(1) * 2 == x.shape(2);
        }
        check(good, "rope");
        const nb::gil_scoped_release release;
        ops::rope(x.data(), cosines.data(), sines.data(), static_cast<int64_t>(x.shape(0)),
                  static_cast<int64_t>(x.shape(1)), static_cast<int64_t>(x.shape(2)), out.data());
      });
  sub.def("read_all", [](const std::vector<nb::ndarray<const uint8_t, nb::c_contig>>& arrays) {
    std::vector<std::span<const std::byte>> bytes;
    for (const auto& array : arrays) {
      bytes.emplace_back(reinterpret_cast<const std::byte*>(array.data()), array.size());
    }
    const nb::gil_scoped_release release;
    return ops::read_all(bytes);
  });
  // k and v may be the first rows of longer buffers.
  sub.def("attention", [](const Heads& q, const Cached& k, const Cached& v, int64_t shift,
                          int64_t window, float scale, const HeadsOutput& out) {
    ops::AttentionShape s;
    s.queries = static_cast<int64_t>(q.shape(0));
    s.heads = static_cast<int64_t>(q.shape(1));
    s.head_dim = static_cast<int64_t>(q.shape(2));
    s.kv_heads = static_cast<int64_t>(k.shape(0));
    s.keys = static_cast<int64_t>(k.shape(1));
    s.kv_stride = k.stride(0);
    s.shift = shift;
    s.window = window;
    s.scale = scale;
    bool good = s.queries > 0 && s.kv_heads > 0 && s.heads > 0 && s.head_dim > 0 && window >= 0 &&
                s.heads % s.kv_heads == 0 && shift >= 0 && shift <= s.keys - s.queries;
    for (size_t i = 0; i < 3; ++i) good = good && out.shape(i) == q.shape(i);
    for (size_t i = 0; i < 3; ++i) good = good && v.shape(i) == k.shape(i);
    for (const Cached* cached : {&k, &v}) {
      good = good && cached->shape(2) == q.shape(2) && (cached->stride(2) == 1 || s.head_dim == 1);
      good = good && (cached->stride(1) == s.head_dim || s.keys <= 1);
      good = good && (cached->stride(0) == s.kv_stride || s.kv_heads <= 1);
    }
    check(good, "attention");
    const nb::gil_scoped_release release;
    ops::attention(q.data(), k.data(), v.data(), s, out.data());
  });
  sub.def(
      "paged_attention", [](const Heads& q, const Pool& pool, const Table& table, int64_t kv_heads,
                            int64_t start, int64_t window, float scale, const HeadsOutput& out) {
        ops::AttentionShape s;
        s.queries = static_cast<int64_t>(q.shape(0));
        s.heads = static_cast<int64_t>(q.shape(1));
        s.head_dim = static_cast<int64_t>(q.shape(2));
        s.kv_heads = kv_heads;
        s.shift = start;
        s.window = window;
        s.scale = scale;
        bool good = s.queries > 0 && kv_heads > 0 && s.heads > 0 && s.head_dim > 0 && window >= 0 &&
                    start >= 0 && s.heads % kv_heads == 0;
        for (size_t i = 0; i < 3; ++i) good = good && out.shape(i) == q.shape(i);
        check(good, "attention");
        s.keys = start + s.queries;
        const ops::KvPages pages = pages_of(pool, table, kv_heads, s.head_dim);
        const int64_t first = ops::first_seen(start, window);
        if (!pages.covers(first, s.keys)) {
          fail(ErrorKind::kArgument, "[attention] the cache does not hold positions %lld to %lld",
               static_cast<long long>(first), static_cast<long long>(s.keys - 1));
        }
        const nb::gil_scoped_release release;
        ops::attention(q.data(), pages, s, out.data());
      });
  sub.def("kv_put",
          [](const Pool& pool, const Table& table, int64_t first, const Heads& k, const Heads& v) {
            bool good = first >= 0;
            for (size_t i = 0; i < 3; ++i) good = good && v.shape(i) == k.shape(i);
            check(good, "kv_cache");
            const auto count = static_cast<int64_t>(k.shape(0));
            const ops::KvPages pages = pages_of(pool, table, static_cast<int64_t>(k.shape(1)),
                                                static_cast<int64_t>(k.shape(2)));
            if (!pages.covers(first, first + count)) {
              fail(ErrorKind::kArgument, "[kv_cache] there are no pages for these positions");
            }
            const nb::gil_scoped_release release;
            ops::put_rows(pages, first, count, k.data(), v.data());
          });
  sub.def("kv_clear", [](const Pool& pool, const Table& table, int64_t kv_heads, int64_t head_dim,
                         int64_t first, int64_t last) {
    const ops::KvPages pages = pages_of(pool, table, kv_heads, head_dim);
    if (!pages.covers(first, last)) {
      fail(ErrorKind::kArgument, "[kv_cache] there are no pages for these positions");
    }
    ops::clear_rows(pages, first, last);
  });
  sub.def("kv_chunk", &ops::chunk_positions);
  sub.attr("kv_page_positions") = ops::kPagePositions;
  sub.attr("kv_query_group") = ops::kQueryGroup;
  sub.def("kv_first_read", &ops::first_read);
  // Rows of gate and up may be apart: halves of one array.
  sub.def("geglu", [](const Rows& gate, const Rows& up, const Output& out) {
    const auto fits = [&](const Rows& rows) {
      return rows.shape(0) == out.shape(0) && rows.shape(1) == out.shape(1) &&
             (rows.stride(1) == 1 || rows.shape(1) <= 1);
    };
    const bool alike = out.shape(0) <= 1 || gate.stride(0) == up.stride(0);
    check(fits(gate) && fits(up) && alike, "geglu");
    const nb::gil_scoped_release release;
    ops::geglu(gate.data(), up.data(), gate.stride(0), static_cast<int64_t>(out.shape(0)),
               static_cast<int64_t>(out.shape(1)), out.data());
  });
  sub.def("threads", &ThreadPool::shared_threads);
  nb::class_<Environment>(sub, "Environment", "Changes of environment variables.")
      .def(nb::init<std::vector<std::string>>(), nb::arg("names"))
      .def("version", &Environment::version, "A number that is larger after every change.");
  sub.def("set_threads", &ThreadPool::set_shared_threads);
  sub.def(
      "causal_softmax", [](const Output& scores, int64_t queries, int64_t shift, int64_t window) {
        // Every query sees a key at least.
        check(queries > 0 && shift >= 0 && window >= 0 && scores.shape(1) > 0, "causal_softmax");
        const nb::gil_scoped_release release;
        ops::causal_softmax(scores.data(), static_cast<int64_t>(scores.shape(0)),
                            static_cast<int64_t>(scores.shape(1)), queries, shift, window);
      });
}

}  // namespace npu::python
