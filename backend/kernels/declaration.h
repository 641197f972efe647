// What a kernel takes, may be given and costs: constant data that NPU_DECLARE makes beside the
// kernel's function (aie_kernels/kernel.h). The host call and its checks, tile aliasing, simulated
// time and the designs' types all follow from it.
//
// Included by host builds for several instruction sets, which are linked together: what is defined
// here runs at compile time or is always inlined.
#pragma once

#include <array>
#include <cstdint>

namespace npu {

struct KernelArgument;
namespace arch {
struct Timing;
}

namespace kernels {

inline constexpr int kMaxOperands = 10;

// Element types of buffers in a core's memory. kBfp16: 8 values share an exponent and take 9 bytes.
enum class Element : uint8_t { kInt8, kUint8, kInt16, kInt32, kFloat32, kBfloat16, kBfp16 };

// Bytes of so many elements; BFP16 comes in whole blocks.
[[gnu::always_inline]] constexpr int64_t bytes_of(Element element, int64_t count) {
  switch (element) {
    case Element::kInt8:
    case Element::kUint8:
      return count;
    case Element::kInt16:
    case Element::kBfloat16:
      return 2 * count;
    case Element::kInt32:
    case Element::kFloat32:
      return 4 * count;
    case Element::kBfp16:
      break;
  }
  return count / 8 * 9;
}

// One call for each of `count` cores, from one to kMostJointCalls, with the same first operand;
// then `times` - 1 more, for each of which that operand lies `stride` bytes further. Results are
// those of single calls, of which the later ones pass any check that the first one passes. False,
// and nothing happens, where they cannot be made together.
inline constexpr int kMostJointCalls = 8;
using JointCalls = bool (*)(const KernelArgument* const* calls, int count, uint32_t times,
                            int64_t stride);

// A number that depends on a call's integers: a sum of products, "row * n + m * n", or a constant.
struct Size {
  static constexpr int kTerms = 2, kFactors = 2;
  struct Term {
    int32_t constant = 0;
    int8_t factors[kFactors] = {-1, -1};  // integer operands, numbered among themselves; -1: none
  };

  consteval Size() = default;
  consteval Size(const char* formula) : text(formula) {}  // parsed by resolved()
  consteval Size(int32_t constant) : used(1) { terms[0].constant = constant; }

  // `integers`: the values of a call's integer operands, in order.
  int64_t value(const int64_t* integers) const;

  const char* text = nullptr;  // null for a constant
  Term terms[kTerms] = {};
  int8_t used = 0;  // terms; none: the size says nothing
};

// What a call does with words of a buffer that steer a core: they bound its loops, are integers of
// its calls, or such words come from them. Whatever else the call is given, they are the same after
// it as long as its integers and those that it reads are.
enum class Steering : uint8_t {
  kNone,
  kReads,
  kSets,     // all of them
  kUpdates,  // reads them and may change them
  kCopies,   // word i becomes word i of those of the first operand of kReads
  kKeeps,    // leaves them alone, of a buffer that it writes
};

struct Operand {
  const char* name = nullptr;
  bool buffer = false;
  // Of a buffer; element and read_only come from the function's parameter, T* or const T*.
  Element element = Element::kUint8;
  bool read_only = false;
  bool filled = false;    // a buffer, all of which a call writes, whatever it was
  uint8_t alignment = 0;  // bytes
  // Of a buffer: its elements. Of an integer: what it is a multiple of besides `step`, or nothing.
  Size size = {};
  // Limits of an integer, or of the word of an int32 buffer that `word` numbers, if any.
  int32_t min = 0, max = 0, step = 1;
  int32_t word = -1;
  // Of a buffer: so many words from one of them on.
  Steering steering = Steering::kNone;
  Size steering_first = {};
  int32_t steering_words = 0;

  // Of a buffer that holds, say, a position: with other values a call would leave its buffers.
  consteval Operand with_word(int32_t number, int32_t least, int32_t most,
                              int32_t every = 1) const {
    Operand limited = *this;
    limited.word = number, limited.min = least, limited.max = most, limited.step = every;
    return limited;
  }
  consteval Operand steers(Steering how, int32_t words, Size first = 0) const {
    Operand steering_core = *this;
    steering_core.steering = how, steering_core.steering_words = words;
    steering_core.steering_first = first;
    return steering_core;
  }
  consteval Operand overwritten() const {
    Operand result = *this;
    result.filled = true;
    return result;
  }
  constexpr bool allows(int64_t value) const {
    return value >= min && value <= max && value % step == 0;
  }
};

// Words of a buffer operand that a call makes those of another one, or of another place in it.
struct WordCopy {
  int32_t to, to_first, from, from_first, words;  // operands, and words of theirs
};
// In the order in which the call copies them. What one copies is as it was before the call, or as
// another one before has left it.
struct WordCopies {
  static constexpr int kMost = 72;
  WordCopy list[kMost];
  int count = 0;

  // False if there is no room.
  [[gnu::always_inline]] bool add(const WordCopy& copy) {
    if (count == kMost) return false;
    list[count++] = copy;
    return true;
  }
};

// kIntegers: also mantissas of BFP16, which fast builds multiply as such.
enum class Product : uint8_t { kNone, kIntegers, kFloats };

// Generated code that does what a call does, or a part of it: lines of the table of schedules
// (perf/kernel_schedules.h). A part is a function of its own, with the cycles of its call.
struct Generated {
  static constexpr const char* kOwn = "";
  static constexpr double kCall = -1;

