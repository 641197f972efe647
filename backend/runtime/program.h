// Worker programs: the control loop of one core. They exist once and have two readers: the emulator
// interprets them (devices/emulator/core.cpp), the MLIR emitter of designs/ prints them.
//
// Text form, one instruction a line (inside a configuration, runtime/configuration.h):
//   loop forever | loop 12 | loop rtp:1024      ... end
//   acquire_ge LOCK N | acquire_eq LOCK N | release LOCK N       lock ids are the tile's own (0-15)
//   call FUNCTION OPERAND...     @1024 buffer address, @1024|9216%0 slot chosen by counter 0,
//                                #64 constant, $1024 the int32 at that address, read at the call
//   advance COUNTER MODULUS      counter = (counter + 1) % modulus
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace npu {

struct Operand {
  enum class Kind : uint8_t { kBuffer, kRotating, kConstant, kRtp };
  Kind kind = Kind::kConstant;
  int64_t value = 0;                // buffer/RTP address or constant
  std::vector<uint32_t> addresses;  // kRotating: one per slot
  int counter = 0;                  // kRotating
};

struct Instruction {
  enum class Code : uint8_t {
    kLoopForever,
    kLoopCount,  // value = count
    kLoopRtp,    // value = address of an int32
    kEnd,
    kAcquireGe,  // lock, value
    kAcquireEq,
    kRelease,
    kCall,     // function, operands
    kAdvance,  // lock = counter, value = modulus
  };
  Code code = Code::kEnd;
  int lock = 0;
  int64_t value = 0;
  int function = -1;  // index into Program::functions
  int target = -1;    // loops: index of the matching end; end: index of its loop
  std::vector<Operand> operands;
};

struct Program {
  std::vector<Instruction> code;
  std::vector<std::string> functions;
  int counters = 0;
};

// Parses and links the text form; `where` names the program in errors (Error(kFormat)),
// `first_line` is the number of the text's first line in the file it comes from.
Program parse_program(std::string_view text, std::string_view where, int first_line = 1);
std::string print_program(const Program& program);
// Sets Instruction::target, checks nesting, lock ids, counters and that every infinite loop can
// block; throws Error(kFormat).
void link_program(Program& program, std::string_view where);

}  // namespace npu
