// Worker programs: text -> instructions, instructions -> text, and the checks that make a program
// safe to interpret (balanced loops, lock and counter ranges, addresses inside the core's memory).
#include "runtime/program.h"

#include <algorithm>
#include <array>
#include <limits>

#include "arch/geometry.h"
#include "error.h"
#include "text.h"

namespace npu {

namespace {

using Code = Instruction::Code;

constexpr size_t kMaxInstructions = 1 << 16;
constexpr size_t kMaxFunctions = 256;
constexpr size_t kMaxName = 128;
constexpr size_t kMaxOperands = 32;
constexpr size_t kMaxSlots = 64;
constexpr int kMaxCounters = 64;
constexpr size_t kMaxNesting = 16;
constexpr int64_t kMaxCount = std::numeric_limits<int32_t>::max();

// Names one line of one program in errors.
struct Place {
  std::string_view where;
  int line;

  [[noreturn]] void bad(const std::string& cause) const {
    fail(ErrorKind::kFormat, "[parse_program] %.*s, line %d: %s", static_cast<int>(where.size()),
         where.data(), line, cause.c_str());
  }
  int64_t integer(std::string_view word, const char* what) const {
    const std::optional<int64_t> value = parse_integer(word);
    if (!value) bad(strf("%s %s is not an integer", what, quoted(word).c_str()));
    return *value;
  }
  // For members that are narrower; link_program checks the actual range.
  int narrow(std::string_view word, const char* what) const {
    const int64_t value = integer(word, what);
    if (value < 0 || value > kMaxCount) {
      bad(strf("%s %lld is out of range", what, static_cast<long long>(value)));
    }
    return static_cast<int>(value);
  }
};

bool is_identifier(std::string_view name) {
  if (name.empty() || name.size() > kMaxName || (name[0] >= '0' && name[0] <= '9')) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

// "@1024", "@1024|9216%0", "#64", "$1024".
Operand parse_operand(std::string_view word, const Place& place) {
  Operand operand;
  std::string_view rest = word.substr(1);
  if (word[0] == '#') {
    operand.kind = Operand::Kind::kConstant;
    operand.value = place.integer(rest, "constant");
  } else if (word[0] == '$') {
    operand.kind = Operand::Kind::kRtp;
    operand.value = place.integer(rest, "RTP address");
  } else if (word[0] == '@' && word.find('%') == std::string_view::npos) {
    operand.kind = Operand::Kind::kBuffer;
    operand.value = place.integer(rest, "buffer address");
  } else if (word[0] == '@') {
    operand.kind = Operand::Kind::kRotating;
    const size_t percent = rest.rfind('%');
    operand.counter = place.narrow(rest.substr(percent + 1), "counter");
    rest = rest.substr(0, percent);
    for (size_t at = 0; at <= rest.size();) {
      const size_t bar = std::min(rest.find('|', at), rest.size());
      operand.addresses.push_back(
          static_cast<uint32_t>(place.narrow(rest.substr(at, bar - at), "buffer address")));
      at = bar + 1;
    }
  } else {
    place.bad(strf("operand %s; use @address, @address|address%%counter, #constant or $address",
                   quoted(word).c_str()));
  }
  return operand;
}

class Parser {
 public:
  explicit Parser(std::string_view where) : where_(where) {}

  void line(std::string_view text, int number) {
    const std::vector<std::string_view> words = split_words(text);
    if (words.empty()) return;
    const Place place{where_, number};
    if (program.code.size() == kMaxInstructions) {
      place.bad(strf("more than %zu instructions", kMaxInstructions));
    }
    program.code.push_back(instruction(words, place));
    lines.push_back(number);
  }

  Program program;
  std::vector<int> lines;  // of each instruction

 private:
  static void expect(const std::vector<std::string_view>& words, size_t count, const char* form,
                     const Place& place) {
    if (words.size() != count) {
      place.bad(strf("expected \"%s\", found %zu words", form, words.size()));
    }
  }

  Instruction instruction(const std::vector<std::string_view>& words, const Place& place) {
    Instruction result;
    const std::string_view verb = words[0];
    if (verb == "loop") {
      expect(words, 2, "loop forever|COUNT|rtp:ADDRESS", place);
      loop(words[1], result, place);
    } else if (verb == "end") {
      expect(words, 1, "end", place);
      result.code = Code::kEnd;
    } else if (verb == "acquire_ge" || verb == "acquire_eq" || verb == "release") {
      expect(words, 3, "acquire_ge|acquire_eq|release LOCK N", place);
      result.code = verb == "acquire_ge"   ? Code::kAcquireGe
                    : verb == "acquire_eq" ? Code::kAcquireEq
                                           : Code::kRelease;
      result.lock = place.narrow(words[1], "lock");
      result.value = place.integer(words[2], "lock value");
    } else if (verb == "advance") {
      expect(words, 3, "advance COUNTER MODULUS", place);
      result.code = Code::kAdvance;
      result.lock = place.narrow(words[1], "counter");
      result.value = place.integer(words[2], "modulus");
    } else if (verb == "call") {
      call(words, result, place);
    } else {
      place.bad(
          strf("unknown instruction %s; use loop, end, acquire_ge, acquire_eq, release, "
               "call or advance",
               quoted(verb).c_str()));
    }
    return result;
  }

  static void loop(std::string_view count, Instruction& result, const Place& place) {
    if (count == "forever") {
      result.code = Code::kLoopForever;
    } else if (count.substr(0, 4) == "rtp:") {
      result.code = Code::kLoopRtp;
      result.value = place.integer(count.substr(4), "RTP address");
    } else {
      result.code = Code::kLoopCount;
      result.value = place.integer(count, "loop count");
    }
  }

  void call(const std::vector<std::string_view>& words, Instruction& result, const Place& place) {
    if (words.size() < 2) place.bad("expected \"call FUNCTION OPERAND...\"");
    if (!is_identifier(words[1])) {
      place.bad(strf("function name %s is not an identifier", quoted(words[1]).c_str()));
    }
    if (words.size() - 2 > kMaxOperands) {
      place.bad(strf("%zu operands, at most %zu are supported", words.size() - 2, kMaxOperands));
    }
    result.code = Code::kCall;
    std::vector<std::string>& names = program.functions;
    const auto found = std::find(names.begin(), names.end(), words[1]);
    result.function = static_cast<int>(found - names.begin());
    if (found == names.end()) {
      if (names.size() == kMaxFunctions) place.bad(strf("more than %zu functions", kMaxFunctions));
      names.emplace_back(words[1]);
    }
    for (size_t i = 2; i < words.size(); ++i) {
      result.operands.push_back(parse_operand(words[i], place));
    }
  }

  std::string_view where_;
};

std::string operand_text(const Operand& operand) {
  const long long value = operand.value;
  switch (operand.kind) {
    case Operand::Kind::kBuffer:
      return strf("@%lld", value);
    case Operand::Kind::kConstant:
      return strf("#%lld", value);
    case Operand::Kind::kRtp:
      return strf("$%lld", value);
    case Operand::Kind::kRotating:
      break;
  }
  std::string text = "@";
  for (size_t i = 0; i < operand.addresses.size(); ++i) {
    text += strf(i == 0 ? "%u" : "|%u", operand.addresses[i]);
  }
  return text + strf("%%%d", operand.counter);
}

std::string instruction_text(const Program& program, const Instruction& in) {
  const long long value = in.value;
  switch (in.code) {
    case Code::kLoopForever:
      return "loop forever";
    case Code::kLoopCount:
      return strf("loop %lld", value);
    case Code::kLoopRtp:
      return strf("loop rtp:%lld", value);
    case Code::kEnd:
      return "end";
    case Code::kAcquireGe:
      return strf("acquire_ge %d %lld", in.lock, value);
    case Code::kAcquireEq:
      return strf("acquire_eq %d %lld", in.lock, value);
    case Code::kRelease:
      return strf("release %d %lld", in.lock, value);
    case Code::kAdvance:
      return strf("advance %d %lld", in.lock, value);
    case Code::kCall:
      break;
  }
  const size_t function = static_cast<size_t>(in.function);
  std::string text =
      "call " + (function < program.functions.size() ? program.functions[function] : "?");
  for (const Operand& operand : in.operands) text += ' ' + operand_text(operand);
  return text;
}

bool is_loop(Code code) {
  return code == Code::kLoopForever || code == Code::kLoopCount || code == Code::kLoopRtp;
}

// The checks and links of one program. `lines` gives source lines where there is a source.
class Linker {
 public:
  Linker(Program& program, std::string_view where, const std::vector<int>* lines)
      : program_(program), where_(where), lines_(lines) {
    slots_.fill(kMaxSlots + 1);
  }

  void link() {
    if (program_.code.size() > kMaxInstructions || program_.functions.size() > kMaxFunctions) {
      fail(ErrorKind::kFormat,
           "[link_program] %.*s: %zu instructions and %zu functions; at most %zu and %zu are "
           "supported",
           static_cast<int>(where_.size()), where_.data(), program_.code.size(),
           program_.functions.size(), kMaxInstructions, kMaxFunctions);
    }
    program_.counters = 0;
    for (size_t i = 0; i < program_.code.size(); ++i) operands(i);
    for (size_t i = 0; i < program_.code.size(); ++i) step(i);
    if (!open_.empty()) bad(open_.back().at, "has no matching end");
  }

 private:
  struct Loop {
    size_t at;
    bool blocks;  // an acquire was seen inside
  };

  [[noreturn]] void bad(size_t at, const std::string& cause) const {
    const std::string place =
        lines_ != nullptr ? strf("line %d", (*lines_)[at]) : strf("instruction %zu", at);
    fail(ErrorKind::kFormat, "[link_program] %.*s, %s (%s): %s", static_cast<int>(where_.size()),
         where_.data(), place.c_str(), instruction_text(program_, program_.code[at]).c_str(),
         cause.c_str());
  }

  void range(size_t at, const char* what, int64_t value, int64_t low, int64_t high) const {
    if (value < low || value > high) {
      bad(at, strf("%s %lld is out of range %lld..%lld", what, static_cast<long long>(value),
                   static_cast<long long>(low), static_cast<long long>(high)));
    }
  }

  void use_counter(size_t at, int counter) {
    range(at, "counter", counter, 0, kMaxCounters - 1);
    program_.counters = std::max(program_.counters, counter + 1);
  }

  void rtp(size_t at, int64_t address) const {
    range(at, "RTP address", address, 0, memory_ - 4);
    if (address % 4 != 0) bad(at, "an RTP address is a multiple of 4");
  }

  // Ranges of a call's operands; remembers the fewest slots each counter chooses from.
  void operands(size_t at) {
    const Instruction& in = program_.code[at];
    if (in.code != Code::kCall) return;
    range(at, "function", in.function, 0, static_cast<int64_t>(program_.functions.size()) - 1);
    range(at, "operand count", static_cast<int64_t>(in.operands.size()), 0, kMaxOperands);
    for (const Operand& operand : in.operands) {
      switch (operand.kind) {
        case Operand::Kind::kBuffer:
          range(at, "buffer address", operand.value, 0, memory_ - 1);
          break;
        case Operand::Kind::kRtp:
          rtp(at, operand.value);
          break;
        case Operand::Kind::kConstant:  // an int32 or the bits of one
          range(at, "constant", operand.value, std::numeric_limits<int32_t>::min(),
                std::numeric_limits<uint32_t>::max());
          break;
        case Operand::Kind::kRotating: {
          const size_t count = operand.addresses.size();
          range(at, "number of slots", static_cast<int64_t>(count), 1, kMaxSlots);
          for (const uint32_t address : operand.addresses) {
            range(at, "buffer address", address, 0, memory_ - 1);
          }
          use_counter(at, operand.counter);
          size_t& fewest = slots_[static_cast<size_t>(operand.counter)];
          fewest = std::min(fewest, count);
          break;
        }
      }
    }
  }

  void step(size_t at) {
    Instruction& in = program_.code[at];
    in.target = -1;
    switch (in.code) {
      case Code::kLoopForever:
        break;
      case Code::kLoopCount:
        range(at, "loop count", in.value, 0, kMaxCount);
        break;
      case Code::kLoopRtp:
        rtp(at, in.value);
        break;
      case Code::kEnd:
        close(at);
        return;
      case Code::kAcquireGe:
      case Code::kRelease:
        lock(at, 1);
        break;
      case Code::kAcquireEq:
        lock(at, 0);
        break;
      case Code::kCall:
        break;
      case Code::kAdvance:
        advance(at);
        break;
    }
    if (is_loop(in.code)) {
      if (open_.size() == kMaxNesting) bad(at, strf("loops nest deeper than %zu", kMaxNesting));
      open_.push_back({at, false});
    }
    if ((in.code == Code::kAcquireGe || in.code == Code::kAcquireEq) && !open_.empty()) {
      open_.back().blocks = true;
    }
  }

  void close(size_t at) {
    if (open_.empty()) bad(at, "closes no loop");
    const Loop loop = open_.back();
    open_.pop_back();
    Instruction& start = program_.code[loop.at];
    if (start.code == Code::kLoopForever && !loop.blocks) {
      bad(loop.at, "an infinite loop without an acquire can never wait; the core would spin");
    }
    start.target = static_cast<int>(at);
    program_.code[at].target = static_cast<int>(loop.at);
    // A loop of no iterations blocks nothing around it.
    const bool skipped = start.code == Code::kLoopCount && start.value == 0;
    if (!open_.empty() && loop.blocks && !skipped) open_.back().blocks = true;
  }

  void lock(size_t at, int64_t min_value) const {
    const Instruction& in = program_.code[at];
    const int locks = arch::tile_geometry(arch::TileKind::kCore).locks;
    if (in.lock < 0 || in.lock >= locks) {
      bad(at, strf("lock %d is out of range; a program names its own tile's locks 0..%d", in.lock,
                   locks - 1));
    }
    range(at, "lock value", in.value, min_value, arch::kMaxLockValue);
  }

  void advance(size_t at) {
    const Instruction& in = program_.code[at];
    use_counter(at, in.lock);
    range(at, "modulus", in.value, 1, kMaxSlots);
    const size_t min_slots = slots_[static_cast<size_t>(in.lock)];
    if (static_cast<size_t>(in.value) > min_slots) {
      bad(at,
          strf("counter %d chooses between %zu slots in a call; the modulus may not exceed that",
               in.lock, min_slots));
    }
  }

  Program& program_;
  std::string_view where_;
  const std::vector<int>* lines_;
  std::vector<Loop> open_;
  std::array<size_t, kMaxCounters> slots_;
  const int64_t memory_ = arch::tile_geometry(arch::TileKind::kCore).memory_bytes;
};

}  // namespace

Program parse_program(std::string_view text, std::string_view where, int first_line) {
  Parser parser(where);
  int number = first_line;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    parser.line(text.substr(0, end), number++);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  Linker(parser.program, where, &parser.lines).link();
  return std::move(parser.program);
}

std::string print_program(const Program& program) {
  std::string text;
  size_t depth = 0;
  for (const Instruction& in : program.code) {
    if (in.code == Code::kEnd && depth > 0) --depth;
    text += std::string(2 * depth, ' ') + instruction_text(program, in) + '\n';
    if (is_loop(in.code)) ++depth;
  }
  return text;
}

void link_program(Program& program, std::string_view where) {
  Linker(program, where, nullptr).link();
}

}  // namespace npu
