// Recorded runs beside each other (devices/emulator/replay/joint_replay.h). Asserts, against an
// array that executes every run at register level, that each has its results and report, whatever
// streams and arguments are mixed, and the array the state of the first; that calls which read the
// same bytes are made together, and others not; which runs cannot join; that kernels that fail, and
// deadlines, end or pause all of them.
#include <stdexcept>

#include "host/thread_pool.h"
#include "replay_fixture.h"

using namespace npu;
using namespace npu::test;

TEST_SUITE_BEGIN("columns");  // which ThreadSanitizer runs

namespace {

constexpr size_t kMost = 8;

// Of one design, which has recorded both of its streams.
struct Recorded {
  // whole: objects reach the cores as they lie in the argument, where they are read then.
  explicit Recorded(bool whole = false)
      : design(SteeredBy::kStream, whole),
        plain(SteeredBy::kStream, whole),
        three(3, memory, whole ? Design::started(3, 1) : Design::stream(3)),
        two(2, memory, whole ? Design::started(2, 1) : Design::stream(2)) {
    for (Prepared* stream : {&three, &two}) {
      for (uint32_t i = 0; i < 3; ++i) {
        Data data(3, i);
        CHECK(run(design, *stream, data) == (i == 2));
        run_plainly(plain, *stream, data.arguments());
      }
    }
  }
  std::optional<RunReport> join(Prepared& stream, Data& data) {
    return design.m.array.join(data.arguments(), stream.recordings);
  }
  bool resume() { return design.m.array.resume(Array::Deadline::max()); }

  std::shared_ptr<ReplayMemory> memory = std::make_shared<ReplayMemory>();
  Design design, plain;
  Prepared three, two;
};

}  // namespace

TEST_CASE("joint replays: each run has its results, the array the state of the first") {
  for (const bool whole : {false, true}) {
    CAPTURE(whole);
    Recorded all(whole);
    Array& array = all.design.m.array;
    for (uint32_t count = 1; count <= kMost; ++count) {
      CAPTURE(count);
      // Streams in turn, and every other run reads what the first one reads.
      std::vector<Data> data, expected;
      for (uint32_t i = 0; i < count; ++i) {
        data.emplace_back(3, 10 * count + i);
        expected.emplace_back(3, 10 * count + i);
      }
      const auto arguments = [&](std::vector<Data>& of, uint32_t i) {
        std::vector<emulator::Argument> out = of[i].arguments();
        if (i % 4 >= 2) out[0] = of[0].arguments()[0];
        return out;
      };
      const auto stream = [&](uint32_t i) -> Prepared& {
        return (i + count) % 2 == 0 ? all.three : all.two;
      };
      joined = 0;
      array.begin(stream(0).parsed, arguments(data, 0), &stream(0).recordings);
      CHECK(array.replaying());
      for (uint32_t i = 1; i < count; ++i) {
        CHECK(array.joinable());
        const std::optional<RunReport> report =
            array.join(arguments(data, i), stream(i).recordings);
        REQUIRE(report.has_value());
        run_plainly(all.plain, stream(i), arguments(expected, i));
        CHECK(same_report(*report, all.plain.m.array.report()));
      }
      CHECK(array.joinable() == (count < kMost));
      CHECK(all.resume());
      run_plainly(all.plain, stream(0), arguments(expected, 0));
      CHECK(data == expected);
      CHECK(same_report(array.report(), all.plain.m.array.report()));
      CHECK(!array.replaying());
      CHECK((joined > 0) == (whole && count > 2));  // the third one reads what the first one reads
      Data again(3, 7), once(3, 7);
      CHECK(run(all.design, all.three, again));
      run_plainly(all.plain, all.three, once.arguments());
      CHECK(again == once);
      CHECK(state(all.design.m) == state(all.plain.m));
    }
  }
}

TEST_CASE("joint replays: whatever number of threads there are") {
  for (const int threads : {1, 2, 3, 16}) {
    CAPTURE(threads);
    ThreadPool::set_shared_threads(threads);
    Recorded all;
    std::vector<Data> data, expected;
    for (uint32_t i = 0; i < 5; ++i) {
      data.emplace_back(3, i);
      expected.emplace_back(3, i);
      run_plainly(all.plain, all.three, expected[i].arguments());
    }
    all.design.m.array.begin(all.three.parsed, data[0].arguments(), &all.three.recordings);
    for (uint32_t i = 1; i < 5; ++i) CHECK(all.join(all.three, data[i]));
    CHECK(all.resume());
    CHECK(data == expected);
  }
  ThreadPool::set_shared_threads(0);
}

TEST_CASE("joint replays: runs that are not recorded, or come too late, do not join") {
  Recorded all;
  Array& array = all.design.m.array;
  Data first(3, 1), second(3, 2), untouched(3, 2);
  CHECK(!array.joinable());
  CHECK(!all.join(all.three, second));  // nothing runs

  Prepared fresh(3, all.memory);
  array.begin(all.three.parsed, first.arguments(), &all.three.recordings);
  CHECK(!all.join(fresh, second));
  CHECK(array.joinable());
  CHECK(!array.resume(Array::Deadline::min()));  // it goes on now
  CHECK(!array.joinable());
  CHECK(!all.join(all.three, second));
  CHECK(all.resume());

  array.begin(fresh.parsed, first.arguments(), &fresh.recordings);  // at register level
  CHECK(!array.joinable());
  CHECK(!all.join(all.three, second));
  CHECK(all.resume());
  CHECK(second == untouched);
}

