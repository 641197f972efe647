// Which recorded runs are kept (devices/emulator/replay/recordings.h). Asserts that they take no
// more memory than they may; that those used least recently leave a full memory, of one stream
// those that no run comes back to; that they leave with their configuration; that a stream that was
// not recorded for lack of memory, or because its arguments shared some, is recorded later; that
// the memory of a large one that has left serves the next one.
#include "replay_fixture.h"

using namespace npu;
using namespace npu::test;

TEST_SUITE_BEGIN("columns");  // which ThreadSanitizer runs

TEST_CASE("recordings take no more memory than they may, and give it back") {
  const auto memory = std::make_shared<ReplayMemory>();
  Design design;
  {
    Prepared stream(2, memory);
    for (uint32_t i = 0; i < 4; ++i) {
      Data data(2, i);
      run(design, stream, data);
    }
    CHECK(memory->bytes() > 0);
  }
  CHECK(memory->bytes() == 0);
  memory->limit(1000);
  Prepared stream(2, memory);
  for (uint32_t i = 0; i < 4; ++i) {
    Data data(2, i);
    CHECK(!run(design, stream, data));
  }
  CHECK(memory->bytes() == 0);

  memory->limit(size_t{1} << 20);  // the next attempt comes after twice as many runs each time
  int until = 0;
  for (Data data(2, 1); !run(design, stream, data); ++until) REQUIRE(until < 10);
  CHECK(memory->bytes() > 0);
}

TEST_CASE("a run whose result lies in what it reads is no reason not to record the next one") {
  Design design;
  const auto memory = std::make_shared<ReplayMemory>();
  Prepared stream(2, memory);
  Data data(2, 7);
  for (int i = 0; i < 3; ++i) {
    design.m.array.begin(stream.parsed,
                         std::vector{view(data.in, false), view(data.in), view(data.east)},
                         &stream.recordings);
    CHECK(design.m.array.resume(Array::Deadline::max()));
  }
  CHECK(memory->bytes() == 0);
  int until = 0;
  for (; !run(design, stream, data); ++until) REQUIRE(until < 10);
}

TEST_CASE("recordings that no run comes back to make place for the next ones of their stream") {
  Design design(SteeredBy::kData);
  const auto memory = std::make_shared<ReplayMemory>();
  Prepared stream(2, memory);
  const auto replays = [&](uint32_t count) {
    Data data = steering(2, count, count);
    return run(design, stream, data);
  };
  for (int i = 0; i < 3; ++i) CHECK(replays(512) == (i >= 2));
  size_t full = 0;
  for (uint32_t count = 4; count < 404; count += 4) {  // as keys of attention grow
    CHECK(!replays(count));
    full = std::max(full, memory->bytes());
  }
  CHECK(full < 20 * memory->bytes() / Recordings::kMost);
  int until = 0;
  for (; !replays(408); ++until) REQUIRE(until < 70);
  CHECK(replays(408));
  CHECK(replays(512));  // has been repeated
}

TEST_CASE("a stream whose data change before its runs are repeated is recorded soon after") {
  Design design;
  Prepared stream(2, std::make_shared<ReplayMemory>());
  std::vector<size_t> steps;  // of a dimension that its BDs do not use
  for (const stream::Operation& o : stream.parsed.operations()) {
    if (o.opcode == stream::Opcode::kBlockWrite) {
      steps.push_back(static_cast<size_t>(o.data.data() - stream.parsed.words().data()) + 5);
    }
  }
  REQUIRE(steps.size() == 3);
  const auto replays = [&] {
    Data data(2, 1);
    return run(design, stream, data);
  };
  for (int i = 0; i < 3; ++i) replays();
  for (uint32_t step = 1; step <= 3; ++step) {
    std::vector<StreamPatch> patches;
    for (const size_t word : steps) patches.push_back({word, step});
    stream.recordings.patch(stream.parsed, patches);
    CHECK(!replays());
  }
  int until = 0;
  for (; !replays(); ++until) REQUIRE(until < 8);
  stream.recordings.patch(stream.parsed, std::vector<StreamPatch>{{steps[0], 7}});
  CHECK(!replays());
  CHECK(replays());  // the first run of other data
}

TEST_CASE("recordings of a configuration leave with it, and come ever later if none was repeated") {
  Design design;
  const auto memory = std::make_shared<ReplayMemory>();
  Prepared stream(2, memory);
  Data data(2, 1);
  for (int i = 0; i < 2; ++i) run(design, stream, data);
  const size_t one = memory->bytes();
  CHECK(one > 0);
  for (int i = 1; i <= 12; ++i) {
    CAPTURE(i);
    design.configure();
    CHECK(!run(design, stream, data));
    CHECK(memory->bytes() <= one + one / 2);
    CHECK((memory->bytes() > 0) == (i == 4 || i == 12));  // after 4 runs, then after 8
  }
}

