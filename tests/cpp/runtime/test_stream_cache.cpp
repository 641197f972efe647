// Prepared streams that are kept (runtime/stream_cache.h): the least recently used go first when
// the budget is exceeded, and a value counts as what it was when it came, whatever it takes later.
#include <doctest/doctest.h>

#include <memory>

#include "runtime/stream_cache.h"

namespace {

struct Value {
  size_t size;
  size_t bytes() const { return size; }
};

struct Cache {
  npu::StreamCache<int, Value> values{100};

  std::shared_ptr<Value> add(int key, size_t bytes) {
    auto made = std::make_shared<Value>(Value{bytes});
    values.get(key, [&] { return made; });
    return made;
  }
  bool has(int key) {
    const auto built = values.built();
    values.get(key, [] { return std::make_shared<Value>(Value{0}); });
    return values.built() == built;
  }
};

}  // namespace

TEST_CASE("stream cache: the least recently used go when the budget is exceeded") {
  Cache cache;
  for (int key = 0; key < 3; ++key) cache.add(key, 30);
  REQUIRE(cache.has(0));
  cache.add(3, 30);
  CHECK(cache.has(0));
  CHECK(cache.has(2));
  CHECK(cache.has(3));
  CHECK_FALSE(cache.has(1));
  cache.add(4, 1000);  // the newest stays, however large
  CHECK(cache.has(4));
}

TEST_CASE("stream cache: values that grow or shrink leave the sum right") {
  for (const size_t later : {size_t{5}, size_t{60}}) {
    CAPTURE(later);
    Cache cache;
    const auto changed = cache.add(0, 30);
    changed->size = later;
    for (int key = 1; key < 4; ++key) cache.add(key, 30);
    REQUIRE_FALSE(cache.has(0));
    // 90 bytes are left, those of 1, 2 and 3; has() added none.
    for (int key = 1; key < 4; ++key) CHECK(cache.has(key));
    cache.add(4, 30);
    CHECK_FALSE(cache.has(1));
    for (int key = 2; key < 5; ++key) CHECK(cache.has(key));
  }
}
