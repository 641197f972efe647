// Entry point of the C++ tests: run `npu_tests --help` for filters.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
