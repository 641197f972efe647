// A core of the prefill configuration that runs jobs of rows (aie_kernels/prefill_norm.cc,
// prefill_geglu.cc, prefill_rotation.cc) round by round as the worker does, between marks that
// nobody may overwrite; and the headers of such jobs.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "aie_kernels/prefill_job.h"
#include "kernel_calls.h"

namespace npu::prefill_row_test {

using namespace kernel_test;
namespace pre = npu::prefill;
using pre::Job, pre::Kind;

inline constexpr float kEpsilon = 0.03f;
inline constexpr size_t kGuard = 64;  // bytes around every buffer
inline constexpr std::byte kMark{0xA5};

// A buffer with marks around it.
struct Memory {
  explicit Memory(size_t count) : bytes(count + 2 * kGuard, kMark), size(count) {}
  std::byte* data() { return bytes.data() + kGuard; }
  npu::KernelArgument argument() { return {data(), static_cast<uint32_t>(size), 0}; }
  int32_t* words() { return reinterpret_cast<int32_t*>(data()); }
  bool intact() const {
    const auto marked = [](std::byte b) { return b == kMark; };
    return std::all_of(bytes.begin(), bytes.begin() + kGuard, marked) &&
           std::all_of(bytes.end() - kGuard, bytes.end(), marked);
  }
  std::vector<std::byte> bytes;
  size_t size;
};

using Bytes = std::vector<std::byte>;

// Objects of a stream that hold `values` in turn; what follows in the last bytes is not a number.
template <typename T>
void append_objects(std::vector<Bytes>& stream, const std::vector<T>& values, size_t payload,
                    size_t size) {
  for (size_t at = 0; at < values.size(); at += payload / sizeof(T)) {
    const size_t count = std::min(values.size() - at, payload / sizeof(T));
    Bytes object(size, std::byte{0xFF});
    std::memcpy(object.data(), values.data() + at, count * sizeof(T));
    stream.push_back(object);
  }
}
template <typename T>
void append_a(std::vector<Bytes>& stream, const std::vector<T>& values) {
  append_objects(stream, values, pre::kAPayload, pre::kAPayload);
}
template <typename T>
void append_b(std::vector<Bytes>& stream, const std::vector<T>& values, size_t payload) {
  append_objects(stream, values, payload, pre::kBBytes);
}

class Core {
 public:
  explicit Core(const Build& build) : sizes_(pre::sizes_of(build.generation == Generation::kNpu1)) {
    for (const char* name : {"norm_square", "norm_take", "norm_piece", "norm_tail", "geglu_take",
                             "geglu_piece", "rotation_table", "rotation_piece"}) {
      kernels_.emplace(name, build.find((std::string("prefill_") + name).c_str()));
    }
  }

  void begin(const Job& job) {
    std::fill_n(job_.words(), pre::kJobWords, 0);
    std::memcpy(job_.data(), &job, sizeof job);
    kind = Kind(job.kind), groups = job.groups, head_dim = job.head_dim, dim = job.dim;
  }
  void keep(const std::vector<float>& constants) {
    std::memcpy(store_.data(), constants.data(), 4 * constants.size());
  }
  // The worker's rounds; results are those of its calls one after the other.
  std::vector<std::byte> run(const Job& job, std::vector<Bytes> a, std::vector<Bytes> b) {
    size_t next_a = 0, next_b = 0;
    out_.clear();
    for (int32_t round = 0; round < job.rounds; ++round) {
      for (int32_t i = 0; i < job.first_groups; ++i) first(a.at(next_a++));
      for (int32_t group = 0; group < job.groups; ++group) {
        for (int32_t i = 0; i < job.a_turns; ++i) take(a.at(next_a++));
        for (int32_t i = 0; i < job.b_turns; ++i, ++next_b) {
          for (int32_t j = 0; j < job.b_pieces; ++j) piece(b.at(next_b));
        }
      }
      if (Kind(job.kind) == Kind::kNorm) tail();
    }
    CHECK(next_a == a.size());
    CHECK(next_b == b.size());
    CHECK(intact());
    return out_;
  }