TEST_CASE("joint replays: a stream may be patched while a replay of it waits") {
  Design design, plain;
  Prepared stream(3, std::make_shared<ReplayMemory>());
  const ArgumentRange moving[] = {{1}};  // results lie elsewhere
  stream.recordings.expect_repeats(moving);
  std::vector<size_t> offsets;  // of address patches: one for each argument
  for (const stream::Stream::Range& range : stream.parsed.patchable()) {
    if (range.count == 2) offsets.push_back(range.first);  // low and high half
  }
  REQUIRE(offsets.size() == 3);
  std::vector<Data> data, expected;
  for (uint32_t i = 0; i < 3; ++i) {
    expected.emplace_back(3, i);
    run_plainly(plain, stream, expected[i].arguments());
    data.emplace_back(3, i);
    data[i].out.resize(3 * kWords);
  }
  CHECK(!run(design, stream, data[0]));
  const auto place = [&](uint32_t number) {
    const StreamPatch patch[] = {{offsets[1], 4 * kWords * number}};
    stream.recordings.patch(stream.parsed, patch);
  };
  design.m.array.begin(stream.parsed, data[0].arguments(), &stream.recordings);
  CHECK(design.m.array.replaying());
  for (uint32_t i = 1; i < 3; ++i) {
    place(i);
    CHECK(design.m.array.join(data[i].arguments(), stream.recordings));
  }
  CHECK(design.m.array.resume(Array::Deadline::max()));
  for (uint32_t i = 0; i < 3; ++i) {
    Words wanted(3 * kWords);
    std::ranges::copy(expected[i].out, wanted.begin() + i * kWords);
    CHECK(data[i].out == wanted);
    CHECK(data[i].east == expected[i].east);
  }
}

TEST_CASE("joint replays: data that steer are compared; what runs left in cores is not there") {
  Design design(SteeredBy::kData);
  Prepared stream(2, std::make_shared<ReplayMemory>());
  for (uint32_t i = 0; i < 3; ++i) {
    Data data = steering(2, 512, i);
    CHECK(run(design, stream, data) == (i == 2));
  }
  Data first = steering(2, 512, 5), same = steering(2, 512, 6), other = steering(2, 256, 7);
  design.m.array.begin(stream.parsed, first.arguments(), &stream.recordings);
  CHECK(design.m.array.replaying());
  CHECK(design.m.array.join(same.arguments(), stream.recordings));
  CHECK(!design.m.array.join(other.arguments(), stream.recordings));
  CHECK(design.m.array.resume(Array::Deadline::max()));
  Data expected = steering(2, 512, 6);
  CHECK(run(design, stream, expected));
  CHECK(same == expected);

  Recorded all;
  Prepared relies(2, all.memory, false);  // on the bound that an earlier run has left
  Data data(2, 1);
  run(all.design, all.two, data);
  for (int i = 0; i < 3; ++i) CHECK(run(all.design, relies, data) == (i == 2));
  all.design.m.array.begin(all.two.parsed, data.arguments(), &all.two.recordings);
  Data second(2, 2);
  CHECK(!all.join(relies, second));
  CHECK(all.resume());
}

TEST_CASE("joint replays: a kernel that fails and Ctrl-C end all of them, a deadline pauses them") {
  for (const auto& [told_to_fail, whole] : {std::pair{true, false}, {true, true}, {false, true}}) {
    CAPTURE(whole);
    Recorded all(whole);
    Array& array = all.design.m.array;
    Data first(3, 1), second(3, 2), expected(3, 1);
    run_plainly(all.plain, all.three, expected.arguments());
    const auto begin = [&] {
      array.begin(all.three.parsed, first.arguments(), &all.three.recordings);
      std::vector<emulator::Argument> arguments = second.arguments();
      arguments[0] = first.arguments()[0];
      CHECK(array.join(arguments, all.three.recordings));
    };
    begin();
    CHECK(!array.resume(std::chrono::steady_clock::now()));
    CHECK(second.out == Words(kWords));
    CHECK(all.resume());
    CHECK(second == expected);

    begin();
    if (told_to_fail) {
      fails = true;
      check_error(ErrorKind::kKernel, {"was told to fail"}, [&] { all.resume(); });
    } else {
      array.set_interrupt([] { throw std::runtime_error("Ctrl-C"); });
      CHECK_THROWS_WITH(all.resume(), "Ctrl-C");
      array.set_interrupt({});
    }
    check_error(ErrorKind::kArgument, {"configure"}, begin);
    all.design.configure();
    for (int i = 0; i < 4; ++i) run(all.design, all.three, first);
    begin();
    CHECK(all.resume());
    CHECK(second == expected);
  }
}

TEST_SUITE_END();
