// Stand-in for XRT's C++ API over the emulator (../../control.h says what it is stricter in). What
// the library exports.
#pragma once

#define XRT_API_EXPORT __attribute__((visibility("default")))