  // Kernels of `kind`; where it has none for a call, those of a norm.
  void first(Bytes& object) {
    fill(object);
    if (kind == Kind::kRotation) {
      call("rotation_table", {buffer(object), store_.argument(), job_.argument()});
    } else {
      call("norm_square", {buffer(object), work_.argument(), job_.argument()});
    }
  }
  void take(Bytes& object) {
    fill(object);
    if (kind == Kind::kGeglu) {
      call("geglu_take", {buffer(object), work_.argument(), job_.argument()});
    } else {
      call("norm_take", {buffer(object), work_.argument(), job_.argument(), integer(groups)});
    }
  }
  void piece(Bytes& object) {
    if (kind == Kind::kRotation) {
      call("rotation_piece", {buffer(object), piece_.argument(), store_.argument(),
                              work_.argument(), job_.argument(), integer(head_dim), integer(dim)});
    } else if (kind == Kind::kGeglu) {
      call("geglu_piece", {buffer(object), piece_.argument(), work_.argument(), job_.argument()});
    } else {
      call("norm_piece", {buffer(object), piece_.argument(), store_.argument(), work_.argument(),
                          job_.argument()});
    }
    keep_piece();
  }
  void tail() {
    call("norm_tail", {work_.argument(), piece_.argument(), job_.argument()});
    keep_piece();
  }

  // first, take, piece or tail ('z') by its letter; whether the call was refused.
  bool refuses(char name) {
    Bytes a(pre::kAPayload), b(pre::kBBytes);
    try {
      if (name == 'f') first(a);
      if (name == 't') take(a);
      if (name == 'p') piece(b);
      if (name == 'z') tail();
    } catch (const npu::Error& e) {
      return e.kind() == npu::ErrorKind::kKernel;
    }
    return false;
  }

  bool intact() const {
    return store_.intact() && work_.intact() && job_.intact() && piece_.intact();
  }
  int32_t& word(int32_t number) { return job_.words()[number]; }

  Kind kind = Kind::kNorm;                    // whose kernels are called
  int32_t groups = 0, head_dim = 0, dim = 0;  // as operands

 private:
  void fill(Bytes& object) const {  // what follows the payload of A is not a number
    object.resize(static_cast<size_t>(sizes_.a_bytes()), std::byte{0xFF});
  }
  void keep_piece() { out_.insert(out_.end(), piece_.data(), piece_.data() + pre::kPieceBytes); }
  void call(const char* name, const std::vector<npu::KernelArgument>& arguments) {
    kernels_.at(name)(arguments, core_);
  }

  std::map<std::string, kernel_test::TestedKernel> kernels_;
  npu::CoreState core_;  // with the modes of a reset
  pre::Sizes sizes_;
  Memory store_{4 * pre::kStore}, work_{4 * static_cast<size_t>(sizes_.work)};
  Memory job_{4 * pre::kJobWords};
  Memory piece_{pre::kPieceBytes};
  std::vector<std::byte> out_;
};

struct NormShape {
  int width, columns, rounds;
  bool has_y;
};

inline Job norm_job(const NormShape& shape) {
  Job job{};
  job.kind = int32_t(Kind::kNorm), job.rounds = shape.rounds;
  job.width = shape.width, job.columns = shape.columns;
  job.groups = shape.columns / pre::kGroup, job.a_turns = shape.has_y;
  job.first_groups = shape.has_y ? job.groups : 0;
  job.b_turns = 2, job.b_pieces = 12;
  job.epsilon = std::bit_cast<int32_t>(kEpsilon);
  return job;
}

inline Job geglu_job(int rounds) {
  Job job{};
  job.kind = int32_t(Kind::kGeglu), job.rounds = rounds, job.groups = 1;
  job.a_turns = 1, job.b_turns = 1, job.b_pieces = 8;
  return job;
}

// dim: of a head that comes, which becomes one of head_dim; 0: the same.
inline Job rotation_job(int head_dim, int rounds, int dim = 0) {
  Job job{};
  job.kind = int32_t(Kind::kRotation), job.rounds = rounds, job.groups = 1;
  job.heads = 3, job.kv_heads = 2, job.head_dim = head_dim, job.dim = dim > 0 ? dim : head_dim;
  job.first_groups = head_dim == 256 ? 2 : 1;
  job.b_turns = 7, job.b_pieces = head_dim / 32;
  job.epsilon = std::bit_cast<int32_t>(kEpsilon);
  return job;
}

}  // namespace npu::prefill_row_test