TEST_CASE("recordings that are used least recently leave a full memory") {
  Design design;
  const auto memory = std::make_shared<ReplayMemory>();
  Prepared small(2, memory), large(4, memory), other(2, memory), vast(6, memory);
  const auto replays = [&](Prepared& stream) {
    Data data(stream.objects, 11), expected(stream.objects, 11);
    const bool replayed = run(design, stream, data);
    design.m.array.begin(stream.parsed, expected.arguments());
    CHECK(design.m.array.resume(Array::Deadline::max()));
    CHECK(data == expected);
    return replayed;
  };
  const auto record = [&](Prepared& stream, int runs = 2) {
    const size_t before = memory->bytes();
    for (int i = 0; i < runs; ++i) CHECK(!replays(stream));
    return memory->bytes() - before;
  };
  const size_t of_small = record(small), of_large = record(large), full = memory->bytes();
  CHECK(of_small > 0);
  CHECK(of_large > of_small);
  memory->limit(full);
  CHECK(replays(small));
  record(other);  // in the place of `large`
  CHECK(memory->bytes() == 2 * of_small);
  CHECK(replays(small));
  CHECK(replays(other));

  record(large, 4);  // has left without a replay: after twice as many runs
  CHECK(memory->bytes() == of_small + of_large);
  CHECK(replays(large));
  CHECK(replays(other));
  record(small);  // has been replayed
  CHECK(replays(small));
  CHECK(replays(other));

  memory->limit(of_large);
  record(vast);  // more than the limit: nothing leaves for it
  CHECK(!replays(vast));
  CHECK(replays(small));
  CHECK(replays(other));
}

TEST_CASE("a large recording that leaves has its memory used by the next one") {
  constexpr uint32_t kObjects = 6000;
  Design design, plain;
  const auto memory = std::make_shared<ReplayMemory>();
  const auto recorded = [&](uint32_t objects, uint32_t seed) {
    auto stream = std::make_unique<Prepared>(objects, memory);
    for (uint32_t i = 0; i < 3; ++i) {
      Data data(objects, seed + i), expected(objects, seed + i);
      CHECK(run(design, *stream, data) == (i == 2));
      run_plainly(plain, *stream, expected.arguments());
      CHECK(data == expected);
    }
    return stream;
  };
  const auto small = recorded(2, 1);
  const size_t before = memory->bytes();
  auto large = recorded(kObjects, 2);
  const size_t both = memory->bytes();
  REQUIRE(both > before + ReplayMemory::kLeastSpare);
  large.reset();
  const size_t kept = memory->bytes();
  CHECK(kept > before + ReplayMemory::kLeastSpare);
  CHECK(kept < both);
  large = recorded(kObjects, 3);
  CHECK(memory->bytes() == both);
  large.reset();
  CHECK(memory->bytes() == kept);
  const size_t most = 2 * before + before / 2;
  memory->limit(most);  // what is kept makes room
  const auto other = recorded(2, 4);
  CHECK(memory->bytes() > before);
  CHECK(memory->bytes() <= most);
  memory->limit(ReplayMemory::kMost);
  large = recorded(kObjects, 5);
  memory->limit(4 * before);
  for (Prepared* const used : {small.get(), other.get()}) {
    Data data(2, 1);
    CHECK(run(design, *used, data));
  }
  const auto next = recorded(2, 6);  // for which the large one leaves
  CHECK(memory->bytes() <= 4 * before);
}

TEST_CASE("a large recording leaves while it is repeated, and all memory with the last stream") {
  constexpr uint32_t kObjects = 6000;
  Design design, plain;
  const auto memory = std::make_shared<ReplayMemory>();
  const Prepared stream(kObjects, memory);
  {
    auto recordings = std::make_unique<Recordings>(memory, stream.parsed);
    const auto begin = [&](Data& data) {
      design.m.array.begin(stream.parsed, data.arguments(), recordings.get());
      return design.m.array.replaying();
    };
    const auto end = [&] { CHECK(design.m.array.resume(Array::Deadline::max())); };
    const auto record = [&] {
      for (uint32_t i = 0; i < 2; ++i) {
        Data data(kObjects, i);
        CHECK(!begin(data));
        end();
      }
      CHECK(memory->bytes() > ReplayMemory::kLeastSpare);
    };
    record();
    Data data(kObjects, 7), expected(kObjects, 7);
    REQUIRE(begin(data));
    run_plainly(plain, stream, expected.arguments());
    recordings = std::make_unique<Recordings>(memory, stream.parsed);
    CHECK(memory->bytes() == 0);  // the run has it
    end();
    CHECK(data == expected);
    record();
  }
  CHECK(memory->bytes() > ReplayMemory::kLeastSpare);  // for the stream that is left
}

TEST_CASE("memory that is kept for recordings leaves with the last stream") {
  constexpr uint32_t kObjects = 6000;
  Design design;
  const auto memory = std::make_shared<ReplayMemory>();
  {
    Prepared stream(kObjects, memory);
    for (uint32_t i = 0; i < 2; ++i) {
      Data data(kObjects, i);
      run(design, stream, data);
    }
    CHECK(memory->bytes() > ReplayMemory::kLeastSpare);
  }
  CHECK(memory->bytes() == 0);
}

TEST_SUITE_END();
