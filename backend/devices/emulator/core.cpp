// What all cores share (core.h).
#include "devices/emulator/core.h"

#include "devices/emulator/array.h"

namespace npu::emulator {

void Core::error(ErrorKind kind, const std::string& text) const {
  fail(kind, "[%s] %s %s", array_.function(), name().c_str(), text.c_str());
}

}  // namespace npu::emulator