  const char* name = nullptr;               // in the table; kOwn: the kernel's; null: nothing
  std::array<int64_t, 3> size = {1, 1, 1};  // m, k and n there
  double counted = kCall;                   // what `cycles` has for it; kCall: all of the call
  double times = 1;                         // it runs in a call
};
inline constexpr int kMaxParts = 4;
using Parts = std::array<Generated, kMaxParts>;

struct Declaration {
  const char* name = nullptr;
  Operand operands[kMaxOperands] = {};
  int count = 0;     // operands
  int integers = 0;  // of them
  // Cycles of a call whose integer operands, in order, are `integers`. Null: not known, and the
  // kernel cannot run in simulated time.
  double (*cycles)(const arch::Timing& timing, const int64_t* integers) = nullptr;
  // Throws Error(kKernel) if what the operands contain takes the kernel out of its buffers.
  void (*check)(const char* name, const KernelArgument* operands) = nullptr;
  // Which words a call copies on their way to where they steer a core, besides those of kCopies.
  // Its places may depend on integers and on words that steer. Null: none.
  void (*copies)(const KernelArgument* operands, WordCopies& out) = nullptr;
  // In host builds that have a faster way for several cores, or calls in a row. It leaves the
  // core's modes alone.
  JointCalls joint = nullptr;
  bool has_joint = false;  // with UBSan no constant expression compares a function's address
  // C += A B, operand 0 by the next one or three: simulations count its cycles apart, and host
  // builds share the packed forms of A and B.
  Product product = Product::kNone;
  // Of a product: `cycles` is fitted on published kernels, for which this one stands.
  bool published = false;
  // The generated code for such a call, on a generation that has it. Null: none.
  Parts (*parts)(const arch::Timing& timing, const int64_t* integers) = nullptr;
  // A result may begin where an input does: elements are loaded before a store overwrites them.
  bool in_place = false;

  consteval Declaration with(Operand operand) const {
    Declaration more = *this;
    int i = 0;
    while (more.operands[i].name != nullptr) ++i;
    more.operands[i] = operand;
    return more;
  }
};

// Larger than any tile dimension or element count in 64 KB of data memory.
inline constexpr int32_t kMaxSize = 1 << 16;

// Operands as declarations list them, in the order of the function's parameters.
consteval Operand buffer(const char* name, Size elements, uint8_t alignment = 0) {
  return {.name = name, .buffer = true, .alignment = alignment, .size = elements};
}
consteval Operand integer(const char* name, int32_t min, int32_t max, int32_t step = 1) {
  return {.name = name, .min = min, .max = max, .step = step};
}
// A positive multiple of `step`, and of `also` if that is given.
consteval Operand multiple(const char* name, int32_t step, Size also = {}) {
  return {.name = name, .size = also, .min = step, .max = kMaxSize, .step = step};
}

namespace detail {

// Reads the formula of a Size.
struct Parser {
  const char* at;
  const Declaration& declaration;

  static constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static constexpr bool is_letter(char c) { return (c >= 'a' && c <= 'z') || c == '_'; }
  constexpr void skip() {
    while (*at == ' ') ++at;
  }
  constexpr bool take(char c) {
    skip();
    if (*at != c) return false;
    ++at;
    return true;
  }
  // The number, among the integers, of the operand that is named next.
  constexpr int8_t integer() {
    const char* const start = at;
    while (is_letter(*at) || is_digit(*at)) ++at;
    int8_t number = 0;
    for (const Operand& operand : declaration.operands) {
      if (operand.name == nullptr || operand.buffer) continue;
      const char *a = start, *b = operand.name;
      while (a != at && *a == *b) ++a, ++b;
      if (a == at && *b == '\0') return number;
      ++number;
    }
    throw "a size names something that is not an integer operand of the kernel";
  }
  constexpr void factor(Size::Term& term) {
    skip();
    if (is_digit(*at)) {
      int32_t constant = 0;
      while (is_digit(*at)) constant = constant * 10 + (*at++ - '0');
      term.constant *= constant;
    } else if (is_letter(*at)) {
      int i = 0;
      while (i < Size::kFactors && term.factors[i] >= 0) ++i;
      if (i == Size::kFactors) throw "a size multiplies more than two operands";
      term.factors[i] = integer();
    } else {
      throw "a size is a sum of products of operands and numbers";
    }
  }
  constexpr Size parse(Size size) {
    do {
      if (size.used == Size::kTerms) throw "a size has more than two terms";
      Size::Term& term = size.terms[size.used++];
      term.constant = 1;
      do {
        factor(term);
      } while (take('*'));
    } while (take('+'));
    skip();
    if (*at != '\0') throw "a size is a sum of products of operands and numbers";
    return size;
  }
};

}  // namespace detail

// The declaration with its formulas parsed and its operands counted.
consteval Declaration resolved(const char* name, Declaration declaration) {
  declaration.name = name;
  for (Operand& operand : declaration.operands) {
    if (operand.name == nullptr) continue;
    if (operand.size.text != nullptr) {
      operand.size = detail::Parser{operand.size.text, declaration}.parse(operand.size);
    }
    if (operand.steering_first.text != nullptr) {
      operand.steering_first =
          detail::Parser{operand.steering_first.text, declaration}.parse(operand.steering_first);
    }
    ++declaration.count;
    declaration.integers += !operand.buffer;
  }
  return declaration;
}

}  // namespace kernels
}  // namespace npu
